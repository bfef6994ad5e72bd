"""Prices of rented GPUs: `cloud_instances_specs.csv` of gangmuk/LLM_placement_solver, one row per instance."""

import re
from collections.abc import Sequence
from pathlib import Path

from pipelab.errors import UnknownName, nearest
from pipelab.io.csv_cells import Row, read_rows

FILE = "cloud_instances_specs.csv"
_PROVIDER, _MODEL, _COUNT = "Cloud Provider", "GPU Model", "GPU Count"
_MEMORY, _PRICE = "GPU Memory per GPU", "Price per Hour USD"
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def price_list(folder: Path) -> Path | None:
    """The list beside a case, or in one of the two folders above it."""
    above = folder.resolve().parents[:2]
    return next((p / FILE for p in (folder, *above) if (p / FILE).is_file()), None)


def prices(path: Path, provider: str) -> dict[tuple[str, float], float]:
    """The lowest $ per hour of one GPU, by the maker's name of its type and its GB.

    Rows without a price ("Contact for pricing") are passed over; of a range the middle counts. A
    price holds for the whole instance, unless it says "per GPU".

    Raises
    ------
    InvalidData
        The list cannot be read.
    UnknownName
        No row is of this provider.
    """
    rows = read_rows(path, (_PROVIDER, _MODEL, _COUNT, _MEMORY, _PRICE))
    providers = list(dict.fromkeys(row.cells[_PROVIDER] for row in rows))
    if provider not in providers:
        raise UnknownName(f"{path} has no provider {provider!r}; {nearest(provider, providers)}")
    found: dict[tuple[str, float], float] = {}
    for row in rows:
        memory, price = _numbers(row, _MEMORY), _usd_per_hour(row)
        if row.cells[_PROVIDER] == provider and memory and price:
            key = row.cells[_MODEL].removeprefix("NVIDIA ").removeprefix("AMD "), memory[0]
            found[key] = min(price, found.get(key, price))
    return found


def _usd_per_hour(row: Row) -> float | None:
    given, count = _numbers(row, _PRICE)[:2], _numbers(row, _COUNT)
    if not given or not (whole := _mean(given)):
        return None
    if "per gpu" in row.cells[_PRICE].lower():
        return whole
    return whole / count[0] if count and count[0] else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _numbers(row: Row, column: str) -> list[float]:
    """The numbers in a cell such as "$140-160 (estimated)" or "80 GB HBM2e"."""
    return [float(n) for n in _NUMBER.findall(row.cells[column])]
