"""Classes of interchangeable GPUs: two GPUs that can be swapped in any placement.

Two GPUs are interchangeable if they are of one kind (type, memory, price, node) and every other
GPU sends to both, and receives from both, at the same speed and latency; between themselves both
directions are equal. Swapping them changes neither throughput nor end-to-end latency.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipelab.cluster import GPU, Cluster
from pipelab.engine.deadline import NEVER, Deadline
from pipelab.fields import Frozen, derived
from pipelab.placement import Placement


@dataclass(frozen=True, eq=False)
class Classes(Frozen):
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

    @derived
    def count(self) -> np.ndarray:
        """Number of GPUs in each class; shape (A,)."""
        return np.array([len(m) for m in self.members])

    @derived
    def of(self) -> np.ndarray:
        """Class of each GPU id; shape (N,)."""
        out = np.empty(int(self.count.sum()), dtype=int)
        for a, members in enumerate(self.members):
            out[members] = a
        return out

    @derived
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

    def stages_of(self, placement: Placement) -> list[tuple[int, tuple[int, ...]]]:
        """Return the layers of each stage of a placement, and how many GPUs of each class it has."""
        return [
            (len(s.layers), tuple(np.bincount(self.of[list(s.gpus)], minlength=len(self)).tolist()))
            for s in placement.stages
        ]

    def merged(
        self,
        groups: Sequence[Sequence[int] | np.ndarray],
        bandwidth_gb_per_s: np.ndarray,
        latency_ms: np.ndarray,
    ) -> "Classes":
        """Return one class for each group of these, with the kind of its first, and with these links."""
        return replace(
            self,
            members=tuple(
                np.sort(np.concatenate([self.members[a] for a in group])) for group in groups
            ),
            kind=self.kind[np.array([group[0] for group in groups], dtype=int)],
            bandwidth_gb_per_s=bandwidth_gb_per_s,
            latency_ms=latency_ms,
        )


def gpu_classes(cluster: Cluster, deadline: Deadline = NEVER) -> Classes:
    """Find the classes of interchangeable GPUs.

    Works on the cluster's groups (the rows of its bandwidth matrix), not on its GPUs: the time
    grows with the square of the number of groups, and linearly with the number of GPUs.

    Parameters
    ----------
    cluster : Cluster
        Any size.
    deadline : Deadline
        Ends it early: a matrix of 10,000 rows takes a minute.

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
    ids = _groups(cluster)
    row = np.array([cluster.group[group[0]] for group in ids])
    several = np.array([len(group) > 1 for group in ids])
    links = cluster.bandwidth_gb_per_s, cluster.latency_ms
    if not np.array_equal(row, np.arange(len(links[0]))):  # large ones: no copy
        links = links[0][np.ix_(row, row)], links[1][np.ix_(row, row)]
    kind = np.array([cluster.kind_of[group[0]] for group in ids])
    parts = exchangeable(links, kind, several, deadline)
    members = [np.sort(np.concatenate([ids[i] for i in part])) for part in parts]
    order = np.argsort([group[0] for group in members])
    parts = [parts[c] for c in order]
    bandwidth, latency = (between(link, parts) for link in links)
    for c, part in enumerate(parts):
        if len(part) == 1 and not several[part[0]]:
            bandwidth[c, c], latency[c, c] = np.inf, 0.0
    kinds = kind[[part[0] for part in parts]]
    return Classes(
        cluster=cluster,
        members=tuple(members[c] for c in order),
        kind=kinds,
        bandwidth_gb_per_s=bandwidth,
        latency_ms=latency,
    )


def _groups(cluster: Cluster) -> list[np.ndarray]:
    """GPU ids by bandwidth row and kind: interchangeable by construction."""
    key = cluster.group.astype(np.int64) * len(cluster.kinds) + cluster.kind_of
    order = np.argsort(key, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(key[order])) + 1)


def exchangeable(
    links: Sequence[np.ndarray], label: np.ndarray, several: np.ndarray, deadline: Deadline
) -> list[list[int]]:
    """Partition n sets of GPUs: those of one label are together until a link tells them apart.

    Parameters
    ----------
    links : sequence of arrays, shape (n, n)
        Sender first; on the diagonal between two GPUs of one set.
    label : int array, shape (n,)
    several : bool array, shape (n,)
        Whether a set has several GPUs; the diagonal means nothing where it has one.
    """
    parts: list[list[int]] = []
    candidates: dict[tuple, list[int]] = defaultdict(list)  # parts by key
    for i, kind in enumerate(label.tolist()):
        deadline.check()
        # Equal for sets that can be exchanged: the label, and sorted links to and from all others.
        ways = [values for link in links for values in (link[i], link[:, i])]
        key = kind, *(np.sort(np.delete(values, i)).tobytes() for values in ways)
        for c in candidates[key]:
            deadline.check()
            if _alike(links, several, parts[c][0], i):
                parts[c].append(i)
                break
        else:
            candidates[key].append(len(parts))
            parts.append([i])
    return parts


def _alike(links: Sequence[np.ndarray], several: np.ndarray, i: int, j: int) -> bool:
    """Whether two sets have the same links to all others, each other and themselves."""
    others = np.ones(len(several), dtype=bool)
    others[[i, j]] = False
    inner = [x for x in (i, j) if several[x]]
    for link in links:
        mutual = link[i, j]
        if link[j, i] != mutual or any(link[x, x] != mutual for x in inner):
            return False
        if (link[i, others] != link[j, others]).any():
            return False
        if (link[others, i] != link[others, j]).any():
            return False
    return True


def between(link: np.ndarray, parts: Sequence[Sequence[int]]) -> np.ndarray:
    """A link matrix of the parts of a partition; shape (parts, parts)."""
    leaders = [part[0] for part in parts]
    out = link[np.ix_(leaders, leaders)]
    for c, part in enumerate(parts):
        if len(part) > 1:
            out[c, c] = link[part[0], part[1]]
    return out
