"""What a shell word means: quotes, escapes, `$VAR`, `${VAR:-x}`, `$((...))`, heredoc bodies. Nothing is executed.

Notes:
* tree-sitter-bash 0.25 finds statements, words and heredocs well, but inside heredoc bodies it drops leading blanks,
  misses variables and takes `\\$X` for one; so the characters of a word are read here, from the source.
* As in bash: an unquoted expansion is split at blanks; inside double quotes a backslash only escapes `$ ` " \\` and
  newline; an unquoted heredoc delimiter means that the body is expanded.
* Different from bash on purpose: an unset variable is an error, not an empty text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NoReturn

from kvlab.config.errors import ConfigError, did_you_mean
from kvlab.config.shell_expansion import DOUBLE_QUOTED_ESCAPES, NAME, ansi_c, arithmetic, braced
from kvlab.config.shell_values import Fragment, Variable
from kvlab.config.source import SourceText, Use

_HEREDOC_ESCAPES = "$`\\"


class Expander:
    """Reads words of one source text, left to right.

    `substitution(offset)` gives the text of the command substitution that starts there and the offset after it.
    """

    def __init__(
        self,
        source: str,
        file: str,
        variables: Mapping[str, Variable],
        substitution: Callable[[int], tuple[SourceText, int]],
    ) -> None:
        self.source = source
        self.file = file
        self.variables = variables
        self._substitution = substitution

    def line(self, offset: int) -> int:
        return self.source.count("\n", 0, offset) + 1

    def fail(self, offset: int, message: str, construct: str = "") -> NoReturn:
        where = f"{self.file}:{self.line(offset)}"
        raise ConfigError(message, key=construct, value=construct, where=where)

    # -- words ---------------------------------------------------------------------------------------------------

    def word(self, at: int, end: int) -> tuple[list[Fragment], int]:
        """The word that starts at `at`: its fragments and the offset after it (a blank, `end`, or an operator)."""
        fragments: list[Fragment] = []
        while at < end and self.source[at] not in " \t\n;&|<>()":
            found, at = self.unquoted_part(at, end)
            fragments += found
        return fragments, at

    def unquoted_part(self, at: int, end: int) -> tuple[list[Fragment], int]:
        char = self.source[at]
        if char == "'":
            close = self.source.find("'", at + 1, end)
            if close < 0:
                self.fail(at, "a single quote is never closed", "'")
            return [Fragment(self.literal(at + 1, close))], close + 1
        if char == '"':
            text, close = self.quoted(at + 1, end, DOUBLE_QUOTED_ESCAPES, stop='"')
            return [Fragment(text)], close + 1
        if char == "\\":
            if self.source[at + 1 : at + 2] == "\n":
                return [], at + 2
            return [Fragment(self.literal(at + 1, min(at + 2, end)))], at + 2
        if char == "$" and self.source[at + 1 : at + 2] == "'":
            text, after = ansi_c(self, at, end)
            return [Fragment(text)], after
        if char == "$" and self.source[at + 1 : at + 2] == '"':
            self.fail(at, 'a translated text $"..." is not understood; write "..."', '$"')
        if char in "$`":
            text, after = self.expansion(at, end, quoted=False)
            return [Fragment(text, split=True)], after
        close = at
        while close < end and self.source[close] not in " \t\n;&|<>()'\"\\$`":
            close += 1
        self._refuse_patterns(at, close)
        return [Fragment(self.literal(at, close))], close

    def _refuse_patterns(self, start: int, end: int) -> None:
        literal = self.source[start:end]
        for wildcard in "*?":
            if wildcard in literal:
                self.fail(start, f"the unquoted pattern {literal!r} means file names; quote it", literal)
        if "{" in literal and re.search(r"\{[^}]*(,|\.\.)", literal):
            self.fail(start, f"the unquoted braces {literal!r} mean several words; quote them", literal)

    def quoted(self, at: int, end: int, escapes: str, stop: str = "") -> tuple[SourceText, int]:
        """Text in double quotes, in a heredoc or in arithmetic, up to an unescaped `stop`."""
        parts: list[SourceText] = []
        start, opened = at, at
        while at < end and self.source[at] != stop:
            char = self.source[at]
            if char == "\\" and at + 1 < end and self.source[at + 1] in escapes + "\n":
                parts.append(self.literal(start, at))
                start = at + 2 if self.source[at + 1] == "\n" else at + 1
                at += 2
            elif char in "$`":
                text, after = self.expansion(at, end, quoted=True)
                parts += [self.literal(start, at), text]
                start = at = after
            else:
                at += 1
        if stop and at >= end:
            self.fail(opened, "a double quote is never closed", stop)
        parts.append(self.literal(start, at))
        return SourceText.join(parts), at

    def literal(self, start: int, end: int) -> SourceText:
        return SourceText.literal(self.source[start:end], self.file, self.line(start))

    # -- expansions ----------------------------------------------------------------------------------------------

    def expansion(self, at: int, end: int, quoted: bool) -> tuple[SourceText, int]:
        source = self.source
        if source.startswith("$((", at):
            return arithmetic(self, at, end)
        if source.startswith("$(", at) or source[at] == "`":
            return self._substitution(at)
        if source.startswith("${", at):
            return braced(self, at, end, quoted)
        name = NAME.match(source, at + 1)
        if name:
            return self.value(name.group(), at), name.end()
        special = source[at + 1 : at + 2]
        if special and (special.isdigit() or special in "@*#?$!-["):
            self.fail(at, f"${special} is not understood: its value is only known when the script runs", f"${special}")
        return self.literal(at, at + 1), at + 1

    def value(self, name: str, at: int) -> SourceText:
        variable = self.variables.get(name)
        if variable is None:
            hint = did_you_mean(name, self.variables)
            self.fail(at, f"${{{name}}} is not set in this file before this line{hint}", name)
        return variable.text.used_as(Use(name, self.file, self.line(at)))

    # -- heredocs ------------------------------------------------------------------------------------------------

    def heredoc(self, start: int, end: int, raw: bool, strip_tabs: bool) -> SourceText:
        """The body between two offsets (whole lines). `raw`: the delimiter was quoted, nothing is expanded."""
        if not strip_tabs:
            return self.literal(start, end) if raw else self.quoted(start, end, _HEREDOC_ESCAPES)[0]
        parts = []
        for match in re.compile(r"\t*([^\n]*\n?)").finditer(self.source, start, end):
            low, high = match.span(1)
            parts.append(self.literal(low, high) if raw else self.quoted(low, high, _HEREDOC_ESCAPES)[0])
        return SourceText.join(parts)
