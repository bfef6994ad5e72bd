"""Every stage that a placement for training may have: what it takes, what it keeps, what it sends.

GPUs of one class are interchangeable, so a stage is a composition (how many GPUs of each class)
with a run of layers. Where GPUs differ in so many ways that tables would be too large, classes are
merged (`merged`): every stage then counts with the best that its like has, so that what bounds it
still does.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from pipelab.costs import MEMORY_SLACK, TrainingCost, answered
from pipelab.engine.classes import Classes, find_classes
from pipelab.engine.deadline import Deadline
from pipelab.engine.layer_runs import Spans, runs_of
from pipelab.engine.stage_arrays import StageTables, stage_tables
from pipelab.engine.timeline.placed import in_training
from pipelab.errors import InvalidValue, TooLarge
from pipelab.evaluation import StageReport
from pipelab.placement import Placement, Stage
from pipelab.problem import Problem

MOST_LAYERS = 400
MOST_STAGES = 500_000  # compositions times kinds of run: each is asked for once
BIG = 1e100  # seconds of what there is not: beyond all others, and no infinity in sums and differences
_LONGEST = 1e30  # seconds beyond which `StageCosts` takes no time

RECOMPUTE = ("none", "selective", "full", "auto")


@dataclass(frozen=True, eq=False)
class Times:
    """Seconds of every stage, arrays of shape (C, U); infinite where it does not fit in memory.

    Equal only to itself, so that what is computed from it can be kept under it.
    """

    forward: np.ndarray
    back: np.ndarray
    weight: np.ndarray
    step: np.ndarray

    @classmethod
    def least(cls, several: Iterable["Times"]) -> "Times":
        """The least of several, stage by stage."""
        return cls(*map(np.minimum.reduce, zip(*(each.all for each in several), strict=True)))

    @property
    def all(self) -> tuple[np.ndarray, ...]:
        """The four arrays."""
        return self.forward, self.back, self.weight, self.step

    @property
    def whole(self) -> np.ndarray:
        """Of one microbatch, forward and backward."""
        return self.forward + self.back + self.weight


@dataclass(frozen=True, eq=False)
class Stages:
    """All candidates of a problem: C compositions times U kinds of run of layers.

    Attributes
    ----------
    classes : Classes
    composition : int array, shape (C, A)
        GPUs of each class.
    modes : tuple of str or None
        Ways to recompute, the one to be taken where it fits first.
    costs : mapping of mode to float array, shape (8, C, U)
        The fields of `TrainingCost`.
    serves : bool array, shape (C, U)
        Whether `evaluate` takes the stage.
    offered : float array, shape (C,)
        GB on the smallest GPU.
    hop : float array, shape (C, C)
        Seconds of a message between two stages, the slower direction.
    """

    problem: Problem
    classes: Classes
    composition: np.ndarray
    modes: tuple[str | None, ...]
    costs: Mapping[str | None, np.ndarray]
    serves: np.ndarray
    offered: np.ndarray
    hop: np.ndarray
    _kept: dict[bytes, Times] = field(default_factory=dict, init=False, repr=False)

    @property
    def layers(self) -> int:
        """Of the model."""
        return self.problem.model.layers

    @cached_property
    def runs(self) -> Spans:
        """The kinds of run of layers."""
        return runs_of(self.problem.model)

    @property
    def most(self) -> int:
        """No placement has more stages."""
        return min(int(self.classes.count.sum()), self.layers)

    def needed(self, mode: str | None, held: np.ndarray, chunks: int) -> np.ndarray:
        """GB on the fullest GPU of every stage, on a rank that holds so much (`held_counts`); (C, U)."""
        state, kept, rest, working = self.costs[mode][4:8]
        most = np.zeros(kept.shape)
        for forwards, gradients in (held / chunks).tolist():
            np.maximum(most, forwards * kept + gradients * rest, out=most)
        return state + working + most

    def fitting(self, held: np.ndarray, chunks: int) -> tuple[np.ndarray, ...]:
        """For every mode, which stages fit on such a rank, in equal chunks; bool arrays, shape (C, U)."""
        limit = self.offered[:, None] * MEMORY_SLACK
        serves = self.serves & (self.runs.layers % chunks == 0)
        return tuple(serves & (self.needed(m, held, chunks) <= limit) for m in self.modes)

    def times(self, held: np.ndarray, chunks: int) -> Times:
        """Seconds of every stage on such a rank; made once for the same stages that fit."""
        fits = self.fitting(held, chunks)
        key = b"".join(np.packbits(each).tobytes() for each in fits)
        if key not in self._kept:
            found = np.full((4, *self.serves.shape), np.inf)
            for mode, fit in reversed(list(zip(self.modes, fits, strict=True))):
                found[:, fit] = self.costs[mode][:4][:, fit]
            self._kept[key] = Times(*found)
        return self._kept[key]

    def placement(self, compositions: Any, cuts: Any) -> Placement:
        """A placement with stages of these compositions, cut at these layers; GPUs of a class by id."""
        used, stages = np.zeros(len(self.classes), dtype=int), []
        for c, low, high in zip(compositions, cuts[:-1], cuts[1:], strict=True):
            gpus: list[int] = []
            for a, count in enumerate(self.composition[c].tolist()):
                gpus += self.classes.members[a][used[a] : used[a] + count].tolist()
                used[a] += count
            stages.append(Stage(range(int(low), int(high)), tuple(sorted(gpus))))
        return Placement(tuple(stages))


def stages_in_training(
    problem: Problem,
    recompute: str | None,
    bytes_per_parameter: float | None,
    deadline: Deadline,
) -> Stages:
    """Ask the cost model for every stage.

    Raises
    ------
    InvalidValue
        A recipe is given, and the cost model knows none or does not take it.
    TooLarge
        There are too many stages to ask for, or layers.
    Ended
    """
    classes = find_classes(problem.cluster, deadline)
    composition = np.array(list(_compositions(problem, classes)))
    runs = runs_of(problem.model)
    size = len(composition) * len(runs.layers)
    if problem.model.layers > MOST_LAYERS or size > MOST_STAGES:
        text = f"{size:,} kinds of stage of {problem.model.layers:,} layers"
        remedy = (
            f"at most {MOST_STAGES:,} and {MOST_LAYERS} are compared; take fewer GPUs per stage"
        )
        raise TooLarge(f"step_time: {text}; {remedy}", {"stages": size})
    recipe = {} if bytes_per_parameter is None else {"bytes_per_parameter": bytes_per_parameter}
    modes = _modes(problem, recompute, bytes_per_parameter)
    kinds = problem.cluster.kinds
    by_kind = composition @ np.eye(len(kinds), dtype=int)[classes.kind]
    tables = stage_tables(
        problem.costs, problem.model, problem.workload, kinds, by_kind, problem.batch_split
    )
    costs = {mode: np.zeros((8, *tables.throughput.shape)) for mode in modes}
    known: dict[tuple, np.ndarray] = {}
    for mode in modes:
        if mode is None:
            # Without more being known, both gradients take as long as the forward.
            costs[mode][:3] = _seconds(problem, tables)
            continue
        for c, counts in enumerate(composition):
            deadline.check()
            ids = [int(g) for a, n in enumerate(counts) for g in classes.members[a][:n]]
            key = (mode, *_inside(classes, counts))
            if key not in known:
                known[key] = _costs(problem, ids, mode, recipe, tables.throughput[c] > 0, deadline)
            costs[mode][:, c] = known[key]
    fits = tables.fits(kinds)
    for found in costs.values():
        _refuse_no_time(problem, found[:, fits])
    memory = np.array([classes.gpu(a).memory_gb for a in range(len(classes))])
    offered = np.where(composition > 0, memory, np.inf).min(axis=1)
    return Stages(
        problem,
        classes,
        composition,
        modes,
        costs,
        fits,
        offered,
        _hops(problem, classes, composition, deadline),
    )


def _refuse_no_time(problem: Problem, found: np.ndarray) -> None:
    """Raise `InvalidValue` for stages whose microbatches take no time, or for what is no number."""
    for name, values in zip(TrainingCost._fields, found, strict=True):
        wrong = values[~(values >= 0)]  # infinite: the stage cannot be
        if len(wrong):
            expected = "expected a number of at least 0"
            raise InvalidValue(
                f"{type(problem.costs).__name__}.training_cost", [(name, float(wrong[0]), expected)]
            )
    if (found[:3].sum(axis=0) <= 0).any():
        expected = "expected more than 0 seconds for forward and backward together"
        raise InvalidValue(
            f"{type(problem.costs).__name__}.training_cost", [("forward", 0.0, expected)]
        )


def _seconds(problem: Problem, tables: StageTables) -> np.ndarray:
    """Of a microbatch in whole sequences, forward."""
    if tables.pass_seconds is not None:
        return tables.pass_seconds
    rate = np.where(tables.throughput > 0, tables.throughput, np.nan)
    return problem.workload.tokens / rate


def _inside(classes: Classes, counts: np.ndarray) -> tuple[bytes, ...]:
    """All that the times of a stage may depend on: every GPU's kind, and the link of every pair."""
    here = np.repeat(np.arange(len(counts)), counts)
    apart = ~np.eye(len(here), dtype=bool)
    links = (
        each[np.ix_(here, here)][apart] for each in (classes.bandwidth_gb_per_s, classes.latency_ms)
    )
    return classes.kind[here].tobytes(), *(each.tobytes() for each in links)


