"""What is known of GPUs: memory, bandwidth, FLOP/s, links, prices; every row with its source."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pipelab.checked import Positive, Share, checked
from pipelab.facts.rows import facts_from
from pipelab.paths import data_dir
from pipelab.tables import frame_of, path_of

if TYPE_CHECKING:
    from pipelab.kinds import DataFrame

__all__ = ["GPUFacts", "gpus", "load_gpus"]


@checked
class GPUFacts:
    """One type of GPU.

    Parameters
    ----------
    memory_gb : float
        In 10^9 bytes.
    memory_bandwidth_gb_per_s : float
    fp16_tflop_per_s : float
        Peak of 16-bit matrix products, dense. Datasheets like to print the sparse figure, twice as high.
    compute_efficiency : float
        Share of that peak which large matrix products reach.
    link_gb_per_s : float
        To the other GPUs of its node, per direction: NVLink, or PCIe where there is none.
    usd_per_hour : float, optional
        What one costs to rent.
    verified, source, note : str
        How sure the row is ("checked", "partly"), where it comes from, what to know.
    """

    memory_gb: Positive
    memory_bandwidth_gb_per_s: Positive
    fp16_tflop_per_s: Positive
    compute_efficiency: Share = 0.5
    link_gb_per_s: Positive = 31.5
    usd_per_hour: Positive | None = None
    verified: str = "yours"
    source: str = ""
    note: str = ""


_TEXTS = {"verified", "source", "note"}


def load_gpus(path: str | Path | None = None) -> dict[str, GPUFacts]:
    """GPU types by name: the bundled ones, and after them those of a file of your own.

    Parameters
    ----------
    path : str or Path, optional
        A CSV with the columns gpu_type, memory_gb, memory_bandwidth_gb_per_s and fp16_tflop_per_s;
        any other column of `data/gpus.csv` may be there too. A type of the same name replaces the
        bundled one.

    Raises
    ------
    InvalidData
        Naming file, row, column and value.

    Examples
    --------
    >>> load_gpus()["L4"].fp16_tflop_per_s
    121.0
    """
    return dict(_bundled()) if path is None else _bundled() | _read(path_of("load_gpus", path))


@cache
def _bundled() -> dict[str, GPUFacts]:
    return _read(data_dir() / "gpus.csv")


def _read(path: Path) -> dict[str, GPUFacts]:
    required = ["memory_gb", "memory_bandwidth_gb_per_s", "fp16_tflop_per_s"]
    optional = ["compute_efficiency", "link_gb_per_s", "usd_per_hour", *sorted(_TEXTS)]
    return facts_from(path, "gpu_type", lambda _, values: GPUFacts(**values), required, optional, texts=_TEXTS)


def gpus(path: str | Path | None = None) -> "DataFrame":
    """The facts as a table, one row per type of GPU, with units, source and how sure each is.

    Examples
    --------
    >>> import pipelab as pl
    >>> float(pl.gpus().loc["H100-SXM", "memory_bandwidth_gb_per_s"])
    3350.0
    """
    path = data_dir() / "gpus.csv" if path is None else path_of("gpus", path)
    _read(path)  # refuses what does not fit
    table = frame_of(path, "gpu_type")
    numbers = table.select_dtypes("number").columns
    return table.astype(dict.fromkeys(numbers, float))
