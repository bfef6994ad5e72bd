"""Classes of interchangeable GPUs: two GPUs that can be swapped in any placement.

Two GPUs are interchangeable if they are of one kind (type, memory, price, node) and every other
GPU sends to both, and receives from both, at the same speed and latency; between themselves both
directions are equal. Swapping them changes neither throughput nor end-to-end latency.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pipelab.cluster import GPU, Cluster
from pipelab.display import show_ids, table
from pipelab.engine.deadline import NEVER, Deadline

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, eq=False)
class Classes:
    """The largest sets of interchangeable GPUs of a cluster, in order of their lowest id.

    Attributes
    ----------
    members : tuple of int arrays
        GPU ids of each of the A classes, ascending.
    kind : int array, shape (A,)
        Index into `cluster.kinds`.
    bandwidth_gb_per_s : float array, shape (A, A)
        Between a GPU of one class and a GPU of another, sender first; on the diagonal between
        two GPUs of one class, infinite where the class has only one.
    latency_ms : float array, shape (A, A)
        The same for latencies; 0 on the diagonal of a class of one.
    """

    cluster: Cluster
    members: tuple[np.ndarray, ...]
    kind: np.ndarray
    bandwidth_gb_per_s: np.ndarray
    latency_ms: np.ndarray

    def __len__(self) -> int:
        return len(self.members)

    @cached_property
    def count(self) -> np.ndarray:
        """Number of GPUs in each class; shape (A,)."""
        return np.array([len(m) for m in self.members])

    @cached_property
    def of(self) -> np.ndarray:
        """Class of each GPU id; shape (N,)."""
        out = np.empty(int(self.count.sum()), dtype=int)
        for a, members in enumerate(self.members):
            out[members] = a
        return out

    @cached_property
    def names(self) -> tuple[str, ...]:
        """A short name per class: its type, and its lowest id where several classes share the type."""
        types = [self.gpu(a).type for a in range(len(self))]
        return tuple(
            t if types.count(t) == 1 else f"{t} ({m[0]}–{m[-1]})" if len(m) > 1 else f"{t} ({m[0]})"
            for t, m in zip(types, self.members, strict=True)
        )

    def gpu(self, a: int) -> GPU:
        """The GPU that all of class `a` are equal to."""
        return self.cluster.kinds[self.kind[a]]

    def to_frame(self) -> "DataFrame":
        """One row per class: type, memory, number of GPUs, their ids, bandwidth among themselves."""
        import pandas as pd

        inside = np.where(self.count > 1, self.bandwidth_gb_per_s.diagonal(), np.nan)
        return pd.DataFrame(
            {
                "class": self.names,
                "type": [self.gpu(a).type for a in range(len(self))],
                "memory_gb": [self.gpu(a).memory_gb for a in range(len(self))],
                "count": self.count,
                "gpu_ids": [show_ids(m) for m in self.members],
                "bandwidth_inside_gb_per_s": inside,
            }
        )

    def _repr_html_(self) -> str:
        return table(self.to_frame())


def gpu_classes(cluster: Cluster) -> Classes:
    """Find the classes of interchangeable GPUs.

    Works on the cluster's groups (the rows of its bandwidth matrix), not on its GPUs: the time
    grows with the square of the number of groups, and linearly with the number of GPUs.

    Parameters
    ----------
    cluster : Cluster
        Any size.

    Returns
    -------
    Classes
        `members`, the GPU ids of each class as arrays, in order of their lowest id; `kind`, and
        bandwidth (GB/s) and latency (ms) between them.

    Examples
    --------
    >>> import pipelab as pl
    >>> classes = gpu_classes(pl.load_case("demo").cluster)
    >>> classes.names, classes.count.tolist()
    (('H100', 'A10', 'T4'), [10, 10, 10])
    """
    return find_classes(cluster, NEVER)


def find_classes(cluster: Cluster, deadline: Deadline) -> Classes:
    """The same, unless the deadline ends it: a matrix of 10,000 rows takes a minute."""
    ids = _groups(cluster)
    links = _links(cluster, ids)
    kind = np.array([cluster.kind_of[own[0]] for own in ids])
    parts: list[list[int]] = []  # the groups of each class
    candidates: dict[tuple, list[int]] = defaultdict(list)  # classes by key
    for i, key in enumerate(_keys(links, kind, deadline)):
        for c in candidates[key]:
            deadline.check()
            if links.interchangeable(parts[c][0], i):
                parts[c].append(i)
                break
        else:
            candidates[key].append(len(parts))
            parts.append([i])
    members = [np.sort(np.concatenate([ids[i] for i in part])) for part in parts]
    order = np.argsort([own[0] for own in members])
    between = links.between([parts[c] for c in order])
    leaders = [parts[c][0] for c in order]
    return Classes(cluster, tuple(members[c] for c in order), kind[leaders], *between)


@dataclass(frozen=True, eq=False)
class _Links:
    """The links between groups of GPUs.

    Attributes
    ----------
    bandwidth, latency : float arrays, shape (n, n)
        Sender first; on the diagonal between two GPUs of one group.
    several : bool array, shape (n,)
        Whether a group has several GPUs; the diagonal means nothing where it has one.
    """

    bandwidth: np.ndarray
    latency: np.ndarray
    several: np.ndarray

    def interchangeable(self, i: int, j: int) -> bool:
        """Whether two groups of one kind have the same links to all others, each other and themselves."""
        others = np.ones(len(self.several), dtype=bool)
        others[[i, j]] = False
        inner = [x for x in (i, j) if self.several[x]]
        for link in (self.bandwidth, self.latency):
            between = link[i, j]
            if link[j, i] != between or any(link[x, x] != between for x in inner):
                return False
            if (link[i, others] != link[j, others]).any():
                return False
            if (link[others, i] != link[others, j]).any():
                return False
        return True

    def between(self, classes: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Bandwidth and latency between classes, each given by its groups; see `Classes`."""
        leaders = [groups[0] for groups in classes]
        at = np.ix_(leaders, leaders)
        bandwidth, latency = self.bandwidth[at], self.latency[at]
        for c, groups in enumerate(classes):
            if len(groups) > 1:
                bandwidth[c, c] = self.bandwidth[groups[0], groups[1]]
                latency[c, c] = self.latency[groups[0], groups[1]]
            elif not self.several[groups[0]]:
                bandwidth[c, c], latency[c, c] = np.inf, 0.0
        return bandwidth, latency


