"""Clusters from what hosts say of themselves: listings as people have published them, and random ones.

`tests/data/README.md` names the threads.
"""

import dataclasses
import re
from pathlib import Path

import made_hosts
import numpy as np
import pytest

import pipelab as pl
from pipelab.hardware.known_gpus import type_of

HOSTS = Path(__file__).parents[1] / "data" / "hosts"
GPUS = "index, name, memory.total [MiB]\n"


def _least_of_equal(sizes):
    """What each counts for where those within 1 % of the largest are equal, and so on below."""
    counts, left = {}, sorted(sizes)
    while left:
        group = [size for size in left if size >= 0.99 * left[-1]]
        counts |= dict.fromkeys(group, group[0])
        left = left[: -len(group)]
    return [counts[size] for size in sizes]


@pytest.mark.parametrize("seed", range(100))
def test_every_form_of_a_listing_says_what_is_in_a_host(seed, tmp_path):
    """Numbers with gaps, UUIDs, memory in use, no header, units or not, AMD's tools."""
    for part in range(15):
        folder = tmp_path / str(part)
        folder.mkdir()
        _look_at_random_hosts(np.random.default_rng([seed, part]), folder)


def _look_at_random_hosts(rng, tmp_path):
    hosts = [made_hosts.random_host(rng, f"h{i}") for i in range(rng.integers(1, 4))]
    forms = [made_hosts.write(host, tmp_path, rng) for host in hosts]
    cluster = pl.load_cluster(tmp_path, network_gbit_per_s=80)
    called, sizes = [], {kind: [] for kind in made_hosts.KINDS}
    for host, (by_uuid, in_use) in zip(hosts, forms, strict=True):
        called += host.uuids if by_uuid else host.numbers
        for i, kind in enumerate(host.types):
            sizes[kind].append((host.total(i) - in_use * host.used[i]) * 2**20 / 1e9)
    left = {kind: iter(_least_of_equal(own)) for kind, own in sizes.items()}
    places = [(host, i) for host in hosts for i in range(len(host.types))]
    assert cluster.index == tuple(called)
    assert [(g.type, g.machine) for g in cluster.gpus] == [(h.types[i], h.name) for h, i in places]
    memory = [next(left[host.types[i]]) for host, i in places]
    assert [gpu.memory_gb for gpu in cluster.gpus] == pytest.approx(memory)
    rates = cluster.bandwidth_matrix()
    nodes = {}
    for a, (host, i) in enumerate(places):
        if cluster.gpus[a].node:
            nodes.setdefault(cluster.gpus[a].node, []).append((host, i))
        for b, (other, j) in enumerate(places):
            if a != b:
                assert rates[a, b] == (10 if other is not host else host.gb_per_s(i, j))
    for (host, i), *rest in nodes.values():
        assert {id(other) for other, _ in rest} == {id(host)}
        ids = [i, *(j for _, j in rest)]
        fast = {host.words[j][k][:2] in ("NV", "XG") for j in ids for k in ids if j != k}
        assert len(fast) == 1  # each to each, or none


