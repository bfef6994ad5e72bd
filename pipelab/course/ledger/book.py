"""The documents of the ledger; all rows computed, their verdicts compared with the recorded ones, and shown."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

from pipelab.course.ledger.claims import COLUMNS, FAILED, KINDS, VERDICTS, Claim, kind_of
from pipelab.display import DataFrame, data_frame, table
from pipelab.errors import UnknownName, nearest
from pipelab.interrupts import noted_interrupts

# The documents in the order in which they are read


class Document(NamedTuple):
    """A published text or program: what it is, where, and what it is about."""

    title: str
    address: str
    about: str

    @property
    def link(self) -> str:
        """As a link in Markdown."""
        return f"[{self.title}]({self.address})"


_DOCS, _GITHUB = "https://docs.rs", "https://github.com"

DOCUMENTS = {
    "pmetal": Document(
        "pmetal-distributed 0.3.13, layer_assignment.rs",
        f"{_DOCS}/pmetal-distributed/0.3.13/src/pmetal_distributed/layer_assignment.rs.html",
        "cuts layers by memory and bandwidth",
    ),
    "scheduler": Document(
        "trustformers-core 0.1.1, gpipe_pp.rs",
        f"{_DOCS}/crate/trustformers-core/0.1.1/source/src/parallel/gpipe_pp.rs",
        "a pipeline scheduler; its code and tests, without its comments",
    ),
    "boostr": Document(
        "boostr 0.1.0, clock.rs",
        f"{_DOCS}/crate/boostr/0.1.0/source/src/distributed/training/pipeline/clock.rs",
        "PipelineClock, three pipeline schedules",
    ),
    "write-up": Document(
        "Joint ILP Formulation for LLM Hybrid Parallelism Placement",
        f"{_GITHUB}/Tandemn-Labs/LLM_placement_solver/blob/bea837dc567a355a1cbfeadba1934965ffe9d02c/old-docs/Joint_ILP.md",
        "the write-up: one integer program for cuts and GPUs",
    ),
}
AUTHORS_CODE = Document(
    "gangmuk/LLM_placement_solver at commit 2efc2c6",
    f"{_GITHUB}/gangmuk/LLM_placement_solver/tree/2efc2c6",
    "the author's code, configurations and solution files, which say things that the write-up does not",
)


# The rows

# Columns of the table that is shown, and how wide they are beside each other.
_WIDTHS = {
    "row": 9,
    "place": 10,
    "it says": 19,
    "printed or tested": 11,
    "computed": 15,
    "how": 13,
    "verdict": 9,
    "remark": 23,
}
_NUMBER = count(1)  # so that two tables on one page filter themselves alone


@dataclass(frozen=True)
class Ledger:
    """Claims with their verdicts; shows itself as a table to filter by verdict and document.

    Attributes
    ----------
    data : pandas.DataFrame
        One row per claim, in the order of the documents. Columns of text: document, section, kind, place,
        it says, printed or tested, computed, how, compared, verdict, recorded, remark; and `row`, its
        number within its document.
    seconds : float
        What it took to compute them.
    """

    data: DataFrame
    seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.data)

    @property
    def changed(self) -> "Ledger":
        """The rows whose verdict is not the recorded one."""
        return replace(self, data=self.data[self.data["verdict"] != self.data["recorded"]])

    @property
    def state(self) -> str:
        """Whether every verdict is as recorded, in words."""
        if not self.changed:
            return "every verdict is as recorded"
        return f"{len(self.changed)} of {len(self)} verdicts not as recorded"

    @property
    def summary(self) -> str:
        """How many rows of each kind, how long they took, and the state, in words."""
        kinds = Counter(self.data["kind"])
        counted = ", ".join(f"{kinds[kind]} {kind}s" for kind in KINDS)
        return f"{counted} in {self.seconds:.0f} s; {self.state}"

    def only(
        self, verdict: str | None = None, document: str | None = None, kind: str | None = None
    ) -> "Ledger":
        """Select rows of one verdict, of one document, of one kind, or several of these.

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
        data = self.data
        known = {"verdict": [*VERDICTS, FAILED], "document": set(data["document"]), "kind": KINDS}
        chosen = {"verdict": verdict, "document": document, "kind": kind}
        for column, value in chosen.items():
            if value is not None:
                if value not in known[column]:
                    raise UnknownName(f"no entry has {value!r}; {nearest(value, known[column])}")
                data = data[data[column] == value]
        return replace(self, data=data)

    def find(self, says: str) -> "Ledger":
        """Select the rows whose words contain a text.

        Parameters
        ----------
        says : str
            Any part of a claim's words.

        Returns
        -------
        Ledger
            At least one row.

        Raises
        ------
        UnknownName
            There is no such row.
        """
        found = self.data[self.data["it says"].str.contains(says, regex=False)]
        if found.empty:
            raise UnknownName(f"no entry says {says!r}")
        return replace(self, data=found)

    def to_frame(self) -> DataFrame:
        """The ledger as a table.

        Returns
        -------
        pandas.DataFrame
            `data`.
        """
        return self.data

    def verdict_counts(self) -> DataFrame:
        """Count the verdicts by document.

        Returns
        -------
        pandas.DataFrame
            One row per verdict that occurs, with its kind; one column per document, and the sum.
        """
        import pandas as pd

        counts = pd.crosstab(self.data["verdict"], self.data["document"])
        occur = [verdict for verdict in (*VERDICTS, FAILED) if verdict in counts.index]
        counts = counts.loc[occur, self.data["document"].unique()].assign(all=counts.sum(axis=1))
        counts = counts.rename_axis(columns=None).reset_index()
        counts.insert(0, "kind", [kind_of(verdict) for verdict in occur])
        return counts

    def csv(self) -> str:
        """The whole table as the text of a CSV file.

        Returns
        -------
        str
            With the columns of `data`.
        """
        return self.data.to_csv(index=False)

    def html(self) -> str:
        """The whole table as a page of its own.

        Returns
        -------
        str
            HTML with its style: the sources with their addresses, what the verdicts mean and how many there
            are, and the table with a filter by verdict and document.
        """
        sources = {name: DOCUMENTS[name] for name in self.data["document"].unique()}
        return self._rendered(
            height="none",
            sources=sources | {"the author's code": AUTHORS_CODE},
            kinds=KINDS,
            counts=table(self.verdict_counts()),
        )

    def _repr_html_(self) -> str:
        return self._rendered(height="640px")

    def __repr__(self) -> str:
        return f"Ledger of {len(self)} entries; {self.state}"

    def _rendered(self, **page: Any) -> str:
        """Fill the template: a page if it gets sources, and otherwise a piece of one."""
        from jinja2 import Environment, PackageLoader

        from pipelab.figures.theme import VERDICT_COLOURS, ink_on

        data = self.data.assign(row=self.data["document"] + " " + self.data["row"].astype(str))
        verdicts = [v for v in (*VERDICTS, FAILED) if v in set(data["verdict"])]
        documents = list(data["document"].unique())
        filled = [column for column in _WIDTHS if not data[column].isin(["", "–"]).all()]
        whole = sum(_WIDTHS[column] for column in filled)
        colours = {v: VERDICT_COLOURS.get(v, "#FFFFFF") for v in verdicts}
        loader = PackageLoader(__package__, ".")
        made = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
        return made.get_template("ledger.html.j2").render(
            name=f"ledger{next(_NUMBER)}",
            rows=data.to_dict("records"),
            verdicts=verdicts,
            documents=documents,
            widths={column: 100 * _WIDTHS[column] / whole for column in filled},
            colours={v: f"background:{c};color:{ink_on(c)}" for v, c in colours.items()},
            kind_of=kind_of,
            summary=self.summary,
            **page,
        )


