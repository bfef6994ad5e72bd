"""Notebook 18, The best placement for training: a placement and an order proven together."""

import math
import operator
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations, pairwise, permutations, product
from math import floor
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelab.costs import TrainingCost
from pipelab.course.exercises import Exercise, Failure, Function, Given, drawn, gives
from pipelab.course.pictures import Block, BlockRow, colour_of, plot_rows
from pipelab.engine.best_schedules import best_schedule
from pipelab.engine.methods.step_time import solve_for_step_time
from pipelab.engine.schedules import schedule
from pipelab.engine.timeline import StageCosts, Timeline, simulate
from pipelab.engine.timeline.formulas import lower_bound
from pipelab.engine.timeline.placement_timelines import hops, in_training
from pipelab.errors import InvalidValue
from pipelab.fields import given
from pipelab.hardware.roofline import Roofline
from pipelab.placement import Placement
from pipelab.problem import Problem

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure


# Placement and order of actions together


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
    microbatches = problem.workload.microbatches
    bounded = [(each.bound(microbatches), each) for each in _candidates(problem)]
    best: Pair | None = None
    for bound, candidate in sorted(bounded, key=lambda pair: pair[0]):
        if math.isinf(bound) or (best and best.seconds <= bound):
            break
        pair = candidate.proven(problem)
        if best is None or pair.seconds < best.seconds:
            best = pair
    if best is None:
        raise InvalidValue("best_pair", [("problem", problem.name, "expected more memory")])
    return best


class _Candidate(NamedTuple):
    """A placement with one GPU per stage, and what its stages take and keep."""

    placement: Placement
    stages: list[TrainingCost]
    costs: StageCosts
    room: list[float]  # GB for activations

    @property
    def update(self) -> float:
        return max(stage.step for stage in self.stages)

    def bound(self, microbatches: int) -> float:
        kept = [stage.activation_gb for stage in self.stages]
        held = [floor(room / each) for room, each in zip(self.room, kept, strict=True)]
        if min(held) < 1:
            return math.inf
        return lower_bound(self.costs, microbatches, len(held), max_in_flight=held) + self.update

    def proven(self, problem: Problem) -> Pair:
        best = best_schedule(self.costs, problem.workload.microbatches, memory=self.room)
        expected = "expected an order that is proven, with messages that queue as well"
        refused = InvalidValue("best_pair", [("problem", problem.name, expected)])
        if best.status != "optimal" or best.schedule is None or best.bound is None:
            raise refused
        timeline = simulate(best.schedule, self.costs, transfers="queued")
        if timeline.makespan > best.bound * (1 + 1e-6):
            raise refused
        return Pair(timeline.makespan + self.update, self.placement, timeline)


def _candidates(problem: Problem) -> Iterator[_Candidate]:
    """A placement for every order of types and every cut."""
    gpus, layers = problem.cluster.gpus, problem.model.layers
    tables = [given(problem.costs.training_table(problem, [g])) for g in range(len(gpus))]
    sends, kind = in_training(problem), problem.model.spans.kind

    for n in range(1, min(len(gpus), layers) + 1):
        # of identical GPUs the first come first
        orders = {
            tuple(gpus[g].type for g in order): order
            for order in sorted(permutations(range(len(gpus)), n), reverse=True)
        }
        for order, inner in product(orders.values(), combinations(range(1, layers), n - 1)):
            ends = pairwise((0, *inner, layers))
            parts = [(g, low, high - low) for g, (low, high) in zip(order, ends, strict=True)]
            placement = Placement.of([(size, (g,)) for g, _, size in parts])
            stages = [
                TrainingCost(*tables[g][:, kind[low, size - 1]].tolist()) for g, low, size in parts
            ]
            costs = StageCosts(
                [stage.forward for stage in stages],
                [stage.backward_input for stage in stages],
                [stage.backward_weight for stage in stages],
                comm=hops(sends, placement, schedule("1F1B", n, 1)) or 0.0,
                activation=[stage.activation_gb for stage in stages],
                weight_activation=[stage.weight_activation_gb for stage in stages],
                unit="s",
            )
            room = [
                gpus[g].memory_gb - stage.state_gb - stage.working_gb
                for g, stage in zip(order, stages, strict=True)
            ]
            yield _Candidate(placement, stages, costs, room)


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


# Exercises


def _rooms(chance: random.Random) -> Given:
    """For how many microbatches of activations each GPU has room, and how many a step has."""
    p = chance.randint(1, 5)
    rooms = [chance.randint(1, p + 1) for _ in range(p)]
    return Given(rooms=rooms, m=chance.randint(1, 6))