def _costs(
    problem: Problem,
    ids: list[int],
    mode: str,
    recipe: Mapping[str, Any],
    exists: np.ndarray,
    deadline: Deadline,
) -> np.ndarray:
    """The fields of `TrainingCost` for every kind of run on these GPUs, (8, U)."""
    more = recipe if mode == "none" else {"recompute": mode, **recipe}
    if hasattr(problem.costs, "training_table"):
        table = problem.costs.training_table(problem, ids, **more)
        if table is not None:
            return table
    starts, sizes = runs_of(problem.model).examples
    found = np.zeros((8, len(starts)))
    for u, (start, n) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
        deadline.check()
        if exists[u]:
            report = _report(problem, ids, range(start, start + n))
            found[:, u] = problem.costs.training_cost(problem, report, **more)
    return found


def _compositions(problem: Problem, classes: Classes) -> Iterator[list[int]]:
    """Every number of GPUs of each class that a stage may have."""
    count, types = classes.count.tolist(), [classes.gpu(a).type for a in range(len(classes))]

    def more(first: int, left: int, taken: list[int]) -> Iterator[list[int]]:
        for a in range(first, len(count)):
            alike = all(types[b] == types[a] for b, n in enumerate(taken) if n)
            if problem.same_type_stages and not alike:
                continue
            for n in range(1, min(left, count[a]) + 1):
                grown = [*taken[:a], n, *taken[a + 1 :]]
                yield grown
                if left > n:
                    yield from more(a + 1, left - n, grown)

    for made, one in enumerate(more(0, problem.max_gpus_per_stage, [0] * len(count)), 1):
        if made > MOST_STAGES:
            raise TooLarge(
                f"step_time: more than {MOST_STAGES:,} compositions of a stage; take fewer GPUs per stage",
                {"compositions": made},
            )
        yield one


