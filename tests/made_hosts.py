"""Random hosts: what is in them, and their listings as the tools of NVIDIA and AMD print them.

What a cluster of them must be is said here in code that shares nothing with the package.
"""

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

# Of each type what its driver calls it, MiB, GB/s of one NVLink or XGMI link, and of its slot.
KINDS = {
    "A40": ("NVIDIA A40", 46068, 14.0625, 31.5),
    "RTX3090": ("NVIDIA GeForce RTX 3090", 24576, 14.0625, 31.5),
    "V100-SXM-32": ("Tesla V100-SXM2-32GB", 32768, 25.0, 15.75),
    "H100-SXM": ("NVIDIA H100 80GB HBM3", 81559, 25.0, 63.0),
    "MI300X": ("AMD Instinct MI300X", 196592, 64.0, 63.0),
}
SHAPES = ("none", "pairs", "chain", "mesh", "switch", "random")
_DGX_1 = "NV1 NV1 NV2 NV2 - - -", "NV2 NV1 - NV2 - -", "NV2 - - NV1 -", "- - - NV1"
_DGX_1 += "NV1 NV1 NV2", "NV2 NV1", "NV2"


@dataclass
class Host:
    """GPUs by what their driver calls them; words between every two of them, "X" on the diagonal."""

    name: str
    numbers: list[int]
    types: list[str]
    used: list[int]  # MiB
    words: list[list[str]]

    @property
    def amd(self):
        return self.types[0] == "MI300X"

    @property
    def uuids(self):
        return [f"GPU-{n:08x}-{len(self.name):04x}" for n in self.numbers]

    def total(self, i):
        return KINDS[self.types[i]][1]

    def gb_per_s(self, i, j):
        """Of the link between two GPUs."""
        word = self.words[i][j]
        links, slots = zip(*(KINDS[self.types[k]][2:] for k in (i, j)), strict=True)
        if word.startswith("NV") or word == "XGMI":
            return int(word[2:] if word != "XGMI" else 1) * min(links)
        return min(slots) if word not in ("SYS", "PCIE 3") else min(*slots, 10.0)


def words_of(shape, size, rng):
    """Words of `nvidia-smi topo -m` between GPUs that are joined in this shape."""
    words = [["X"] * size for _ in range(size)]
    for i, j in combinations(range(size), 2):
        near = "PHB" if i // 4 == j // 4 else "SYS"
        joined = {
            "none": False,
            "pairs": i // 2 == j // 2,
            "chain": j == i + 1,
            "mesh": size > 2 and i // 4 == j // 4,
            "switch": True,
            "random": rng.random() < 0.5,
        }[shape]
        fast = "NV18" if shape == "switch" else f"NV{rng.integers(1, 5)}"
        if shape == "mesh" and size == 8:
            fast = _DGX_1[i].split()[j - i - 1]
            joined = fast != "-"
        slow = str(rng.choice(["PIX", "PXB", "PHB", "NODE", "SYS"])) if shape == "random" else near
        words[i][j] = words[j][i] = fast if joined else slow
    return words


def random_host(rng, name, types=tuple(KINDS), shape=None, most=8, gaps=True):
    """A host of GPUs of one maker, of one type or mixed, some of them in use."""
    size = int(rng.integers(1, most + 1))
    amd = str(rng.choice(types)) == "MI300X"
    own = ["MI300X"] if amd else [kind for kind in types if kind != "MI300X"]
    own = own if rng.random() < 0.3 else [str(rng.choice(own))]
    numbers = rng.choice(16, size, replace=False) if gaps else np.arange(size)
    words = words_of(shape or str(rng.choice(SHAPES)), size, rng)
    if amd:  # its tools say less
        plain = {"SYS": "PCIE 3", "X": "X"}
        words = [
            ["XGMI" if w.startswith("NV") else plain.get(w, "PCIE 2") for w in row] for row in words
        ]
    used = rng.choice([0, 4, 11, 1500, 9000], size, p=[0.5, 0.2, 0.1, 0.1, 0.1])
    kinds = [str(rng.choice(own)) for _ in range(size)]
    return Host(name, sorted(numbers.tolist()), kinds, used.tolist(), words)


def among_others(host, rng):
    """The host with up to four more GPUs, as its topology shows them where its listing leaves them out."""
    free = [n for n in range(16) if n not in host.numbers]
    others = rng.choice(free, rng.integers(0, min(5, len(free) + 1)), replace=False).tolist()
    words = {(n, m): "XGMI" if host.amd else "NV2" for n in others for m in range(16)}
    words |= {(m, n): word for (n, m), word in words.items()} | {(n, n): "X" for n in others}
    for n, row in zip(host.numbers, host.words, strict=True):
        words |= {(n, m): word for m, word in zip(host.numbers, row, strict=True)}
    numbers = sorted([*host.numbers, *others])
    return replace(host, numbers=numbers, words=[[words[n, m] for m in numbers] for n in numbers])


