"""One file an exercise: exactly the text that could stand in its cell."""
