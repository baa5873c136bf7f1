"""Say first, measure then: a prediction that waits for its answer and never stops the notebook."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

BLANK = "no prediction recorded"


@dataclass(frozen=True, slots=True)
class Prediction:
    """A question with lettered options (or, without options, a number in `unit`), and what the reader said."""

    question: str
    said: str | float | None
    options: dict[str, str] = field(default_factory=dict)
    unit: str = ""

    @property
    def answer_line(self) -> str:
        if self.said is None:
            where = "a letter" if self.options else f"a number{f' of {self.unit}' if self.unit else ''}"
            return f"{BLANK}: set `prediction` to {where} and run the cell again, or read on"
        return f"you say: {self._spell(self.said)}"

    def reveal(self, answer: str | float, because: str = "") -> Reveal:
        """What it was, beside what was said. Raises ValueError if `answer` is none of the options."""
        if self.options and answer not in self.options:
            raise ValueError(f"answer must be one of {', '.join(self.options)}, got {answer!r}")
        return Reveal(self, answer, because)

    def _spell(self, said: str | float) -> str:
        if self.options:
            return f"{said}) {self.options[str(said)]}"
        return f"{_number(said)} {self.unit}".strip() if isinstance(said, int | float) else said

    def __repr__(self) -> str:
        lines = [self.question, *(f"  {letter}) {text}" for letter, text in self.options.items()), self.answer_line]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(f"<li><b>{escape(k)})</b> {escape(text)}</li>" for k, text in self.options.items())
        options = f'<ul style="list-style:none;margin:4px 0">{rows}</ul>' if rows else "<br>"
        return _box("#0072B2", f"<b>Predict: {escape(self.question)}</b>{options}<i>{escape(self.answer_line)}</i>")


@dataclass(frozen=True, slots=True)
class Reveal:
    prediction: Prediction
    answer: str | float
    because: str

    @property
    def line(self) -> str:
        asked = self.prediction
        truth = asked._spell(self.answer)
        if asked.said is None:
            return f"{truth} ({BLANK})"
        if asked.options:
            return f"{truth}: {'as you said' if asked.said == self.answer else f'you said {asked.said}'}"
        return f"{truth}; you said {asked._spell(asked.said)}{_off_by(asked.said, self.answer)}"

    def __repr__(self) -> str:
        return f"Answer: {self.line}" + (f"\n{self.because}" if self.because else "")

    def _repr_html_(self) -> str:
        because = f"<br>{escape(self.because)}" if self.because else ""
        return _box("#009E73", f"<b>Answer:</b> {escape(self.line)}{because}")


def predict(said: str | float | None, question: str, *, unit: str = "", **options: str) -> Prediction:
    """Keep a prediction. `said`: None, a letter of `options`, or, without options, a number (of `unit`).

    A letter that is none of the options counts as None here; the box then says which there are.
    """
    if options:
        letter = said.strip().lower() if isinstance(said, str) else None
        return Prediction(question, letter if letter in options else None, options, unit)
    return Prediction(question, said if isinstance(said, int | float) else None, {}, unit)


def _off_by(said: str | float, answer: str | float) -> str:
    if not isinstance(said, int | float) or not isinstance(answer, int | float) or said <= 0 or answer <= 0:
        return ""
    factor = max(said / answer, answer / said)
    return ", exactly" if factor == 1 else f", off by a factor of {_number(float(f'{factor:.3g}'))}"


def _number(value: float) -> str:
    """In full, never as 2.1e+06."""
    return f"{value:,.0f}" if abs(value) >= 1e5 or value == int(value) else f"{value:,g}"


def _box(colour: str, html: str) -> str:
    return f'<div style="border-left:4px solid {colour};padding:4px 12px;margin:4px 0">{html}</div>'