def _modes(
    problem: Problem, recompute: str | None, bytes_per_parameter: float | None
) -> tuple[str | None, ...]:
    if recompute is not None and recompute not in RECOMPUTE:
        expected = f"expected one of {', '.join(RECOMPUTE)}"
        raise InvalidValue("solve", [("recompute", recompute, expected)])
    if hasattr(problem.costs, "training_cost"):
        return ("none", "full") if recompute == "auto" else (recompute or "none",)
    for name, value in (("recompute", recompute), ("bytes_per_parameter", bytes_per_parameter)):
        if value is not None:
            expected = "expected a cost model that knows what training keeps, such as Roofline"
            raise InvalidValue("solve", [(name, value, expected)])
    return (None,)


def _report(problem: Problem, ids: list[int], layers: range) -> StageReport:
    gpus = [problem.cluster.gpus[g] for g in ids]
    cost = answered(
        problem.costs, problem.model, problem.workload, gpus, layers, problem.batch_split
    )
    seconds = cost.pass_seconds
    if seconds is None:
        seconds = problem.workload.tokens / cost.throughput if cost.throughput > 0 else np.inf
    types, limits = tuple(g.type for g in gpus), tuple(g.memory_gb for g in gpus)
    stage = Stage(layers, tuple(ids))
    return StageReport(
        stage, types, cost.batch, cost.memory_gb, limits, cost.throughput, seconds, cost.degree
    )


def _hops(
    problem: Problem, classes: Classes, composition: np.ndarray, deadline: Deadline
) -> np.ndarray:
    """Between the slowest pair of GPUs, in the slower direction; infinite where there is no link."""
    with np.errstate(divide="ignore", invalid="ignore"):
        seconds = np.asarray(
            in_training(problem).message_seconds(classes.bandwidth_gb_per_s, classes.latency_ms)
        )
    between = np.maximum(seconds, seconds.T)
    between = np.where(between <= _LONGEST, between, np.inf)
    count, present = len(composition), composition > 0
    from_any = np.zeros((count, len(classes)))  # of a composition's GPUs, to one of a class
    for a in range(len(classes)):
        np.maximum(from_any, np.where(present[:, a, None], between[a], 0.0), out=from_any)
    slowest = np.zeros((count, count))
    for b in range(len(classes)):
        deadline.check()
        to = present[:, b]
        slowest[:, to] = np.maximum(slowest[:, to], from_any[:, b, None])
    return slowest


