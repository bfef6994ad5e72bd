"""What is given: GPUs and their links, a model, a workload, and the rules of the game.

All are frozen; change one thing with `dataclasses.replace`. Every field checks itself
once, so nothing further down needs to ask again whether a number is sensible.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np

from pipelab.checked import Count, Flag, Indices, Matrix, Positive, checked
from pipelab.errors import InvalidValue, nearest
from pipelab.html import table

__all__ = ["GPU", "Cluster", "Model", "Problem", "Workload"]


@checked
class GPU:
    """One GPU: its type and its memory.

    Parameters
    ----------
    type : str
        Name under which the cost model knows it, such as `"A100"`.
    memory_gb : float
        Memory available to a stage. The write-up says GB and computes in GiB (2^30 bytes).
    """

    type: str
    memory_gb: Positive

    def __post_init__(self):
        if not self.type.strip():
            raise InvalidValue("GPU", [("type", self.type, "expected text that is not empty")])


@checked(eq=False)
class Cluster:
    """GPUs with ids 0, 1, 2, … and the bandwidth of every directed link between them.

    Parameters
    ----------
    gpus : tuple of GPU
        The GPU with id `i` is `gpus[i]`.
    bandwidth_gb_per_s : array, shape (G, G)
        Entry (i, j) is the bandwidth from group i to group j, sender first.
    group : array of int, shape (N,), optional
        The row of each GPU in `bandwidth_gb_per_s`. By default every GPU has its own row
        (G = N). Large clusters share rows, so that memory grows with the number of
        groups and not with the square of the number of GPUs.

    Notes
    -----
    Without `group` the diagonal is never read: no GPU sends to itself.
    """

    gpus: tuple[GPU, ...]
    bandwidth_gb_per_s: Matrix
    group: Indices | None = None

    def __post_init__(self):
        if not self.gpus:
            raise InvalidValue("Cluster", [("gpus", (), "expected at least one GPU")])
        bandwidth = self.bandwidth_gb_per_s
        group = np.arange(len(self.gpus)) if self.group is None else self.group
        _check_groups(group, len(self.gpus), bandwidth.shape)
        _check_bandwidth(bandwidth, np.bincount(group, minlength=len(bandwidth)) > 1)
        for name, array in (("bandwidth_gb_per_s", bandwidth), ("group", group)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    @classmethod
    def from_counts(
        cls,
        counts: Mapping[str, int],
        memory_gb: Mapping[str, float] | float,
        bandwidth_gb_per_s: Mapping[tuple[str, str], float] | float,
    ) -> "Cluster":
        """A cluster without files: so many GPUs of each type, ids in the order of `counts`.

        Parameters
        ----------
        counts : mapping of type to number of GPUs
        memory_gb : one number, or one per type
        bandwidth_gb_per_s : one number, or one per pair of types
            `{("A100", "V100"): 200}` also serves the way back unless that is given too.

        Examples
        --------
        >>> cluster = Cluster.from_counts({"A100": 2, "T4": 1}, {"A100": 80, "T4": 16}, 100)
        >>> [gpu.type for gpu in cluster.gpus]
        ['A100', 'A100', 'T4']
        """
        bad = [(t, n, "expected a whole number, at least 0") for t, n in counts.items()
               if isinstance(n, bool) or int(n) != n or n < 0]  # fmt: skip
        if bad:
            raise InvalidValue("Cluster.from_counts", bad)
        types = [t for t, n in counts.items() if n > 0]
        memory = {t: _lookup(memory_gb, t, "memory_gb") for t in types}
        links = [[_link(bandwidth_gb_per_s, a, b, counts[a] > 1) for b in types] for a in types]
        gpus = tuple(GPU(t, memory[t]) for t in types for _ in range(counts[t]))
        group = np.repeat(np.arange(len(types)), [counts[t] for t in types])
        return cls(gpus, np.array(links, dtype=float).reshape(len(types), len(types)), group)

    def bandwidth_between(self, sender: int, receiver: int) -> float:
        """Bandwidth of the directed link from one GPU id to another, in GB/s."""
        return float(self.bandwidth_gb_per_s[self.group[sender], self.group[receiver]])

    def bandwidth_matrix(self) -> np.ndarray:
        """Bandwidth between all GPUs, shape (N, N), in GB/s; row = sender."""
        return self.bandwidth_gb_per_s[np.ix_(self.group, self.group)]

    def scaled_bandwidth(self, factor: float) -> "Cluster":
        """The same GPUs with every link `factor` times as fast."""
        return Cluster(self.gpus, self.bandwidth_gb_per_s * factor, self.group)

    @cached_property
    def kinds(self) -> tuple[GPU, ...]:
        """The different (type, memory) pairs, in order of first appearance."""
        return tuple(dict.fromkeys(self.gpus))

    @cached_property
    def kind_of(self) -> np.ndarray:
        """For each GPU id, the index of its kind; shape (N,)."""
        index = {kind: i for i, kind in enumerate(self.kinds)}
        return np.array([index[gpu] for gpu in self.gpus])

    def __len__(self) -> int:
        return len(self.gpus)

    def __eq__(self, other) -> bool:
        return isinstance(other, Cluster) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self):
        return self.gpus, self.bandwidth_gb_per_s.tobytes(), self.group.tobytes()

    def frame(self):
        """One row per kind of GPU: type, number, memory, ids."""
        import pandas as pd

        ids = [np.flatnonzero(self.kind_of == k) for k in range(len(self.kinds))]
        return pd.DataFrame(
            {
                "type": [kind.type for kind in self.kinds],
                "count": [len(i) for i in ids],
                "memory_gb": [kind.memory_gb for kind in self.kinds],
                "gpu_ids": [f"{i[0]}–{i[-1]}" if len(i) > 1 else str(i[0]) for i in ids],
            }
        )

    def _repr_html_(self) -> str:
        return table(self.frame())


@checked
class Model:
    """A decoder-only language model, as far as its placement is concerned.

    Parameters
    ----------
    name : str
    layers : int
        Number of decoder layers; all alike.
    d_model, d_hidden : int
        Width of the residual stream and of the feed-forward block.
    layer_weight_gb : float
        Weights of one layer.
    bytes_per_element : float
        Of activations: 2 for fp16 and bf16.
    """

    name: str
    layers: Count
    d_model: Count
    d_hidden: Count
    layer_weight_gb: Positive
    bytes_per_element: Positive = 2


@checked
class Workload:
    """What the model is asked to do.

    Parameters
    ----------
    sequence_length : int
        Tokens per sequence.
    batch_size : int
        Sequences that pass through the pipeline together.
    """

    sequence_length: Count
    batch_size: Count


@checked
class Problem:
    """Everything a placement depends on.

    Parameters
    ----------
    cluster : Cluster
    model : Model
    workload : Workload
    costs : cost model
        What a stage yields and needs, such as `LinearThroughput`.
    max_gpus_per_stage : int
        A stage may be held by up to so many GPUs, each with a full copy of its layers.
    same_type_stages : bool
        True: all GPUs of a stage are of one type.
    batch_split : "even" or "balanced"
        How a stage's GPUs share the batch: equally, or so that all finish together.
    link_units : "transfers" or "tokens"
        "transfers" compares a link's transfers/s with a stage's tokens/s, as the write-up
        does by mistake; "tokens" counts the tokens that each transfer carries.
    name : str
        For titles and messages.

    Examples
    --------
    >>> import dataclasses, pipelab as pl
    >>> tiny = pl.load_case("tiny")
    >>> dataclasses.replace(tiny, max_gpus_per_stage=2).max_gpus_per_stage
    2
    """

    cluster: Cluster
    model: Model
    workload: Workload
    costs: Any
    max_gpus_per_stage: Count = 1
    same_type_stages: Flag = False
    batch_split: Literal["even", "balanced"] = "even"
    link_units: Literal["transfers", "tokens"] = "transfers"
    name: str = "problem"

    def __post_init__(self):
        known = self.costs.gpu_types
        unknown = dict.fromkeys(g.type for g in self.cluster.kinds if g.type not in known)
        if unknown:
            expected = "a GPU type the cost model knows; "
            raise InvalidValue("Problem", [("gpu_type", t, expected + nearest(t, known)) for t in unknown])
        self.costs.check(self)

    def tensor_gib(self) -> float:
        """Size of the activations handed from one stage to the next, in GiB."""
        elements = self.workload.batch_size * self.workload.sequence_length * self.model.d_model
        return elements * self.model.bytes_per_element / 2**30

    def tokens_per_transfer(self) -> float:
        """Tokens whose activations one such tensor holds; 1 where the write-up's units are kept."""
        if self.link_units == "transfers":
            return 1.0
        return float(self.workload.batch_size * self.workload.sequence_length)

    def frame(self):
        """The problem as a table of names and values."""
        import pandas as pd

        rows = [
            ("model", f"{self.model.name}, {self.model.layers} layers"),
            ("weights of one layer", f"{self.model.layer_weight_gb:g} GB"),
            ("batch × sequence", f"{self.workload.batch_size} × {self.workload.sequence_length} tokens"),
            ("tensor between stages", f"{self.tensor_gib():g} GiB"),
            ("GPUs", ", ".join(f"{c} × {t} ({m:g} GB)" for t, c, m in self._pool())),
            ("GPUs per stage", f"at most {self.max_gpus_per_stage}"
             + (", all of one type" if self.same_type_stages else "")),
            ("batch split", self.batch_split),
            ("links counted in", f"{self.link_units}/s"),
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=[self.name, "value"])

    def _pool(self):
        frame = self.cluster.frame()
        return zip(frame["type"], frame["count"], frame["memory_gb"], strict=True)

    def _repr_html_(self) -> str:
        return table(self.frame())


