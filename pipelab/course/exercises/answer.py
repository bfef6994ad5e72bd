"""What is shown below a cell: a question that takes an answer before it gives one, or a verdict."""

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
    """A question with a box for the reader's own answer; only then can the answer be opened.

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
    asked = escape(question, quote=True)
    # Without JavaScript, so that it works in pages, too: as long as the box shows its placeholder,
    # it is empty, and what follows it stays hidden.
    html = (
        f"<div class='pipelab-guess {NO_FORMULAS}' style='margin:4px 0'>"
        "<style>.pipelab-guess input:placeholder-shown ~ details {display: none}</style>"
        f"<b>Predict:</b> {asked}<br>"
        f'<input type="text" placeholder="your answer first" aria-label="Your answer: {asked}" '
        'autocomplete="off" data-lm-suppress-shortcuts="true" style="margin:4px 0; width:26em; max-width:90%">'
        "<details><summary style='cursor:pointer'><i>compare</i></summary>"
        f"<p style='margin-left:1.2em'>{escape(str(answer))}</p></details></div>"
    )
    return Answer(f"{question} (answer: {answer})", html)


def verdict(kind: str, text: str) -> Answer:
    """A sentence with the sign and colour of its kind: "right", "not yet" or "not attempted yet"."""
    sign, colour = _SIGNS[kind]
    return Answer(
        text, f"<p class='{NO_FORMULAS}' style='color:{colour}'><b>{sign}</b> {escape(text)}</p>"
    )
