"""Every stage that a placement for training may have: what it takes, what it keeps, what it sends.

A stage is a composition (how many GPUs of each class) with a kind of span, as in `Instance`. Where
GPUs differ in so many ways that tables would be too large, classes are merged (`merged`): every
stage then counts with the least that any stage of the same merged composition has, so that its
bounds remain bounds.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from pipelab.costs import TrainingCost
from pipelab.engine.classes import Classes
from pipelab.engine.deadline import Deadline
from pipelab.engine.instance import Instance, apart, by_class, instance_of
from pipelab.engine.schedules.columns import ScheduleArrays, size_of_part
from pipelab.engine.stage_table import FreeGPUs, holdable, slowest_between
from pipelab.engine.timeline import placement_timelines as timelines
from pipelab.errors import InvalidValue, TooLarge
from pipelab.placement import Placement, Stage
from pipelab.problem import Problem, fits_in
from pipelab.spans import Spans

MOST_LAYERS = 400
MOST_STAGES = 500_000  # compositions times kinds of span: the cost model is asked for each
# seconds of what does not exist: more than any time, yet finite in sums and differences
ABSENT_S = 1e100
_LONGEST_MESSAGE_SECONDS = 1e30  # seconds beyond which `StageCosts` takes no time

RECOMPUTE = ("none", "selective", "full", "auto")
# Where one of several parts on a rank lies in the model; home: it is the last, on the rank of the first.
ROLES = ("first", "inner", "last", "home")


@dataclass(frozen=True, eq=False)
class RankTimes:
    """Seconds of every rank, infinite if it does not fit in memory.

    Equal only to itself, so that what is computed from it can be kept under it.

    Attributes
    ----------
    seconds : float array, shape (7, C, U)
        Of a microbatch forward, its input gradient and its weight gradient; of the step; and of a microbatch
        through the rank's first part alone: forward, input gradient and weight gradient.
    """

    seconds: np.ndarray

    @classmethod
    def least(cls, several: Iterable["RankTimes"]) -> "RankTimes":
        """Return the least of several, stage by stage."""
        return cls(np.minimum.reduce([times.seconds for times in several]))

    @property
    def whole(self) -> np.ndarray:
        """Seconds of one microbatch, forward and backward; shape (C, U)."""
        return self.seconds[:3].sum(axis=0)


@dataclass(frozen=True, eq=False)
class TrainingStages:
    """All candidate stages of a problem: C compositions times U kinds of span.

    Attributes
    ----------
    problem : Problem
    instance : Instance
        Its `rate` is positive where `evaluate` accepts the stage.
    modes : tuple of str or None
        Recomputation modes, the one to be preferred where it fits first.
    costs : mapping of mode to float array, shape (8, C, U)
        The fields of `TrainingCost`.
    offered : float array, shape (C,)
        GB of the smallest GPU.
    hop : float array, shape (C, C)
        Seconds of a message between two stages, in the slower direction.
    """

    problem: Problem
    instance: Instance
    modes: tuple[str | None, ...]
    costs: Mapping[str | None, np.ndarray]
    offered: np.ndarray
    hop: np.ndarray
    _kept: dict[tuple, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return self.problem.model.layers

    @cached_property
    def spans(self) -> Spans:
        """The kinds of span."""
        return self.instance.spans

    @property
    def classes(self) -> Classes:
        """The classes of interchangeable GPUs."""
        return self.instance.classes

    @property
    def composition(self) -> np.ndarray:
        """GPUs of each class in a stage; shape (C, A)."""
        return self.instance.composition

    @property
    def most(self) -> int:
        """No placement has more stages."""
        most = self.problem.costs.most_gpus / self.problem.max_gpus_per_stage
        return int(min(self.classes.count.sum(), self.layers, most))

    def times(self, roles: Sequence[str], held: np.ndarray) -> RankTimes:
        """Return the least seconds of every rank in parts of these roles, with its `Columns.held_counts`.

        Of what may be recomputed and of the layers it may have. Made once for the ranks that fit.
        """
        roles = tuple(roles) if len(roles) > 1 else ("any",)  # one part lies where its span does
        asked = roles, held.tobytes()
        if asked not in self._kept:
            numbered = list(enumerate(roles))
            costs = {m: [self._part(m, len(roles), *of) for of in numbered] for m in self.modes}
            parts = {mode: np.stack(some, axis=-1) for mode, some in costs.items()}
            serves, offered = self.instance.rate > 0, self.offered[:, None]
            needed = {mode: timelines.needed_gb(some, held) for mode, some in parts.items()}
            fits = {mode: serves & fits_in(gb, offered) for mode, gb in needed.items()}
            same = roles, tuple(np.packbits(fit).tobytes() for fit in fits.values())
            if same not in self._kept:
                found = np.full((7, *serves.shape), np.inf)
                for mode, fit in fits.items():
                    mine = parts[mode][:, fit]
                    mine = np.concatenate([timelines.on_rank(mine)[:4], mine[:3, :, 0]])
                    found[:, fit] = np.minimum(found[:, fit], mine)
                self._kept[same] = RankTimes(found)
            self._kept[asked] = self._kept[same]
        return self._kept[asked]

    def _part(self, mode: str | None, parts: int, part: int, role: str) -> np.ndarray:
        """Return the costs of a part of every rank, by the rank's layers: the least of all that it may have."""
        if parts == 1:
            return self.costs[mode]
        asked = mode, parts, part, role
        if asked not in self._kept:
            found = np.full(self.costs[mode].shape, ABSENT_S)
            existing = np.where(self.instance.rate > 0, self.costs[mode], ABSENT_S)
            for layers in range(parts, self.layers + 1):
                size = size_of_part(layers, parts, part)
                inner = range(1, self.layers - size)
                starts = {"first": [0], "inner": inner}.get(role, [inner.stop])
                kinds = np.unique(self.spans.kind[starts, size - 1])
                least = existing[:, :, kinds].min(axis=2, initial=ABSENT_S)
                if role == "home":
                    least[3:5] *= timelines.not_shared(self.problem.model, size)
                found[:, :, self.spans.layers == layers] = least[..., None]
            self._kept[asked] = found
        return self._kept[asked]

    def seconds(
        self, order: ScheduleArrays, compositions: np.ndarray, sizes: np.ndarray
    ) -> np.ndarray:
        """Return the seconds of the parts of K placements, shape (4, parts, K), infinite where a rank does not fit.

        Parameters
        ----------
        compositions, sizes : int arrays, shape (K, ranks)
            Of every stage: its composition and its number of layers.
        """
        found = np.full((4, order.stages, len(sizes)), np.inf)
        for rank, needs in enumerate(self.needs(order, compositions, sizes)):
            mine = np.flatnonzero(order.holder == rank)
            for mode in reversed(self.modes):
                parts, need = needs[mode]
                fit = np.flatnonzero(fits_in(need, self.offered[compositions[:, rank]]))
                found[:, mine[:, None], fit] = parts[:4, fit].swapaxes(1, 2)
        return found

    def needs(
        self, order: ScheduleArrays, compositions: np.ndarray, sizes: np.ndarray
    ) -> Iterator[dict[str | None, tuple[np.ndarray, np.ndarray]]]:
        """Yield of every rank of K placements, by mode, the costs of its parts, (8, K, parts), and GB needed, (K,).

        These are infinite where the rank does not exist.
        """
        layers = order.part_layers(sizes)
        starts = np.minimum(layers.cumsum(axis=1) - layers, self.layers - 1)  # even of no layer
        kinds = self.spans.kind[starts, layers - 1]
        whole = self.spans.kind[sizes.cumsum(axis=1) - sizes, sizes - 1]
        for rank, held in enumerate(order.held_counts):
            mine, at = np.flatnonzero(order.holder == rank), compositions[:, rank]
            exists = (self.instance.rate[at[:, None], kinds[:, mine]] > 0).all(axis=1)
            exists &= self.instance.rate[at, whole[:, rank]] > 0
            exists &= sizes[:, rank] >= len(mine)
            found = {}
            for mode in self.modes:
                parts = self.costs[mode][:, at[:, None], kinds[:, mine]]
                if len(mine) > 1 and order.holder[0] == order.holder[-1] == rank:
                    last = self._part(mode, len(mine), len(mine) - 1, "home")
                    parts[..., -1] = last[:, at, whole[:, rank]]
                found[mode] = parts, np.where(exists, timelines.needed_gb(parts, held), np.inf)
            yield found

    def placement(self, compositions: Iterable[int], sizes: Iterable[int]) -> Placement:
        """Return a placement with stages of these compositions and numbers of layers."""
        free = FreeGPUs([members.tolist()] for members in self.classes.members)
        gpus = [sorted(free.take(self.composition[c].tolist())) for c in compositions]
        return Placement.of(zip(map(int, sizes), gpus, strict=True))


