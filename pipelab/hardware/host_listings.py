"""Clusters of what hosts say of themselves: their GPUs, the links between these, and the network.

A folder has for every host HOST.topo.txt and HOST.gpus.csv, and links.csv for the network.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations, takewhile, zip_longest
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from pipelab.cluster import GPU, Cluster
from pipelab.errors import InvalidData, nearest, shown
from pipelab.fields import Number, checked, described
from pipelab.files.csv_rows import read_objects
from pipelab.files.reading_and_writing import named, read_text, refused
from pipelab.hardware.engine_rules import platform_of
from pipelab.hardware.host_gpus import COMMANDS, WHOLE, ListedGPU, listed_gpus
from pipelab.hardware.known_gpus import GPUFacts

TOPOLOGY, GPUS, LINKS = ".topo.txt", ".gpus.csv", "links.csv"

# One NVLink in GB/s per direction. NVLink 2 to 4 of data-centre GPUs carry 25; bridges of cards with
# GDDR (A40, RTX 3090: NVLink 3 of the GA102) carry 14.0625, which `nvidia-smi nvlink -s` prints;
# NVLink 5 carries 50, and a type with more than 18 · 25 GB/s has it.
_NVLINK_GB_PER_S = {"HBM": 25.0, "GDDR": 14.0625, "unified": 25.0}
_NVLINK_4_MOST_GB_PER_S, _NVLINK_5_GB_PER_S, _MOST_LINKS = 450.0, 50.0, 18
# One XGMI link: 16 lanes of 32 GT/s from MI300 on, of 25 before (Linux, amdgpu_xgmi_early_init in
# drivers/gpu/drm/amd/amdgpu/amdgpu_xgmi.c).
_XGMI_MI300_GB_PER_S, _XGMI_GB_PER_S = 64.0, 50.0
# From socket to socket. No listing names the CPU; NCCL (src/graph/topo.h) assumes 10 for Skylake, 22
# for Sapphire Rapids, 16 to 32 for AMD: the lowest here, unless links.csv has a measured one.
_SYS_GB_PER_S = 10.0
_PCIE = ("PIX", "PXB", "PHB", "NODE")
_MOST_GPUS = 4_000  # every two have a link of their own: 128 MB
# Drivers keep a few MiB more on one GPU than on another, and only equal GPUs cut a layer. Engines are told
# their share of a GPU's memory in steps of 1 %: less than that makes no difference to them.
_SAME_MEMORY_SHARE = 0.99

_EXPECTED = "expected what `nvidia-smi topo -m`, `rocm-smi --showtopo` or `amd-smi topology` prints"
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_LABEL = re.compile(r"GPU(\d{1,4})")
_WORD = r"NV([1-9]|1[0-8])|PIX|PXB|PHB|NODE|SYS|SOC"
_WORDS = f"NV1 … NV{_MOST_LINKS}, PIX, PXB, PHB, NODE or SYS (AMD's: XGMI or PCIE)"
# Titles of tables: "Link Type between two GPUs" of rocm-smi (showTypeTopology), "LINK TYPE TABLE:" of amd-smi.
_TITLE = re.compile(r"\b(\w+) (between two gpus|table:)", re.IGNORECASE)
_AMD_LABEL = re.compile(r"GPU\d+|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)
_Lines = dict[int, list[str]]  # words by the number of their line


@dataclass(frozen=True, eq=False, kw_only=True)
class _ListedHost:
    """One host: its n GPUs in the order of their numbers, and what is between every two of them.

    NVLinks are XGMI links where GPUs are AMD's.
    """

    name: str
    listed: list[ListedGPU]
    nvlink: np.ndarray  # (n,) GB/s of one NVLink
    most: list[float]  # NVLinks that each has
    words: np.ndarray  # (n, n) of the listing
    nvlinks: np.ndarray  # (n, n) NVLinks between two


@checked
class _Link:
    """One row of links.csv."""

    host: str
    other: str
    gbit_per_s: Annotated[Number, Gt(0), Lt(1e12), described("a number above 0")]
    latency_ms: Annotated[Number, Ge(0), Le(1e9), described("from 0 to 1e9")] = 0.0


def cluster_of_hosts(
    folder: Path, facts: Mapping[str, GPUFacts], network_gbit_per_s: float | None
) -> Cluster:
    """Make one cluster of the GPUs of all hosts of a folder.

    Raises
    ------
    InvalidData
        A file is missing, torn or strange; names file, line and value.
    """
    hosts = [_host(folder, name, facts) for name in _host_names(folder)]
    count = sum(len(host.listed) for host in hosts)
    if count > _MOST_GPUS:
        raise InvalidData(f"{named(folder)}: {count:,} GPUs; expected at most {_MOST_GPUS:,}")
    between, latency = _network(folder, [host.name for host in hosts], network_gbit_per_s)
    of = np.repeat(np.arange(len(hosts)), [len(host.listed) for host in hosts])
    bandwidth, gpus = between[np.ix_(of, of)], list[GPU]()
    for i, host in enumerate(hosts):
        inside = _inside(host, between[i, i])
        bandwidth[np.ix_(of == i, of == i)] = inside
        gpus += [replace(gpu, machine=host.name) for gpu in _in_nodes(host, inside)]
    index = tuple(gpu.called for host in hosts for gpu in host.listed)
    return Cluster(
        _with_equal_memory(gpus), bandwidth, latency_ms=latency[np.ix_(of, of)], index=index
    )


def _with_equal_memory(gpus: list[GPU]) -> tuple[GPU, ...]:
    """Give GPUs of a type whose memory differs by at most 1 % the least of it."""
    memory: dict[tuple[str, float], float] = {}
    for kind in {gpu.type for gpu in gpus}:
        group: list[float] = []
        for size in sorted({gpu.memory_gb for gpu in gpus if gpu.type == kind}, reverse=True):
            group = [*group, size] if group and size >= _SAME_MEMORY_SHARE * group[0] else [size]
            memory |= {(kind, larger): size for larger in group}
    return tuple(replace(gpu, memory_gb=memory[gpu.type, gpu.memory_gb]) for gpu in gpus)


def _host_names(folder: Path) -> list[str]:
    """List the hosts in the order people count: node2 before node10."""
    try:
        files = sorted(path.name for path in folder.iterdir())
    except (OSError, ValueError) as error:
        raise refused(folder, "read", error) from None
    names = {n.removesuffix(end) for n in files for end in (TOPOLOGY, GPUS) if n.endswith(end)}
    if not names - {""}:
        there = ", ".join(files[:20]) or "nothing"
        raise InvalidData(
            f"{named(folder)}: no host in it: expected HOST{GPUS} (`{COMMANDS}`) and HOST{TOPOLOGY} "
            f"(`nvidia-smi topo -m`, or AMD's) of every host; the folder has {there}"
        )
    parts = {n: [int(p) if p.isdecimal() else p for p in re.split(r"([0-9]+)", n)] for n in names}
    return sorted(names - {""}, key=lambda name: [(isinstance(p, str), p) for p in parts[name]])


def _host(folder: Path, name: str, facts: Mapping[str, GPUFacts]) -> _ListedHost:
    listed = listed_gpus(folder / f"{name}{GPUS}", facts)
    path = folder / f"{name}{TOPOLOGY}"
    alone = len(listed) == 1 and not os.path.isfile(path)
    words = np.array([["X"]] if alone else _read_topology(path, listed, f"{name}{GPUS}"))
    nvlinks = [[int(w[2:]) if w.startswith("NV") else 0 for w in line] for line in words.tolist()]
    kinds = [gpu.gpu.type for gpu in listed]
    nvlink = np.array([_nvlink(kind, facts[kind]) for kind in kinds])
    links = [facts[kind].link_gb_per_s / one for kind, one in zip(kinds, nvlink, strict=True)]
    switched = [facts[kind].pcie_gb_per_s is not None for kind in kinds]
    most = [count if has else _MOST_LINKS for count, has in zip(links, switched, strict=True)]
    return _ListedHost(
        name=name, listed=listed, nvlink=nvlink, most=most, words=words, nvlinks=np.array(nvlinks)
    )


def _read_topology(path: Path, listed: list[ListedGPU], gpus: str) -> list[list[str]]:
    """Read what is between every two listed GPUs, in words; other GPUs and text around the matrix are skipped."""
    if not os.path.isfile(path):
        raise InvalidData(f"{path}: there is no such file; {_EXPECTED}")
    wanted = [gpu.number for gpu in listed]
    header: list[int] = []
    rows: dict[int, list[str]] = {}
    for n, raw in enumerate(_as_topo_m(path, read_text(path)).splitlines(), start=1):
        place, line = f"{path}, line {n}", _ANSI.sub("", raw).strip()
        if line.startswith("MIG"):
            raise InvalidData(f"{place}: {shown(line)}: a MIG instance: {WHOLE}")
        # `vllm collect-env` puts "GPU topology:" in front.
        words = line.rpartition(":")[2].split()
        labels = [int(word.removeprefix("GPU")) for word in takewhile(_LABEL.fullmatch, words)]
        if not labels:
            continue
        if header:
            index, cells = labels[0], words[1 : 1 + len(header)]
            _check_row(place, index, cells, header, rows)
            rows[index] = ["SYS" if cell == "SOC" else cell for cell in cells]
        elif not set(wanted) <= set(labels):
            expected = f"expected the GPUs of {gpus}: {_labels(wanted)}"
            raise InvalidData(f"{place}: a header with {_labels(labels)}; {expected}")
        elif len(labels) > len(wanted) and isinstance(listed[0].called, str):
            expected = f"expected the column index in {gpus}, as UUIDs do not say which these are"
            raise InvalidData(f"{place}: a header with {_labels(labels)}; {expected}")
        header = header or labels
        if len(rows) == len(header):  # another table may follow, such as that of `topo -p2p`
            break
    if not header:
        raise InvalidData(f"{path}: no line begins with GPU0 GPU1 …; {_EXPECTED}")
    if missing := [i for i in header if i not in rows]:
        torn = "the listing is torn; expected a row for every GPU"
        raise InvalidData(f"{path}: no row of {_labels(missing)}: {torn}")
    for i, j in combinations(range(len(header)), 2):
        there, back = rows[header[i]][j], rows[header[j]][i]
        if there != back:
            pair = f"GPU{header[i]} to GPU{header[j]} is {there}, and the way back {back}"
            raise InvalidData(f"{path}: {pair}; expected the same word both ways")
    at = [header.index(number) for number in wanted]
    return [[rows[header[i]][j] for j in at] for i in at]


def _labels(indices: list[int]) -> str:
    return " ".join(f"GPU{i}" for i in indices[:32]) + (" …" if len(indices) > 32 else "")


def _check_row(
    place: str, index: int, cells: list[str], header: list[int], rows: Mapping[int, list[str]]
) -> None:
    if index not in header or index in rows:
        why = "is listed already" if index in rows else "is not in the header"
        expected = "expected one row for every GPU of the header"
        raise InvalidData(f"{place}: GPU{index} {why}; {expected}")
    if len(cells) != len(header):
        expected = f"expected {len(header)}: the listing is torn"
        raise InvalidData(f"{place}: {len(cells)} cells after GPU{index}; {expected}")
    for other, cell in zip(header, cells, strict=True):
        pattern, words = ("X", "X") if other == index else (_WORD, _WORDS)
        if not re.fullmatch(pattern, cell):
            raise InvalidData(f"{place}: GPU{index} to GPU{other}: {shown(cell)}: expected {words}")


def _nvlink(kind: str, gpu: GPUFacts) -> float:
    """Return the GB/s of one NVLink, or of one XGMI link."""
    if platform_of(kind) == "ROCm":
        return _XGMI_MI300_GB_PER_S if kind.startswith("MI3") else _XGMI_GB_PER_S
    if gpu.link_gb_per_s > _NVLINK_4_MOST_GB_PER_S:
        return _NVLINK_5_GB_PER_S
    return _NVLINK_GB_PER_S[gpu.memory_kind]


def _inside(host: _ListedHost, sockets: float) -> np.ndarray:
    """Return the GB/s between the GPUs of a host; `sockets` is what SYS carries."""
    slots = np.array([gpu.slot for gpu in host.listed])
    slot, one = (np.minimum.outer(rates, rates) for rates in (slots, host.nvlink))
    without = np.where(np.isin(host.words, _PCIE), slot, np.minimum(slot, sockets))
    matrix = np.where(host.nvlinks > 0, host.nvlinks * one, without)
    np.fill_diagonal(matrix, 1.0)
    return matrix


def _in_nodes(host: _ListedHost, inside: np.ndarray) -> list[GPU]:
    """Return the host's GPUs with their nodes: those that NVLink joins, each to each, and then all others."""
    left, gpus = list(range(len(host.listed))), [listed.gpu for listed in host.listed]
    while left:
        node = [left[0]]
        for i in left[1:]:
            if host.nvlinks[i, node].all():
                node.append(i)
        if len(node) == 1:  # NVLink takes it nowhere: it is one of the others
            node = [i for i in left if not host.nvlinks[i, left].any()]
        if len(node) > 1:
            numbers = ",".join(str(host.listed[i].number) for i in node)
            name = host.name if len(node) == len(gpus) else f"{host.name} GPU{numbers}"
            rate = min(_to_others(host, inside, i, node) for i in node)
            for i in node:
                gpus[i] = replace(gpus[i], node=name, node_gb_per_s=rate)
        left = [i for i in left if i not in node]
    return gpus


