"""GPUs and the links between them."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, cast

import numpy as np

from pipelab.display import table
from pipelab.errors import InvalidValue, nearest
from pipelab.fields import Indices, Later, Matrix, Positive, checked
from pipelab.links import between_types, check_bandwidth, check_groups, checked_latency, of_type

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["GPU", "Cluster"]


@checked
class GPU:
    """One GPU: its type and its memory.

    Parameters
    ----------
    type : str
        Name under which the cost model knows it, such as `"A100"`.
    memory_gb : float
        Memory available to a stage. The write-up says GB and computes in GiB (2^30 bytes).
    usd_per_hour : float, optional
        What it costs to rent, in $ per hour. `solve` looks at it only where placements are equally
        fast and have equally many GPUs and stages (method "aggregated"); `cheapest`, `trade_off`
        and `sweep` count in it.
    node : str
        Name of the node it shares with others; empty where it stands alone. Only GPUs of one node
        can cut a layer among them (tensor parallelism), and only equal ones: where two of a node
        differ in type, memory or price, they share a stage's batch and never its layers.
    node_gb_per_s : float, optional
        Bandwidth to the others of its node in GB/s, per direction; needed where `node` is given.

    Raises
    ------
    InvalidValue
        The type is empty, a number is not finite and above 0, or a node comes without its
        bandwidth.
    """

    type: str
    memory_gb: Positive
    usd_per_hour: Positive | None = None
    node: str = ""
    node_gb_per_s: Positive | None = None

    def __post_init__(self) -> None:
        if not self.type.strip():
            raise InvalidValue("GPU", [("type", self.type, "expected text that is not empty")])
        if self.node and self.node_gb_per_s is None:
            raise InvalidValue(
                "GPU",
                [("node_gb_per_s", None, f"expected the bandwidth inside node {self.node!r}")],
            )


@checked(eq=False)
class Cluster:
    """GPUs with ids 0, 1, 2, … and the bandwidth of every directed link between them.

    Parameters
    ----------
    gpus : tuple of GPU
        The GPU with id `i` is `gpus[i]`; at least one.
    bandwidth_gb_per_s : array of float, shape (G, G)
        Entry (i, j) is the bandwidth from group i to group j in GB/s, sender first; finite and
        above 0.
    group : array of int, shape (N,), optional
        The row of each GPU in `bandwidth_gb_per_s`. By default every GPU has its own row
        (G = N). Large clusters share rows, so that memory grows with the number of
        groups and not with the square of the number of GPUs.
    latency_ms : array of float, shape (G, G), or number, optional
        From the moment a byte is sent to the moment it is there, by the same rows; a number from 0
        to 10^9 holds for every link. By default 0. It delays a message and takes nothing from the
        bandwidth: the next message can be sent meanwhile. So it counts in the time of a pass and in
        how many microbatches must be in flight, and not in the rate of a link.

    Raises
    ------
    InvalidValue
        No GPU, a matrix that is not square or has no row for some GPU, or a link that is used and
        has no such number.

    Notes
    -----
    Without `group` the diagonal is never read: no GPU sends to itself.

    Examples
    --------
    >>> pair = Cluster((GPU("T4", 16), GPU("T4", 16)), [[0, 2], [1, 0]], latency_ms=0.5)
    >>> pair.bandwidth_between(0, 1), pair.latency_between(0, 1)
    (2.0, 0.5)
    """

    gpus: tuple[GPU, ...]
    bandwidth_gb_per_s: Matrix
    group: Annotated[Indices, Later] = cast(np.ndarray, None)
    latency_ms: Matrix = cast(np.ndarray, 0.0)

    def __post_init__(self) -> None:
        if not self.gpus:
            raise InvalidValue("Cluster", [("gpus", (), "expected at least one GPU")])
        bandwidth = self.bandwidth_gb_per_s
        group = np.arange(len(self.gpus)) if self.group is None else self.group
        check_groups(group, len(self.gpus), bandwidth.shape, own_rows=self.group is None)
        several = np.bincount(group, minlength=len(bandwidth)) > 1
        check_bandwidth(bandwidth, several)
        latency = checked_latency(np.asarray(self.latency_ms), bandwidth.shape, several)
        for name, array in (
            ("bandwidth_gb_per_s", bandwidth),
            ("group", group),
            ("latency_ms", latency),
        ):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @classmethod
    def from_counts(
        cls,
        counts: Mapping[str, int],
        memory_gb: Mapping[str, float] | float,
        bandwidth_gb_per_s: Mapping[tuple[str, str], float] | float,
        usd_per_hour: Mapping[str, float] | float | None = None,
        latency_ms: Mapping[tuple[str, str], float] | float = 0.0,
    ) -> "Cluster":
        """A cluster without files: so many GPUs of each type, ids in the order of `counts`.

        Parameters
        ----------
        counts : mapping of type to int
            Number of GPUs of each type, at least 0.
        memory_gb : float, or mapping of type to float
            Of a GPU, in GB as in `GPU`: one number, or one per type.
        bandwidth_gb_per_s : float, or mapping of (type, type) to float
            In GB/s: one number, or one per pair of types. `{("A100", "V100"): 200}` also serves the
            way back unless that is given too. A type of one GPU needs no entry for itself.
        usd_per_hour : float, or mapping of type to float, optional
            Of a GPU, in $ per hour: one number, or one per type.
        latency_ms : float, or mapping of (type, type) to float
            In ms, as the bandwidth; 0 by default.

        Returns
        -------
        Cluster
            Its groups are the types of which there is a GPU.

        Raises
        ------
        InvalidValue
            A count is no whole number, a link names a type that is not in `counts`, nothing is
            given for a type or pair that needs it, or `GPU` or `Cluster` refuses a number.

        Examples
        --------
        >>> cluster = Cluster.from_counts({"A100": 2, "T4": 1}, {"A100": 80, "T4": 16}, 100)
        >>> [gpu.type for gpu in cluster.gpus]
        ['A100', 'A100', 'T4']
        """
        bad: list[tuple[str, object, str]]
        bad = [(t, n, "expected a whole number, at least 0") for t, n in counts.items()
               if isinstance(n, bool) or not isinstance(n, Integral) or n < 0]  # fmt: skip
        tables = {"bandwidth_gb_per_s": bandwidth_gb_per_s, "latency_ms": latency_ms}
        for name, values in tables.items():
            named = [t for pair in values for t in pair] if isinstance(values, Mapping) else []
            bad += [
                (name, t, f"names no type; {nearest(t, counts)}") for t in named if t not in counts
            ]
        if bad:
            raise InvalidValue("Cluster.from_counts", bad)
        types = [t for t, n in counts.items() if n > 0]
        memory = {t: of_type(memory_gb, t, "memory_gb") for t in types}
        price = {t: of_type(usd_per_hour, t, "usd_per_hour") for t in types}
        links, latency = (
            np.array(
                [[between_types(name, values, a, b, counts[a] > 1) for b in types] for a in types],
                dtype=float,
            )
            for name, values in tables.items()
        )
        gpus = tuple(gpu for t in types for gpu in (GPU(t, memory[t], price[t]),) * counts[t])
        group = np.repeat(np.arange(len(types)), [counts[t] for t in types])
        shape = len(types), len(types)
        return cls(gpus, links.reshape(shape), group, latency.reshape(shape))

    def bandwidth_between(self, sender: int, receiver: int) -> float:
        """Bandwidth of the directed link from one GPU to another.

        Parameters
        ----------
        sender, receiver : int
            GPU ids, from 0.

        Returns
        -------
        float
            In GB/s.
        """
        return float(self.bandwidth_gb_per_s[self.group[sender], self.group[receiver]])

    def bandwidth_matrix(self) -> np.ndarray:
        """Bandwidth between all GPUs.

        Returns
        -------
        numpy.ndarray
            (N, N) array of floats in GB/s; the row sends, the column receives. The diagonal means
            nothing.
        """
        return self.bandwidth_gb_per_s[np.ix_(self.group, self.group)]

    def latency_between(self, sender: int, receiver: int) -> float:
        """Latency of the directed link from one GPU to another.

        Parameters
        ----------
        sender, receiver : int
            GPU ids, from 0.

        Returns
        -------
        float
            In ms.
        """
        return float(self.latency_ms[self.group[sender], self.group[receiver]])

    def latency_matrix(self) -> np.ndarray:
        """Latency between all GPUs.

        Returns
        -------
        numpy.ndarray
            (N, N) array of floats in ms; the row sends, the column receives. The diagonal means
            nothing.
        """
        return self.latency_ms[np.ix_(self.group, self.group)]

    def scaled_bandwidth(self, factor: float) -> "Cluster":
        """The same GPUs with every link `factor` times as fast.

        Parameters
        ----------
        factor : float
            Finite and above 0.

        Returns
        -------
        Cluster
            Latencies stay as they are.

        Raises
        ------
        InvalidValue
            The factor is no such number.
        """
        if isinstance(factor, bool) or not isinstance(factor, Real) or not 0 < factor < np.inf:
            raise InvalidValue(
                "scaled_bandwidth", [("factor", factor, "expected a finite number above 0")]
            )
        return replace(self, bandwidth_gb_per_s=self.bandwidth_gb_per_s * factor)

    def with_counts(self, counts: Mapping[str, int]) -> "Cluster":
        """The same types in other numbers, with the links there are.

        Parameters
        ----------
        counts : mapping of type to int
            Number of GPUs of each type. Types that are not named are left out. The first so many of
            a type stay; where more are wanted than there are, they take the places of these in
            turn, with their links.

        Returns
        -------
        Cluster
            Ids run type by type, in the order in which the types first appear here.

        Raises
        ------
        InvalidValue
            A count is no whole number of at least 0, a type is not in this cluster, or no GPU is
            left.

        Examples
        --------
        >>> pair = Cluster.from_counts({"A100": 1, "T4": 2}, 80, {("A100", "T4"): 50, ("T4", "T4"): 20})
        >>> other = pair.with_counts({"A100": 1, "T4": 4})
        >>> len(other), other.bandwidth_between(0, 4), other.bandwidth_between(3, 4)
        (5, 50.0, 20.0)
        """
        places = {
            gpu.type: [i for i, g in enumerate(self.gpus) if g.type == gpu.type]
            for gpu in self.kinds
        }
        bad: list[tuple[str, object, str]]
        bad = [(t, n, "expected a whole number, at least 0") for t, n in counts.items()
               if isinstance(n, bool) or not isinstance(n, Integral) or n < 0]  # fmt: skip
        bad += [
            ("type", t, f"is not in this cluster; {nearest(t, places)}")
            for t in counts
            if t not in places
        ]
        if bad:
            raise InvalidValue("with_counts", bad)
        chosen = [places[t][k % len(places[t])] for t in places for k in range(counts.get(t, 0))]
        return replace(
            self, gpus=tuple(self.gpus[i] for i in chosen), group=self.group[np.array(chosen, int)]
        )

    @cached_property
    def kinds(self) -> tuple[GPU, ...]:
        """The different GPUs (type, memory, price, node), in order of first appearance; K of them."""
        return tuple(dict.fromkeys(self.gpus))

    @cached_property
    def kind_of(self) -> np.ndarray:
        """For each GPU id, the index of its kind; (N,) array of ints."""
        index = {kind: i for i, kind in enumerate(self.kinds)}
        return np.array([index[gpu] for gpu in self.gpus])

    @cached_property
    def kind_count(self) -> np.ndarray:
        """Number of GPUs of each kind; (K,) array of ints."""
        return np.bincount(self.kind_of, minlength=len(self.kinds))

    def __len__(self) -> int:
        return len(self.gpus)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cluster) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple:
        return self.gpus, *(
            array.tobytes() for array in (self.bandwidth_gb_per_s, self.group, self.latency_ms)
        )

    def frame(self) -> "DataFrame":
        """The cluster as a table, one row per kind of GPU.

        Returns
        -------
        pandas.DataFrame
            Columns `type`, `count`, `memory_gb`, and `gpu_ids` as text, such as "0–3, 7".
        """
        import pandas as pd

        ids = [np.flatnonzero(self.kind_of == k) for k in range(len(self.kinds))]
        return pd.DataFrame(
            {
                "type": [kind.type for kind in self.kinds],
                "count": [len(i) for i in ids],
                "memory_gb": [kind.memory_gb for kind in self.kinds],
                "gpu_ids": [show_ids(i) for i in ids],
            }
        )

    def _repr_html_(self) -> str:
        return table(self.frame())


def show_ids(ids: np.ndarray) -> str:
    """Ids, ascending, as people write them.

    >>> show_ids(np.array([0, 1, 2, 3, 7]))
    '0–3, 7'
    """
    runs = np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1)
    return ", ".join(f"{r[0]}–{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)
