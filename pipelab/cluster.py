"""GPUs and the links between them."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, cast

import numpy as np
from pydantic import PlainValidator

from pipelab.display import DataFrame, data_frame, show_ids, table
from pipelab.errors import InvalidValue, nearest
from pipelab.fields import (
    Indices,
    Later,
    Matrix,
    Positive,
    checked,
    derived,
    is_list,
    is_real,
    whole_number,
)

__all__ = ["GPU", "Cluster"]

# As nvidia-smi -L prints it; MIG instances begin with MIG-.
_UUID = re.compile(r"GPU-[0-9a-fA-F-]+")


def _index(value: Any) -> int | str:
    """Return what a machine calls a GPU."""
    if isinstance(value, str) and _UUID.fullmatch(value):
        return value
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 0:
        return int(value)
    raise ValueError("expected a whole number of at least 0, or a UUID such as 'GPU-5f2c1a7e'")


_Index = Annotated[int | str, PlainValidator(_index)]


@checked
class GPU:
    """One GPU: its type, its memory, and what it shares with others.

    Parameters
    ----------
    type : str
        Name the cost model knows it by, such as `"A100"`.
    memory_gb : float
        Memory available to a stage. The write-up says GB and computes in GiB (2^30 bytes).
    usd_per_hour : float, optional
        What it costs to rent, in $ per hour. `solve` breaks ties with it; the objective "cost",
        `trade_off` and `sweep` count in it.
    node : str
        Name of the island of fast links that it shares with others; empty if it has none. Only GPUs of
        one node can cut a layer among them (tensor parallelism), and only equal ones: where two of a node
        differ in type, memory or price, they share a stage's batch and never its layers.
    node_gb_per_s : float, optional
        Bandwidth to the others of its node in GB/s, per direction; needed where `node` is given.
    machine : str
        Name of the machine (host) that it is in. One machine may have several nodes, such as two pairs
        of cards with a bridge each. By default a node is a machine, and a GPU without one is alone in its own.

    Raises
    ------
    InvalidValue
        The type is empty, a number is not finite and above 0, or a node has no bandwidth.
    """

    type: str
    memory_gb: Positive
    usd_per_hour: Positive | None = None
    node: str = ""
    node_gb_per_s: Positive | None = None
    machine: str = ""

    @property
    def host(self) -> str:
        """The name of its machine, or else of its node; empty where it is alone in its machine."""
        return self.machine or self.node

    def __post_init__(self) -> None:
        if not self.type.strip():
            raise InvalidValue("GPU", [("type", self.type, "expected text that is not empty")])
        if self.node and self.node_gb_per_s is None:
            expected = f"expected the bandwidth inside node {self.node!r}"
            raise InvalidValue("GPU", [("node_gb_per_s", None, expected)])


@checked(eq=False)
class Cluster:
    """GPUs with ids 0, 1, 2, … and the bandwidth of every directed link between them.

    Parameters
    ----------
    gpus : tuple of GPU
        The GPU with id `i` is `gpus[i]`; at least one.
    bandwidth_gb_per_s : array of float, shape (G, G)
        Entry (i, j) is the bandwidth from group i to group j in GB/s; finite and above 0.
    group : array of int, shape (N,), optional
        The row of each GPU in `bandwidth_gb_per_s`. By default every GPU has its own row
        (G = N), and the diagonal is not read. Large clusters share rows: memory grows with the
        square of the number of groups, not of GPUs.
    latency_ms : array of float, shape (G, G), or number, optional
        Time from sending a byte to its arrival, by the same rows; a number from 0
        to 10^9 holds for every link. By default 0. It delays a message but uses up no
        bandwidth: the next message can be sent in the meantime. So it adds to the end-to-end
        latency and to the number of microbatches that must be in flight; the link's rate stays.
    index : tuple of int or str, length N, optional
        How each GPU's machine calls it: the number that its driver gives it, or a UUID ("GPU-5f2…"). Launch
        scripts make it visible by that name. By default a machine counts its GPUs from 0, in the order of their ids.

    Raises
    ------
    InvalidValue
        No GPU, a matrix that is not square or lacks a GPU's row, a used link without a number, a node in two
        machines, or two GPUs of one machine with one index.

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
    index: tuple[_Index, ...] = ()

    def __post_init__(self) -> None:
        if not self.gpus:
            raise InvalidValue("Cluster", [("gpus", (), "expected at least one GPU")])
        self._check_machines()
        bandwidth = self.bandwidth_gb_per_s
        group = np.arange(len(self.gpus)) if self.group is None else self.group
        _check_groups(group, len(self.gpus), bandwidth.shape, own_rows=self.group is None)
        several = np.bincount(group, minlength=len(bandwidth)) > 1  # GPUs that share a row
        _check_links("bandwidth_gb_per_s", bandwidth, bandwidth > 0, np.inf, several, "above 0")
        latency = np.asarray(self.latency_ms)
        if latency.ndim and latency.shape != bandwidth.shape:
            expected = f"one number, or an array of shape {bandwidth.shape} like bandwidth_gb_per_s"
            _refuse("latency_ms", f"shape {latency.shape}", expected)
        latency = np.broadcast_to(latency, bandwidth.shape) + 0.0
        expected = f"from 0 to {_MOST_LATENCY_MS:g}"
        _check_links("latency_ms", latency, latency >= 0, _MOST_LATENCY_MS, several, expected)
        # 0 on an unused diagonal, so that equal clusters are equal.
        np.fill_diagonal(latency, np.where(several, np.diagonal(latency), 0.0))
        fields = {"bandwidth_gb_per_s": bandwidth, "group": group, "latency_ms": latency}
        for name, array in fields.items():
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
        *,
        per_node: int | None = None,
        node_gb_per_s: Mapping[str, float] | float | None = None,
        per_machine: int | None = None,
    ) -> "Cluster":
        """A cluster without files: a number of GPUs of each type, ids in the order of `counts`.

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
        per_node : int, optional
            GPUs of one type in a node, of which the last one may have fewer: the GPUs of a stage in one
            node may then cut its layers (tensor parallel). `bandwidth_gb_per_s` and `latency_ms` are
            those between nodes. By default there are no nodes.
        node_gb_per_s : float, or mapping of type to float, optional
            Between GPUs inside a node, in GB/s: one number, or one per type. Only with `per_node`.
        per_machine : int, optional
            GPUs of one type in a machine, of which the last one may have fewer; a multiple of `per_node`.
            By default every node is a machine, and so is every GPU without a node.

        Returns
        -------
        Cluster
            Its groups are the types that have a GPU, or their nodes.

        Raises
        ------
        InvalidValue
            A count is not a whole number, a link names a type that is not in `counts`, nothing is
            given for a type or pair that needs it, or `GPU` or `Cluster` refuses a number.

        Examples
        --------
        >>> cluster = Cluster.from_counts({"A100": 2, "T4": 1}, {"A100": 80, "T4": 16}, 100)
        >>> [gpu.type for gpu in cluster.gpus]
        ['A100', 'A100', 'T4']
        >>> nodes = Cluster.from_counts({"H100": 16}, 80, 50, per_node=8, node_gb_per_s=450)
        >>> nodes.largest_node, nodes.bandwidth_between(0, 7), nodes.bandwidth_between(0, 8)
        (8, 450.0, 50.0)
        """
        _check_counts("Cluster.from_counts", counts)
        if per_machine is not None:
            whole_number("Cluster.from_counts", "per_machine", per_machine)
            if per_machine % whole_number("Cluster.from_counts", "per_node", per_node or 1):
                expected = (
                    f"expected a multiple of per_node = {per_node}: a node lies within one machine"
                )
                raise InvalidValue("Cluster.from_counts", [("per_machine", per_machine, expected)])
        if per_node is not None:
            whole_number("Cluster.from_counts", "per_node", per_node)
        elif node_gb_per_s is not None:
            expected = "expected none without per_node, the number of GPUs in a node"
            raise InvalidValue("Cluster.from_counts", [("node_gb_per_s", node_gb_per_s, expected)])
        tables, bad = {"bandwidth_gb_per_s": bandwidth_gb_per_s, "latency_ms": latency_ms}, []
        for name, values in tables.items():
            given = values if isinstance(values, Mapping) else ()
            named = (t for pair in given for t in (pair if is_list(pair) else [pair]))
            unknown = (t for t in named if t not in counts)
            bad += [(name, t, f"names no type; {nearest(t, counts)}") for t in unknown]
        if bad:
            raise InvalidValue("Cluster.from_counts", bad)
        types = [t for t, n in counts.items() if n > 0]
        memory = {t: _entry("memory_gb", memory_gb, t) for t in types}
        price = {t: _entry("usd_per_hour", usd_per_hour, t) for t in types}
        # A type of one GPU, or of one node, needs no link to itself.
        unused = {(t, t): 0.0 for t in types if counts[t] <= (per_node or 1)}
        pairs = [(a, b) for a in types for b in types]
        shape = len(types), len(types)
        links, latency = (
            np.reshape([_entry(k, v, p, p[::-1], default=unused.get(p)) for p in pairs], shape)
            for k, v in tables.items()
        )
        groups = [(t, counts[t], "") for t in types]  # type, number of GPUs, name of their node
        if per_node is not None:
            inside = {t: _inside(t, min(per_node, counts[t]), node_gb_per_s) for t in types}
            groups = [node for t in types for node in _nodes(t, counts[t], per_node)]
            of = [types.index(t) for t, *_ in groups]
            links, latency = links[np.ix_(of, of)], latency[np.ix_(of, of)]
            np.fill_diagonal(links, [inside[t] or 0.0 for t, *_ in groups])
            np.fill_diagonal(latency, 0.0)
        gpus = [
            gpu
            for t, size, node in groups
            for gpu in (GPU(t, memory[t], price[t], node, inside[t] if node else None),) * size
        ]
        if per_machine is not None:
            number = [k // per_machine + 1 for t in types for k in range(counts[t])]
            gpus = [
                replace(gpu, machine=f"{gpu.type} machine {n}")
                for gpu, n in zip(gpus, number, strict=True)
            ]
        group = np.repeat(range(len(groups)), [n for _, n, _ in groups])
        return cls(tuple(gpus), links, group, latency)

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
            (N, N), in GB/s; the row sends, the column receives. The diagonal means nothing.
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
            (N, N), in ms; the row sends, the column receives. The diagonal means nothing.
        """
        return self.latency_ms[np.ix_(self.group, self.group)]

    def scaled_bandwidth(self, factor: float) -> "Cluster":
        """Make a cluster of these GPUs with every link `factor` times as fast.

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
            The factor is not such a number.
        """
        if not (is_real(factor) and factor > 0):
            problem = ("factor", factor, "expected a finite number above 0")
            raise InvalidValue("scaled_bandwidth", [problem])
        return replace(self, bandwidth_gb_per_s=self.bandwidth_gb_per_s * factor)

    def with_counts(self, counts: Mapping[str, int]) -> "Cluster":
        """Make a cluster of these types in other numbers, with the links there are.

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
            A count is not a whole number, a type is not in this cluster, or no GPU is left.

        Examples
        --------
        >>> links = {("A100", "T4"): 50, ("T4", "T4"): 20}
        >>> pair = Cluster.from_counts({"A100": 1, "T4": 2}, 80, links)
        >>> other = pair.with_counts({"A100": 1, "T4": 4})
        >>> len(other), other.bandwidth_between(0, 4), other.bandwidth_between(3, 4)
        (5, 50.0, 20.0)
        """
        places: dict[str, list[int]] = {}
        for i, gpu in enumerate(self.gpus):
            places.setdefault(gpu.type, []).append(i)
        _check_counts("with_counts", counts)
        absent = (t for t in counts if t not in places)
        bad = [("type", t, f"is not in this cluster; {nearest(t, places)}") for t in absent]
        if bad:
            raise InvalidValue("with_counts", bad)
        chosen = [p[k % len(p)] for t, p in places.items() for k in range(counts.get(t, 0))]
        return self.only(chosen)

    def only(self, ids: Sequence[int]) -> "Cluster":
        """The GPUs with these ids, numbered anew in this order, with the links there are.

        Parameters
        ----------
        ids : sequence of int
            At least one. A GPU may come several times; then machines count their GPUs from 0 again.

        Returns
        -------
        Cluster
            Its groups are those that have a GPU.
        """
        rows, group = np.unique(self.group[list(ids)], return_inverse=True)
        between = np.ix_(rows, rows)
        bandwidth, latency = self.bandwidth_gb_per_s[between], self.latency_ms[between]
        once = self.index and len(set(ids)) == len(ids)
        index = tuple(self.index[i] for i in ids) if once else ()
        return Cluster(tuple(self.gpus[i] for i in ids), bandwidth, group, latency, index)

    @derived
    def kinds(self) -> tuple[GPU, ...]:
        """The K different GPUs (type, memory, price, node, machine), in order of first appearance."""
        return tuple(dict.fromkeys(self.gpus))

    @derived
    def kind_of(self) -> np.ndarray:
        """For each GPU id, the index of its kind; (N,) array of ints."""
        index = {kind: i for i, kind in enumerate(self.kinds)}
        return np.array([index[gpu] for gpu in self.gpus])

    @derived
    def kind_count(self) -> np.ndarray:
        """Number of GPUs of each kind; (K,) array of ints."""
        return np.bincount(self.kind_of, minlength=len(self.kinds))

    @derived
    def largest_node(self) -> int:
        """GPUs of the node that has most; 1 where GPUs are in no node."""
        return max(Counter(gpu.node for gpu in self.gpus if gpu.node).values(), default=1)

    @derived
    def machine_of(self) -> np.ndarray:
        """For each GPU id, the number of its machine, in order of first appearance; (N,) array of ints."""
        number: dict[str | int, int] = {}
        names = (gpu.host or i for i, gpu in enumerate(self.gpus))
        return np.array([number.setdefault(name, len(number)) for name in names])

    def _check_machines(self) -> None:
        """Refuse a node in two machines, and two GPUs that one machine calls by one name."""
        machine: dict[str, str] = {}
        for i, gpu in enumerate(self.gpus):
            if gpu.node and machine.setdefault(gpu.node, gpu.host) != gpu.host:
                both = f"machines {machine[gpu.node]!r} and {gpu.host!r}"
                _refuse(
                    f"gpus[{i}].node",
                    gpu.node,
                    f"a name of its own: {both} have a node of this one",
                )
        if self.index and len(self.index) != len(self.gpus):
            _refuse("index", f"{len(self.index)} values", f"{len(self.gpus)}, one per GPU")
        first: dict[tuple[int, int | str], int] = {}
        for i, key in enumerate(zip(self.machine_of.tolist(), self.index, strict=False)):
            if first.setdefault(key, i) != i:
                _refuse(f"index[{i}]", key[1], f"another: GPU {first[key]} of this machine has it")

    def __len__(self) -> int:
        return len(self.gpus)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cluster) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple:
        return (
            self.gpus,
            self.index,
            *(a.tobytes() for a in (self.bandwidth_gb_per_s, self.group, self.latency_ms)),
        )

    def to_frame(self) -> DataFrame:
        """The cluster as a table, one row per kind of GPU.

        Returns
        -------
        pandas.DataFrame
            Columns `type`, `count`, `memory_gb`, and `gpu_ids` as text, such as "0–3, 7".
        """
        ids = [np.flatnonzero(self.kind_of == k) for k in range(len(self.kinds))]
        kinds = zip(self.kinds, ids, strict=True)
        rows = [(kind.type, len(i), kind.memory_gb, show_ids(i)) for kind, i in kinds]
        return data_frame(rows, columns=["type", "count", "memory_gb", "gpu_ids"])

    def _repr_html_(self) -> str:
        return table(self.to_frame())


_MOST_LATENCY_MS = 1e9  # eleven days


def _refuse(field: str, value: object, expected: str) -> None:
    raise InvalidValue("Cluster", [(field, value, f"expected {expected}")])


def _check_counts(what: str, counts: Mapping[str, int]) -> None:
    """Numbers of GPUs are whole, from 0 to a million."""
    if not isinstance(counts, Mapping):
        raise InvalidValue(what, [("counts", counts, "expected a mapping, such as {'T4': 4}")])
    for gpu_type, number in counts.items():
        whole_number(what, gpu_type, number, 0, 10**6)


def _entry(name: str, values: Any, *keys: Any, default: float | None = None) -> Any:
    """A number that holds for all, or a mapping's entry under the first of the keys it has."""
    if isinstance(values, Mapping):
        known = [values[key] for key in keys if key in values] + [default]
        if known == [None]:
            problem = (name, dict(values), f"nothing is given for {keys[0]!r}")
            raise InvalidValue("Cluster.from_counts", [problem])
        values = known[0]
    if is_list(values):
        _refuse(name, values, "one number, or a mapping of numbers")
    return values


def _inside(gpu_type: str, size: int, node_gb_per_s: Any) -> float | None:
    """The bandwidth inside the nodes of a type; None where each has one GPU."""
    if size == 1:
        return None
    found = _entry("node_gb_per_s", node_gb_per_s, gpu_type)
    if found is None:
        expected = "expected the bandwidth inside a node beside per_node"
        raise InvalidValue("Cluster.from_counts", [("node_gb_per_s", None, expected)])
    return found


def _nodes(gpu_type: str, count: int, per_node: int) -> Iterator[tuple[str, int, str]]:
    """Type, number of GPUs and name of each node; one GPU alone is in none."""
    for number, first in enumerate(range(0, count, per_node), start=1):
        size = min(per_node, count - first)
        yield gpu_type, size, f"{gpu_type} node {number}" if size > 1 else ""


def _check_groups(group: np.ndarray, gpus: int, shape: tuple[int, ...], own_rows: bool) -> None:
    """The matrix is square, and every GPU has a row of it."""
    if len(shape) != 2 or shape[0] != shape[1]:
        _refuse("bandwidth_gb_per_s", f"shape {shape}", "a square matrix")
    if own_rows and shape[0] != gpus:
        _refuse("bandwidth_gb_per_s", f"shape {shape}", f"a row for each of the {gpus} GPUs")
    if group.shape != (gpus,) or group.dtype.kind not in "iu":
        shape_given = f"shape {group.shape} of {group.dtype}"
        _refuse("group", shape_given, f"{gpus} whole numbers, one per GPU")
    if group.min() < 0 or group.max() >= shape[0]:
        expected = f"rows of the bandwidth matrix, 0 … {shape[0] - 1}"
        _refuse("group", f"{group.min()} … {group.max()}", expected)


def _check_links(
    name: str, values: np.ndarray, enough: np.ndarray, most: float, several: np.ndarray, range_: str
) -> None:
    """Every link that can be used has a number; the diagonal is one only where GPUs share a row."""
    used = ~np.eye(len(values), dtype=bool) | np.diag(several)
    bad = np.argwhere(used & ~(enough & np.isfinite(values) & (values <= most)))
    if len(bad):
        i, j = bad[0]
        number = "a number" if np.isfinite(most) else "a finite number"
        _refuse(f"{name}[{i}, {j}]", float(values[i, j]), f"{number} {range_}")
