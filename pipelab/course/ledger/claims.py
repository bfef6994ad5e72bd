"""A row of the ledger: what a document says, how it is computed, and the verdict that follows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipelab.course.ledger.comparisons import NUMBERS, Comparison, Trial
from pipelab.course.ledger.shared_results import SharedResults
from pipelab.errors import InvalidValue

ASSUMED, MACHINE = "only under an unstated assumption", "machine-dependent"
HOLDS, TRIED, FAILS, NONE = "holds", "holds on what was tried", "does not hold", "no verdict"

# Kind of row, its verdicts, and what each verdict says. No verdict belongs to two kinds.
KINDS = {
    "number": {
        "exact": "equal to every digit printed",
        "rounded": "equal after rounding, or cutting off, to the digits printed",
        ASSUMED: "equal only if something holds that is neither in the text nor in its published configurations",
        MACHINE: "a time, or a run that was stopped by one",
        "wrong": "something else is computed",
    },
    "statement": {
        HOLDS: "true of the case that it speaks of, or shown by one example where one is enough",
        TRIED: "a general sentence that no trial contradicts; the row says how many there were",
        FAILS: "one counterexample is enough; the row shows it",
    },
    "reading": {NONE: "an opinion, an open question or an outlook: answered in a sentence"},
}
VERDICTS = {verdict: text for verdicts in KINDS.values() for verdict, text in verdicts.items()}
_KIND_OF = {verdict: kind for kind, verdicts in KINDS.items() for verdict in verdicts}


@dataclass(frozen=True)
class Claim:
    """One claim of a document.

    Parameters
    ----------
    place : str
        Heading, type or function under which it stands, as the document spells it.
    says : str
        Its words; " … " stands for words left out.
    stated : str
        Of a number: the number as printed. Of a statement: what was tested, in pipelab's words.
    compute : function of a SharedResults, optional
        What pipelab gets: a number or several; for EQUAL, DIFFERENT, ABOVE and AT_LEAST a pair; for
        EVERY a Trial. A reading has none.
    how : str
        The computation in words.
    expected : str
        The recorded verdict, one of VERDICTS; it also tells the kind of row.
    compare : Comparison
    assuming : str
        What `compute` takes for granted and the text does not say; of numbers only.
    literally : function of a SharedResults, optional
        The computation without that assumption; it must not agree, or else the assumption is idle.
    note : str
        What a reader should know besides; of a reading, the answer. `{}` stands for values of
        `known`.
    known : function of a SharedResults, optional
        The values in `note`, as a tuple.
    paraphrase : bool
        `says` is not word for word in the document.
    """

    place: str
    says: str
    stated: str
    compute: Callable[[SharedResults], object] | None
    how: str
    expected: str
    compare: Comparison = NUMBERS
    assuming: str = ""
    literally: Callable[[SharedResults], object] | None = None
    note: str = ""
    known: Callable[[SharedResults], tuple[Any, ...]] | None = None
    paraphrase: bool = False

    def __post_init__(self) -> None:
        if self.expected not in VERDICTS:
            raise InvalidValue(
                "Claim", [("expected", self.expected, f"expected one of {', '.join(VERDICTS)}")]
            )
        if self.literally is not None and not self.assuming:
            raise InvalidValue(
                "Claim", [("assuming", "", "expected the assumption that `literally` does without")]
            )
        if self.assuming and self.kind != "number":
            raise InvalidValue(
                "Claim", [("assuming", self.assuming, f"expected none: this row is a {self.kind}")]
            )
        if (self.compute is None) != (self.kind == "reading"):
            raise InvalidValue(
                "Claim", [("compute", self.compute, "expected a function, but none of a reading")]
            )
        if self.kind == "reading" and not self.note:
            raise InvalidValue("Claim", [("note", "", "expected the answer of a reading")])

    @property
    def kind(self) -> str:
        """Number, statement or reading."""
        return _KIND_OF[self.expected]

    @property
    def quotation(self) -> str:
        """Its words, in quotation marks where they are the document's own."""
        return self.says if self.paraphrase else f"“{self.says}”"

    def verdict(self, computed: object, shared: SharedResults) -> str:
        """What follows from the computation."""
        if self.kind == "reading":
            return NONE
        agreement = self.compare.agrees(self.stated, computed)
        if self.kind == "statement":
            if agreement != "exact":
                return FAILS
            return TRIED if isinstance(computed, Trial) and not computed.whole else HOLDS
        if not self.assuming or agreement not in ("exact", "rounded"):
            return agreement
        if self.literally is not None:
            plainly = self.compare.agrees(self.stated, self.literally(shared))
            if plainly in ("exact", "rounded"):
                return plainly
        return ASSUMED

    def remark(self, known: tuple[Any, ...]) -> str:
        """Assumption and note as one text, with what was computed for it."""
        assumed = f"Assuming {self.assuming}." if self.assuming else ""
        note = self.note.format(*map(shown, known)) if known else self.note
        return " ".join(part for part in (assumed, note) if part)


def reading(
    place: str, says: str, answer: str, known: Callable[[SharedResults], tuple[Any, ...]] | None = None, *,
    paraphrase: bool = False,
) -> Claim:  # fmt: skip
    """An opinion, a question or an outlook, and the sentence that answers it.

    >>> reading("Lessons", "simple is better", "That is a matter of taste.").kind
    'reading'
    """
    return Claim(place, says, "", None, "", NONE, note=answer, known=known, paraphrase=paraphrase)


def shown(value: object, between: str = ", ") -> str:
    """A computed value as text: seven digits, thousands apart.

    >>> shown((301.784, 9887608011)), shown(("optimal", 0.25), " and ")
    ('301.784, 9,887,608,011', 'optimal and 0.25')
    """
    if isinstance(value, Trial):
        return str(value)
    if isinstance(value, tuple):
        return between.join(shown(part) for part in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.7g}"