def stages_in_training(
    problem: Problem, recompute: str | None, bytes_per_parameter: float | None, deadline: Deadline
) -> TrainingStages:
    """Ask the cost model for every stage.

    Raises
    ------
    InvalidValue
        `recompute` or `bytes_per_parameter` is given, and the cost model has no such option or
        refuses the value.
    TooLarge
        There are too many stages to ask for, or layers.
    Ended
    """
    modes = _modes(problem, recompute, bytes_per_parameter)
    made = instance_of(timelines.in_training(problem), deadline)
    instance = by_class(made, apart(made), deadline)
    classes, composition = instance.classes, instance.composition
    if problem.model.layers > MOST_LAYERS or instance.rate.size > MOST_STAGES:
        text = f"{instance.rate.size:,} kinds of stage of {problem.model.layers:,} layers"
        remedy = f"expected at most {MOST_STAGES:,} and {MOST_LAYERS}: take fewer GPUs per stage"
        raise TooLarge(f"step_time: {text}; {remedy}")
    recipe = {} if bytes_per_parameter is None else {"bytes_per_parameter": bytes_per_parameter}
    costs = {mode: np.zeros((8, *instance.rate.shape)) for mode in modes}
    known: dict[tuple, np.ndarray] = {}
    for mode, found in costs.items():
        if mode is None:
            # With nothing else known, both gradients take as long as the forward.
            found[:3] = instance.seconds
            continue
        more = recipe if mode == "none" else {"recompute": mode, **recipe}
        for c, counts in enumerate(composition):
            deadline.check()
            key = (mode, *_inside(classes, counts))
            if key not in known:
                ids = [int(g) for a, n in enumerate(counts) for g in classes.members[a][:n]]
                known[key] = _costs(problem, ids, more, instance.rate[c] > 0, instance.spans)
            found[:, c] = known[key]
        _refuse_no_time(problem, found[:, instance.rate > 0])
    memory = np.array([classes.gpu(a).memory_gb for a in range(len(classes))])
    offered = np.where(composition > 0, memory, np.inf).min(axis=1, initial=np.inf)
    return TrainingStages(
        problem=problem,
        instance=instance,
        modes=modes,
        costs=costs,
        offered=offered,
        hop=_hops(instance),
    )


