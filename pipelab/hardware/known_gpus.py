"""What is known of GPUs: memory, bandwidth, FLOP/s, links, prices; every row with its source."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from pipelab.display import DataFrame
from pipelab.errors import InvalidData, nearest
from pipelab.fields import Positive, Share, checked
from pipelab.files.bundled_folders import data_dir
from pipelab.files.csv_rows import bundled_by_name, frame_of, read_by_name
from pipelab.files.reading_and_writing import path_of


@checked
class GPUFacts:
    """One type of GPU.

    Parameters
    ----------
    memory_gb : float
        In 10^9 bytes.
    memory_bandwidth_gb_per_s : float
        Peak, in GB/s.
    fp16_tflop_per_s : float
        Peak of 16-bit matrix products, dense, in 10^12 FLOP/s. Datasheets like to print the sparse
        figure, twice as high.
    compute_efficiency : float
        Share of that peak which large matrix products reach.
    link_gb_per_s : float
        To the other GPUs of its node in GB/s, per direction: NVLink, or PCIe where there is none.
    pcie_gb_per_s : float, optional
        Of its PCIe slot in GB/s, per direction, where its link is another; by default
        `link_gb_per_s`.
    driver_names : str
        What `nvidia-smi` and llama.cpp call it, several names with "; " between them.
    usd_per_hour : float, optional
        What one costs to rent, in $ per hour.
    memory_kind : {"HBM", "GDDR", "unified"}
        Some engines reach less of HBM's bandwidth.
    fp16_accumulate_tflop_per_s, fp8_tflop_per_s : float, optional
        Peaks where 16-bit products add up in 16 bits (twice as high on GeForce), and of 8-bit
        products; by default that of 16-bit products.
    fp8_share : float
        What 8-bit products reach of `compute_efficiency`, at their own peak.
    memory_factor : float
        Share of an engine's memory efficiency that this type reaches: 1 unless calibrated.
    verified, source, note : str
        How sure the row is ("checked", "partly"), where it comes from, what to know.

    Raises
    ------
    InvalidValue
        A number is not finite and above 0, or the efficiency is above 1.
    """

    memory_gb: Positive
    memory_bandwidth_gb_per_s: Positive
    fp16_tflop_per_s: Positive
    compute_efficiency: Share = 0.72
    link_gb_per_s: Positive = 31.5
    pcie_gb_per_s: Positive | None = None
    driver_names: str = ""
    usd_per_hour: Positive | None = None
    memory_kind: Literal["HBM", "GDDR", "unified"] = "GDDR"
    fp16_accumulate_tflop_per_s: Positive | None = None
    fp8_tflop_per_s: Positive | None = None
    fp8_share: Share = 0.69
    memory_factor: Positive = 1.0
    verified: str = "yours"
    source: str = ""
    note: str = ""


# What to do about a GPU that is not known, for messages.
HOW_TO_ADD_A_GPU = (
    "give its facts, a CSV with gpu_type, driver_names, memory_gb, memory_bandwidth_gb_per_s and fp16_tflop_per_s, "
    "by --gpu-facts FILE or gpus=load_gpus(FILE)"
)


def load_gpus(path: str | Path | None = None) -> dict[str, GPUFacts]:
    """Return GPU types by name: the bundled ones, and after them those of a file of your own.

    Parameters
    ----------
    path : str or Path, optional
        A CSV with the columns gpu_type, memory_gb, memory_bandwidth_gb_per_s and fp16_tflop_per_s;
        any other column of `data/gpus.csv` may be there too. A type of the same name replaces the
        bundled one.

    Returns
    -------
    dict of str to GPUFacts
        By type, in the order of the files.

    Raises
    ------
    InvalidData
        The file is not there or cannot be read, or a value does not fit; names file, row, column
        and value.
    InvalidValue
        The argument is not a path.

    References
    ----------
    `data/gpus.csv` names the source of every row, `notebooks/data.md` the meaning of every column.

    Examples
    --------
    >>> load_gpus()["L4"].fp16_tflop_per_s
    121.0
    """
    bundled = bundled_by_name("gpus.csv", "gpu_type", GPUFacts)
    if path is None:
        return dict(bundled)
    return bundled | read_by_name(path_of("load_gpus", path), "gpu_type", GPUFacts)


def type_of(name: str, facts: Mapping[str, GPUFacts]) -> str | None:
    """Find the type of GPU with this name of a driver; None if there is none.

    >>> type_of("NVIDIA A100-SXM4-80GB", load_gpus()), type_of("A100-SXM4-80GB", load_gpus())
    ('A100-SXM-80', 'A100-SXM-80')
    """
    wanted = _plain_name(name)
    for gpu_type, gpu in reversed(list(facts.items())):  # those of a file of your own come first
        if wanted and wanted in map(_plain_name, (gpu_type, *gpu.driver_names.split(";"))):
            return gpu_type
    return None


def type_of_named(
    name: str, facts: Mapping[str, GPUFacts], remedy: str, error: Callable[[str], InvalidData]
) -> str:
    """Find the type of GPU with this name of a driver, which must be known.

    Raises
    ------
    InvalidData
        Made by `error` of a message with the drivers' names of these types, the nearest first, and the remedy.
    """
    gpu_type = type_of(name, facts)
    if gpu_type is None:
        named = [n.strip() for gpu in facts.values() for n in gpu.driver_names.split(";") if n]
        raise error(f"no type of GPU has this name; {nearest(name, named)}; or {remedy}")
    return gpu_type


@cache  # 200,000 calls for 500 published times, of 200 names
def _plain_name(name: str) -> str:
    """Remove the brand, which older drivers leave out, and what is in brackets, such as the driver of Vulkan.

    >>> _plain_name("NVIDIA A100"), _plain_name("AMD Radeon RX 7900 XTX (RADV NAVI31)")
    ('a100', 'rx 7900 xtx')
    """
    bare = " ".join(re.sub(r"\([^()]*\)", "", name.lower()).split())
    return re.sub(r"^((nvidia|tesla|geforce|quadro|amd|radeon|instinct|intel) )+", "", bare)


def gpus(path: str | Path | None = None) -> DataFrame:
    """Show the facts as a table, one row per type of GPU.

    Parameters
    ----------
    path : str or Path, optional
        A file of your own, shown alone; by default `data/gpus.csv`.

    Returns
    -------
    pandas.DataFrame
        The file's columns, units in their names, with source and how sure each row is; the index is
        `gpu_type`.

    Raises
    ------
    InvalidData
        The file is not there or cannot be read, or a value does not fit.
    InvalidValue
        The argument is not a path.

    Examples
    --------
    >>> import pipelab as pl
    >>> float(pl.hardware.gpus().loc["H100-SXM", "memory_bandwidth_gb_per_s"])
    3350.0
    """
    path = data_dir() / "gpus.csv" if path is None else path_of("gpus", path)
    read_by_name(path, "gpu_type", GPUFacts)  # refuses what does not fit
    table = frame_of(path, "gpu_type")
    numbers = table.select_dtypes("number").columns
    return table.astype(dict.fromkeys(numbers, float))