def _to_others(host: _ListedHost, inside: np.ndarray, i: int, node: list[int]) -> float:
    """Return the GB/s of a GPU to all others of its node together.

    Wired each to each (4 H100 with NV6), a GPU's links add up. With a switch every pair shows all
    links (8 H100 with NV18), and what a GPU has is that number once: the sum would be more links than it has.
    """
    others = [j for j in node if j != i]
    counts = host.nvlinks[i, others]
    if not counts.all():
        return float(inside[i, others].min())
    total = counts.sum() if counts.sum() <= host.most[i] else counts.max()
    return float(total * host.nvlink[node].min())


def _network(
    folder: Path, hosts: list[str], gbit_per_s: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """GB/s and ms between hosts; on the diagonal what SYS carries inside each."""
    path, at = folder / LINKS, {host: i for i, host in enumerate(hosts)}
    rates = np.full((len(hosts),) * 2, np.nan if gbit_per_s is None else gbit_per_s / 8)
    np.fill_diagonal(rates, _SYS_GB_PER_S)
    latency = np.zeros_like(rates)
    stated: dict[tuple[int, int], _Link] = {}
    for row, link in read_objects(path, _Link) if os.path.isfile(path) else []:
        for column, name in (("host", link.host), ("other", link.other)):
            if name not in at:
                known = nearest(name, hosts)
                raise row.error(column, name, f"no host of this folder; {known}")
        way = at[link.host], at[link.other]
        if stated.setdefault(way, link) is not link:
            raise row.error("other", link.other, "this way is listed already")
    back = {(j, i): link for (i, j), link in stated.items()}
    for (i, j), link in (back | stated).items():
        rates[i, j] = link.gbit_per_s / 8
        latency[i, j] = 0.0 if i == j else link.latency_ms
    if np.isnan(rates).any():
        i, j = np.argwhere(np.isnan(rates))[0]
        raise InvalidData(
            f"{named(path)}: no link from {hosts[i]!r} to {hosts[j]!r}; add a row with host, other and gbit_per_s, "
            "or give one rate for all, by --network-gbit or network_gbit_per_s=…"
        )
    return rates, latency


def _as_topo_m(path: Path, text: str) -> str:
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
        raise InvalidData(f"{path}: no types of links; {_EXPECTED}")
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
        elif words and _AMD_LABEL.fullmatch(words[0]):
            tables.setdefault(title, {})[at] = words
    return tables
