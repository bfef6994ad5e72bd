"""When does what is computed agree with what is printed?

A number agrees *exactly* when it equals the printed one to a part in 10^9, and *rounded* when it
does so after rounding, or cutting off, to the digits that are printed. `~600K` has one digit, since
zeros before a suffix or a comma say nothing behind a `~`; `475K+` asks for at least as much.
"""

import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

SAME = 1e-9
_NUMBER = re.compile(r"(~?)(\d+(?:,\d{3})*)(?:\.(\d+))?([KM]?)(\+?)")
_SCALE = {"": 1, "K": 10**3, "M": 10**6}


class Number(NamedTuple):
    """A printed number: its value, the unit of its last digit, and whether it may be more."""

    value: float
    step: float
    or_more: bool

    def agrees(self, computed: float) -> str:
        """ "exact", "rounded" or "wrong"."""
        if math.isclose(computed, self.value, rel_tol=SAME, abs_tol=SAME):
            return "exact"
        over = computed - self.value
        if self.or_more:
            return "rounded" if over > 0 else "wrong"
        nearest = abs(over) <= self.step / 2 * (1 + SAME)
        cut_off = 0 <= over < self.step
        return "rounded" if nearest or cut_off else "wrong"


def numbers_in(text: str) -> tuple[Number, ...]:
    """The numbers of a text as they are printed.

    >>> numbers_in("~600K and 301.78")
    (Number(value=600000.0, step=100000.0, or_more=False), Number(value=301.78, step=0.01,
    or_more=False))
    """
    found = []
    for about, whole, decimals, suffix, more in _NUMBER.findall(text):
        digits, scale = whole.replace(",", ""), _SCALE[suffix]
        step = 10.0 ** -len(decimals)
        if about and not decimals:
            step = 10.0 ** (len(digits) - len(digits.rstrip("0"))) if int(digits) else 1.0
        found.append(Number(float(f"{digits}.{decimals or 0}") * scale, step * scale, bool(more)))
    return tuple(found)


class Trial(NamedTuple):
    """A general sentence put to the test: on how many inputs it held, of how many, and the first where it did not."""

    held: int
    of: int
    counterexample: str = ""
    whole: bool = False  # these are all the inputs of which the sentence speaks

    def __str__(self) -> str:
        return f"{self.held:,} of {self.of:,}" + (
            f"; not {self.counterexample}" if self.counterexample else ""
        )


def tried(results: Iterable[tuple[str, bool]], whole: bool = False) -> Trial:
    """Count results, each an input in words and whether the sentence holds there.

    >>> print(tried([("1 layer", True), ("2 layers", False), ("3 layers", False)]))
    1 of 3; not 2 layers
    """
    listed = list(results)
    failed = [what for what, held in listed if not held]
    return Trial(len(listed) - len(failed), len(listed), failed[0] if failed else "", whole)


class Comparison(NamedTuple):
    """How a row is decided: the rule in words, and the rule."""

    rule: str
    agrees: Callable[[str, object], str]
    between: str = ", "  # what stands between the parts of a value when it is shown


def _numbers(stated: str, computed: object) -> str:
    parts = computed if isinstance(computed, tuple) else (computed,)
    printed = numbers_in(stated)
    if len(parts) != len(printed):
        raise ValueError(f"{stated!r} has {len(printed)} numbers, and {len(parts)} were computed")
    verdicts = [number.agrees(float(part)) for number, part in zip(printed, parts, strict=True)]
    return max(verdicts, key=("exact", "rounded", "wrong").index)


def _pair(test: Callable[[Any, Any], bool]) -> Callable[[str, Any], str]:
    def agrees(stated: str, computed: Any) -> str:
        first, second = computed
        return "exact" if test(first, second) else "wrong"

    return agrees


def _equal(first: object, second: object) -> bool:
    if isinstance(first, float | int) and isinstance(second, float | int):
        return math.isclose(first, second, rel_tol=SAME)
    return first == second


def _reported(stated: str, computed: Any) -> str:
    """A run said to have been stopped: contradicted where its author's own file reports the optimum computed here."""
    return "wrong" if numbers_in(stated)[0].agrees(computed) == "exact" else "machine-dependent"


def _quotient(stated: str, computed: Any) -> str:
    """As the tests of the programs, which allow 1e-6."""
    over, under = (number.value for number in numbers_in(stated))
    return "exact" if abs(computed - over / under) < 1e-6 else "wrong"


def _every(stated: str, computed: Any) -> str:
    return "exact" if computed.of and computed.held == computed.of else "wrong"


NUMBERS = Comparison("the numbers as printed", _numbers)
QUOTIENT = Comparison("the printed quotient", _quotient)
TEXT = Comparison(
    "word for word", lambda stated, computed: "exact" if str(computed) == stated else "wrong"
)
EQUAL = Comparison("both sides are equal", _pair(_equal), " and ")
DIFFERENT = Comparison("both sides differ", _pair(lambda a, b: not _equal(a, b)), " and ")
ABOVE = Comparison("the first is larger", _pair(lambda a, b: a > b and not _equal(a, b)), " and ")
AT_LEAST = Comparison(
    "the first is not smaller", _pair(lambda a, b: a >= b or _equal(a, b)), " and "
)
EVERY = Comparison("every input tried", _every)
TIME = Comparison("a time, which is this machine's", lambda stated, computed: "machine-dependent")
REPORTED = Comparison("contradicted by its author's own file", _reported)
