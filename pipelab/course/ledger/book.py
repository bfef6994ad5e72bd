"""Compute every row of the ledger, and hold every verdict against the recorded one."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

from pipelab.course.ledger.claims import KINDS, VERDICTS, Claim, shown
from pipelab.course.ledger.shared_results import SharedResults
from pipelab.engine.interrupts import noted_interrupts
from pipelab.errors import UnknownName, nearest

if TYPE_CHECKING:
    from pandas import DataFrame

FAILED = "not computed"


@dataclass(frozen=True)
class Entry:
    """A claim with what came of it."""

    document: str
    number: int  # within its document, from 1
    claim: Claim
    value: object  # None of a reading
    verdict: str
    seconds: float
    error: str = ""
    known: tuple = ()  # the values in its note

    @property
    def changed(self) -> bool:
        """Whether the verdict is not the recorded one."""
        return self.verdict != self.claim.expected

    @property
    def section(self) -> str:
        """Of its document."""
        from pipelab.course.ledger.documents import section_of

        return section_of(self.document, self.number)

    @property
    def sentence(self) -> str:
        """Claim, computation and verdict in words."""
        told = self.row()
        if self.claim.kind == "reading":
            return f"{told['it says']}: {told['remark']} (A reading, without a verdict.)"
        return f"{told['it says']}: {told['computed']} is computed ({told['how']}), so the verdict is: {self.verdict}."

    def _repr_html_(self) -> str:
        return escape(self.sentence)

    def row(self) -> dict[str, object]:
        """As one row of a table."""
        claim = self.claim
        return {
            "document": self.document,
            "row": self.number,
            "kind": claim.kind,
            "place": claim.place,
            "it says": claim.quotation,
            "words": "paraphrase" if claim.paraphrase else "quotation",
            "printed or tested": claim.stated,
            "computed": "–" if self.value is None else shown(self.value, claim.compare.between),
            "how": claim.how,
            "compared": claim.compare.rule if claim.compute else "",
            "verdict": self.verdict,
            "recorded": claim.expected,
            "remark": self.error or claim.remark(self.known),
        }


@dataclass(frozen=True)
class Ledger:
    """Entries in the order of their documents; shows itself as a table to filter by verdict and document.

    Attributes
    ----------
    entries : tuple of Entry
        Claim, computed value and verdict of every row.
    seconds : float
        What it took to compute them.
    """

    entries: tuple[Entry, ...]
    seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    @property
    def changed(self) -> tuple[Entry, ...]:
        """Entries whose verdict is not the recorded one."""
        return tuple(entry for entry in self.entries if entry.changed)

    @property
    def state(self) -> str:
        """Whether every verdict is as recorded, in words."""
        if not self.changed:
            return "every verdict is as recorded"
        return f"{len(self.changed)} of {len(self)} verdicts not as recorded"

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """How many entries of every verdict, by document; verdicts in the order of VERDICTS."""
        documents = dict.fromkeys(entry.document for entry in self.entries)
        by_pair = Counter((entry.document, entry.verdict) for entry in self.entries)
        verdicts = [*VERDICTS, *{e.verdict for e in self.entries if e.verdict not in VERDICTS}]
        return {d: {v: by_pair[d, v] for v in verdicts} for d in documents}

    @property
    def totals(self) -> dict[str, int]:
        """How many entries of every verdict, in all. No verdict belongs to two kinds, so kinds are counted apart."""
        return dict(Counter(entry.verdict for entry in self.entries))

    @property
    def kinds(self) -> dict[str, int]:
        """How many numbers, statements and readings."""
        return {kind: sum(entry.claim.kind == kind for entry in self.entries) for kind in KINDS}

    def only(
        self, verdict: str | None = None, document: str | None = None, kind: str | None = None
    ) -> "Ledger":
        """Its entries of one verdict, of one document, of one kind, or several of these.

        Parameters
        ----------
        verdict : str, optional
            One of `pipelab.course.ledger.VERDICTS`, or "not computed".
        document : str, optional
            One of those in this ledger.
        kind : str, optional
            One of `pipelab.course.ledger.KINDS`.

        Returns
        -------
        Ledger
            In the same order.

        Raises
        ------
        UnknownName
            There is no such verdict, document or kind.
        """
        documents = {e.document for e in self.entries}
        for value, known in ((verdict, (*VERDICTS, FAILED)), (document, documents), (kind, KINDS)):
            if value is not None and value not in known:
                raise UnknownName(f"no entry has {value!r}; {nearest(value, known)}")
        chosen = ((verdict, "verdict"), (document, "document"))
        kept = (
            e
            for e in self.entries
            if all(value in (None, getattr(e, name)) for value, name in chosen)
        )
        return replace(self, entries=tuple(e for e in kept if kind in (None, e.claim.kind)))

    def find(self, says: str) -> Entry:
        """The first entry whose words contain this text.

        Parameters
        ----------
        says : str
            Any part of a claim's words.

        Returns
        -------
        Entry
            The first.

        Raises
        ------
        UnknownName
            None does.
        """
        for entry in self.entries:
            if says in entry.claim.says:
                return entry
        raise UnknownName(f"no entry says {says!r}")

    def to_frame(self) -> "DataFrame":
        """The ledger as a table, one row per entry.

        Returns
        -------
        pandas.DataFrame
            Columns of text: document, row, kind, place, it says, words (quotation or paraphrase),
            printed or tested, computed, how, compared, verdict, recorded, remark.
        """
        import pandas as pd

        return pd.DataFrame([entry.row() for entry in self.entries])

    def csv(self) -> str:
        """The whole table as the text of a CSV file.

        Returns
        -------
        str
            With the columns of `frame`.
        """
        from pipelab.io.csv_cells import csv_text

        rows = [entry.row() for entry in self.entries]
        return csv_text(list(rows[0]) if rows else [], [list(row.values()) for row in rows])

    def html(self) -> str:
        """The whole table as a page of its own.

        Returns
        -------
        str
            HTML with its style, and a filter by verdict and document.
        """
        from pipelab.course.ledger.pages import page

        return page(self)

    def _repr_html_(self) -> str:
        from pipelab.course.ledger.pages import filtered_table

        return filtered_table(self)

    def __repr__(self) -> str:
        return f"Ledger of {len(self)} entries; {self.state}"


def enter(document: str, number: int, claim: Claim, shared: SharedResults) -> Entry:
    """Compute one claim. A computation that fails is an entry that says why, and not as recorded."""
    began = time.perf_counter()
    try:
        value = claim.compute(shared) if claim.compute else None
        known = claim.known(shared) if claim.known else ()
        verdict, error = claim.verdict(value, shared), ""
    except Exception as failure:
        value, known, verdict, error = None, (), FAILED, f"{type(failure).__name__}: {failure}"
    return Entry(document, number, claim, value, verdict, time.perf_counter() - began, error, known)


def reproduce(
    documents: Iterable[str] | None = None,
    *,
    progress: bool = False,
    shared: SharedResults | None = None,
    on_entry: Callable[[Entry], None] | None = None,
) -> Ledger:
    """Compute every claim of the write-up and of three published programs, and compare.

    Parameters
    ----------
    documents : iterable of str, optional
        Some of `pipelab.course.ledger.DOCUMENTS`; by default all.
    progress : bool
        Show a progress bar on standard error.
    shared : SharedResults, optional
        Where results that several rows need are kept; a new one by default, so that everything is
        computed now.
    on_entry : function of Entry, optional
        Called after each.

    Returns
    -------
    Ledger
        A computation that fails is an entry that says why.

    Raises
    ------
    UnknownName
        There is no such document.

    References
    ----------
    *Joint ILP Formulation for LLM Hybrid Parallelism Placement*; pmetal-distributed 0.3.13,
    `layer_assignment.rs`; trustformers-core 0.1.1, `gpipe_pp.rs`; boostr 0.1.0, `clock.rs`.
    `pipelab.course.ledger.DOCUMENTS` has their addresses.

    Examples
    --------
    >>> import pipelab as pl
    >>> ledger = pl.reproduce(["pmetal"])
    >>> ledger.changed, ledger.find("cover 0..num_layers").verdict
    ((), 'holds on what was tried')
    """
    from tqdm.auto import tqdm

    from pipelab.course.ledger.documents import claims

    began, shared = time.perf_counter(), shared or SharedResults()
    entries = []
    rows = claims(documents)
    bar = tqdm(total=len(rows), unit="row", disable=not progress)
    with noted_interrupts(passed_on=True) as interrupted, bar:
        for document, number, claim in rows:
            bar.set_description(document)
            entries.append(enter(document, number, claim, shared))
            # a solve takes Ctrl-C for its own, and with less to say the row would be another
            if interrupted():
                raise KeyboardInterrupt
            if on_entry:
                on_entry(entries[-1])
            bar.update()
    return Ledger(tuple(entries), time.perf_counter() - began)