def write(host, folder, rng):
    """Write a host's two files in one of the forms that its tools have; whether UUIDs name its GPUs, and use counts."""
    (gpus, *said), links = (
        (_amd(host, rng), _amd_links(among_others(host, rng), rng))
        if host.amd
        else _nvidia(host, rng)
    )
    (folder / f"{host.name}.gpus.csv").write_text(gpus)
    (folder / f"{host.name}.topo.txt").write_text(links)
    return said


def _nvidia(host, rng):
    called = str(rng.choice(["index", "uuid", "both"]))
    memory = str(rng.choice(["total", "used", "free", "reserved"]))
    columns = {"name": [KINDS[kind][0] for kind in host.types]}
    if called != "uuid":
        columns["index"] = host.numbers
    if called != "index":
        columns["uuid"] = host.uuids
    size = range(len(host.types))
    mib = {"memory.total": [host.total(i) for i in size]}
    if memory in ("used", "reserved"):
        kept = 300 if memory == "reserved" else 0
        mib["memory.used"] = [max(0, used - kept) for used in host.used]
        mib |= {"memory.reserved": [min(used, kept) for used in host.used]} if kept else {}
    if memory == "free":
        mib["memory.free"] = [host.total(i) - host.used[i] for i in size]
    units = rng.random() < 0.5
    for name, values in mib.items():
        columns[f"{name} [MiB]"] = [f"{value} MiB" if units else value for value in values]
    bare = len(columns) == 3 and memory == "total" and rng.random() < 0.5
    first = ["uuid" if called == "uuid" else "index", "name"]
    order = [*first, "memory.total [MiB]"] if bare else rng.permutation(list(columns)).tolist()
    if not bare and rng.random() < 0.5:
        columns |= {"compute_mode": ["Default"] * len(size), "temperature.gpu": [40] * len(size)}
        order += ["compute_mode", "temperature.gpu"]
    rows = [", ".join(str(columns[name][i]) for name in order) for i in size]
    text = "\n".join(rows if bare else [", ".join(order), *rows]) + "\n"
    shown = replace(host, numbers=list(size)) if called == "uuid" else among_others(host, rng)
    labels = [f"GPU{n}" for n in shown.numbers]
    table = ["\t".join(["", *labels, "CPU Affinity"])]
    table += [
        "\t".join([label, *row, "0-31"]) for label, row in zip(labels, shown.words, strict=True)
    ]
    if rng.random() < 0.3:  # what `nvidia-smi topo -p2p r` prints
        table += ["", " \t" + "\t".join(labels), *(f" {label}\tX\tCNS" for label in labels)]
    return (text, called == "uuid", memory != "total"), "\n".join(table) + "\n"


def _amd(host, rng):
    size = range(len(host.types))
    if rng.random() < 0.5:
        name = "gpu,market_name,vendor_id,bdf,type,vendor,size,bit_width,partition_id"
        rows = [
            f"{n},{KINDS[kind][0]},0x1002,0000:{n:02x}:00.0,HBM,N/A,{KINDS[kind][1]},8192,0"
            for n, kind in zip(host.numbers, host.types, strict=True)
        ]
        return "\n".join([name, *rows]) + "\n", False, False
    rows = [
        f"card{host.numbers[i]},{host.total(i) * 2**20},{host.used[i] * 2**20},{series},0x74a1,M3000100"
        for i in size
        for series in [rng.choice(["AMD Instinct MI300X", "AMD Instinct MI300X OAM", "0x74a1"])]
    ]
    head = "device,VRAM Total Memory (B),VRAM Total Used Memory (B),Card Series,Card Model,Card SKU"
    front = "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control\n\n"
    return front * int(rng.random() < 0.5) + "\n".join([head, *rows]) + "\n", False, True


def _amd_links(host, rng):
    """A pair's word has its hops behind it, where it is not XGMI with one."""
    kind = [[word.split()[0] for word in row] for row in host.words]
    steps = {"X": "0", "XGMI": "1"}
    hops = [[steps.get(word, word[-1]) for word in row] for row in host.words]
    selves = [["SELF" if word == "X" else word for word in row] for row in kind]
    # a table of bus addresses has no numbers
    buses = host.numbers == list(range(len(host.numbers))) and rng.random() < 0.5
    if not buses:
        labels, own = (
            [f"GPU{n}" for n in host.numbers],
            [["0" if w == "X" else w for w in row] for row in kind],
        )
        titles = [f"=== {name} between two GPUs ===" for name in ("Weight", "Hops", "Link Type")]
    else:
        labels, own = [f"0000:{n:02x}:00.0" for n in host.numbers], selves
        titles = ["WEIGHT TABLE:", "HOPS TABLE:", "LINK TYPE TABLE:"]
    text = ""
    for title, rows in zip(titles, (hops, hops, own), strict=True):
        body = [f"{label}   {'   '.join(row)}" for label, row in zip(labels, rows, strict=True)]
        text += "\n".join([title, "       " + "   ".join(labels), *body, "", ""])
    return text + "=== Numa Nodes ===\nGPU[0]\t\t: (Topology) Numa Node: 0\n"
