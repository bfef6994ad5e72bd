"""What the stages of a placement take and keep in training, and what they send each other."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from pipelab.costs import MEMORY_SLACK, TrainingCost
from pipelab.engine.schedules.columns import columns_of
from pipelab.engine.timeline.activation_memory import held_counts
from pipelab.engine.timeline.costs import StageCosts
from pipelab.errors import InvalidValue
from pipelab.evaluation import Evaluation, StageReport
from pipelab.fields import is_list, real_number
from pipelab.placement import Placement, Stage
from pipelab.problem import Problem
from pipelab.schedules import Schedule


def stages_of(
    problem: Problem,
    evaluation: Evaluation,
    order: Schedule,
    recompute: str | Sequence[str] | None,
    recipe: Mapping[str, Any],
) -> tuple[tuple[TrainingCost, str], ...] | None:
    """What each stage takes and keeps, and what it recomputes; None where the cost model does not say.

    Raises
    ------
    InvalidValue
        `recompute` or `recipe` is given and the cost model knows none, or does not take it.
    """
    if not hasattr(problem.costs, "training_cost"):
        stated = recipe if recompute is None else {"recompute": recompute, **recipe}
        if stated:
            name = next(iter(stated))
            expected = "expected a cost model that knows what training keeps, such as Roofline"
            raise InvalidValue("timeline_of", [(name, stated[name], expected)])
        return None

    def cost(report: StageReport, how: str) -> tuple[TrainingCost, str]:
        more = recipe if how == "none" else {"recompute": how, **recipe}
        return problem.costs.training_cost(problem, report, **more), how

    reports = evaluation.stages
    if is_list(recompute):
        each = list(recompute or ())
        if len(each) != len(reports):
            expected = f"expected one for each of {len(reports)} stages, or one for all"
            raise InvalidValue("timeline_of", [("recompute", recompute, expected)])
        return tuple(cost(report, how) for report, how in zip(reports, each, strict=True))
    if recompute != "auto":
        how = cast(str, recompute or "none")
        return tuple(cost(report, how) for report in reports)
    columns = columns_of(order)
    found = []
    for report, held, parts in zip(
        reports, held_counts(columns), columns.held.tolist(), strict=True
    ):
        stored = cost(report, "none")
        fits = needed_gb(stored[0], held, parts) <= min(report.memory_limit_gb) * MEMORY_SLACK
        found.append(stored if fits else cost(report, "full"))
    return tuple(found)


def needed_gb(cost: TrainingCost, held: np.ndarray, chunks: int) -> float:
    """GB that a stage of so many chunks needs, on a rank whose order holds so much (`held_counts`)."""
    kept = np.array([cost.activation_gb, cost.weight_activation_gb]) / chunks
    return float(cost.state_gb + cost.working_gb + (held @ kept).max(initial=0.0))


def by_cost_model(
    stages: tuple[TrainingCost, ...],
    backward_input: float | None,
    backward_weight: float | None,
    weight_activation: float | None,
) -> StageCosts:
    """Seconds and gigabytes of every rank, as the cost model has them but for what the user states."""
    forward, back, weight, step, _, held, kept, _ = map(list, zip(*stages, strict=True))
    if backward_input is not None:
        back = [_multiple("backward_input", backward_input) * time for time in forward]
    if backward_weight is not None:
        weight = [_multiple("backward_weight", backward_weight) * time for time in forward]
    if weight_activation is not None:
        kept = [_multiple("weight_activation", weight_activation) * gb for gb in held]
    return StageCosts(
        forward,
        back,
        weight,
        activation=held,
        weight_activation=kept,
        optimizer=max(step),
        unit="s",
    )


def by_multiples(
    evaluation: Evaluation,
    backward_input: float | None,
    backward_weight: float | None,
    weight_activation: float | None,
) -> StageCosts:
    """The forward as the cost model has it for whole sequences, and backwards as multiples of it."""
    forward = [report.seconds for report in evaluation.stages]
    back = 1.0 if backward_input is None else _multiple("backward_input", backward_input)
    weight = 1.0 if backward_weight is None else _multiple("backward_weight", backward_weight)
    return StageCosts(
        forward,
        [back * time for time in forward],
        [weight * time for time in forward],
        weight_activation=weight_activation,
        unit="s",
    )


def _multiple(field: str, value: Any) -> float:
    expected = "expected a multiple of the forward, at least 0"
    if real_number("timeline_of", field, value, expected) < 0:
        raise InvalidValue("timeline_of", [(field, value, expected)])
    return float(value)


def in_training(problem: Problem) -> Problem:
    """With links that carry what stages send in training, where the cost model tells it from inference."""
    if hasattr(problem.costs, "for_training"):
        return replace(problem, costs=problem.costs.for_training())
    return problem


def hops(problem: Problem, placement: Placement, order: Schedule) -> list[float]:
    """Seconds of the message between each stage of the schedule and the next; 0 within a rank."""
    at, stages = order.stage_rank, placement.stages
    # A stage's link to itself is left out: a GPU's bandwidth to itself may be any number.
    return [
        0.0 if at[s] == at[s + 1] else _hop(problem, stages[at[s]], stages[at[s + 1]])
        for s in range(order.stages - 1)
    ]


def _hop(problem: Problem, one: Stage, other: Stage) -> float:
    """Activations go forward, gradients of the same size back: the slowest pair of GPUs in each direction."""
    pairs = [pair for i in one.gpus for j in other.gpus for pair in ((i, j), (j, i))]
    cluster = problem.cluster
    return max(
        float(
            problem.message_seconds(
                cluster.bandwidth_between(*pair), cluster.latency_between(*pair)
            )
        )
        for pair in pairs
    )
