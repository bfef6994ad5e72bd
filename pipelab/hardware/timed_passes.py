"""One timed pass out of a file, and what the caller states of a file that cannot say it."""

from dataclasses import dataclass
from typing import Literal

from pipelab.errors import InvalidData
from pipelab.fields import Count, Positive, checked

Phase = Literal["prefill", "decode"]


@checked
class Stated:
    """What the caller says of the measurements in a file; what is stated counts, whatever the file says."""

    gpu_type: str | None = None
    model: str | None = None
    precision: str | None = None
    engine: str | None = None
    phase: Phase | None = None
    batch: Count | None = None
    tokens: Count | None = None
    output_tokens: Count | None = None
    tensor_parallel: Count | None = None
    node_gb_per_s: Positive | None = None


@dataclass(frozen=True)
class Timed:
    """One traversal of a batch, and where it is written."""

    place: str  # file and record
    what: str
    gpu_type: str
    phase: Phase
    batch: int
    milliseconds: float
    tokens: int | None = None  # of a prompt, or of the context in decode
    model: str | None = None
    layers: int | None = None  # of a profile; None: the whole model with its head
    engine: str = "kernels"
    precision: str = ""
    tensor_parallel: int = 1

    def unsaid(self, what: str, argument: str) -> InvalidData:
        """An error: the file does not say something."""
        return unsaid(self.place, what, argument)


def unsaid(place: str, what: str, argument: str) -> InvalidData:
    """An error: the file does not say something, and an argument would."""
    return InvalidData(f"{place}: the file does not say {what}; give {argument}=…")
