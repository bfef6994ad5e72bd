"""The GPUs of one host, as nvidia-smi, rocm-smi or amd-smi lists them: HOST.gpus.csv."""

import math
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pipelab.cluster import GPU
from pipelab.errors import InvalidData, shown
from pipelab.files.csv_rows import NUMBER, Row, read_rows
from pipelab.files.reading_and_writing import read_text
from pipelab.hardware.known_gpus import HOW_TO_ADD_A_GPU, GPUFacts, type_of, type_of_named

PCIE_LANE_GB_PER_S = {1: 0.25, 2: 0.5, 3: 0.984375, 4: 1.96875, 5: 3.9375, 6: 7.5625}


class ListedGPU(NamedTuple):
    """One GPU: its number in the topology, what its driver calls it, and the GB/s of its slot."""

    number: int
    called: int | str
    gpu: GPU
    slot: float


class _ListingTool(NamedTuple):
    """A tool that lists GPUs: its command, columns, and unit of memory."""

    command: str
    number: str
    names: tuple[str, ...]
    total: str
    taken: tuple[str, ...]
    unit: str


# Columns of rocm-smi: showProductName and showMemInfo of python_smi_tools/rocm_smi.py; of amd-smi:
# static_gpu of amdsmi_cli/amdsmi_commands.py, flattened by amdsmi_logger.py (ROCm 6.2). "MB" there is MiB.
_TOOLS = (
    _ListingTool(
        command="nvidia-smi --query-gpu=index,name,memory.total --format=csv",
        number="index",
        names=("name",),
        total="memory.total [MiB]",
        taken=("memory.used [MiB]", "memory.reserved [MiB]"),
        unit="MiB",
    ),
    _ListingTool(
        command="rocm-smi --showproductname --showmeminfo vram --csv",
        number="device",
        names=("Card Series", "Card series", "Card Model", "Card model"),
        total="VRAM Total Memory (B)",
        taken=("VRAM Total Used Memory (B)",),
        unit="bytes",
    ),
    _ListingTool("amd-smi static --csv", "gpu", ("market_name",), "size", (), "MiB"),
)
_BYTES = {"MiB": 2**20, "bytes": 1}
COMMANDS = "` or `".join(tool.command for tool in _TOOLS)
_FREE, _UNNAMED = "memory.free [MiB]", "memory [MiB]"  # without a header, none says which memory
_ECC_SHARE = 0.07  # GDDR with error correction keeps a sixteenth for it
_NUMBER, _UUID = re.compile("0|[1-9][0-9]{0,3}"), re.compile("GPU-[0-9a-fA-F-]+")
# MIG instances in names and UUIDs; AMD's partitions, each of which shows the whole GPU's memory
# (ROCm issue 4750).
_PART = re.compile(r"\bMIG\b|^[DTQC]PX$")
_UNKNOWN = f"{HOW_TO_ADD_A_GPU}, or leave its row out"
WHOLE = (
    "expected whole GPUs; turn MIG off (nvidia-smi -mig 0) or partitions (amd-smi set --compute-partition SPX), "
    "or leave this GPU out"
)


def listed_gpus(path: Path, facts: Mapping[str, GPUFacts]) -> list[ListedGPU]:
    """Read the GPUs of a host, in the order of their numbers.

    Raises
    ------
    InvalidData
        Names file, row and value.
    """
    tool, rows = _table(path)
    gpus: dict[str, ListedGPU] = {}
    for place, row in enumerate(rows):
        _refuse_unusable(row)
        column = tool.number if tool.number in row.cells else "uuid"
        text = row.cells[column].removeprefix("card")
        numbered = column == tool.number
        if text in gpus or not (_NUMBER if numbered else _UUID).fullmatch(text):
            what = "number" if numbered else "UUID"
            raise row.error(column, text, f"expected a GPU's {what} that no other row has")
        called = int(text) if numbered else text
        number = int(text) if numbered else place
        gpus[text] = ListedGPU(number, called, *_gpu(row, tool, facts))
    return sorted(gpus.values(), key=lambda gpu: gpu.number)


