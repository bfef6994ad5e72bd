"""Links between AMD's GPUs, as rocm-smi and amd-smi list them, in the words of `nvidia-smi topo -m`."""

import re
from itertools import zip_longest
from pathlib import Path

from pipelab.errors import InvalidData

# Titles of tables: "Link Type between two GPUs" of rocm-smi (showTypeTopology), "LINK TYPE TABLE:" of amd-smi.
_TITLE = re.compile(r"\b(\w+) (between two gpus|table:)", re.IGNORECASE)
_LABEL = re.compile(r"GPU\d+|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
_Lines = dict[int, list[str]]  # words by the number of their line


def as_topo_m(path: Path, text: str) -> str:
    """Write a listing of AMD's tools as `nvidia-smi topo -m` writes one, each row in its line; others stay.

    An XGMI link stands as one NVLink. PCIe stands as PHB within one socket (2 hops), or else as SYS.

    Raises
    ------
    InvalidData
        It has no types of links.
    """
    if not re.search("between two gpus|type table:", text, re.IGNORECASE):
        return text
    tables = _tables(text)
    links, hops = tables.get("type", {}), tables.get("hops", {})
    if not links:
        expected = "expected what `rocm-smi --showtopo` or `amd-smi topology` prints"
        raise InvalidData(f"{path}: no types of links; {expected}")
    first = next(iter(links.values()))
    numbers = {label: f"GPU{i}" for i, label in enumerate(first) if not label.startswith("GPU")}
    lines = [""] * max(links)
    steps = [*hops.values(), *([[]] * len(links))]
    for (at, words), far in zip(links.items(), steps, strict=False):
        cells = zip_longest(words, far[: len(words)], fillvalue="")
        lines[at - 1] = " ".join(numbers.get(word, _word(word, hop)) for word, hop in cells)
    return "\n".join(lines)


def _word(word: str, hops: str) -> str:
    if word == "PCIE":
        return "PHB" if hops == "2" else "SYS"
    return {"XGMI": "NV1", "SELF": "X", "0": "X"}.get(word, word)


def _tables(text: str) -> dict[str, _Lines]:
    """Find the rows of every table, by the last word of its title."""
    tables: dict[str, _Lines] = {}
    title = ""
    for at, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if heading := _TITLE.search(line):
            title = heading[1].lower()
        elif words and _LABEL.fullmatch(words[0]):
            tables.setdefault(title, {})[at] = words
    return tables
