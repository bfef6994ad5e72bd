"""A problem as arrays, made once: what GPUs can be exchanged, what a stage of them yields, and what links carry.

A stage is a *composition* (how many GPUs of each type) with a kind of *span* (`spans`). No search behind this
table asks the cost model again; `evaluate` recomputes every answer. A placement is as fast as its slowest stage or
link, so its rate is one of finitely many, and the search for the best is a search in a sorted list.

Two things keep the table small:

- Where a mixed stage is as fast as the slowest stage of its size that one of its types could form alone
  (`mixes_as_slowest`: batches split evenly), mixed stages need not be listed: types × sizes say all.
- Where nodes matter at most to stages of identical GPUs of one node (`nodes_matter_alone`: these may cut their
  layers), nodes are left out of the types, and stages inside one node have a table of their own. 12 nodes of 8
  identical GPUs make 125,969 compositions; without nodes they make 8, and 8 more inside a node.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pipelab.cluster import GPU
from pipelab.costs import WrappedCosts
from pipelab.engine.classes import Classes, gpu_classes
from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.formulations.program_size import compositions, number_of_compositions
from pipelab.engine.tolerances import LAST_BITS, OTHER_PATH, SOLVER
from pipelab.errors import TooLarge
from pipelab.fields import Frozen, derived
from pipelab.problem import Problem, StageCost, StageTables, load_with
from pipelab.spans import Spans

_MOST_CELLS = 40_000_000  # compositions × kinds of span, or × types; 8 bytes each
_FEW_COMPOSITIONS = 1_000
_CELLS_AT_ONCE = 1_000_000  # between two looks at the deadline: a tenth of a second


class Node(NamedTuple):
    """The identical GPUs of one node."""

    sort: int  # index into `Inside`
    classes: np.ndarray  # that have its GPUs
    gpus: np.ndarray  # ids


class Inside(NamedTuple):
    """Stages of identical GPUs of one node: L sorts of GPUs, of one type and in nodes that are as fast inside.

    Attributes
    ----------
    type_of, most : int arrays, shape (L,)
        The type of each sort, and the most GPUs of it in one node.
    rate, seconds : float arrays, shape (L, largest, U)
        Of 1, 2, … of them, with every kind of span; not there (0, infinite) for more than `most`.
    nodes : tuple of Node
    """

    type_of: np.ndarray
    most: np.ndarray
    rate: np.ndarray
    seconds: np.ndarray
    nodes: tuple[Node, ...]


_NONE: Any = np.zeros(0, dtype=int)
NO_NODES = Inside(
    type_of=_NONE, most=_NONE, rate=np.zeros((0, 1, 1)), seconds=np.zeros((0, 1, 1)), nodes=()
)


@dataclass(frozen=True, eq=False)
class Instance(Frozen):
    """The arrays of a problem, with memory for `Workload.in_memory` microbatches in flight.

    Attributes
    ----------
    problem : Problem
    types : tuple of K GPUs
        What stages are made of; without their nodes where these change nothing, or `inside` says what.
    classes : Classes
        A classes of interchangeable GPUs.
    type_of : int array, shape (A,)
        The type of each class.
    composition : int array, shape (C, K)
        GPUs of each type in a stage; those of few GPUs first.
    pure : bool
        Only stages of one type are listed, of up to `largest` GPUs whether there are as many or not: a mixed one is
        what the slowest of them is.
    rate, seconds : float arrays, shape (C, U)
        Of a stage with each kind of span: tokens/s (0 where it does not fit) and seconds of one
        microbatch (infinite where it does not fit).
    link, hop : float arrays, shape (A, A)
        Between GPUs of two classes, sender first: in the problem's link units per second, and seconds of one message.
        A class of one GPU has no link to itself: there it has the best values of its other links.
    inside : Inside
        Where nodes are left out of the types.
    """

    problem: Problem
    types: tuple[GPU, ...]
    classes: Classes
    type_of: np.ndarray
    composition: np.ndarray
    pure: bool
    rate: np.ndarray
    seconds: np.ndarray
    link: np.ndarray
    hop: np.ndarray
    inside: Inside = NO_NODES

    @property
    def spans(self) -> Spans:
        """The kinds of span."""
        return self.problem.model.spans

    @derived
    def largest(self) -> int:
        """Most GPUs that a stage can have."""
        return _largest(self.problem)

    @derived
    def count(self) -> np.ndarray:
        """Number of GPUs of each type; shape (K,)."""
        return np.bincount(self.type_of, self.classes.count, len(self.types)).astype(int)

    @derived
    def size(self) -> np.ndarray:
        """Number of GPUs of each composition; shape (C,)."""
        return self.composition.sum(axis=1)

    @derived
    def thresholds(self) -> np.ndarray:
        """Every rate that a placement can have, ascending; rates that differ only by rounding appear once.

        Empty where no stage fits anywhere.
        """
        tables = self._there, self.inside.rate
        stages = np.unique(np.concatenate([np.unique(table) for table in tables]))
        stages = stages[stages > 0]
        if not len(stages):
            return stages
        links = self.link[np.isfinite(self.link) & (self.link < stages[-1])]
        return _apart(np.unique(np.concatenate([stages, links])))

    @derived
    def type_of_kind(self) -> np.ndarray:
        """The type of each of the cluster's kinds; int."""
        bare = not any(gpu.host for gpu in self.types)
        kinds = self.problem.cluster.kinds
        return np.array([self.types.index(without_node(k) if bare else k) for k in kinds])

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that matter."""
        return self.inside.nodes

    @property
    def _there(self) -> np.ndarray:
        """The rates of stages for which there are GPUs, 0 for others; shape as `rate`."""
        if not self.pure:
            return self.rate
        table = self.rate.reshape(self.largest, len(self.types), -1)
        out = table.copy()
        names = np.array([gpu.type for gpu in self.types])
        sizes = np.arange(1, self.largest + 1)[:, None]
        for k in range(len(names)):  # of mixed stages the slowest counts
            mixes = (names == names[k]) | (not self.problem.same_type_stages)
            fast = (table >= table[:, k : k + 1]) & mixes[:, None]
            number = (fast * self.count[:, None]).sum(axis=1)
            out[:, k] = np.where(number >= sizes, table[:, k], 0.0)
        return out

    def alone(self, k: int) -> np.ndarray:
        """The rows of 1, 2, … GPUs of one type; int."""
        return np.flatnonzero(self.composition[:, k] == self.size)

    def index_of(self, rate: float) -> int:
        """The last of the possible rates that is not above a rate, but for rounding; -1 if all are."""
        return int(np.searchsorted(self.thresholds, rate * (1 + OTHER_PATH), side="right")) - 1

    def holdable(self, rate: float) -> float:
        """More layers than this cannot be held at a rate, links aside."""
        return float(self.shares(rate) @ self.count)

    def shares(self, rate: float) -> np.ndarray:
        """Give a GPU of every type the most layers per GPU of any stage that has it and reaches a rate; shape (K,).

        A stage never holds more layers than its GPUs are given, so neither do all together.
        """
        layers = self.spans.layers
        held = np.where((self.rate >= rate) & (self.rate > 0), layers, 0).max(axis=1, initial=0)
        best = best_shares(held, self.size, self.composition > 0)
        inside = self.inside
        own = np.where((inside.rate >= rate) & (inside.rate > 0), layers, 0).max(axis=2)
        own = own / np.arange(1, own.shape[1] + 1)
        np.maximum.at(best, inside.type_of, own.max(axis=1))
        return best

    def highest(self) -> int:
        """The highest index of a rate at which the GPUs can hold all layers; -1 if there is none.

        What they can hold at a rate they can hold at every lower one.
        """
        enough = self.problem.model.layers - SOLVER
        above = bisect_left(self.thresholds, True, key=lambda rate: self.holdable(rate) < enough)
        return above - 1

    def same_times(self, other: "Instance") -> bool:
        """Whether the same stages fit, at the same rates and times."""
        pairs = [(self.rate, other.rate), (self.seconds, other.seconds)]
        pairs += [
            (self.inside.rate, other.inside.rate),
            (self.inside.seconds, other.inside.seconds),
        ]
        return self.types == other.types and all(np.array_equal(a, b) for a, b in pairs)

    def rates_of(self, compositions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rates and seconds of any compositions with every kind of span, nodes aside; shape (N, U) each.

        Parameters
        ----------
        compositions : int array, shape (N, K)
        """
        if not self.pure:
            rows = [self.row_of[gpus] for gpus in map(tuple, compositions.tolist())]
            return self.rate[rows], self.seconds[rows]
        shape = self.largest, len(self.types), -1
        used, size = (compositions > 0)[:, :, None], compositions.sum(axis=1) - 1
        rate = np.where(used, self.rate.reshape(shape)[size], np.inf).min(axis=1)
        return rate, np.where(used, self.seconds.reshape(shape)[size], -np.inf).max(axis=1)

    @derived
    def row_of(self) -> dict[tuple[int, ...], int]:
        """The row of each composition."""
        return {gpus: i for i, gpus in enumerate(map(tuple, self.composition.tolist()))}

    @derived
    def without_one(self) -> np.ndarray:
        """Row of the composition with one GPU of each type less; C where that leaves none; shape (C, K)."""
        rows, out = self.composition, np.full(self.composition.shape, len(self.composition))
        random = np.random.default_rng(0)
        number: Any = np.zeros(len(rows), dtype=np.uint64)
        factors: Any = np.zeros(rows.shape[1], dtype=np.uint64)
        while len(np.unique(number)) < len(number):  # sums that tell all rows apart
            factors = random.integers(1, 2**63, rows.shape[1], dtype=np.uint64)
            number = (rows.astype(np.uint64) * factors).sum(axis=1, dtype=np.uint64)  # modulo 2^64
        order = np.argsort(number)
        for k, factor in enumerate(factors):
            has = np.flatnonzero((self.size > 1) & (rows[:, k] > 0))
            out[has, k] = order[np.searchsorted(number[order], number[has] - factor)]
        return out

    def useful(self, seconds: np.ndarray, deadline: Deadline = NEVER) -> np.ndarray:
        """The stages that no part of their GPUs replaces at the same time or less; bool, shape (C, U).

        The other GPUs can be left out, and no link is slower without them.

        Parameters
        ----------
        seconds : float array, shape (C, U)
            Infinite where a stage is not to be used.
        """
        out = np.zeros(seconds.shape, dtype=bool)
        best = np.concatenate([seconds, np.full((1, seconds.shape[1]), np.inf)])
        ends = np.searchsorted(self.size, np.arange(self.largest + 1), side="right")
        step = max(1, 10 * _CELLS_AT_ONCE // max(1, seconds.shape[1] * len(self.types)))
        for first, last in pairwise(ends.tolist()):
            for i in range(first, last, step):
                deadline.check()
                rows = slice(i, min(i + step, last))
                before = best[self.without_one[rows]].min(axis=1)
                out[rows] = best[rows] < before * (1 - LAST_BITS)
                best[rows] = np.minimum(best[rows], before)
        return out


def best_shares(held: np.ndarray, size: np.ndarray, has: np.ndarray) -> np.ndarray:
    """Return the most layers that one GPU of each class stands for, in any of some stages; shape (A,).

    Parameters
    ----------
    held, size : arrays, shape (C,)
        Most layers of each stage, and its number of GPUs.
    has : bool array, shape (C, A)
        Whether a stage has GPUs of a class.
    """
    return np.where(has, (held / size)[:, None], 0.0).max(axis=0, initial=0.0)


class BestModeCosts(WrappedCosts):
    """A cost model in which every stage runs the mode of its greatest rate, in that rate's interval.

    Memory for more microbatches may force a stage into another execution mode (`Roofline`), whose
    time may be shorter. This one is no slower and takes no longer than any mode that still fits.
    """

    def stage(self, *args: Any, **kwargs: Any) -> StageCost:
        return super().stage(*args, **kwargs)._replace(pass_seconds=None)

    def stage_tables(self, *args: Any, **kwargs: Any) -> StageTables:
        return super().stage_tables(*args, **kwargs)._replace(pass_seconds=None)


def with_memory_for(problem: Problem, number: int, or_more: bool = False) -> Problem:
    """The problem with a number in flight; with `or_more` a relaxation for this number and all larger ones."""
    costs = problem.costs
    if or_more:
        costs = BestModeCosts(costs=costs.preferring_rate())
    return replace(problem, costs=costs, workload=load_with(problem, number))


def instance_of(
    problem: Problem, deadline: Deadline = NEVER, like: Instance | None = None
) -> Instance:
    """Compile a problem.

    Parameters
    ----------
    problem : Problem
    deadline : Deadline
    like : Instance, optional
        Of the same problem with another number in flight, whose arrays are shared but for rates and seconds.

    Raises
    ------
    Ended
        The deadline was first.
    TooLarge
        There are too many compositions of too many types.
    """
    made = None
    if problem.costs.nodes_matter_alone and any(gpu.host for gpu in problem.cluster.kinds):
        made = _without_nodes(problem, deadline, like)
    if made is None:
        made = _of_types(problem, problem.cluster.kinds, deadline, like)
    return made


def _of_types(
    problem: Problem, types: tuple[GPU, ...], deadline: Deadline, like: Instance | None
) -> Instance:
    """The instance whose types are these, one or several of the cluster's kinds each."""
    if like is None or like.types != types:
        like = _empty(problem, types, deadline)
    rate, seconds = _tables(problem, types, like.composition, deadline)
    return replace(like, problem=problem, rate=rate, seconds=seconds, inside=NO_NODES)


def _empty(problem: Problem, types: tuple[GPU, ...], deadline: Deadline) -> Instance:
    """All that does not depend on the number in flight, without rates and seconds."""
    bare = not any(gpu.host for gpu in types)
    classes = gpu_classes(problem.cluster, deadline)
    type_of = [types.index(without_node(k) if bare else k) for k in problem.cluster.kinds]
    kind = np.array(type_of)[classes.kind]
    pure = problem.costs.mixes_as_slowest(without_nodes(problem) if bare else problem)
    if pure:
        units = np.eye(len(types), dtype=int)
        rows = units * np.arange(1, _largest(problem) + 1)[:, None, None]
        composition = rows.reshape(-1, len(types))
    else:
        count = np.bincount(kind, classes.count, len(types)).astype(int)
        refuse_many(problem, types)
        composition = compositions(problem, types, count.tolist(), deadline)
    bandwidth = classes.bandwidth_gb_per_s
    link = np.broadcast_to(problem.link_throughput(bandwidth), bandwidth.shape).copy()
    hop = np.zeros_like(link)
    if problem.costs.link_units == "tokens":
        hop[:] = problem.message_seconds(bandwidth, classes.latency_ms)
    for a in np.flatnonzero(classes.count == 1) if len(classes) > 1 else ():
        others = np.arange(len(classes)) != a
        link[a, a] = max(link[a, others].max(), link[others, a].max())
        hop[a, a] = min(hop[a, others].min(), hop[others, a].min())
    none = np.zeros((len(composition), 0))
    return Instance(
        problem=problem,
        types=types,
        classes=classes,
        type_of=kind,
        composition=composition,
        pure=pure,
        rate=none,
        seconds=none,
        link=link,
        hop=hop,
    )


def _without_nodes(problem: Problem, deadline: Deadline, like: Instance | None) -> Instance | None:
    """The instance of types without nodes, and the stages inside one node.

    None where one of these is slower than outside: its GPUs could not be exchanged for others then.
    """
    cluster = problem.cluster
    types = tuple(dict.fromkeys(map(without_node, cluster.kinds)))
    base = _of_types(problem, types, deadline, like)
    in_nodes = [k for k, kind in enumerate(cluster.kinds) if kind.node]
    key_of = {k: (without_node(cluster.kinds[k]), cluster.kinds[k].node_gb_per_s) for k in in_nodes}
    keys = list(dict.fromkeys(key_of.values()))
    kind_of = base.classes.kind
    nodes = []
    for k in in_nodes:
        own = np.flatnonzero(kind_of == k)
        gpus = np.sort(np.concatenate([base.classes.members[a] for a in own]))
        nodes.append(Node(sort=keys.index(key_of[k]), classes=own, gpus=gpus))
    most = np.array([max(len(n.gpus) for n in nodes if n.sort == i) for i in range(len(keys))])
    type_of = np.array([base.types.index(gpu) for gpu, _ in keys])
    rate = np.zeros((len(keys), base.largest, base.rate.shape[1]))
    seconds = np.full(rate.shape, np.inf)
    better = False
    for i, key in enumerate(keys):
        example = next(cluster.kinds[k] for k in in_nodes if key_of[k] == key)
        sizes = np.arange(1, min(base.largest, most[i]) + 1)
        fast, soon = _tables(problem, (example,), sizes[:, None], deadline)
        rate[i, : len(sizes)], seconds[i, : len(sizes)] = fast, soon
        alone = base.alone(type_of[i])[: len(sizes)]
        if (fast < base.rate[alone] * (1 - LAST_BITS)).any():
            return None
        if (soon > base.seconds[alone] * (1 + LAST_BITS)).any():
            return None
        better |= (fast > base.rate[alone]).any() or (soon < base.seconds[alone]).any()
    inside = Inside(type_of=type_of, most=most, rate=rate, seconds=seconds, nodes=tuple(nodes))
    return replace(base, inside=inside) if better else base


class Groups(NamedTuple):
    """GPUs that count as one class each: their types, as `Instance.kind`, links, hops, and the node of every GPU."""

    classes: Classes
    type_of: np.ndarray
    link: np.ndarray
    hop: np.ndarray
    node: np.ndarray  # of each GPU id, -1 where it is in none


def apart(instance: Instance) -> Groups:
    """The instance's own classes, and its nodes."""
    gpus = instance.problem.cluster.gpus
    names = list(dict.fromkeys(gpu.node for gpu in gpus if gpu.node))
    node = np.array([names.index(gpu.node) if gpu.node else -1 for gpu in gpus])
    return Groups(
        classes=instance.classes,
        type_of=instance.type_of,
        link=instance.link,
        hop=instance.hop,
        node=node,
    )


def by_class(
    instance: Instance, groups: Groups, deadline: Deadline = NEVER, mixed: bool = True
) -> Instance:
    """Make a type of every class, where what a stage takes of each class counts.

    `mixed`: whether stages of several classes are listed; else the instance is `pure`.

    Raises
    ------
    Ended
        The deadline was first.
    TooLarge
        There are too many compositions of too many classes.
    """
    inside, kind, count = instance.inside, groups.type_of, groups.classes.count
    types = tuple(instance.types[k] for k in kind)
    if mixed:
        refuse_many(instance.problem, types)
        composition = compositions(instance.problem, types, count.tolist(), deadline)
    else:
        sizes = np.arange(1, instance.largest + 1)[:, None, None]
        composition = (np.eye(len(types), dtype=int) * sizes).reshape(-1, len(types))
    of_type = (kind[:, None] == np.arange(len(instance.types))).astype(int)
    rate, seconds = instance.rates_of(composition @ of_type)
    size, first = composition.sum(axis=1), [members[0] for members in groups.classes.members]
    for sort, _, gpus in inside.nodes:
        own = (groups.node[first] == groups.node[gpus[0]]) & (kind == inside.type_of[sort])
        rows = np.flatnonzero((composition[:, ~own] == 0).all(axis=1) & (size <= len(gpus)))
        rate[rows] = inside.rate[sort, size[rows] - 1]
        seconds[rows] = inside.seconds[sort, size[rows] - 1]
    return replace(
        instance,
        types=types,
        classes=groups.classes,
        type_of=np.arange(len(types)),
        composition=composition,
        pure=not mixed,
        rate=rate,
        seconds=seconds,
        link=groups.link,
        hop=groups.hop,
        inside=NO_NODES,
    )


def listed(instance: Instance, deadline: Deadline = NEVER) -> Instance:
    """The instance by classes where hops tell these apart and stages of several are few; otherwise as it is.

    Every set of classes then has a way of its own to enter a stage and to leave it, and programs are two to five times
    as large where GPUs are freely mixed.
    """
    types = tuple(instance.types[k] for k in instance.type_of)
    few = number_of_compositions(instance.problem, types) <= _FEW_COMPOSITIONS
    measures = instance.hop, instance.link
    one_time = all((measure == measure[0, 0]).all() for measure in measures)
    if not instance.pure or not few or one_time:
        return instance
    return by_class(instance, apart(instance), deadline)


def without_node(gpu: GPU) -> GPU:
    """Put a GPU in no node and no machine with others."""
    return replace(gpu, node="", node_gb_per_s=None, machine="")


def without_nodes(problem: Problem) -> Problem:
    """Put the GPUs of a problem in no node; links stay."""
    if not any(gpu.host for gpu in problem.cluster.kinds):
        return problem
    gpus = tuple(without_node(gpu) for gpu in problem.cluster.gpus)
    return replace(problem, cluster=replace(problem.cluster, gpus=gpus, index=()))


def _tables(
    problem: Problem, types: Sequence[GPU], composition: np.ndarray, deadline: Deadline
) -> tuple[np.ndarray, np.ndarray]:
    """Rate and seconds of every composition with every kind of span; shape (C, U) each."""
    spans = len(problem.model.spans.layers)
    rate, seconds = np.zeros((len(composition), spans)), np.full((len(composition), spans), np.inf)
    step = max(1, _CELLS_AT_ONCE // (len(types) * spans))
    for part in deadline.slices(len(composition), step):
        tables = problem.stage_tables(types, composition[part])
        fits = tables.fits(types)
        rate[part] = np.where(fits, tables.throughput, 0.0)
        passes = tables.pass_seconds
        if passes is None:
            passes = problem.workload.tokens / np.where(fits, tables.throughput, 1.0)
        seconds[part] = np.where(fits, passes, np.inf)
    return rate, seconds


def _largest(problem: Problem) -> int:
    return min(problem.max_gpus_per_stage, len(problem.cluster))


def refuse_many(problem: Problem, types: Sequence[GPU]) -> None:
    """Raise `TooLarge` where there are more compositions of a stage than can be listed."""
    number = number_of_compositions(problem, types)
    if number * max(len(problem.model.spans.layers), len(types)) > _MOST_CELLS:
        raise TooLarge(
            f"{problem.name} has up to {number:,} mixtures of {len(types)} types of GPU in stages of up to "
            f"{_largest(problem)}; with batch_split='even', same_type_stages=True or a smaller max_gpus_per_stage "
            "they need not be listed"
        )


def _apart(rates: np.ndarray) -> np.ndarray:
    """Keep the lowest of each group of rates that are one but for rounding; `rates` ascend.

    A group is what lies within `LAST_BITS` of its lowest member. Neighbours that close are no group of
    their own: a long chain of them may span any distance.
    """
    lowest: list[float] = []
    for rate in rates.tolist():
        if not lowest or rate > lowest[-1] * (1 + LAST_BITS):
            lowest.append(rate)
    return np.array(lowest)
