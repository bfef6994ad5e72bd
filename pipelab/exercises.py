"""Questions to a reader: predict first, then look; and exercises that check themselves."""

import math
from dataclasses import dataclass
from html import escape

__all__ = ["Answer", "check", "guess"]


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


def guess(question: str, answer: object) -> Answer:
    """A question whose answer stays folded until the reader opens it, by mouse or keyboard.

    >>> print(guess("How many stages?", 1))
    How many stages? (answer: 1)
    """
    folded = (
        f"<details style='margin:4px 0'><summary style='cursor:pointer'><b>Predict:</b> {escape(question)} "
        f"<i>(open for the answer)</i></summary><p style='margin-left:1.2em'>{escape(str(answer))}</p></details>"
    )
    return Answer(f"{question} (answer: {answer})", folded)


def check(name: str, value: object, target: float, *, unit: str = "", hint: str = "", rel: float = 1e-4) -> Answer:
    """Compare a reader's number with the target that the notebook computed.

    Parameters
    ----------
    name : str
        Of the exercise.
    value : number or None
        The reader's; None means not attempted yet.
    target : float
        The right number, computed, never typed in.
    unit, hint : str
        The hint is shown with a wrong answer, beside what is off.
    rel : float
        Relative tolerance.

    Examples
    --------
    >>> print(check("stages", None, 2))
    stages: not attempted yet
    >>> print(check("stages", 2, 2))
    stages: right, 2
    >>> print(check("stages", 3, 2, hint="count the boundaries"))
    stages: not yet. Yours is 3, which is 50 % too high. Hint: count the boundaries
    """
    if value is None:
        return _verdict("○", "#555555", f"{name}: not attempted yet")
    try:
        number = float(value)
    except (TypeError, ValueError):
        return _verdict("✗", "#B34700", f"{name}: not yet. Expected a number, yours is {value!r}")
    shown = f"{number:.7g} {unit}".strip()
    if math.isclose(number, target, rel_tol=rel, abs_tol=1e-12):
        return _verdict("✓", "#00664B", f"{name}: right, {shown}")
    if target:
        off = number / target - 1
        how = f"{abs(off) * 100:.3g} % too {'high' if off > 0 else 'low'}"
    else:
        how = "off"
    advice = f". Hint: {hint}" if hint else ""
    return _verdict("✗", "#B34700", f"{name}: not yet. Yours is {shown}, which is {how}{advice}")


def _verdict(sign: str, colour: str, text: str) -> Answer:
    return Answer(text, f"<p style='color:{colour}'><b>{sign}</b> {escape(text)}</p>")
