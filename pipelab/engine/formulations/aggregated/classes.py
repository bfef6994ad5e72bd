"""What do two H100s differ in? Classes of interchangeable GPUs.

Two GPUs are interchangeable if they are of one kind (type, memory, price, node) and every other
GPU sends to both, and receives from both, at the same speed and latency; between themselves both
directions are alike. Swapping them changes no placement's throughput, and no time of a pass.
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

__all__ = ["Classes", "find_classes", "gpu_classes"]


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
        """What every GPU of class `a` is."""
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
    ids = _atoms(cluster)
    row = np.array([cluster.group[m[0]] for m in ids])
    kind = np.array([cluster.kind_of[m[0]] for m in ids])
    links = _links(cluster)[np.ix_(row, row)]
    several = np.array([len(m) > 1 for m in ids])
    leaders: list[int] = []  # the first atom of each class
    parts: list[list[int]] = []
    same_key: dict[tuple, list[int]] = defaultdict(list)
    for i, key in enumerate(_keys(links, kind, deadline)):
        for c in same_key[key]:
            deadline.check()
            if _interchangeable(links, several, leaders[c], i):
                parts[c].append(i)
                break
        else:
            same_key[key].append(len(parts))
            leaders.append(i)
            parts.append([i])
    members = tuple(np.sort(np.concatenate([ids[i] for i in part])) for part in parts)
    among = links[np.ix_(leaders, leaders)]
    np.fill_diagonal(among, [_inside(links, several, part) for part in parts])
    order = np.argsort([m[0] for m in members])
    among = among[np.ix_(order, order)]
    return Classes(
        cluster, tuple(members[i] for i in order), kind[leaders][order], among.real, among.imag
    )


def _links(cluster: Cluster) -> np.ndarray:
    """Bandwidth and latency of every link as one complex number: links are alike where both are."""
    links = np.empty(cluster.bandwidth_gb_per_s.shape, dtype=complex)
    links.real, links.imag = cluster.bandwidth_gb_per_s, cluster.latency_ms
    return links


def _atoms(cluster: Cluster) -> list[np.ndarray]:
    """GPU ids by bandwidth row and kind: alike by construction."""
    key = cluster.group.astype(np.int64) * len(cluster.kinds) + cluster.kind_of
    order = np.argsort(key, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(key[order])) + 1)


def _keys(links: np.ndarray, kind: np.ndarray, deadline: Deadline) -> Iterator[tuple]:
    """Equal for interchangeable atoms: the kind, and the sorted links to and from all others."""
    for i, own in enumerate(kind.tolist()):
        deadline.check()
        there, back = np.delete(links[i], i), np.delete(links[:, i], i)
        there.sort()
        back.sort()
        yield own, there.tobytes(), back.tobytes()


def _interchangeable(links: np.ndarray, several: np.ndarray, i: int, j: int) -> bool:
    """Whether two atoms of one kind see all others, each other and themselves alike."""
    between = links[i, j]
    if links[j, i] != between or any(several[x] and links[x, x] != between for x in (i, j)):
        return False
    others = np.ones(len(links), dtype=bool)
    others[[i, j]] = False
    return bool(
        (links[i, others] == links[j, others]).all()
        and (links[others, i] == links[others, j]).all()
    )


def _inside(links: np.ndarray, several: np.ndarray, part: list[int]) -> complex:
    """The link between two GPUs of a class; infinite where there is only one."""
    if len(part) > 1:
        return links[part[0], part[1]]
    return links[part[0], part[0]] if several[part[0]] else np.inf
