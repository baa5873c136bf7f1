"""kvlab inside other programs. Each integration imports its program only when it is asked for something."""
