"""Reading shell files for their variables and commands, without running anything.

tree-sitter-bash gives the structure (statements, commands, heredocs); `shell_words` says what the words mean. Known:
assignments, `export`, commands, pipelines, `&&`, redirections, heredocs, `$(cat <<EOF ...)`. Everything else (loops,
conditions, functions, arrays, other command substitutions, unset variables) is one ConfigError that names file, line
and construct.

Notes:
* A command is read with the values the variables have at its line; later assignments do not reach back.
* Each argument knows where it stands and which variables it is made of (`Argument.text`).
* `parse_shell` imports tree_sitter when called, so that importing kvlab needs the standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kvlab.config.files import read_text
from kvlab.config.shell_tree import cat_heredoc, heredoc_body, redirect_end, walk, without_heredocs
from kvlab.config.shell_values import Variable, split_fields
from kvlab.config.shell_words import Expander
from kvlab.config.source import Origin, SourceText

if TYPE_CHECKING:
    from tree_sitter import Node

_REDIRECTS = ("file_redirect", "heredoc_redirect", "herestring_redirect")
_CONSTRUCTS = {
    "for_statement": "a for loop", "c_style_for_statement": "a for loop", "while_statement": "a while loop",
    "if_statement": "an if statement", "case_statement": "a case statement",
    "function_definition": "a function", "subshell": "a subshell ( )", "compound_statement": "a group { }",
    "test_command": "a test [ ]", "negated_command": "a negated command !",
    "array": "an array ( )", "subscript": "an array element", "process_substitution": "a process substitution",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a command, as the command would get it."""

    text: SourceText
    file: str
    line: int

    @property
    def value(self) -> str:
        return str(self.text)

    @property
    def origin(self) -> Origin:
        """Where its value is written: behind a variable if it is (partly) made of one."""
        return self.text.origin_of(0, len(self.value)) or Origin(self.file, self.line)


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command. `environment` holds the assignments written before its name."""

    arguments: tuple[Argument, ...]
    file: str
    line: int
    environment: tuple[Variable, ...] = ()

    @property
    def argv(self) -> list[str]:
        return [argument.value for argument in self.arguments]


@dataclass(frozen=True, slots=True)
class ShellScript:
    file: str
    variables: Mapping[str, Variable]
    commands: tuple[Command, ...]

    def find(self, *words: str) -> list[tuple[Command, tuple[Argument, ...]]]:
        """Commands that hold `words` in a row (the first without its folder), each with the arguments after them.

        So `exec env A=1 /opt/bin/vllm serve ...` is found as ("vllm", "serve").
        """
        found = []
        for command in self.commands:
            argv = command.argv
            for i in range(len(argv) - len(words) + 1):
                if (argv[i].rsplit("/", 1)[-1], *argv[i + 1 : i + len(words)]) == words:
                    found.append((command, command.arguments[i + len(words) :]))
                    break
        return found


def read_shell(path: str | Path) -> ShellScript:
    """Parse a file. Raises ConfigError, also for a file that cannot be read as UTF-8 text."""
    return parse_shell(read_text(path), Path(path).name)


def parse_shell(text: str, file: str = "<shell>", variables: Mapping[str, str] | None = None) -> ShellScript:
    """Variables and commands of a shell text. `variables` are taken as set before its first line.

    Raises ConfigError for anything not understood.
    """
    return _Reader(text, file, variables or {}).read()


@dataclass
class _Reader:
    source: str
    file: str
    preset: Mapping[str, str]
    variables: dict[str, Variable] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)

    def read(self) -> ShellScript:
        import tree_sitter_bash
        from tree_sitter import Language, Parser

        # tree-sitter counts bytes; one byte a character keeps its offsets usable in `source`.
        plain = "".join(c if c.isascii() else "x" for c in without_heredocs(self.source)).encode("ascii")
        root = Parser(Language(tree_sitter_bash.language())).parse(plain).root_node
        for name, value in self.preset.items():
            self.variables[name] = Variable(name, SourceText.literal(value, "<given>", 0), "<given>", 0)
        self.words = Expander(self.source, self.file, self.variables, self._substitution)
        self.substitutions = {n.start_byte: n for n in walk(root) if n.type == "command_substitution"}
        self.redirects = {n.start_byte: redirect_end(n) for n in walk(root) if n.type in _REDIRECTS}
        broken = next((n for n in walk(root) if n.is_error or n.is_missing), None)
        if broken is not None:
            self._refuse(broken)
        self._statements(root)
        return ShellScript(self.file, dict(self.variables), tuple(self.commands))

    def _refuse(self, broken: Node) -> NoReturn:
        if broken.type == "heredoc_end" and broken.parent is not None:
            self._fail(broken.parent, f"{self._first_line(broken.parent)!r}: the heredoc is never closed", "<<")
        shown = self._first_line(broken) or broken.type
        self._fail(broken, f"kvlab cannot read this as a shell command: {shown!r}", shown)

    def _first_line(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].strip().split("\n")[0][:60]

    def _statements(self, parent: Node) -> None:
        for node in parent.children:
            if node.type == "||":
                self._fail(node, "|| (either command) is not understood", "||")
            if node.is_named and node.type not in ("comment", *_REDIRECTS):
                self._statement(node)

    def _statement(self, node: Node) -> None:
        match node.type:
            case "variable_assignment":
                variable = self._assignment(node)
                self.variables[variable.name] = variable
            case "command":
                self._command(node)
            case "variable_assignments" | "pipeline" | "list":
                self._statements(node)
            case "redirected_statement":
                self._check_redirects(node)
                self._statements(node)
            case "declaration_command" if node.children[0].type in ("export", "readonly"):
                self._statements(node)
            case "variable_name" if node.parent is not None and node.parent.type == "declaration_command":
                pass
            case _:
                shown = self._first_line(node)
                what = _CONSTRUCTS.get(node.type, node.type.replace("_", " "))
                self._fail(node, f"{what} is not understood: {shown!r}", shown)

    def _check_redirects(self, node: Node) -> None:
        known = {"<<", "<<-", "heredoc_start", "heredoc_body", "heredoc_end", "file_redirect"}
        for child in node.children:
            extra = [c for c in child.children if c.type not in known] if child.type == "heredoc_redirect" else []
            if extra:
                shown = self.source[extra[0].start_byte : extra[0].end_byte]
                self._fail(extra[0], f"{shown!r} after the start of a heredoc is not understood", shown)

    def _assignment(self, node: Node) -> Variable:
        name_node, value_node = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name_node is None or name_node.type != "variable_name":
            self._fail(node, f"{_CONSTRUCTS['subscript']} is not understood", "[")
        if value_node is not None and value_node.type == "array":
            self._fail(value_node, f"{_CONSTRUCTS['array']} is not understood", "(")
        name = self.source[name_node.start_byte : name_node.end_byte]
        appends = self.source.startswith("+=", name_node.end_byte)
        fragments, end = self.words.word(name_node.end_byte + (2 if appends else 1), len(self.source))
        if end != node.end_byte:
            shown = self.source[node.start_byte : max(end, node.end_byte)].split("\n")[0][:60]
            self._fail(node, f"this assignment is not understood: {shown!r}", shown)
        text = SourceText.join(fragment.text for fragment in fragments)
        if not text.pieces:
            # An empty value with an origin: what misses it further on can be traced to this line.
            text = SourceText.literal("", self.file, self.words.line(node.start_byte))
        if appends and name in self.variables:
            text = SourceText.join((self.variables[name].text, text))
        return Variable(name, text, self.file, self.words.line(node.start_byte))

    def _command(self, node: Node) -> None:
        environment, start = [], node.start_byte
        for child in node.children:
            if child.type == "variable_assignment":
                environment.append(self._assignment(child))
                start = child.end_byte
        arguments = tuple(self._arguments(start, node.end_byte))
        if arguments and arguments[0].value.startswith("-"):
            shown = arguments[0].value
            message = (
                f"{shown!r} stands where a command begins: does the line before it, or a comment there, lack a \\?"
            )
            self._fail(node, message, shown)
        line = self.words.line(node.start_byte)
        self.commands.append(Command(arguments, self.file, line, tuple(environment)))

    def _arguments(self, at: int, end: int) -> Iterator[Argument]:
        """The words from `at` to where bash ends the command, which must be `end`, where tree-sitter does."""
        while at < len(self.source) and self.source[at] not in "\n;&|()":
            if at in self.redirects:
                at = self.redirects[at]
            elif self.source[at] in " \t":
                at += 1
            elif self.source.startswith("\\\n", at):
                at += 2
            elif self.source[at] in "#<>":
                break
            else:
                line, start = self.words.line(at), at
                fragments, at = self.words.word(at, len(self.source))
                if self.source[start:at].strip(" \t") == "\\" and self.source[at : at + 1] in "\n":
                    self.words.fail(start, "a backslash before a blank at the end of a line does not join lines", "\\ ")
                for text in split_fields(fragments):
                    yield Argument(text, self.file, line)
        if at < end:
            shown = self.source[at : at + 40].strip().split("\n")[0]
            self.words.fail(at, f"this command is not understood from {shown!r} on", shown)

    def _substitution(self, at: int) -> tuple[SourceText, int]:
        node = self.substitutions.get(at)
        heredoc = cat_heredoc(node, self.source) if node is not None else None
        if node is None or heredoc is None:
            shown = self.source[at:].split("\n")[0][:60]
            self.words.fail(
                at, f"the command substitution {shown!r} is not understood; known: $(cat <<EOF ...), others would "
                "have to be run", shown,
            )  # fmt: skip
        start = heredoc.children[1]
        delimiter = self.source[start.start_byte : start.end_byte]
        raw = any(c in delimiter for c in "'\"\\")
        strip_tabs = heredoc.children[0].type == "<<-"
        word = delimiter.translate({ord(c): None for c in "'\"\\"})
        body = heredoc_body(self.source, start.end_byte, word, strip_tabs)
        if body is None or body[1] >= node.end_byte:
            self.words.fail(at, f"the heredoc never ends with a line {word!r}", delimiter)
        return self.words.heredoc(*body, raw, strip_tabs).stripped_end("\n"), node.end_byte

    def _fail(self, node: Node, message: str, construct: str) -> NoReturn:
        self.words.fail(node.start_byte, message, construct)