def _table(path: Path) -> tuple[_ListingTool, list[Row]]:
    """Find out which tool printed a listing, and read it, with a header or without."""
    lines = [[cell.strip() for cell in line.split(",")] for line in read_text(path).splitlines()]
    # rocm-smi may put a warning in front, which is one sentence
    skipped = next((i for i, cells in enumerate(lines) if len(cells) > 1), 0)
    cells = lines[skipped] if lines else [""]
    tool = next((tool for tool in _TOOLS if {tool.number, tool.total} & set(cells)), None)
    if tool is None:
        if len(cells) != 3 or not re.match(r"\d+$|GPU-|MIG-", cells[0]):
            said = f"{path}, row {skipped + 1}: {shown(', '.join(cells))}: no header of a listing"
            raise InvalidData(f"{said}; expected what `{COMMANDS}` prints")
        tool = _TOOLS[0]._replace(total=_UNNAMED)
        header = tool.number if cells[0].isdecimal() else "uuid", tool.names[0], _UNNAMED
        return tool, read_rows(path, (), skipped=skipped, header=header)
    for columns in ((tool.number, "uuid"), tool.names, (tool.total,)):
        if not set(columns) & set(cells):
            expected = f"expected what `{tool.command}` prints"
            missing = f"column {columns[0]!r} is missing; {expected}"
            raise InvalidData(f"{path}, row {skipped + 1}: {missing}")
    return tool, read_rows(path, (), skipped=skipped)


def _refuse_unusable(row: Row) -> None:
    """Refuse parts of GPUs, and GPUs on which no program may run."""
    for column, cell in row.cells.items():
        if _PART.search(cell) or (column == "mig.mode.current" and cell.lower() == "enabled"):
            expected = f"a MIG instance or a partition, or a GPU cut into them: {WHOLE}"
            raise row.error(column, cell, expected)
        if column == "compute_mode" and cell == "Prohibited":
            expected = "expected a usable GPU; run nvidia-smi -c DEFAULT, or leave it out"
            raise row.error(column, cell, expected)


def _gpu(row: Row, tool: _ListingTool, facts: Mapping[str, GPUFacts]) -> tuple[GPU, float]:
    """Return one GPU without its node, and the GB/s of its slot."""
    columns = [column for column in tool.names if column in row.cells]
    column = next((c for c in columns if type_of(row.cells[c], facts)), columns[0])
    name = row.cells[column]
    kind = type_of_named(name, facts, _UNKNOWN, partial(row.error, column, name))
    gpu = facts[kind]
    slot = gpu.pcie_gb_per_s or gpu.link_gb_per_s
    generation, width = (_lanes(row, f"pcie.link.{what}") for what in ("gen.max", "width.current"))
    if generation and width:
        slot = PCIE_LANE_GB_PER_S[generation] * width
    memory = _available(row, tool) / 1e9
    if tool.total == _UNNAMED and not math.isclose(memory, gpu.memory_gb, rel_tol=_ECC_SHARE):
        expected = "expected the total; list it with a header if only this is free"
        raise row.error(_UNNAMED, row.cells[_UNNAMED], expected)
    return GPU(kind, memory, gpu.usd_per_hour), slot


def _available(row: Row, tool: _ListingTool) -> float:
    """Return the bytes that are left: what is free, or else the total without what is in use."""
    columns = [tool.total, _FREE, *tool.taken]
    said = {column: _bytes(row, column, tool.unit) for column in columns if column in row.cells}
    total = said.pop(tool.total)
    left = said[_FREE] if _FREE in said else total - sum(said.values())
    if not 0 < left <= total:
        expected = f"expected {tool.unit}, more than are in use"
        raise row.error(tool.total, row.cells[tool.total], expected)
    return left


def _bytes(row: Row, column: str, unit: str) -> float:
    text = row.cells[column].removesuffix(unit).strip()
    if not NUMBER.fullmatch(text) or not 0 <= float(text) * _BYTES[unit] < 1e15:
        raise row.error(column, row.cells[column], f"expected a number of {unit}")
    return float(text) * _BYTES[unit]


def _lanes(row: Row, column: str) -> int | None:
    text = row.cells.get(column, "")
    most = max(PCIE_LANE_GB_PER_S) if column.endswith("max") else 32
    # "[N/A]", "[Not Supported]": the driver does not know.
    if not text or text.strip("[]") in ("N/A", "Not Supported", "Unknown Error"):
        return None
    if not re.fullmatch("[0-9]{1,2}", text) or not 1 <= int(text) <= most:
        raise row.error(column, text, f"expected a whole number from 1 to {most}")
    return int(text)