def _modes(
    problem: Problem, recompute: str | None, bytes_per_parameter: float | None
) -> tuple[str | None, ...]:
    if recompute is not None and recompute not in RECOMPUTE:
        expected = f"expected one of {', '.join(RECOMPUTE)}"
        raise InvalidValue("solve", [("recompute", recompute, expected)])
    if problem.costs.knows_training:
        return ("none", "full") if recompute == "auto" else (recompute or "none",)
    for name, value in (("recompute", recompute), ("bytes_per_parameter", bytes_per_parameter)):
        if value is not None:
            expected = "expected a cost model that knows what training keeps, such as Roofline"
            raise InvalidValue("solve", [(name, value, expected)])
    return (None,)


def _inside(classes: Classes, counts: np.ndarray) -> tuple[bytes, ...]:
    """Return all that the times of a stage may depend on: each GPU's type and the link of every pair."""
    here = np.repeat(np.arange(len(counts)), counts)
    apart = ~np.eye(len(here), dtype=bool)
    between, tables = np.ix_(here, here), (classes.bandwidth_gb_per_s, classes.latency_ms)
    return classes.kind[here].tobytes(), *(table[between][apart].tobytes() for table in tables)


def _costs(
    problem: Problem, ids: list[int], more: Mapping[str, Any], exists: np.ndarray, spans: Spans
) -> np.ndarray:
    """Return the fields of `TrainingCost` of every kind of span on these GPUs; shape (8, U)."""
    table = problem.costs.training_table(problem, ids, **more)
    if table is not None:
        return np.where(exists, table, 0.0)
    found = np.zeros((8, len(exists)))
    for u, (start, n) in enumerate(zip(*spans.examples, strict=True)):
        if exists[u]:
            stage = Stage(range(int(start), int(start + n)), tuple(ids))
            report = timelines.report_of(problem, stage)
            found[:, u] = problem.costs.training_cost(problem, report, **more)
    return found


def _refuse_no_time(problem: Problem, found: np.ndarray) -> None:
    """Raise `InvalidValue` if a number is negative or NaN, or a microbatch takes no time."""
    what, bad = f"{type(problem.costs).__name__}.training_cost", []
    for name, values in zip(TrainingCost._fields, found, strict=True):
        wrong = values[~(values >= 0)]  # infinite: the stage cannot exist
        bad += [(name, float(value), "expected a number of at least 0") for value in wrong[:1]]
    if not bad and (found[:3].sum(axis=0) <= 0).any():
        expected = "expected more than 0 seconds for forward and backward together"
        bad = [("forward", 0.0, expected)]
    if bad:
        raise InvalidValue(what, bad[:1])


