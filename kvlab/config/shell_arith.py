"""The integer arithmetic of `$((...))`, evaluated without a shell.

Operators and binding strengths are those of bash: 64-bit signed, division and remainder cut towards zero, `**` binds
to the right and weaker than unary minus (`-2**2` is 4), a leading 0 means octal. Left out: assignments, `++`, `--`,
commas, arrays.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

_TOKEN = re.compile(
    r"\s*(\d+#[0-9a-zA-Z]+|0[xX][0-9a-fA-F]+|\d\w*|[A-Za-z_]\w*|\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>&|^!~?:()])"
)
_LIMIT = 2**63


class ShellArithmeticError(ValueError):
    """The expression cannot be evaluated; the text says why."""


def _divide(a: int, b: int) -> int:
    if b == 0:
        raise ShellArithmeticError("division by zero")
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _power(a: int, b: int) -> int:
    if b < 0:
        raise ShellArithmeticError(f"exponent {b} is negative")
    if b > 64 and abs(a) > 1:
        raise ShellArithmeticError(f"{a}**{b} does not fit in 64 bits")
    return int(a**b)


def _shift(by: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def checked(a: int, b: int) -> int:
        if not 0 <= b < 64:
            raise ShellArithmeticError(f"a shift by {b} is outside 0 to 63")
        return by(a, b)

    return checked


_BINARY: dict[str, tuple[int, Callable[[int, int], int]]] = {
    "||": (1, lambda a, b: int(bool(a or b))),
    "&&": (2, lambda a, b: int(bool(a and b))),
    "|": (3, operator.or_),
    "^": (4, operator.xor),
    "&": (5, operator.and_),
    "==": (6, lambda a, b: int(a == b)),
    "!=": (6, lambda a, b: int(a != b)),
    "<": (7, lambda a, b: int(a < b)),
    ">": (7, lambda a, b: int(a > b)),
    "<=": (7, lambda a, b: int(a <= b)),
    ">=": (7, lambda a, b: int(a >= b)),
    "<<": (8, _shift(operator.lshift)),
    ">>": (8, _shift(operator.rshift)),
    "+": (9, operator.add),
    "-": (9, operator.sub),
    "*": (10, operator.mul),
    "/": (10, _divide),
    "%": (10, lambda a, b: a - b * _divide(a, b)),
    "**": (11, _power),
}
_UNARY: dict[str, Callable[[int], int]] = {
    "-": operator.neg, "+": operator.pos, "!": lambda a: int(not a), "~": operator.invert,
}  # fmt: skip


def parse_integer(text: str) -> int:
    """A bash integer: decimal, 0x.., octal with a leading 0, or BASE#DIGITS (base 2 to 36). ValueError otherwise."""
    if "#" in text:
        base, digits = text.split("#", 1)
        return int(digits, int(base))
    if text[:2].lower() == "0x":
        return int(text, 16)
    return int(text, 8) if len(text) > 1 and text.startswith("0") else int(text)


def evaluate(expression: str, variable: Callable[[str], int]) -> int:
    """The value of `expression`; `variable(name)` gives the integer a name stands for. Raises ShellArithmeticError."""
    return _Parser(expression, variable).value()


class _Parser:
    def __init__(self, expression: str, variable: Callable[[str], int]) -> None:
        self._variable = variable
        self._tokens: list[str] = []
        at = 0
        text = expression.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise ShellArithmeticError(f"{text[at:].strip()[:20]!r} is not understood in arithmetic")
            self._tokens.append(match.group(1))
            at = match.end()
        self._tokens.append("")
        self._at = 0

    def value(self) -> int:
        result = self._ternary()
        if self._peek:
            raise ShellArithmeticError(f"{self._peek!r} is not understood in arithmetic")
        return result

    @property
    def _peek(self) -> str:
        return self._tokens[self._at]

    def _take(self, expected: str = "") -> str:
        token = self._peek
        if not token or (expected and token != expected):
            raise ShellArithmeticError(f"{expected or 'a number'!r} is missing in arithmetic")
        self._at += 1
        return token

    def _ternary(self) -> int:
        condition = self._binary(1)
        if self._peek != "?":
            return condition
        self._take()
        if_true = self._ternary()
        self._take(":")
        if_false = self._ternary()
        return if_true if condition else if_false

    def _binary(self, at_least: int) -> int:
        left = self._unary()
        while self._peek in _BINARY and _BINARY[self._peek][0] >= at_least:
            strength, apply = _BINARY[self._take()]
            right = self._binary(strength if apply is _power else strength + 1)
            left = _in_range(apply(left, right))
        return left

    def _unary(self) -> int:
        if self._peek in _UNARY:
            return _in_range(_UNARY[self._take()](self._unary()))
        token = self._take()
        if token == "(":
            result = self._ternary()
            self._take(")")
            return result
        if token[0].isdigit():
            try:
                return _in_range(parse_integer(token))
            except ValueError:
                raise ShellArithmeticError(f"{token!r} is not a whole number") from None
        if token[0].isalpha() or token[0] == "_":
            return self._variable(token)
        raise ShellArithmeticError(f"{token!r} stands where a number is expected")


def _in_range(value: int) -> int:
    if not -_LIMIT <= value < _LIMIT:
        raise ShellArithmeticError(f"{value} does not fit in 64 bits")
    return value
