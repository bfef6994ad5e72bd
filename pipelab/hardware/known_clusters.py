"""Real mixes of GPUs, as others have published them, with the network between their nodes."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from pipelab.cluster import GPU, Cluster
from pipelab.display import DataFrame
from pipelab.errors import InvalidData, InvalidValue, UnknownName, nearest, shown
from pipelab.fields import Count, NotNegative, Positive, checked, checked_arguments, described
from pipelab.files.bundled_folders import data_dir
from pipelab.files.csv_rows import frame_of, read_objects
from pipelab.files.reading_and_writing import path_of
from pipelab.hardware.host_listings import cluster_of_hosts
from pipelab.hardware.known_gpus import GPUFacts, load_gpus

_MOST_GPUS, _MOST_NODES = 100_000, 4_000  # every two nodes have a link of their own: 128 MB


@checked
class _Nodes:
    """One row: equal nodes at one site."""

    gpu_type: str
    gpus: Count
    gpus_per_node: Count
    gpus_per_machine: Count | None = None
    site: str = ""
    node_gbit_per_s: Positive | None = None
    network_gbit_per_s: Positive | None = None
    between_sites_gbit_per_s: Positive | None = None
    network_latency_ms: NotNegative | None = None
    between_sites_latency_ms: NotNegative | None = None

    def __post_init__(self) -> None:
        if self.gpus_per_machine is not None and self.gpus_per_machine % self.gpus_per_node:
            expected = "expected a multiple of gpus_per_node: a node lies within one machine"
            raise InvalidValue("cluster", [("gpus_per_machine", self.gpus_per_machine, expected)])


@dataclass(frozen=True, kw_only=True)
class _NodeSpeeds:
    """One node: its GPUs, and how fast it talks inside, through its slots and over the network, in GB/s."""

    facts: _Nodes
    gpu: GPU
    count: int
    inside: float
    slot: float
    outside: float


@checked_arguments
def load_cluster(
    name: str | Path,
    *,
    gpus: Annotated[
        Mapping[str, GPUFacts] | None, described("GPUFacts by type, such as load_gpus()")
    ] = None,
    network_gbit_per_s: Annotated[Positive | None, described("a number above 0")] = None,
    path: str | Path | None = None,
) -> Cluster:
    """Load a cluster of `data/clusters.csv`, of your own file, or of your hosts' listings.

    Parameters
    ----------
    name : str or Path
        One of `pl.hardware.clusters()`, or of your own file; or the path of a folder with the listings of
        hosts (see Notes).
    gpus : dict of str to GPUFacts, optional
        By default `load_gpus()`: memory, price and the link inside a node come from there. Of
        hosts, the types and prices; their memory is what they say.
    network_gbit_per_s : float, optional
        Between machines where no file says (and only there), in 10^9 bit/s.
    path : str or Path, optional
        A CSV with the columns of `data/clusters.csv`; not with a folder.

    Returns
    -------
    Cluster
        Links in GB/s per direction: inside a node the GPUs' own, between nodes of a machine PCIe, between
        machines the slower network of the two, between sites what the file says. Latencies likewise, the
        greater of the two; 0 where the file states none, and inside a machine, where a hop takes no more than
        what sending takes (`Roofline.hop_latency_s`). GPUs know their node and machine, and of hosts the
        numbers that the driver gives them.

    Raises
    ------
    UnknownName
        No such cluster or folder, or a type of GPU that `gpus` does not know.
    InvalidData
        A file is not there or cannot be read, the network is not stated, a listing is torn, or a
        value does not fit: the message names file, line and value.
    InvalidValue
        An argument does not fit.

    Notes
    -----
    A folder has two files of every host, and one of the network::

        HOST.gpus.csv   nvidia-smi --query-gpu=index,name,memory.total --format=csv
                        or rocm-smi --showproductname --showmeminfo vram --csv
        HOST.topo.txt   nvidia-smi topo -m, or rocm-smi --showtopo (not needed of a host with one GPU)
        links.csv       host,other,gbit_per_s and, if known, latency_ms (not needed of one host)

    GPUs that the first leaves out are not used, though the second shows them. Where memory.used or
    memory.free is listed too, only memory that is free counts; GPUs of a type that
    differ by 1 % or less count as equal, with the least. A row of links.csv holds for both ways, unless
    the way back has a row of its own. A host is a machine. Its GPUs that NVLink or XGMI joins, each to
    each, are a node: with a switch all of them, with bridges the pairs; of a mesh, groups in the order of
    the GPUs' numbers. Those without are a node that talks over PCIe. `notebooks/data.md` says which forms
    of these listings are read, what else may be listed, and what each word stands for in GB/s.

    References
    ----------
    `data/clusters.csv` names the source of every row, `notebooks/data.md` the meaning of every column.

    Examples
    --------
    >>> cluster = load_cluster("helix-single24")
    >>> len(cluster), cluster.bandwidth_between(0, 23), cluster.latency_between(0, 23)
    (24, 1.0, 1.0)
    """
    facts = load_gpus() if gpus is None else gpus
    if isinstance(name, os.PathLike) and path is not None:
        raise InvalidValue("load_cluster", [("path", path, "expected none beside a folder")])
    source = data_dir() / "clusters.csv" if path is None else path_of("load_cluster", path)
    table = _read(source)
    if isinstance(name, os.PathLike) or (isinstance(name, str) and name and name not in table):
        folder = path_of("load_cluster", name, "name")
        if path is None and os.path.isdir(folder):
            return cluster_of_hosts(folder, facts, network_gbit_per_s)
    if not isinstance(name, str) or name not in table:
        asked = shown(os.fspath(name) if isinstance(name, os.PathLike) else name)
        known = nearest(asked.strip("'"), table)
        raise UnknownName(f"there is no cluster or folder {asked}; {known}")
    return _cluster(f"{source}, {name}", table[name], facts, network_gbit_per_s)


def cluster_of_counts(
    counts: Mapping[str, int],
    gpus_per_node: int = 8,
    network_gbit_per_s: float = 100.0,
    *,
    gpus: Mapping[str, GPUFacts] | None = None,
    gpus_per_machine: int | None = None,
) -> Cluster:
    """Make a cluster of known GPUs on nodes of one type each; inside a node the GPUs' own links count.

    A node is an island of fast links. Between those of one machine PCIe counts, between machines the network.

    Parameters
    ----------
    counts : mapping of GPU type to int
        How many GPUs of each type there are.
    gpus_per_node : int
        The last node of a type may have fewer.
    network_gbit_per_s : float
        Between machines, in Gbit/s.
    gpus : dict of str to GPUFacts, optional
        By default `load_gpus()`.
    gpus_per_machine : int, optional
        A multiple of `gpus_per_node`, which is the default; the last machine of a type may have fewer.

    Returns
    -------
    Cluster
        GPUs know the names of their node and machine.

    Raises
    ------
    UnknownName
        A type is not known.
    InvalidValue, InvalidData
        A number does not fit.
    """
    rows = [
        _Nodes(
            gpu_type=kind,
            gpus=count,
            gpus_per_node=gpus_per_node,
            gpus_per_machine=gpus_per_machine,
            network_gbit_per_s=network_gbit_per_s,
        )
        for kind, count in counts.items()
    ]
    return _cluster("--gpus", rows, load_gpus() if gpus is None else gpus)


def _read(path: Path) -> dict[str, list[_Nodes]]:
    by_cluster: dict[str, list[_Nodes]] = {}
    for row, nodes in read_objects(path, _Nodes, others=["cluster", "network_gbit_per_s"]):
        if not row.cells["cluster"]:
            raise row.error("cluster", "", "expected the cluster's name")
        by_cluster.setdefault(row.cells["cluster"], []).append(nodes)
    return by_cluster


def _cluster(
    place: str, rows: Sequence[_Nodes], facts: Mapping[str, GPUFacts], network: float | None = None
) -> Cluster:
    """Make a cluster of the nodes of all rows."""
    nodes: list[_NodeSpeeds] = []
    for row in rows:
        if row.gpu_type not in facts:
            known = nearest(row.gpu_type, facts)
            raise UnknownName(f"{place}: {row.gpu_type!r} is no known GPU; {known}")
        per_node = row.gpus_per_node
        if row.gpus > _MOST_GPUS or len(nodes) + -(-row.gpus // per_node) > _MOST_NODES:
            most = f"expected at most {_MOST_GPUS:,} GPUs in a row and {_MOST_NODES:,} nodes"
            said = f"{row.gpus:,} GPUs, {per_node:,} per node: {most}; Cluster.from_counts has more"
            raise InvalidData(f"{place}, {row.gpu_type}: {said}")
        outside = row.network_gbit_per_s or network
        if outside is None:
            expected = "the network is not stated there; give network_gbit_per_s=…"
            raise InvalidData(f"{place}: {expected}")
        gpu = facts[row.gpu_type]
        inside = gpu.link_gb_per_s if row.node_gbit_per_s is None else row.node_gbit_per_s / 8
        for first in range(0, row.gpus, per_node):
            size = min(per_node, row.gpus - first)
            if first % (row.gpus_per_machine or per_node) == 0:
                # two rows may hold machines of the same kind: all are counted
                machine = f"{row.site}{row.gpu_type} machine no. {len(nodes) + 1}"
            node = f"{row.site}{row.gpu_type}×{per_node} no. {len(nodes) + 1}"
            one = GPU(
                type=row.gpu_type,
                memory_gb=gpu.memory_gb,
                usd_per_hour=gpu.usd_per_hour,
                node=node if size > 1 else "",
                node_gb_per_s=inside if size > 1 else None,
                machine=machine if row.gpus_per_machine else "",
            )
            slot = gpu.pcie_gb_per_s or gpu.link_gb_per_s
            nodes.append(
                _NodeSpeeds(
                    facts=row, gpu=one, count=size, inside=inside, slot=slot, outside=outside / 8
                )
            )
    group = np.repeat(np.arange(len(nodes)), [n.count for n in nodes])
    gpus = tuple(g for n in nodes for g in (n.gpu,) * n.count)
    bandwidth, latency = _links(nodes)
    return Cluster(gpus, bandwidth, group, latency)


def _links(nodes: list[_NodeSpeeds]) -> tuple[np.ndarray, np.ndarray]:
    """Return GB/s and milliseconds between nodes; on the diagonal GB/s inside each, and no time inside a machine."""
    site = np.array([n.facts.site for n in nodes])
    machine = np.array([n.gpu.machine or f"node {i}" for i, n in enumerate(nodes)])
    other_site, other_machine = (names[:, None] != names for names in (site, machine))
    between = [(n.facts.between_sites_gbit_per_s or np.inf) / 8 for n in nodes]
    outside, far, slot = (
        np.minimum.outer(rates, rates)
        for rates in ([n.outside for n in nodes], between, [n.slot for n in nodes])
    )
    bandwidth = np.where(other_site, np.minimum(outside, far), outside)
    bandwidth = np.where(other_machine, bandwidth, slot)
    np.fill_diagonal(bandwidth, [n.inside for n in nodes])
    network = [n.facts.network_latency_ms or 0.0 for n in nodes]
    beyond = [n.facts.between_sites_latency_ms or 0.0 for n in nodes]
    near, distant = (np.maximum.outer(latency, latency) for latency in (network, beyond))
    latency = np.where(other_site, np.maximum(near, distant), near)
    return bandwidth, np.where(other_machine, latency, 0.0)


def clusters(path: str | Path | None = None) -> DataFrame:
    """Show the clusters as a table, one row per sort of node.

    Parameters
    ----------
    path : str or Path, optional
        A file of your own; by default `data/clusters.csv`.

    Returns
    -------
    pandas.DataFrame
        The file's columns, units in their names, with source and how sure each row is; the index is
        `cluster`.

    Raises
    ------
    InvalidData
        The file is not there or cannot be read, or a value does not fit.
    InvalidValue
        The argument is not a path.

    Examples
    --------
    >>> import pipelab as pl
    >>> int(pl.hardware.clusters().loc["helix-hetero42", "gpus"].sum())  # on 42 nodes
    64
    """
    path = data_dir() / "clusters.csv" if path is None else path_of("clusters", path)
    _read(path)  # refuses what does not fit
    return frame_of(path, "cluster")
