"""The documents of the ledger, in the order in which they are read, and their rows."""

from collections.abc import Iterable
from importlib import import_module
from typing import NamedTuple

from pipelab.errors import UnknownName, nearest
from pipelab.ledger.claims import Claim

__all__ = ["DOCUMENTS", "Document", "claims"]


class Document(NamedTuple):
    """What it is, and the modules that list its claims in its order."""

    title: str
    modules: tuple[str, ...]


DOCUMENTS = {
    "pmetal": Document("pmetal's layer_assignment.rs: cutting layers by memory and bandwidth", ("layer_assignment",)),
    "scheduler": Document("a Rust pipeline scheduler, published without a name", ("scheduler",)),
    "boostr": Document("boostr 0.1.0, PipelineClock", ("clock",)),
    "write-up": Document(
        "Joint ILP Formulation for LLM Hybrid Parallelism Placement",
        ("writeup_problem", "writeup_heuristic", "writeup_joint", "writeup_results"),
    ),
}


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
        listed = [c for module in DOCUMENTS[name].modules for c in import_module(f"pipelab.ledger.{module}").CLAIMS]
        found += [(name, number, claim) for number, claim in enumerate(listed, 1)]
    return found