def _hops(instance: Instance) -> np.ndarray:
    """Return the seconds between the slowest pair of GPUs of two compositions; infinite without a link."""
    between = np.maximum(instance.hop, instance.hop.T)
    between = np.where(between <= _LONGEST_MESSAGE_SECONDS, between, np.inf)
    return slowest_between(instance.composition > 0, between)


def least_slowest(stages: TrainingStages, every: Iterable[RankTimes]) -> float:
    """Return the least seconds per microbatch of the slowest stage; infinite if nothing fits.

    Each GPU counts with the most layers per GPU of any stage with it that is no slower: if these sum
    to less than the model, no placement is that fast.

    Parameters
    ----------
    every : RankTimes
        Of all ranks that a stage may be on.
    """
    least = RankTimes.least(every).whole

    def holds(seconds: float) -> bool:
        held = np.where(least <= seconds, stages.spans.layers, 0).max(axis=1)
        has, count = stages.composition > 0, stages.classes.count
        return holdable(held, stages.instance.size, has, count) >= stages.layers * (1 - 1e-9)

    values = np.append(np.unique(least[np.isfinite(least)]), np.inf)
    return float(values[bisect_left(values[:-1], True, key=holds)])


@dataclass(frozen=True, eq=False)
class Merged:
    """Stages with some classes of GPUs taken for one, G classes and D compositions.

    Attributes
    ----------
    count : int array, shape (G,)
        GPUs of each merged class.
    composition : int array, shape (D, G)
    of : int array, shape (C,)
        The merged composition of each composition.
    receiver : int array, shape (D,)
        One of H receivers: messages to compositions of one receiver take the same, whoever sends.
    between : float array, shape (D, H)
        Least seconds of a message from any member of a merged composition to a receiver.
    onward : float array, shape (C, H)
        Least seconds of a message from a composition to a receiver.
    """

    count: np.ndarray
    composition: np.ndarray
    of: np.ndarray
    receiver: np.ndarray
    between: np.ndarray
    onward: np.ndarray

    def least(self, times: RankTimes) -> RankTimes:
        """Return the least over the members of each merged composition; shape (7, D, U)."""
        numbers, _, spans = times.seconds.shape
        found = np.full((numbers, len(self.composition), spans), np.inf)
        np.minimum.at(found.swapaxes(0, 1), self.of, times.seconds.swapaxes(0, 1))
        return RankTimes(found)


def merged(stages: TrainingStages, most: int) -> Merged:
    """Merge as few classes as keep a level of the tables to so much work, those of nearest speed first.

    Parameters
    ----------
    most : int
        States (how many GPUs of each class are used) times compositions that may precede them.
    """
    classes, hop = stages.classes, stages.hop.copy()
    group, pace = np.arange(len(classes)), _pace(stages)
    while True:
        count = np.bincount(group, weights=classes.count).astype(int)
        by_group = stages.composition @ np.eye(len(count), dtype=int)[group]
        composition, of = np.unique(by_group, axis=0, return_inverse=True)
        of = of.ravel()
        if len(count) == 1 or prod(int(n) + 1 for n in count) * len(composition) <= most:
            break
        means = np.array([pace[group == g].mean() for g in range(len(count))])
        order = np.argsort(means, kind="stable")
        nearest = int(np.argmin(np.diff(means[order])))
        group = np.where(group == order[nearest + 1], order[nearest], group)
        _, group = np.unique(group, return_inverse=True)
    to = np.stack([hop[:, of == d].min(axis=1) for d in range(len(composition))])
    receiver = np.unique(to, axis=0, return_inverse=True)[1].ravel()
    # Two stages cannot share a GPU: if there are too few for both, there is no message.
    for mine, n in zip(stages.composition.T, classes.count, strict=True):
        hop[mine[:, None] + mine[None, :] > n] = np.inf
    onward = np.full((len(hop), receiver.max() + 1), ABSENT_S)
    np.minimum.at(onward.T, receiver[of], hop.T)
    between = np.full((len(composition), onward.shape[1]), ABSENT_S)
    np.minimum.at(between, of, onward)
    return Merged(
        count=count,
        composition=composition,
        of=of,
        receiver=receiver,
        between=between,
        onward=onward,
    )


def _pace(stages: TrainingStages) -> np.ndarray:
    """Return the logarithm of the least seconds per layer of one GPU of each class."""
    alone = np.flatnonzero(stages.composition.sum(axis=1) == 1)
    times = stages.costs[stages.modes[0]][:3, alone].sum(axis=0) / stages.spans.layers
    least = np.where(stages.instance.rate[alone] > 0, times, ABSENT_S).min(axis=1)
    pace = np.full(len(stages.classes), np.log(ABSENT_S))
    pace[stages.composition[alone].argmax(axis=1)] = np.log(least)
    return pace
