"""The documents of the ledger, in the order in which they are read, and where they are published."""

from typing import NamedTuple


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
