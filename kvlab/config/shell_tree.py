"""Walking the parsed tree, and finding heredocs in it: `cat <<EOF ... EOF`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node


_HEREDOC_START = re.compile(r"<<(-?)[ \t]*(['\"]?)(\\?[A-Za-z_]\w*)\2")


def without_heredocs(source: str) -> str:
    """`source` with the characters of heredoc bodies replaced: tree-sitter-bash trips over many of them."""
    at = 0
    while match := _HEREDOC_START.search(source, at):
        at = match.end()
        body = heredoc_body(source, at, match[3].lstrip("\\"), bool(match[1]))
        if body is not None:
            start, at = body
            source = source[:start] + re.sub(r"[^\n]", "-", source[start:at]) + source[at:]
    return source


def heredoc_body(source: str, at: int, delimiter: str, strip_tabs: bool) -> tuple[int, int] | None:
    """Start and end (= start of the closing line) of the heredoc whose start word ends at `at`."""
    tabs = r"\t*" if strip_tabs else ""
    start = source.find("\n", at) + 1
    close = re.compile(rf"^{tabs}{re.escape(delimiter)}$", re.MULTILINE).search(source, start) if start else None
    return (start, close.start()) if close else None


def cat_heredoc(node: Node, source: str) -> Node | None:
    """The heredoc of `$(cat <<EOF ...)`, None for any other substitution."""
    inside = node.named_children
    if len(inside) != 1 or inside[0].type != "redirected_statement":
        return None
    parts = inside[0].named_children
    if len(parts) != 2 or source[parts[0].start_byte : parts[0].end_byte] != "cat":
        return None
    known = {"heredoc_start", "heredoc_body", "heredoc_end"}
    heredoc = parts[1]
    simple = heredoc.type == "heredoc_redirect" and all(c.type in known for c in heredoc.named_children)
    return heredoc if simple else None


def redirect_end(node: Node) -> int:
    """Where the words of the command go on: after the start word of a heredoc, not after its body."""
    starts = [child.end_byte for child in node.children if child.type == "heredoc_start"]
    return starts[0] if starts else node.end_byte


def walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from walk(child)