@pytest.mark.parametrize("seed", range(40))
def test_memory_that_nothing_names_is_all_or_refused(seed, tmp_path):
    """Without a header: what is in use is no GPU's memory."""
    rng = np.random.default_rng(seed)
    kind = str(rng.choice([kind for kind in made_hosts.KINDS if kind != "MI300X"]))
    name, total, *_ = made_hosts.KINDS[kind]
    used = int(rng.integers(0, total // 2))
    for memory in (total, used, total - used, total * 15 / 16):
        (tmp_path / "h.gpus.csv").write_text(f"0, {name}, {memory:.0f} MiB\n")
        if memory > 0.93 * total:
            assert pl.load_cluster(tmp_path).gpus[0].memory_gb == pytest.approx(
                memory * 2**20 / 1e9, rel=1e-4
            )
            continue
        with pytest.raises(pl.errors.InvalidData, match=r"h\.gpus\.csv, row 1.*with a header"):
            pl.load_cluster(tmp_path)


def test_uuids_do_not_say_which_gpus_of_a_larger_matrix_these_are(tmp_path):
    _host(tmp_path, "h", "NVIDIA A40", 46068, GOOD)
    (tmp_path / "h.gpus.csv").write_text(
        "uuid, name, memory.total [MiB]\nGPU-5f2c, NVIDIA A40, 46068 MiB\n"
    )
    with pytest.raises(pl.errors.InvalidData, match=r"h\.topo\.txt, line 1.*column index in h\.gp"):
        pl.load_cluster(tmp_path)


def _nodes(cluster):
    """Ids of the GPUs by node, and the node's bandwidth."""
    found = {}
    for i, gpu in enumerate(cluster.gpus):
        if gpu.node:
            found.setdefault((gpu.node, gpu.node_gb_per_s), []).append(i)
    return {name: (rate, ids) for (name, rate), ids in found.items()}


def _host(folder, name, gpu, mib, rows):
    """A host of equal GPUs, with the words between them."""
    size = len(rows)
    lines = "".join(f"{i}, {gpu}, {mib} MiB\n" for i in range(size))
    (folder / f"{name}.gpus.csv").write_text(GPUS + lines)
    labels = "\t".join(f"GPU{i}" for i in range(size))
    matrix = "\n".join("\t".join([f"GPU{i}", *row.split()]) for i, row in enumerate(rows))
    (folder / f"{name}.topo.txt").write_text(f"\t{labels}\tCPU Affinity\n{matrix}\n")


# Published listings: type and MiB of every GPU, nodes with their GB/s, and GB/s from the first GPU to each other one.
# 4 H100 with NV6: 18 links of 25 GB/s each, 6 of them to each other one. 4 RTX 3090 with two bridges; the rest goes
# over PCIe. A DGX-1: two squares with diagonals, and 10 GB/s across the sockets where there is no NVLink; one of its
# GPUs has 4 MiB less: all are taken for equal, or no stage could cut its layers.
LISTED = {
    "h100-mesh": ("H100-SXM", 81559, {"a": (450, [0, 1, 2, 3])}, [150] * 3),
    "rtx3090-pairs": (
        "RTX3090", 24576, {"a GPU0,2": (56.25, [0, 2]), "a GPU1,3": (56.25, [1, 3])}, [31.5, 56.25, 31.5],
    ),
    "v100-hybrid": (
        "V100-SXM-32", 32764, {"a GPU0,1,2,3": (100, [0, 1, 2, 3]), "a GPU4,5,6,7": (100, [4, 5, 6, 7])},
        [25, 25, 50, 50, 10, 10, 10],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTED)
def test_gpus_that_are_joined_each_to_each_are_a_node(name):
    kind, mib, nodes, rates = LISTED[name]
    cluster = pl.load_cluster(str(HOSTS / name))
    assert _nodes(cluster) == nodes
    assert cluster.bandwidth_matrix()[0, 1:].tolist() == rates
    assert {gpu.type for gpu in cluster.gpus} == {kind}
    (memory,) = {gpu.memory_gb for gpu in cluster.gpus}
    assert memory == pytest.approx(mib * 2**20 / 1e9)


def _all_joined(word, gpus):
    return [" ".join("X" if i == j else word for j in range(gpus)) for i in range(gpus)]


# A switch shows every link to every GPU, and three of a DGX-2 have 6 links, not 12.
MADE = {
    "a switch": ("NVIDIA H200", 143771, _all_joined("NV18", 8), {"h": (450, [*range(8)])}),
    "some at a switch": ("Tesla V100-SXM3-32GB", 32480, _all_joined("NV6", 3), {"h": (150, [0, 1, 2])}),
    "two joined, two alone": (
        "NVIDIA A40", 46068, ["X NV4 NODE NODE", "NV4 X NODE NODE", "NODE NODE X PHB", "NODE NODE PHB X"],
        {"h GPU0,1": (56.25, [0, 1]), "h GPU2,3": (31.5, [2, 3])},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_a_node_talks_at_what_its_links_carry(name, tmp_path):
    *host, nodes = MADE[name]
    _host(tmp_path, "h", *host)
    assert _nodes(pl.load_cluster(tmp_path)) == nodes


def test_without_nvlink_a_host_is_a_node_over_pcie(tmp_path):
    _host(tmp_path, "h", "NVIDIA L40S", 46068, ["X PIX SYS", "PIX X SYS", "SYS SYS X"])
    cluster = pl.load_cluster(tmp_path)
    assert _nodes(cluster) == {"h": (10, [0, 1, 2])}
    assert cluster.bandwidth_matrix()[0, 1:].tolist() == [31.5, 10]
    (tmp_path / "links.csv").write_text("host,other,gbit_per_s\nh,h,160\n")
    assert _nodes(pl.load_cluster(tmp_path))["h"][0] == 20
    slots = "index, name, memory.total [MiB], pcie.link.gen.max, pcie.link.width.current\n"
    lines = [f"{i}, NVIDIA L40S, 46068 MiB, 3, {w}\n" for i, w in enumerate((16, 4, 16))]
    (tmp_path / "h.gpus.csv").write_text(slots + "".join(lines))
    assert pl.load_cluster(tmp_path).bandwidth_matrix()[0].tolist()[1:] == [4 * 0.984375, 15.75]
    unknown = [f"{i}, NVIDIA L40S, 46068 MiB, [N/A], [Not Supported]\n" for i in range(3)]
    (tmp_path / "h.gpus.csv").write_text(slots + "".join(unknown))
    assert pl.load_cluster(tmp_path).bandwidth_matrix()[0].tolist()[1:] == [31.5, 20]


def test_hosts_are_joined_by_what_was_measured(tmp_path):
    _host(tmp_path, "n2", "NVIDIA L4", 23034, ["X PHB", "PHB X"])
    for name, gpu in (("n10", "Tesla T4, 15360 MiB"), ("n1", "NVIDIA A10G, 23028 MiB")):
        (tmp_path / f"{name}.gpus.csv").write_text(f"{GPUS}0, {gpu}\n")
    with pytest.raises(
        pl.errors.InvalidData, match=r"links\.csv: no link from 'n1' to 'n2'; add a row"
    ):
        pl.load_cluster(tmp_path)
    links = "host,other,gbit_per_s,latency_ms\nn1,n2,9.4,0.2\nn2,n1,8,\nn2,n10,0.94,1\n"
    (tmp_path / "links.csv").write_text(links)
    cluster = pl.load_cluster(tmp_path, network_gbit_per_s=4)
    assert [gpu.type for gpu in cluster.gpus] == ["A10G", "L4", "L4", "T4"]  # n1, n2, n10
    rates = np.array(cluster.bandwidth_matrix())
    assert rates[0, 1:].tolist() == pytest.approx([1.175, 1.175, 0.5])  # n1–n10: nobody measured it
    assert rates[1:, 0].tolist() == pytest.approx([1, 1, 0.5])
    assert rates[1, 2:].tolist() == pytest.approx([31.5, 0.1175])
    assert cluster.latency_matrix()[0].tolist() == [0, 0.2, 0.2, 0]
    assert (cluster.latency_between(1, 0), cluster.latency_between(3, 1)) == (0, 1)


def test_what_terminals_and_scripts_put_around_it(tmp_path):
    text = (HOSTS / "h100-mesh/a.topo.txt").read_text()
    plain = pl.load_cluster(HOSTS / "h100-mesh")
    head, _, rest = text.partition("\n")
    underlined = f"\t\x1b[4m{head.strip()}\x1b[0m\n{rest}"
    in_front = (
        f"GPU 0: NVIDIA H100\nNvidia driver version: 550\nGPU topology: {head.strip()}\n{rest}"
    )
    (tmp_path / "a.gpus.csv").write_text((HOSTS / "h100-mesh/a.gpus.csv").read_text())
    for new in (underlined, in_front, text.replace("\n", "\r\n"), text.replace("SYS", "SOC")):
        (tmp_path / "a.topo.txt").write_text(new, newline="")
        assert pl.load_cluster(tmp_path) == plain


GOOD = ["X NV4 SYS", "NV4 X SYS", "SYS SYS X"]
# File, what stands there, what is put in its place, and what is said.
SPOILT = [
    ("h.topo.txt", "SYS\tSYS\tX", "SYS", "line 4: 1 cells after GPU2; expected 3: the listing is torn"),
    ("h.topo.txt", "NV4\tX", "PHB\tX", "GPU0 to GPU1 is NV4, and the way back PHB"),
    ("h.topo.txt", "NV4", "NV40", "line 2: GPU0 to GPU1: 'NV40': expected NV1 … NV18, PIX"),
    ("h.topo.txt", "GPU1\tGPU2", "GPU1GPU2", r"line 1: a header with GPU0; expected the GPUs of h\.gpus\.csv: GPU0"),
    ("h.topo.txt", "\tGPU0", "MIG 1g.5gb Device 0:", "line 1: 'MIG 1g.5gb .*a MIG instance: expected whole GPUs"),
    ("h.topo.txt", "GPU", "", "no line begins with GPU0 GPU1"),
    ("h.topo.txt", "\nGPU2", "\nend", "no row of GPU2: the listing is torn"),
    ("h.topo.txt", "\nGPU2", "\nGPU1", "line 4: GPU1 is listed already"),
    ("h.topo.txt", "\nGPU2", "\nGPU7", "line 4: GPU7 is not in the header"),
    ("h.gpus.csv", "A40", "A100-SXM-96GB", "row 2, column 'name': .*did you mean 'NVIDIA A100-SXM"),
    ("h.gpus.csv", "46068 MiB", "[N/A]", r"column 'memory.total \[MiB\]': '\[N/A\]': expected a number of MiB"),
    ("h.gpus.csv", "\n0", "\nx", "column 'index': 'x'"),
    ("links.csv", "h,k", "h,g", "column 'other': 'g': no host of this folder; .*Known: h, k"),
    ("links.csv", "10", "10\nh,k,2", "row 3, column 'other': 'k': this way is listed already"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "old", "new", "message"), SPOILT)
def test_what_is_torn_or_strange_is_refused_by_file_and_line(tmp_path, file, old, new, message):
    _host(tmp_path, "h", "NVIDIA A40", 46068, GOOD)
    (tmp_path / "k.gpus.csv").write_text(f"{GPUS}0, NVIDIA L4, 23034 MiB\n")
    (tmp_path / "links.csv").write_text("host,other,gbit_per_s\nh,k,10\n")
    assert len(pl.load_cluster(tmp_path)) == 4
    text = (tmp_path / file).read_text()
    (tmp_path / file).write_text(text.replace(old, new))
    with pytest.raises(pl.errors.InvalidData, match=message) as error:
        pl.load_cluster(tmp_path)
    assert file in str(error.value)


AMD = "device,VRAM Total Memory (B),Card Series\ncard0,206141652992,AMD Instinct MI300X\n"
ONE = "index, name, memory.total [MiB]"
# Text and what is said of it, where h.gpus.csv has it, and where h.topo.txt has it beside two MI300X.
STRANGE_GPUS = [
    (f"uuid, {ONE}\nMIG-5f2c, 0, NVIDIA A40, 9 MiB\n", "'uuid': 'MIG-5f2c': a MIG instance.*off"),
    (f"{ONE}\nGPU-5f2c x, NVIDIA A40, 9 MiB\n", "'index': 'GPU-5f2c x': expected a GPU's number"),
    ("uuid, name, memory.total [MiB]\nGPU-5f2c x, NVIDIA A40, 9 MiB\n", "'GPU-5f2c x': expected a GPU's UUID"),
    (f"{ONE}, mig.mode.current\n0, NVIDIA A40, 9 MiB, Enabled\n", "GPU cut into them: expected whole GPUs"),
    (f"{ONE}, compute_mode\n0, NVIDIA A40, 9 MiB, Prohibited\n", "'compute_mode': 'Prohibited'.*-c DEFAULT"),
    (f"{ONE}, memory.used [MiB]\n0, NVIDIA A40, 9 MiB, 9 MiB\n", "'9 MiB': .*more than are in use"),
    (f"{ONE}, memory.used [MiB]\n0, NVIDIA A40, 9 MiB, [N/A]\n", r"memory.used \[MiB\]': '\[N/A\]': expected a number"),
    ("GPU 0: NVIDIA A40 (UUID: GPU-5f2c)\n", "row 1: 'GPU 0: .* no header .* expected what `nvidia-smi --query"),
    ("name, memory.total [MiB]\nNVIDIA A40, 9 MiB\n", "'index' is missing; expected what `nvidia-smi"),
    ("gpu,gpu_bdf,gpu_uuid\n0,0000:0c:00.0,x\n", "'market_name' is missing; expected what `amd-smi static --csv`"),
    (AMD.replace("\n", ",Compute Partition\n", 1).replace("X\n", "X,CPX\n"), "'CPX': .*--compute-partition SPX"),
    (AMD.replace("MI300X", "MI308X"), "column 'Card Series': 'AMD Instinct MI308X': no type of GPU"),
    (AMD.replace("206141652992", "N/A"), r"'VRAM Total Memory \(B\)': 'N/A': expected a number of bytes"),
]  # fmt: skip
STRANGE_LINKS = [
    ("Weight between two GPUs\n  GPU0 GPU1\nGPU0 0 15\nGPU1 15 0\n", "no types of links; .*rocm-smi --showtopo"),
    ("LINK TYPE TABLE:\n  GPU0 GPU1\nGPU0 SELF N/A\nGPU1 N/A SELF\n", "line 3: GPU0 to GPU1: 'N/A': expected.*XGMI"),
    ("LINK TYPE TABLE:\n  GPU0 GPU1\nGPU0 SELF\n", "line 3: 1 cells after GPU0; expected 2"),
    ('[{"gpu": 0, "links": []}]', "no line begins with GPU0 GPU1 …; expected what .* or `amd-smi topology` prints"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [("h.gpus.csv", *each) for each in STRANGE_GPUS]
    + [("h.topo.txt", *each) for each in STRANGE_LINKS],
)
def test_what_cannot_be_used_is_refused_with_the_remedy(file, text, message, tmp_path):
    (tmp_path / "h.gpus.csv").write_text(f"{AMD}card1,206141652992,AMD Instinct MI300X\n")
    (tmp_path / file).write_text(text)
    with pytest.raises(pl.errors.InvalidData, match=message) as error:
        pl.load_cluster(tmp_path)
    assert file in str(error.value)


def test_folders_without_hosts(tmp_path):
    with pytest.raises(pl.errors.InvalidData, match=r"no host in it: .* the folder has nothing"):
        pl.load_cluster(tmp_path)
    with pytest.raises(pl.errors.UnknownName, match="there is no cluster or folder"):
        pl.load_cluster(tmp_path / "absent")
    with pytest.raises(pl.errors.InvalidValue, match="expected none beside a folder"):
        pl.load_cluster(tmp_path, path=tmp_path / "x.csv")
    _host(tmp_path, "h", "NVIDIA A40", 46068, GOOD)
    for name in ("h.topo.txt", "h.gpus.csv"):
        (tmp_path / name).rename(tmp_path / "aside")
        with pytest.raises(pl.errors.InvalidData, match=f"{name}: there is no such file"):
            pl.load_cluster(tmp_path)
        (tmp_path / "aside").rename(tmp_path / name)


def test_types_of_ones_own_have_names_of_their_own(tmp_path):
    facts = tmp_path / "mine.csv"
    facts.write_text(
        "gpu_type,memory_gb,memory_bandwidth_gb_per_s,fp16_tflop_per_s,driver_names\n"
        "A6000,48,768,154.8,NVIDIA RTX A6000; Quadro RTX A6000\n"
    )
    _host(tmp_path, "h", "NVIDIA RTX A6000", 49140, ["X NV4", "NV4 X"])
    assert _nodes(pl.load_cluster(tmp_path, gpus=pl.hardware.load_gpus(facts))) == {
        "h": (56.25, [0, 1])
    }


def test_the_table_has_what_drivers_report():
    """MiB in a row's note, the same in 10^9 bytes as its memory; and every driver's name belongs to one type."""
    facts, table, names = pl.hardware.load_gpus(), pl.hardware.gpus(), []
    for gpu_type, gpu in facts.items():
        names += [name.strip() for name in gpu.driver_names.split(";") if name]
        note = table["note"][gpu_type]
        found = re.search(r"smi prints (\d+) (MiB|bytes)", note)
        assert found or not gpu.driver_names or "no listing" in note, gpu_type
        if found:
            unit = 2**20 if found[2] == "MiB" else 1
            assert gpu.memory_gb == pytest.approx(int(found[1]) * unit / 1e9, abs=6e-4)
    assert len(names) == len(set(names)) > 15


# As nvidia-smi, rocm-smi and llama.cpp print them (listings in public threads).
PRINTED = {
    "A800-SXM-80": "NVIDIA A800-SXM4-80GB", "RTX5090": "NVIDIA GeForce RTX 5090", "A6000": "Quadro RTX A6000",
    "RX7900XTX": "AMD Radeon RX 7900 XTX (RADV NAVI31)", "Strix-Halo-40c": "Radeon 8060S Graphics (RADV GFX1151)",
    "M3-Ultra-80c": "Apple M3 Ultra", "P40": "Tesla P40", "Arc-Pro-B60": "Intel(R) Arc(TM) Pro B60 Graphics",
    "B300": "NVIDIA B300 SXM6 AC", "MI355X": "AMD Instinct MI355X", "V100-PCIe-32": "Tesla V100-PCIE-32GB",
}  # fmt: skip


def test_names_as_drivers_print_them_are_found_and_others_say_how_to_add_one(tmp_path):
    """And of a name that several rows have, that of a file of one's own counts."""
    facts = pl.hardware.load_gpus()
    assert {gpu_type: type_of(name, facts) for gpu_type, name in PRINTED.items()} == {
        name: name for name in PRINTED
    }
    mine = {"mine": dataclasses.replace(facts["L4"], driver_names="NVIDIA L4")}
    assert type_of("NVIDIA L4", facts | mine) == "mine"
    _host(tmp_path, "h", "NVIDIA FOO", 49140, ["X NV4", "NV4 X"])
    with pytest.raises(pl.errors.InvalidData, match=r"gpu_type, driver_names, .*--gpu-facts"):
        pl.load_cluster(tmp_path)
