"""`${VAR:-x}`, `$((...))` and `$'...'`: the longer expansions of a shell word."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvlab.config.shell_arith import ShellArithmeticError, evaluate, parse_integer
from kvlab.config.source import Origin, Piece, SourceText

if TYPE_CHECKING:
    from kvlab.config.shell_words import Expander

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DOUBLE_QUOTED_ESCAPES = '$`"\\'

_OPERATOR = re.compile(r":?[-+?]|")
_ANSI_C = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}
_ANSI_C_NUMBER = re.compile(r"x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})")


def braced(words: Expander, at: int, end: int, quoted: bool) -> tuple[SourceText, int]:
    """`${...}` at `at`: its text, and the offset after it."""
    name = NAME.match(words.source, at + 2)
    after = name.end() if name else at + 2
    operator = _OPERATOR.match(words.source, after)
    assert operator is not None
    op, start = operator.group(), operator.end()
    if name is None or (not op and words.source[start : start + 1] != "}"):
        shown = words.source[at : words.source.find("}", at) + 1] or words.source[at : at + 20]
        words.fail(at, f"{shown} is not understood; known: ${{VAR}}, ${{VAR:-x}}, ${{VAR-x}}, ${{VAR:+x}}", shown)
    word, close = _braced_word(words, start, end, quoted)
    variable = words.variables.get(name.group())
    is_set = variable is not None and (bool(variable.value) or not op.startswith(":"))
    if op.endswith("+"):
        return (word if is_set else SourceText()), close
    if op.endswith("?") and not is_set:
        words.fail(at, f"${{{name.group()}}} is not set: {word}", name.group())
    if op and not is_set:
        return word, close
    return words.value(name.group(), at), close


def _braced_word(words: Expander, at: int, end: int, quoted: bool) -> tuple[SourceText, int]:
    parts: list[SourceText] = []
    while at < end and words.source[at] != "}":
        char = words.source[at]
        if quoted and char == '"':
            text, close = words.quoted(at + 1, end, DOUBLE_QUOTED_ESCAPES, stop='"')
            parts.append(text)
            at = close + 1
        elif quoted and char in "$`":
            text, at = words.expansion(at, end, quoted=True)
            parts.append(text)
        elif quoted and char == "\\" and words.source[at + 1 : at + 2] in tuple(DOUBLE_QUOTED_ESCAPES + "}"):
            parts.append(words.literal(at + 1, at + 2))
            at += 2
        elif quoted or char in " \t":
            parts.append(words.literal(at, at + 1))
            at += 1
        else:
            brace = words.source.find("}", at, end)
            found, at = words.unquoted_part(at, end if brace < 0 or char in "'\"\\$`" else brace)
            parts += [fragment.text for fragment in found]
    if at >= end:
        words.fail(at - 1, "${ is never closed by }", "${")
    return SourceText.join(parts), at + 1


def arithmetic(words: Expander, at: int, end: int) -> tuple[SourceText, int]:
    """`$((...))` at `at`: its value as text, and the offset after it."""
    depth, close = 0, at + 1
    while close < end:
        depth += {"(": 1, ")": -1}.get(words.source[close], 0)
        close += 1
        if depth == 0:
            break
    if depth or words.source[close - 2 : close] != "))":
        words.fail(at, "$(( is never closed by ))", "$((")
    shown = words.source[at + 3 : close - 2].strip()
    text, _ = words.quoted(at + 3, close - 2, DOUBLE_QUOTED_ESCAPES)
    try:
        value = evaluate(str(text).replace('"', ""), lambda name: _integer(words, name, at))
    except ShellArithmeticError as error:
        through = {p.origin.variable: f"; {p.origin}" for p in text.pieces if p.origin.via}
        words.fail(at, f"$(({shown})): {error}{''.join(through.values())}", shown)
    piece = Piece(str(value), Origin(words.file, words.line(at), expression=shown), lines=False)
    return SourceText((piece,)), close


def _integer(words: Expander, name: str, at: int) -> int:
    text = words.value(name, at)
    sign, digits = (-1, str(text)[1:]) if str(text).startswith("-") else (1, str(text))
    try:
        return sign * parse_integer(digits.strip())
    except ValueError:
        origin = text.origin_of(0, len(str(text)))
        raise ShellArithmeticError(f"{name}={str(text)!r} is not a whole number; {origin}") from None


def ansi_c(words: Expander, at: int, end: int) -> tuple[SourceText, int]:
    """`$'...'` at `at`: its text, and the offset after it."""
    source, opened, at = words.source, at, at + 2
    out: list[str] = []
    while at < end and source[at] != "'":
        number = _ANSI_C_NUMBER.match(source, at + 1) if source[at] == "\\" else None
        if source[at] != "\\" or at + 1 >= end:
            out.append(source[at])
            at += 1
        elif number:
            digits = next(group for group in number.groups() if group)
            out.append(chr(int(digits, 8 if number.group(4) else 16)))
            at = number.end()
        else:
            escaped = source[at + 1]
            out.append(_ANSI_C.get(escaped, escaped if escaped in "\\'\"?" else "\\" + escaped))
            at += 2
    if at >= end:
        words.fail(opened, "a single quote is never closed", "$'")
    piece = Piece("".join(out), Origin(words.file, words.line(opened)), lines=False)
    return SourceText((piece,)), at + 1