def _lookup(values, key: str, what: str) -> float:
    if not isinstance(values, Mapping):
        return values
    if key not in values:
        raise InvalidValue("Cluster.from_counts", [(what, dict(values), f"nothing is given for {key!r}")])
    return values[key]


def _link(values, sender: str, receiver: str, several: bool) -> float:
    """Bandwidth between two types; a type with one GPU needs no entry for itself."""
    if not isinstance(values, Mapping):
        return values
    for pair in ((sender, receiver), (receiver, sender)):
        if pair in values:
            return values[pair]
    if sender == receiver and not several:
        return 0.0
    problem = ("bandwidth_gb_per_s", dict(values), f"nothing is given for {(sender, receiver)!r}")
    raise InvalidValue("Cluster.from_counts", [problem])


def _check_groups(group: np.ndarray, gpus: int, shape: Sequence[int]) -> None:
    if len(shape) != 2 or shape[0] != shape[1]:
        problem = ("bandwidth_gb_per_s", f"shape {tuple(shape)}", "expected a square matrix")
        raise InvalidValue("Cluster", [problem])
    if group.shape != (gpus,) or group.dtype.kind not in "iu":
        problem = ("group", f"shape {group.shape} of {group.dtype}", f"expected {gpus} whole numbers, one per GPU")
        raise InvalidValue("Cluster", [problem])
    if group.min() < 0 or group.max() >= shape[0]:
        problem = ("bandwidth_gb_per_s", f"shape {tuple(shape)}", f"expected a row for each of the {gpus} GPUs")
        raise InvalidValue("Cluster", [problem])


def _check_bandwidth(bandwidth: np.ndarray, diagonal_used: np.ndarray) -> None:
    """Every link that can be used is finite and positive; an unused diagonal may be anything."""
    used = ~np.eye(len(bandwidth), dtype=bool) | np.diag(diagonal_used)
    bad = np.argwhere(used & ~(np.isfinite(bandwidth) & (bandwidth > 0)))
    if len(bad):
        i, j = bad[0]
        problem = (f"bandwidth_gb_per_s[{i}, {j}]", float(bandwidth[i, j]), "expected a finite number above 0")
        raise InvalidValue("Cluster", [problem])