def least_slowest(stages: Stages, held: Iterable[tuple[np.ndarray, int]]) -> float:
    """Seconds per microbatch that the slowest stage of any placement has at least; infinite where nothing fits.

    Counting each GPU with the most layers that a stage with it can hold in that time, over the
    stage's GPUs.

    Parameters
    ----------
    held : pairs of `held_counts` of a rank and its chunks
        All that a stage's rank may hold.
    """
    every = {stages.times(each, chunks) for each, chunks in held}
    least = np.minimum.reduce([times.whole for times in every])
    size = stages.composition.sum(axis=1)
    count, present = stages.classes.count, stages.composition > 0
    values = np.unique(least[np.isfinite(least)])

    def holds(seconds: float) -> bool:
        share = np.where(least <= seconds, stages.runs.layers, 0).max(axis=1) / size
        most = np.where(present, share[:, None], 0).max(axis=0)
        return float(most @ count) >= stages.layers * (1 - 1e-9)

    if not len(values) or not holds(values[-1]):
        return np.inf
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(values[middle]) else (middle + 1, high)
    return float(values[low])


@dataclass(frozen=True, eq=False)
class Groups:
    """Classes of GPUs, some of them merged.

    Attributes
    ----------
    count : int array, shape (G,)
        GPUs of each group.
    composition : int array, shape (D, G)
        The different compositions by groups.
    of : int array, shape (C,)
        Of each composition by classes, the one by groups.
    receiver : int array, shape (D,)
        The kind of receiver, of H: messages to one kind take the same, whoever sends.
    between : float array, shape (D, H)
        Seconds of a message from a composition to a kind of receiver, the least that there may be.
    onward : float array, shape (C, H)
        The same, from a composition by classes.
    """

    count: np.ndarray
    composition: np.ndarray
    of: np.ndarray
    receiver: np.ndarray
    between: np.ndarray
    onward: np.ndarray

    @property
    def states(self) -> int:
        """Ways to use some of the GPUs."""
        return prod(int(n) + 1 for n in self.count)

    @property
    def work(self) -> int:
        """Of one level and first layer: compositions that may be put before a state."""
        return self.states * len(self.composition)

    def least(self, values: np.ndarray) -> np.ndarray:
        """The least of each group's members, along the first axis."""
        found = np.full((len(self.composition), *values.shape[1:]), np.inf)
        np.minimum.at(found, self.of, values)
        return found


def groups_of(stages: Stages, group: np.ndarray) -> Groups:
    """Classes merged as `group` says, one number per class."""
    count = np.bincount(group, weights=stages.classes.count).astype(int)
    member = np.eye(len(count), dtype=int)[group]
    by_group = stages.composition @ member
    composition, of = np.unique(by_group, axis=0, return_inverse=True)
    of = of.ravel()
    # Two stages cannot share a GPU: where there are too few for both, there is no message.
    hop = stages.hop.copy()
    for mine, most in zip(stages.composition.T, stages.classes.count, strict=True):
        hop[mine[:, None] + mine[None, :] > most] = np.inf
    to = np.stack([stages.hop[:, of == d].min(axis=1) for d in range(len(composition))])
    receiver = np.unique(to, axis=0, return_inverse=True)[1].ravel()
    first = np.full((len(hop), receiver.max() + 1), np.inf)
    np.minimum.at(first.T, receiver[of], hop.T)
    between = np.full((len(composition), first.shape[1]), np.inf)
    np.minimum.at(between, of, first)
    return Groups(
        count, composition, of, receiver, np.minimum(between, BIG), np.minimum(first, BIG)
    )


def merged(stages: Stages, most: int) -> Groups:
    """As few classes merged as keep to so much work: identical GPUs first, then the nearest speeds."""
    group = np.arange(len(stages.classes))
    found = groups_of(stages, group)
    if found.work <= most:
        return found
    group = stages.classes.kind.astype(int)
    _, group = np.unique(group, return_inverse=True)
    speed = _speeds(stages)
    while (found := groups_of(stages, group)).work > most and group.max():
        means = [speed[group == g].mean() for g in range(group.max() + 1)]
        order = np.argsort(means)
        nearest = int(np.argmin(np.diff(np.log(np.array(means)[order]))))
        group = np.where(group == order[nearest + 1], order[nearest], group)
        _, group = np.unique(group, return_inverse=True)
    return found


def _speeds(stages: Stages) -> np.ndarray:
    """Of one GPU of each class: one over the least time of a layer."""
    mode = stages.costs[stages.modes[0]]
    each = np.where(stages.serves, mode[:3].sum(axis=0), np.inf) / stages.runs.layers
    alone = stages.composition.sum(axis=1) == 1
    speed = np.ones(len(stages.classes))
    for c in np.flatnonzero(alone):
        least = each[c].min()
        speed[int(np.argmax(stages.composition[c]))] = 1 / least if least < np.inf else 1e-9
    return speed