def held_by_1f1b(given: Given) -> list[int]:
    """What 1F1B holds on each rank."""
    ranks = len(given.rooms)
    return [min(given.m, ranks - rank) for rank in range(ranks)]


def _first_that_fits(given: Given) -> list[int] | None:
    """By trying all orders; None where none fits."""
    needs = held_by_1f1b(given)
    for order in permutations(range(len(given.rooms))):
        if all(given.rooms[g] >= need for g, need in zip(order, needs, strict=True)):
            return list(order)
    return None


def _off_order(given: Given, order: Any) -> str:
    return gives(order, _why_not(given, order))


def _why_not(given: Given, order: Any) -> str:
    right, needs = _first_that_fits(given), held_by_1f1b(given)
    if order is None:
        return "" if right is None else "it says that no order fits, and one does"
    if not isinstance(order, list) or sorted(order) != list(range(len(needs))):
        return f"it is no order of the GPUs 0 to {len(needs) - 1}"
    for rank, (gpu, need) in enumerate(zip(order, needs, strict=True)):
        if given.rooms[gpu] < need:
            holds = f"rank {rank} holds {need} microbatches, and GPU {gpu} has room for"
            none = "; no order fits here" if right is None else ""
            return f"{holds} {given.rooms[gpu]}{none}"
    return ""


def _draw_order(failure: Failure) -> "Figure":
    given, order = failure.given, failure.answer
    right = _first_that_fits(given)
    if not isinstance(order, list) or sorted(order) != list(range(len(given.rooms))):
        order = right or list(range(len(given.rooms)))
    rows = []
    for rank, (gpu, need) in enumerate(zip(order, held_by_1f1b(given), strict=True)):
        blocks = [Block(1, colour_of(gpu), str(i)) for i in range(need)]
        room = given.rooms[gpu]
        rows.append(BlockRow(f"rank {rank}: GPU {gpu}", blocks, mark=room, wrong=room < need))
    wrong = sum(row.wrong for row in rows)
    text = f"1F1B does not fit on {wrong} of {len(rows)} ranks in this order"
    if not wrong:
        text = "In this order 1F1B fits on every rank"
    elif right is None:
        text = "1F1B fits in no order of these GPUs; this is one of them"
    return plot_rows(rows, text, "microbatches held", "the line is what the GPU has room for")


def _look_at_order(given: Given) -> str:
    if _first_that_fits(given) is None:
        return "here no order fits: return None"
    if given.m < len(given.rooms):
        return "a rank never holds more microbatches than there are"
    return "which rank holds most, and which GPU should it be?"


def _placements(chance: random.Random) -> Given:
    """Placements with a lower bound of the step, and the step that a simulation finds; some meet their bound."""
    n = chance.randint(1, 7)
    bounds = [chance.randint(10, 40) for _ in range(n)]
    steps = [bound + chance.choice((0, 0, 1, 3, 6, 12)) for bound in bounds]
    return Given(bounds=bounds, steps=steps)


def _simulated(given: Given, ends: Callable[[float, float], bool] = operator.ge) -> int:
    """How many until no bound is below the best step found, so until a bound `ends` the proof with that step."""
    best, number = math.inf, 0
    for bound, step in sorted(zip(given.bounds, given.steps, strict=True)):
        if ends(bound, best):
            break
        best, number = min(best, step), number + 1
    return number


def _until_met(given: Given) -> int:
    """As `_simulated`, but it goes on where a bound only equals the best step."""
    return _simulated(given, operator.gt)


def _look_at_placements(given: Given) -> str:
    if len(given.bounds) == 1:
        return "before the first simulation nothing is known"
    if given.bounds != sorted(given.bounds):
        return "in which order should placements be simulated, so that the first bound ends it?"
    if _until_met(given) != _simulated(given):
        return "here a bound equals the best step found; can that placement be shorter?"
    return "compare each bound with the best of all steps so far, not with its own"


EXERCISES: dict[str, Exercise] = {
    "18.1": Function(
        signature="order_of(rooms, m)",
        inputs=drawn(121, 150, _rooms, lambda given: (len(given.rooms), given.m)),
        target=_first_that_fits,
        off=_off_order,
        hint=_look_at_order,
        picture=_draw_order,
        half=lambda given, _: _first_that_fits(given) is None or given.m < len(given.rooms),
    ),
    "18.2": Function(
        signature="simulations(bounds, steps)",
        inputs=drawn(182, 200, _placements, lambda given: len(given.bounds)),
        target=_simulated,
        hint=_look_at_placements,
        half=lambda given, number: number == _until_met(given),
    ),
}
