"""Rows of the ledger: a function that computes a claim, what a TOML file says of it, and the verdict.

A number agrees *exactly* if it equals the printed one to a part in 10^9, and *rounded* if it does so
after rounding, or cutting off, to the digits that are printed. `~600K` has one digit, since zeros
before a suffix or a comma say nothing behind a `~`; `475K+` asks for at least as much.
"""

import math
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ASSUMED, MACHINE = "only under an unstated assumption", "machine-dependent"
HOLDS, TRIED, FAILS, NONE = "holds", "holds on what was tried", "does not hold", "no verdict"
FAILED = "not computed"

# Type of row, its verdicts, and what each verdict says. No verdict belongs to two types.
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


class Trial(NamedTuple):
    """A general sentence put to the test: on how many inputs it held, of how many, and the first where it did not."""

    held: int
    of: int
    counterexample: str = ""

    def __str__(self) -> str:
        counterexample = f"; not {self.counterexample}" if self.counterexample else ""
        return f"{self.held:,} of {self.of:,}{counterexample}"


def tried(results: Iterable[tuple[str, bool]]) -> Trial:
    """Count results, each an input in words and whether the sentence holds there.

    >>> print(tried([("1 layer", True), ("2 layers", False), ("3 layers", False)]))
    1 of 3; not 2 layers
    """
    listed = list(results)
    failed = [what for what, held in listed if not held]
    return Trial(len(listed) - len(failed), len(listed), failed[0] if failed else "")


# When does a computed value agree with a printed one?

SAME = 1e-9


class PrintedNumber(NamedTuple):
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


def numbers_in(text: str) -> tuple[PrintedNumber, ...]:
    """The numbers of a text as they are printed.

    >>> numbers_in("~600K and 301.78")
    (PrintedNumber(value=600000.0, step=100000.0, or_more=False), PrintedNumber(value=301.78, step=0.01,
    or_more=False))
    """
    found = []
    printed = r"(~?)(\d+(?:,\d{3})*)(?:\.(\d+))?([KM]?)(\+?)"
    for about, whole, decimals, suffix, more in re.findall(printed, text):
        digits, scale = whole.replace(",", ""), {"": 1, "K": 10**3, "M": 10**6}[suffix]
        step = 10.0 ** -len(decimals)
        if about and not decimals:
            step = 10.0 ** (len(digits) - len(digits.rstrip("0"))) if int(digits) else 1.0
        value = float(f"{digits}.{decimals or 0}")
        found.append(PrintedNumber(value * scale, step * scale, bool(more)))
    return tuple(found)


def agreement(printed: str, computed: Any) -> str:
    """How one or several numbers agree with those of a text: as well as the worst of them.

    >>> agreement("301.78 and 4", (301.784, 4))
    'rounded'
    """
    parts = computed if isinstance(computed, tuple) else (computed,)
    numbers = numbers_in(printed)
    if len(parts) != len(numbers):
        raise ValueError(f"{printed!r} has {len(numbers)} numbers, and {len(parts)} were computed")
    found = [number.agrees(float(part)) for number, part in zip(numbers, parts, strict=True)]
    return max(found, key=("exact", "rounded", "wrong").index)


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, float | int) and isinstance(second, float | int):
        return math.isclose(first, second, rel_tol=SAME)
    return first == second


EQUAL, DIFFERENT = "both sides are equal", "both sides differ"
ABOVE, AT_LEAST = "the first is larger", "the first is not smaller"
TIME, REPORTED = "a time, which is this machine's", "contradicted by its author's own file"
NUMBERS, TEXT, EVERY = "the numbers as printed", "word for word", "every input tried"
_PAIRS: dict[str, Callable[[Any, Any], bool]] = {
    EQUAL: _equal,
    DIFFERENT: lambda first, second: not _equal(first, second),
    ABOVE: lambda first, second: first > second and not _equal(first, second),
    AT_LEAST: lambda first, second: first >= second or _equal(first, second),
}


def compared(rule: str, stated: str, value: Any) -> str:
    """ "exact", "rounded", "wrong" or "machine-dependent", by one of the rules above."""
    if rule in _PAIRS:
        return "exact" if _PAIRS[rule](*value) else "wrong"
    if rule == EVERY:
        return "exact" if value.of and value.held == value.of else "wrong"
    if rule == TEXT:
        return "exact" if value == stated else "wrong"
    # A run said to have been stopped is contradicted if its author's own file reports the optimum computed here.
    if rule == TIME or (rule == REPORTED and numbers_in(stated)[0].agrees(value) != "exact"):
        return MACHINE
    return "wrong" if rule == REPORTED else agreement(stated, value)


