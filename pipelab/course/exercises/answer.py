"""What is shown below a cell: a question with a folded answer, or the verdict on a reader's number."""

from dataclasses import dataclass
from html import escape
from typing import Any

from pipelab.display import NO_FORMULAS

# Sign and colour of a verdict; each colour reads on white.
_SIGNS = {
    "right": ("✓", "#00664B"),
    "not yet": ("✗", "#B34700"),
    "not attempted yet": ("○", "#555555"),
}


@dataclass(frozen=True)
class Answer:
    """Something to show under a cell, in a notebook or a terminal."""

    text: str
    html: str

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class DrawnAnswer(Answer):
    """A verdict with a figure below it, such as of the input on which an answer is wrong."""

    figure: Any

    def _ipython_display_(self) -> None:
        from IPython.display import HTML, display

        display(HTML(self.html), self.figure)


def guess(question: str, answer: object) -> Answer:
    """A question whose answer stays folded until the reader opens it, by mouse or keyboard.

    Parameters
    ----------
    question : str
        What the reader is to predict.
    answer : object
        Shown as text.

    Returns
    -------
    Answer
        Shows itself as HTML in a notebook, as text elsewhere.

    Examples
    --------
    >>> print(guess("How many stages?", 1))
    How many stages? (answer: 1)
    """
    folded = (
        f"<details class='{NO_FORMULAS}' style='margin:4px 0'>"
        f"<summary style='cursor:pointer'><b>Predict:</b> {escape(question)} "
        f"<i>(open for the answer)</i></summary><p style='margin-left:1.2em'>{escape(str(answer))}</p></details>"
    )
    return Answer(f"{question} (answer: {answer})", folded)


def verdict(kind: str, text: str) -> Answer:
    """A sentence with the sign and colour of its kind: "right", "not yet" or "not attempted yet"."""
    sign, colour = _SIGNS[kind]
    return Answer(
        text, f"<p class='{NO_FORMULAS}' style='color:{colour}'><b>{sign}</b> {escape(text)}</p>"
    )