def _groups(cluster: Cluster) -> list[np.ndarray]:
    """GPU ids by bandwidth row and kind: interchangeable by construction."""
    key = cluster.group.astype(np.int64) * len(cluster.kinds) + cluster.kind_of
    order = np.argsort(key, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(key[order])) + 1)


def _links(cluster: Cluster, ids: list[np.ndarray]) -> _Links:
    row = np.array([cluster.group[own[0]] for own in ids])
    several = np.array([len(own) > 1 for own in ids])
    if np.array_equal(row, np.arange(len(cluster.bandwidth_gb_per_s))):  # large ones: no copy
        return _Links(cluster.bandwidth_gb_per_s, cluster.latency_ms, several)
    at = np.ix_(row, row)
    return _Links(cluster.bandwidth_gb_per_s[at], cluster.latency_ms[at], several)


def _keys(links: _Links, kind: np.ndarray, deadline: Deadline) -> Iterator[tuple]:
    """Equal for interchangeable groups: the kind, and sorted bandwidths and latencies to and from all others.

    Groups of unequal keys need not be compared link by link.
    """
    for i, own in enumerate(kind.tolist()):
        deadline.check()
        key = [own]
        for link in (links.bandwidth, links.latency):
            for values in (link[i], link[:, i]):  # sent, received
                key.append(np.sort(np.delete(values, i)).tobytes())
        yield tuple(key)
