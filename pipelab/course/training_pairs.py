"""Placement and order of actions together: the pair with the least step time, and how sure it is."""

from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise, permutations
from math import floor
from typing import TYPE_CHECKING, NamedTuple

from pipelab.costs import TrainingCost
from pipelab.engine.best_schedules.search import best_schedule
from pipelab.engine.methods.step_time import solve_for_step_time
from pipelab.engine.timeline import StageCosts, Timeline, simulate
from pipelab.engine.timeline.formulas import lower_bound
from pipelab.engine.timeline.training import in_training
from pipelab.errors import InvalidValue
from pipelab.placement import Placement
from pipelab.problem import Problem

if TYPE_CHECKING:
    from pandas import DataFrame

    from pipelab.hardware.roofline.cost_model import Roofline


class Pair(NamedTuple):
    """A placement and an order of its actions."""

    seconds: float  # of a step
    placement: Placement
    timeline: Timeline


def best_pair(problem: Problem) -> Pair:
    """Find the placement and the order whose step takes least time, one GPU and one chunk per stage.

    Placements are taken in the order of `pl.lower_bound`; CP-SAT proves the best order of each,
    until the next bound is no shorter than the best step found.

    Parameters
    ----------
    problem : Problem
        Of training, with `Roofline` and few GPUs and layers: every placement gets a bound.

    Returns
    -------
    Pair
        No other pair takes less, with nothing recomputed.

    Raises
    ------
    InvalidValue
        No placement fits, or an order could not be proven within its time.
    """
    candidates = _Candidates(problem)
    bounds = sorted((candidates.bound(parts), parts) for parts in candidates.all())
    best: Pair | None = None
    for bound, parts in bounds:
        if bound == float("inf") or (best and best.seconds <= bound):
            break
        pair = candidates.proven(parts)
        if best is None or pair.seconds < best.seconds:
            best = pair
    if best is None:
        raise InvalidValue("best_pair", [("problem", problem.name, "expected more memory")])
    return best


class _Candidates:
    """Placements as tuples of (GPU, first layer, layers), one for every order of types and cut."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.microbatches = problem, problem.workload.microbatches
        gpus, costs = problem.cluster.gpus, problem.costs
        self.tables = {g: costs.training_table(problem, [g]) for g in range(len(gpus))}
        self.sends = in_training(problem)

    def all(self) -> Iterator[tuple[tuple[int, int, int], ...]]:
        gpus, layers = self.problem.cluster.gpus, self.problem.model.layers
        for n in range(1, min(len(gpus), layers) + 1):
            # of identical GPUs the first come first
            orders = {
                tuple(gpus[g].type for g in order): order
                for order in sorted(permutations(range(len(gpus)), n), reverse=True)
            }
            for order in orders.values():
                for inner in combinations(range(1, layers), n - 1):
                    ends = pairwise((0, *inner, layers))
                    yield tuple(
                        (g, low, high - low) for g, (low, high) in zip(order, ends, strict=True)
                    )

    def stages(self, parts: tuple[tuple[int, int, int], ...]) -> list[TrainingCost]:
        kind = self.problem.model.spans.kind
        return [TrainingCost(*self.tables[g][:, kind[low, n - 1]].tolist()) for g, low, n in parts]

    def costs(self, parts: tuple[tuple[int, int, int], ...]) -> StageCosts:
        forward, back, weight, _, _, held, rest, _ = map(
            list, zip(*self.stages(parts), strict=True)
        )
        comm = [self._hop(one[0], other[0]) for one, other in pairwise(parts)]
        return StageCosts(
            forward,
            back,
            weight,
            comm=comm or 0.0,
            activation=held,
            weight_activation=rest,
            unit="s",
        )

    def _hop(self, one: int, other: int) -> float:
        cluster, both = self.problem.cluster, ((one, other), (other, one))
        return max(
            float(
                self.sends.message_seconds(
                    cluster.bandwidth_between(*way), cluster.latency_between(*way)
                )
            )
            for way in both
        )

    def _room(self, parts: tuple[tuple[int, int, int], ...]) -> list[float]:
        memory = [self.problem.cluster.gpus[g].memory_gb for g, _, _ in parts]
        return [
            gb - s.state_gb - s.working_gb for gb, s in zip(memory, self.stages(parts), strict=True)
        ]

    def bound(self, parts: tuple[tuple[int, int, int], ...]) -> float:
        stages = self.stages(parts)
        held = [
            floor(room / s.activation_gb) for room, s in zip(self._room(parts), stages, strict=True)
        ]
        if min(held) < 1:
            return float("inf")
        least = lower_bound(len(parts), self.microbatches, self.costs(parts), in_flight=held)
        return float(least) + max(s.step for s in stages)

    def proven(self, parts: tuple[tuple[int, int, int], ...]) -> Pair:
        costs = self.costs(parts)
        best = best_schedule(costs, self.microbatches, memory=self._room(parts))
        expected = "expected an order that is proven, with messages that queue as well"
        refused = InvalidValue("best_pair", [("problem", self.problem.name, expected)])
        if best.status != "optimal" or best.schedule is None or best.bound is None:
            raise refused
        timeline = simulate(best.schedule, costs, transfers="queued")
        if timeline.makespan > best.bound * (1 + 1e-6):
            raise refused
        seconds = timeline.makespan + max(s.step for s in self.stages(parts))
        return Pair(seconds, Placement.of([(n, (g,)) for g, _, n in parts]), timeline)


def training_conclusions(problem: Problem, variants: "Mapping[str, Roofline]") -> "DataFrame":
    """Compare what is concluded from several cost models: placements, step times, and the gain of the best pair.

    Parameters
    ----------
    problem : Problem
        As for `best_pair`.
    variants : mapping of str to Roofline
        Names, and cost models that train.

    Returns
    -------
    pandas.DataFrame
        One row per cost model: `times`, its name; `under 1F1B` and `under any order`, the placements in
        words; seconds of the proven placement under 1F1B, under ZB-H1, and of the best pair; its
        `gain` over ZB-H1, and `mfu` under 1F1B, as shares.

    Raises
    ------
    InvalidValue
        Nothing fits, or an order could not be proven within its time.
    """
    from dataclasses import replace

    import pandas as pd

    rows = []
    for name, costs in variants.items():
        where = replace(problem, costs=costs, name=name)
        pair = best_pair(where)
        one, rule = (solve_for_step_time(where, schedule=rule).step for rule in ("1F1B", "ZBH1"))
        if one is None or rule is None:
            expected = "expected a cost model with which a placement fits"
            raise InvalidValue("training_conclusions", [("variants", name, expected)])
        rows.append(
            {
                "times": name,
                "under 1F1B": _words(where, one.placement),
                "under any order": _words(where, pair.placement),
                "1F1B, s": one.timeline.iteration_time,
                "ZB-H1, s": rule.timeline.iteration_time,
                "any order, s": pair.seconds,
                "gain": 1 - pair.seconds / rule.timeline.iteration_time,
                "mfu": one.mfu,
            }
        )
    return pd.DataFrame(rows)


def _words(problem: Problem, placement: Placement) -> str:
    """Such as "12 A100, 5 A40"."""
    gpus = problem.cluster.gpus
    return ", ".join(
        f"{len(s.layers)} {gpus[s.gpus[0]].type.split('-')[0]}" for s in placement.stages
    )
