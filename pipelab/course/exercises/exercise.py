"""An exercise with a number as its answer: the target is computed, and so is what common mistakes lead to."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

# Of a number that is right but for its unit: by what it is too large, and what to look at.
_SLIPS = {
    1e2: "it is 100 times the answer: a share, or per cent?",
    1e-2: "it is a hundredth of the answer: per cent, or a share?",
    1e3: "it is 1,000 times the answer: look at the units",
    1e-3: "it is a thousandth of the answer: look at the units",
    1e6: "it is a million times the answer: look at the units",
    1e-6: "it is a millionth of the answer: look at the units",
    -1: "it has the right size and the wrong sign",
}


@dataclass(frozen=True)
class Mistake:
    """A wrong way that readers take, the number at its end, and the sentence that leads back."""

    value: Callable[[], float]
    says: str


@dataclass(frozen=True)
class Exercise:
    """What a reader is asked to find.

    Attributes
    ----------
    target : callable
        Computes the answer when it is asked for.
    unit : str
        Of the answer; "" for a plain number.
    hint : str
        For a wrong number that no mistake explains.
    mistakes : tuple of Mistake
        Looked through in this order.
    rel : float
        Relative tolerance.
    none : str
        Where None is an answer that readers arrive at: the hint for it. Otherwise None means not
        attempted.
    """

    target: Callable[[], float]
    unit: str
    hint: str
    mistakes: tuple[Mistake, ...] = ()
    rel: float = 1e-4
    none: str = ""

    def grade(self, value: object) -> tuple[bool, str]:
        """Whether a reader's value is right, and a sentence that says what is off."""
        if value is None and self.none:
            return False, f"Yours is None. Hint: {self.none}"
        try:
            number = float(cast(Any, value))
        except OverflowError:
            return False, "Expected a finite number, yours has too many digits"
        except (TypeError, ValueError):
            return False, _no_number(value)
        if not math.isfinite(number):
            return False, f"Expected a finite number, yours is {number}"
        shown, target = f"{_written(number)} {self.unit}".strip(), self.target()
        if self._meets(number, target):
            return True, shown
        return (
            False,
            f"Yours is {shown}, {_off(number, target)}. Hint: {self._hint(number, target)}",
        )

    def _meets(self, number: float, target: float) -> bool:
        if isinstance(target, int):  # what is counted is exact
            return number == target
        return math.isclose(number, target, rel_tol=self.rel)

    def _hint(self, number: float, target: float) -> str:
        for mistake in self.mistakes:
            if self._meets(number, mistake.value()):
                return mistake.says
        for factor, says in _SLIPS.items():
            if self._meets(number, factor * target):
                return says
        if self._meets(number * target, 1):
            return "it is 1 divided by the answer: which of the two belongs on top?"
        if target == int(target) and abs(number - target) == 1:
            return f"you are one off; is an end counted twice, or not at all? And {self.hint}"
        if abs(number - target) < 0.02 * abs(target) and any(
            number == round(target, n) for n in range(6)
        ):
            return "it is the answer, rounded too far: give one or two digits more"
        return self.hint


def _no_number(value: object) -> str:
    """What was given instead, and what to do about it."""
    text = repr(value)
    shown = text if len(text) <= 60 else f"of type {type(value).__name__}"
    advice = ""
    if isinstance(value, str | tuple) and any(sign.isdigit() for sign in text):
        advice = "; write it without unit and without commas"
    elif hasattr(value, "throughput"):
        advice = "; take one of its numbers, such as .throughput"
    return f"Expected a number, yours is {shown}{advice}"


def _written(number: float) -> str:
    """Whole numbers in full, others with seven digits."""
    return f"{number:,.0f}" if number == int(number) and abs(number) < 1e15 else f"{number:,.7g}"


def _off(number: float, target: float) -> str:
    """In which direction, and roughly how far; a share with digits would give the answer away."""
    times = number / target
    if times > 10:
        return "more than ten times the answer"
    if 0 < times < 1 / 10:
        return "less than a tenth of the answer"
    ratio = max(times, 1 / times) if times > 0 else 10.0
    how = "slightly " if ratio < 1.1 else "far " if ratio > 2 else ""
    return f"{how}too {'high' if times > 1 else 'low'}"
