"""Random shell scripts of what kvlab reads, to compare with bash. Nothing in them names a file or runs a program."""

from __future__ import annotations

from random import Random

NAMES = ("A", "B", "C_1")
_CHARACTERS = "abzZ09 _-=+:,./@%\"'\\$`{}[]()<>|&;#*?~\n\té漢"


def script(random: Random) -> str:
    """Assignments, heredocs and `show ARGUMENT...` lines; ends by showing every variable."""
    lines = ["A=a1", 'B="b c"', "C_1=", "N=7", "M=-3"]
    for _ in range(random.randint(1, 4)):
        kind = random.randint(0, 5)
        name = random.choice(NAMES)
        if kind == 0:
            lines.append(f"{name}={random.choice(['', '+'])}{_word(random)}".replace("=+", "+="))
        elif kind == 1:
            delimiter = random.choice(["EOF", "'EOF'", '"EOF"', "-EOF"])
            quote = random.choice(["", '"'])
            lines.append(f"{name}={quote}$(cat <<{delimiter}\n{_heredoc_body(random)}EOF\n){quote}")
        else:
            between = random.choice([" ", " \\\n  ", "  "])
            lines.append("show " + between.join(_word(random) for _ in range(random.randint(1, 4))))
    return "\n".join([*lines, 'show "$A" "$B" "$C_1"']) + "\n"


def _text(random: Random, characters: str, longest: int) -> str:
    return "".join(random.choice(characters) for _ in range(random.randint(0, longest)))


def _variable(random: Random) -> str:
    name = random.choice(NAMES)
    forms = (f"${name}", f"${{{name}}}", f"${{{name}:-x y}}", f'${{{name}-"q z"}}', f"${{UNSET:-{name}}}",
             f"${{UNSET:-${name}}}", f"${{{name}:+yes}}", "${UNSET:+no}")  # fmt: skip
    return random.choice(forms)


def _arithmetic(random: Random, depth: int = 0) -> str:
    kind = random.randint(0, 5 if depth < 3 else 1)
    if kind == 0:
        return str(random.randint(0, 20))
    if kind == 1:
        return random.choice(["N", "$N", "${N}", "M"])
    if kind == 2:
        return f"({_arithmetic(random, depth + 1)})"
    if kind == 3:
        return f"{random.choice('-!~+')} {_arithmetic(random, depth + 1)}"
    operators = ["+", "-", "*", "/", "%", "**", "<<", ">>", "<", ">", "<=", ">=", "==", "!=", "&", "|", "^", "&&", "||"]
    blank = random.choice(["", " "])
    left, right = _arithmetic(random, depth + 1), _arithmetic(random, depth + 1)
    return f"{left}{blank}{random.choice(operators)}{blank}{right}"


def _double_quoted(random: Random) -> str:
    parts = []
    for _ in range(random.randint(0, 4)):
        kind = random.randint(0, 4)
        if kind == 0:
            parts.append(_variable(random))
        elif kind == 1:
            parts.append(f"$(({_arithmetic(random)}))")
        elif kind == 2:
            parts.append(random.choice(["\\n", "\\a", "\\\n", '\\"', "\\\\", "\\$", "\\`"]))
        else:
            parts.append("".join(f"\\{c}" if c in '"\\$`' else c for c in _text(random, _CHARACTERS, 5)))
    return f'"{"".join(parts)}"'


def _word(random: Random) -> str:
    makers = (
        lambda: _text(random, "abz09_-=+:,./@%", 6) or "w",
        lambda: f"'{_text(random, _CHARACTERS, 8)}'".replace("'", "").join("''"),
        lambda: _double_quoted(random),
        lambda: f"$'{''.join(random.choice(['a', chr(92) + 'n', chr(92) + chr(39), ' ', '$A']) for _ in range(4))}'",
        lambda: _variable(random),
        lambda: "\\" + random.choice("a $\"'\\;&*?#"),
        lambda: f"$(({_arithmetic(random)}))",
    )
    return "".join(random.choice(makers)() for _ in range(random.randint(1, 4)))


def _heredoc_body(random: Random) -> str:
    plain = "".join(c for c in _CHARACTERS if c not in "$`\\\n")
    lines = []
    for _ in range(random.randint(0, 4)):
        parts = []
        for _ in range(random.randint(0, 4)):
            kind = random.randint(0, 4)
            parts.append(
                _variable(random) if kind == 0
                else f"$(({_arithmetic(random)}))" if kind == 1
                else random.choice(["\\n", '\\"', "\\\\", "\\$", "\\`", "  ", "\t"]) if kind == 2
                else _text(random, plain, 5)
            )  # fmt: skip
        lines.append("".join(parts) + "\n")
    return "".join(lines)
