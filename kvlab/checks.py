"""One clear message for wrong input: what was given, what is allowed, and the nearest name that exists."""

import difflib
from collections.abc import Iterable


def unknown_name(what: str, name: object, known: Iterable[str], hint: str = "") -> ValueError:
    """A ValueError to raise: names `what`, the wrong `name`, what is known and, if there is one, the nearest to it."""
    allowed = sorted(known)
    near = difflib.get_close_matches(str(name), allowed, n=1)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    return ValueError(f"{what} {name!r} is unknown; known: {', '.join(allowed)}.{guess}{hint}")


def checked_int(name: str, value: object, at_least: int) -> int:
    """`value` if it is an int (no bool) >= `at_least`, else ValueError naming it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} must be an int >= {at_least}, got {value!r}")
    return value