def shown(value: object, between: str = ", ") -> str:
    """A computed value as text: seven digits, thousands apart.

    >>> shown((301.784, 9887608011)), shown(("optimal", 0.25), " and ")
    ('301.784, 9,887,608,011', 'optimal and 0.25')
    """
    if isinstance(value, tuple) and not isinstance(value, Trial):
        return between.join(map(shown, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.7g}"


# Rows


class ComputedClaim(NamedTuple):
    """What a row computes beside its value: the values in its remark, and the value without its assumption."""

    value: Any
    known: tuple = ()
    literally: Any = None  # of a number that agrees only under an assumption


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of a document.

    Attributes
    ----------
    section : str
        Document, or part of it, such as "write-up: results".
    place : str
        Heading, type or function under which it stands, as the document spells it.
    recorded : str
        The recorded verdict, one of VERDICTS; it also tells the type of row.
    compute : function
        What pipelab gets: a number or several, a text, a Trial, or a pair for EQUAL, DIFFERENT, ABOVE
        and AT_LEAST; or these in a ComputedClaim. Of a reading, the values in its remark.
    rule : str
        How the value is compared; by default as its type suggests.
    says : str
        Its words; " … " stands for words left out.
    stated : str
        The number as printed, or what was tested in pipelab's words.
    how : str
        The computation in words; of a number of the write-up the line that computes it.
    remark : str
        What a reader should know besides, an assumption first; of a reading, the answer. `{}` stands
        for known values.
    """

    section: str
    place: str
    recorded: str
    compute: Callable[[], Any]
    rule: str = ""
    says: str = ""
    stated: str = ""
    how: str = ""
    remark: str = ""

    @property
    def document(self) -> str:
        """One of DOCUMENTS."""
        return self.section.partition(":")[0]

    @property
    def kind(self) -> str:
        """Number, statement or reading."""
        return kind_of(self.recorded)

    def computed(self) -> ComputedClaim:
        """Compute it."""
        value = self.compute()
        if isinstance(value, ComputedClaim):
            return value
        return ComputedClaim(None, value or ()) if self.kind == "reading" else ComputedClaim(value)

    def row(self) -> dict[str, str]:
        """Compute it, as a row of the ledger. A computation that fails is a row that says why."""
        value, rule = "–", ""
        try:
            computed = self.computed()
            verdict = self._verdict(computed)
            remark = self.remark.format(*map(shown, computed.known))
            if computed.value is not None:
                rule = self._rule(computed.value)
                value = shown(computed.value, " and " if rule in _PAIRS else ", ")
        except Exception as failure:
            value, verdict, remark = "–", FAILED, f"{type(failure).__name__}: {failure}"
        return {
            "document": self.document,
            "section": self.section,
            "kind": self.kind,
            "place": self.place,
            "it says": f"“{self.says}”",
            "printed or tested": self.stated,
            "computed": value,
            "how": self.how,
            "compared": rule,
            "verdict": verdict,
            "recorded": self.recorded,
            "remark": remark,
        }

    def _rule(self, value: Any) -> str:
        if self.rule or isinstance(value, Trial):
            return self.rule or EVERY
        return TEXT if isinstance(value, str) else NUMBERS

    def _verdict(self, computed: ComputedClaim) -> str:
        if self.kind == "reading":
            return NONE
        rule = self._rule(computed.value)
        verdict = compared(rule, self.stated, computed.value)
        if self.kind == "statement":
            if verdict != "exact":
                return FAILS
            return TRIED if isinstance(computed.value, Trial) else HOLDS
        if computed.literally is None or verdict not in ("exact", "rounded"):
            return verdict
        plainly = compared(rule, self.stated, computed.literally)
        return plainly if plainly in ("exact", "rounded") else ASSUMED


def kind_of(verdict: str) -> str:
    """The type of row that has this verdict; empty for "not computed"."""
    return next((kind for kind, verdicts in KINDS.items() if verdict in verdicts), "")


def entries_beside(module: str) -> dict[str, dict[str, str]]:
    """Read the TOML file beside a module: by the name of a function, what is said of what it computes."""
    entries = tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8"))
    return {
        name: {field: " ".join(text.split()) for field, text in fields.items()}
        for name, fields in entries.items()
    }


COLUMNS = tuple(Claim(section="", place="", recorded=NONE, compute=tuple).row())