def claims(documents: Iterable[str] | None = None) -> list[Claim]:
    """Every row, uncomputed, of some documents.

    Raises
    ------
    UnknownName
        For a document that is not in `DOCUMENTS`.
    """
    from pipelab.course.ledger.programs import CLAIMS as OF_PROGRAMS
    from pipelab.course.ledger.writeup import CLAIMS as OF_THE_WRITEUP

    chosen = list(DOCUMENTS) if documents is None else list(documents)
    for name in chosen:
        if name not in DOCUMENTS:
            raise UnknownName(f"there is no document {name!r}; {nearest(name, DOCUMENTS)}")
    rows = (*OF_PROGRAMS, *OF_THE_WRITEUP)
    return [row for name in chosen for row in rows if row.document == name]


def reproduce(documents: Iterable[str] | None = None, *, progress: bool = False) -> Ledger:
    """Compute every claim of the write-up and of three published programs, and compare.

    Parameters
    ----------
    documents : iterable of str, optional
        Some of `pipelab.course.ledger.DOCUMENTS`; by default all.
    progress : bool
        Show a progress bar on standard error.

    Returns
    -------
    Ledger
        A computation that fails is a row that says why.

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
    >>> ledger = pl.course.reproduce(["pmetal"])
    >>> len(ledger.changed), list(ledger.find("cover 0..num_layers").data["verdict"])
    (0, ['holds on what was tried'])
    """
    from tqdm.auto import tqdm

    from pipelab.course.ledger.writeup import once

    began, listed = time.perf_counter(), claims(documents)
    once.cache_clear()  # everything is computed now
    computed: list[dict] = []
    bar = tqdm(total=len(listed), unit="row", disable=not progress)
    with noted_interrupts(passed_on=True) as interrupted, bar:
        for claim in listed:
            bar.set_description(claim.document)
            computed.append(claim.row())
            # a solve takes Ctrl-C for its own, and with less to say the row would be another
            if interrupted():
                raise KeyboardInterrupt
            bar.update()
    data = data_frame(computed, COLUMNS)
    data.insert(1, "row", data.groupby("document").cumcount() + 1)
    return Ledger(data, time.perf_counter() - began)
