"""The documents of the ledger, in the order in which they are read, where they are published, and their rows."""

from collections.abc import Iterable
from html import escape
from importlib import import_module
from typing import NamedTuple

from pipelab.course.ledger.claims import Claim
from pipelab.errors import InvalidValue, UnknownName, nearest


class Source(NamedTuple):
    """A published text or program: what it is, and where."""

    title: str
    address: str

    @property
    def link(self) -> str:
        """As a link in Markdown."""
        return f"[{self.title}]({self.address})"

    @property
    def html(self) -> str:
        """As a link on a page."""
        return f'<a href="{escape(self.address)}">{escape(self.title)}</a>'


class Document(NamedTuple):
    """A source with claims: what it is about, its sections, and the module that lists the claims of each."""

    source: Source
    about: str
    sections: dict[str, str]


_DOCS, _GITHUB = "https://docs.rs", "https://github.com"

DOCUMENTS = {
    "pmetal": Document(
        Source(
            "pmetal-distributed 0.3.13, layer_assignment.rs",
            f"{_DOCS}/pmetal-distributed/0.3.13/src/pmetal_distributed/layer_assignment.rs.html",
        ),
        "cuts layers by memory and bandwidth",
        {"pmetal": "layer_assignment"},
    ),
    "scheduler": Document(
        Source(
            "trustformers-core 0.1.1, gpipe_pp.rs",
            f"{_DOCS}/crate/trustformers-core/0.1.1/source/src/parallel/gpipe_pp.rs",
        ),
        "a pipeline scheduler; its code and tests, without its comments",
        {"scheduler": "scheduler"},
    ),
    "boostr": Document(
        Source(
            "boostr 0.1.0, clock.rs",
            f"{_DOCS}/crate/boostr/0.1.0/source/src/distributed/training/pipeline/clock.rs",
        ),
        "PipelineClock, three pipeline schedules",
        {"boostr": "clock"},
    ),
    "write-up": Document(
        Source(
            "Joint ILP Formulation for LLM Hybrid Parallelism Placement",
            f"{_GITHUB}/Tandemn-Labs/LLM_placement_solver/blob/bea837dc567a355a1cbfeadba1934965ffe9d02c/old-docs/Joint_ILP.md",
        ),
        "the write-up: one integer program for cuts and GPUs",
        {
            "write-up: problem": "writeup_problem",
            "write-up: failed heuristic": "writeup_heuristic",
            "write-up: joint ILP": "writeup_joint",
            "write-up: results": "writeup_results",
            "write-up: lessons": "writeup_lessons",
        },
    ),
}
# The author's code, configurations and solution files. They say things of their own, which the
# write-up does not.
AUTHORS_CODE = Source(
    "gangmuk/LLM_placement_solver at commit 2efc2c6",
    f"{_GITHUB}/gangmuk/LLM_placement_solver/tree/2efc2c6",
)


def claims(documents: Iterable[str] | None = None) -> list[tuple[str, int, Claim]]:
    """Document, number within it and claim of every row.

    Raises
    ------
    UnknownName
        For a document that is not in `DOCUMENTS`.
    """
    chosen = list(DOCUMENTS) if documents is None else list(documents)
    for name in chosen:
        if name not in DOCUMENTS:
            raise UnknownName(f"there is no document {name!r}; {nearest(name, DOCUMENTS)}")
    found = []
    for name in chosen:
        listed = [claim for section in DOCUMENTS[name].sections for claim in _of(name, section)]
        found += [(name, number, claim) for number, claim in enumerate(listed, 1)]
    return found


def section_of(document: str, number: int) -> str:
    """The section of a document in which a row stands; rows are counted from 1."""
    for section in DOCUMENTS[document].sections:
        number -= len(_of(document, section))
        if number <= 0:
            return section
    raise InvalidValue("section_of", [("number", number, "expected a row of the document")])


def _of(document: str, section: str) -> tuple[Claim, ...]:
    module = DOCUMENTS[document].sections[section]
    return import_module(f"pipelab.course.ledger.{module}").CLAIMS
