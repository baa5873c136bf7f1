"""Parts of an explanation, so that a notebook can walk through it with text in between."""

from __future__ import annotations

from dataclasses import replace

from kvlab.checks import unknown_name
from kvlab.explain import Explanation


def section(explanation: Explanation, name: str) -> Explanation:
    """Only the rows of one section. ValueError naming the sections there are."""
    if name not in explanation.sections:
        raise unknown_name("section", name, explanation.sections)
    rows = tuple(explanation.section(name))
    return replace(explanation, title=name, rows=rows, corrections=(), not_published=(), warnings=(), in_vllm=None)


def often_said(explanation: Explanation) -> Explanation:
    """Only the corrections, and what nobody published."""
    return replace(explanation, title="Often said, and unpublished", rows=(), warnings=(), in_vllm=None)
