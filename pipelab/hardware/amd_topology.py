"""Links between AMD's GPUs, as rocm-smi and amd-smi list them, in the words of `nvidia-smi topo -m`."""

import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from pipelab.errors import InvalidData
from pipelab.files.csv_rows import read_rows
from pipelab.files.reading_and_writing import json_of

_COMMANDS = "rocm-smi --showtopo` or `amd-smi topology"
# Titles of tables: "Link Type between two GPUs" of rocm-smi (showTypeTopology), "LINK TYPE TABLE:" of amd-smi.
_TITLE = re.compile(r"(\w+) (between two gpus|table:)", re.IGNORECASE)
_LABEL = re.compile(r"GPU\d+|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
_Lines = dict[int, list[str]]  # words by the number of their line


def as_topo_m(path: Path, text: str) -> str:
    """Write a listing of AMD's tools as `nvidia-smi topo -m` writes one, each row in its line; others stay.

    An XGMI link stands as one NVLink. PCIe stands as PHB within one socket (2 hops), or else as SYS.

    Raises
    ------
    InvalidData
        It has no types of links, or is torn.
    """
    if re.match(r"\s*\[\s*[{\]]", text):  # and no prompt, such as [me@host]$
        links, hops = (_of_json(path, text, name) for name in ("link_type", "num_hops"))
    elif "link_type_gpu_" in text:
        links, hops = (_of_csv(path, f"{name}_gpu_") for name in ("link_type", "hops"))
    elif re.search("between two gpus|type table:", text, re.IGNORECASE):
        tables = _tables(text)
        links, hops = tables.get("type", {}), tables.get("hops", {})
    else:
        return text
    if not links:
        raise InvalidData(f"{path}: no types of links; expected what `{_COMMANDS}` prints")
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
    found: dict[str, _Lines] = {}
    title = ""
    for at, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if heading := _TITLE.search(line):
            title = heading[1].lower()
        elif words and _LABEL.fullmatch(words[0]):
            found.setdefault(title, {})[at] = words
    return found


def _of_csv(path: Path, prefix: str) -> _Lines:
    return _matrix([row.cells for row in read_rows(path, ("gpu",))], prefix)


def _of_json(path: Path, text: str, name: str) -> _Lines:
    try:
        rows = [
            {"gpu": str(of["gpu"])}
            | {f"GPU{to['gpu']}": str(to.get(name, "")) for to in of["links"]}
            for of in json_of(path, text)
        ]
    except (TypeError, KeyError, AttributeError):
        expected = "expected GPUs with their links, as `amd-smi topology --json` prints them"
        raise InvalidData(f"{path}: {expected}") from None
    return _matrix(rows, "GPU")


def _matrix(rows: Sequence[Mapping[str, str]], prefix: str) -> _Lines:
    """Lay out rows by column as the lines of a table."""
    columns = [column for column in (rows[0] if rows else ()) if column.startswith(prefix)]
    head = [f"GPU{column.removeprefix(prefix)}" for column in columns]
    body = [[f"GPU{row['gpu']}", *(row.get(column, "") for column in columns)] for row in rows]
    return dict(enumerate([head, *body], start=1)) if columns else {}
