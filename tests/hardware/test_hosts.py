"""Clusters from what hosts say of themselves: nvidia-smi's listings, as people have published them.

`tests/data/README.md` names the threads.
"""

import re
from pathlib import Path

import numpy as np
import pytest

import pipelab as pl

HOSTS = Path(__file__).parents[1] / "data" / "hosts"
GPUS = "index, name, memory.total [MiB]\n"


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


def test_wired_each_to_each_is_one_node_and_a_pair_has_its_own_links():
    """4 H100 with NV6: 18 links of 25 GB/s each GPU, 6 of them to each other one."""
    cluster = pl.load_cluster(HOSTS / "h100-mesh")
    assert [gpu.type for gpu in cluster.gpus] == ["H100-SXM"] * 4
    assert cluster.gpus[0].memory_gb == pytest.approx(81559 * 2**20 / 1e9)
    assert _nodes(cluster) == {"a": (450, [0, 1, 2, 3])}
    assert cluster.bandwidth_between(0, 3) == 150


def test_a_bridge_makes_a_node_of_a_pair():
    """4 RTX 3090 with two bridges, GPU0–GPU2 and GPU1–GPU3; the rest goes over PCIe."""
    cluster = pl.load_cluster(str(HOSTS / "rtx3090-pairs"))
    assert _nodes(cluster) == {"a GPU0,2": (56.25, [0, 2]), "a GPU1,3": (56.25, [1, 3])}
    assert cluster.bandwidth_matrix()[0, 1:].tolist() == [31.5, 56.25, 31.5]


def test_a_hybrid_mesh_falls_into_what_is_joined_each_to_each():
    """A DGX-1: two squares with diagonals; NV2 is 50 GB/s, across the sockets 10 where there is no NVLink."""
    cluster = pl.load_cluster(HOSTS / "v100-hybrid")
    nodes = {"a GPU0,1,2,3": (100, [0, 1, 2, 3]), "a GPU4,5,6,7": (100, [4, 5, 6, 7])}
    assert _nodes(cluster) == nodes
    assert cluster.bandwidth_matrix()[0, 1:].tolist() == [25, 25, 50, 50, 10, 10, 10]
    # one GPU has 4 MiB less: all are taken for equal, or no stage could cut its layers
    assert len({gpu.memory_gb for gpu in cluster.gpus}) == 1
    assert cluster.gpus[0].memory_gb == pytest.approx(32764 * 2**20 / 1e9)


def test_a_switch_shows_every_link_to_every_gpu(tmp_path):
    rows = [" ".join("X" if i == j else "NV18" for j in range(8)) for i in range(8)]
    _host(tmp_path, "h", "NVIDIA H200", 143771, rows)
    cluster = pl.load_cluster(tmp_path)
    assert _nodes(cluster) == {"h": (450, list(range(8)))}
    assert cluster.bandwidth_between(0, 7) == 450
    rows = [" ".join("X" if i == j else "NV6" for j in range(3)) for i in range(3)]
    _host(tmp_path, "h", "Tesla V100-SXM3-32GB", 32480, rows)  # three of a DGX-2: 6 links, not 12
    assert _nodes(pl.load_cluster(tmp_path))["h"][0] == 150


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


def test_two_joined_and_two_alone(tmp_path):
    rows = ["X NV4 NODE NODE", "NV4 X NODE NODE", "NODE NODE X PHB", "NODE NODE PHB X"]
    _host(tmp_path, "h", "NVIDIA A40", 46068, rows)
    assert _nodes(pl.load_cluster(tmp_path)) == {
        "h GPU0,1": (56.25, [0, 1]), "h GPU2,3": (31.5, [2, 3]),
    }  # fmt: skip


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
    (
        "h.topo.txt",
        "SYS\tSYS\tX",
        "SYS",
        "line 4: 1 cells after GPU2; expected 3: the listing is torn",
    ),
    ("h.topo.txt", "NV4\tX", "PHB\tX", "GPU0 to GPU1 is NV4, and the way back PHB"),
    ("h.topo.txt", "NV4", "NV40", "line 2: GPU0 to GPU1: 'NV40': expected NV1 … NV18, PIX"),
    ("h.topo.txt", "X\tNV4", "NV4\tX", "line 2: GPU0 to GPU0: 'NV4': expected X"),
    (
        "h.topo.txt",
        "GPU1\tGPU2",
        "GPU1GPU2",
        r"line 1: a header with GPU0; expected the GPUs of h\.gpus\.csv: GPU0",
    ),
    (
        "h.topo.txt",
        "\tGPU0",
        "MIG 1g.5gb Device 0:",
        "line 1: 'MIG 1g.5gb .*a MIG instance: expected whole GPUs",
    ),
    ("h.topo.txt", "GPU", "", "no line begins with GPU0 GPU1"),
    ("h.topo.txt", "\nGPU2", "\nend", "no row of GPU2: the listing is torn"),
    ("h.topo.txt", "\nGPU2", "\nGPU1", "line 4: GPU1 is listed already"),
    ("h.topo.txt", "\nGPU2", "\nGPU7", "line 4: GPU7 is not in the header"),
    (
        "h.gpus.csv",
        "A40",
        "A100-SXM-64GB",
        "row 2, column 'name': .*did you mean 'NVIDIA A100-SXM4-[48]0GB'",
    ),
    ("h.gpus.csv", "A40", "A100-SXM4-40GB MIG 1g.5gb", "a MIG instance.*expected whole GPUs"),
    ("h.gpus.csv", "46068 MiB", "[N/A]", r"column 'memory.total \[MiB\]': '\[N/A\]': expected MiB"),
    ("h.gpus.csv", "46068", "0", "'0 MiB': expected MiB"),
    ("h.gpus.csv", "\n0", "\nx", "column 'index': 'x'"),
    ("links.csv", "h,k", "h,g", "column 'other': 'g': no host of this folder; .*Known: h, k"),
    ("links.csv", "10", "0", "column 'gbit_per_s': '0': expected a number above 0"),
    ("links.csv", "10", "10\nh,k,2", "row 3, column 'other': 'k': this way is listed already"),
]


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
        found = re.search(r"nvidia-smi prints (\d+) MiB", table["note"][gpu_type])
        assert found or not gpu.driver_names, gpu_type
        if found:
            assert gpu.memory_gb == pytest.approx(int(found[1]) * 2**20 / 1e9, abs=6e-4)
    assert len(names) == len(set(names)) > 15
