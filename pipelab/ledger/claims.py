"""A row of the ledger: what a document says, how it is computed, and the verdict that follows."""

from collections.abc import Callable
from dataclasses import dataclass

from pipelab.errors import InvalidValue
from pipelab.ledger.comparisons import NUMBERS, Comparison
from pipelab.ledger.desk import Desk

__all__ = ["ASSUMED", "MACHINE", "UNDECIDED", "VERDICTS", "Claim", "shown"]

ASSUMED, MACHINE, UNDECIDED = "only under an unstated assumption", "machine-dependent", "cannot be decided"

# Verdict and what it says of a number; of a statement, "exact" says that it holds.
VERDICTS = {
    "exact": "equal to every digit printed; a statement that holds",
    "rounded": "equal after rounding, or cutting off, to the digits printed",
    ASSUMED: "equal only if something holds that is neither in the text nor in its published configurations",
    MACHINE: "a time, or a run that was stopped by one",
    "wrong": "something else is computed; a statement that does not hold",
    UNDECIDED: "the text does not say enough",
}


@dataclass(frozen=True)
class Claim:
    """One claim of a document.

    Parameters
    ----------
    place : str
        Heading or function under which it stands.
    says : str
        Its words, shortened.
    stated : str
        What is compared: its number as printed, or its claim in a word.
    compute : function of a Desk
        What pipelab gets. For EQUAL, UNLIKE and ABOVE a pair.
    how : str
        The computation in words.
    expected : str
        The recorded verdict, one of VERDICTS.
    compare : Comparison
    assuming : str
        What `compute` takes for granted and the text does not say.
    literally : function of a Desk, optional
        The computation without that assumption; it must not agree, or else the assumption is idle.
    undecided : str
        Why nothing can be compared, and `compute` shows only what is known.
    note : str
        What a reader should know besides.
    """

    place: str
    says: str
    stated: str
    compute: Callable[[Desk], object]
    how: str
    expected: str
    compare: Comparison = NUMBERS
    assuming: str = ""
    literally: Callable[[Desk], object] | None = None
    undecided: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if self.expected not in VERDICTS:
            raise InvalidValue("Claim", [("expected", self.expected, f"expected one of {', '.join(VERDICTS)}")])
        if self.literally is not None and not self.assuming:
            raise InvalidValue("Claim", [("assuming", "", "expected the assumption that `literally` does without")])

    def verdict(self, computed: object, desk: Desk) -> str:
        """What follows from the computation; only an undecided row is so by its own word."""
        if self.undecided:
            return UNDECIDED
        agreement = self.compare.agrees(self.stated, computed)
        if not self.assuming or agreement not in ("exact", "rounded"):
            return agreement
        if self.literally is not None:
            plainly = self.compare.agrees(self.stated, self.literally(desk))
            if plainly in ("exact", "rounded"):
                return plainly
        return ASSUMED

    @property
    def remark(self) -> str:
        """Assumption, reason and note as one text."""
        assumed = f"Assuming {self.assuming}." if self.assuming else ""
        return " ".join(part for part in (assumed, self.undecided, self.note) if part)


def shown(value: object, between: str = ", ") -> str:
    """A computed value as text: seven digits, thousands apart.

    >>> shown((301.784, 9887608011)), shown(("optimal", 0.25), " and ")
    ('301.784, 9,887,608,011', 'optimal and 0.25')
    """
    if isinstance(value, tuple):
        return between.join(shown(part) for part in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.7g}"
