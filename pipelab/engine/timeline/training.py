"""A placement run as a pipeline: one training step, forward and backward, or inference (`timeline_of`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

from pipelab.costs import MEMORY_SLACK, TrainingCost
from pipelab.display import NO_FORMULAS, table
from pipelab.engine.schedules import schedule as make_schedule
from pipelab.engine.schedules.columns import columns_of
from pipelab.engine.timeline.costs import StageCosts
from pipelab.engine.timeline.placed import (
    PlacedTimeline,
    lane_costs,
    refuse_transfers_per_second,
    stage_label,
    with_memory_for,
)
from pipelab.engine.timeline.timeline import Timeline, simulate, simulate_in_flight
from pipelab.errors import InvalidValue
from pipelab.evaluation import Evaluation, StageReport, evaluate
from pipelab.fields import given, is_list, real_number, true_or_false, whole_number
from pipelab.placement import Placement, Stage
from pipelab.problem import Problem
from pipelab.schedules import Schedule
from pipelab.solving import Result, placement_in

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, eq=False)
class TrainingTimeline:
    """One training step of a placement's pipeline; made by `pl.timeline_of(…, training=True)`.

    Attributes
    ----------
    problem : Problem
        Its rules and rates count.
    placement : Placement
        What runs as a pipeline.
    evaluation : Evaluation
        The evaluated placement.
    timeline : Timeline
        In seconds; its ranks are the placement's stages. `pl.gantt` and every measure take it. Its
        memory is in GB, where the cost model says what training keeps.
    stages : tuple of TrainingCost or None
        What each stage takes and keeps; None where the cost model does not say.
    recompute : tuple of str or None
        What each stage computes a second time: "none", "selective" or "full"; None as `stages`.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", link_units="tokens")
    >>> halves = pl.Placement.of([(2, (0,)), (2, (1,))])
    >>> step = pl.timeline_of(tiny, halves, microbatches=8, training=True)
    >>> step.timeline.schedule.name, round(step.rate, 1), round(step.bound, 1)
    ('1F1B', 63.3, 71.2)
    """

    problem: Problem
    placement: Placement
    evaluation: Evaluation
    timeline: Timeline
    stages: tuple[TrainingCost, ...] | None = None
    recompute: tuple[str, ...] | None = None

    @property
    def memory_gb(self) -> tuple[float, ...] | None:
        """What each rank's fullest GPU needs: state of its parameters, activations in flight.

        None where the cost model does not say.
        """
        if self.stages is None:
            return None
        peaks = self.timeline.peak_memory
        return tuple(
            s.state_gb + s.working_gb + peak for s, peak in zip(self.stages, peaks, strict=True)
        )

    @property
    def shortfall(self) -> str:
        """Which rank lacks memory, and how much, or cannot be cut into its chunks; empty where all fits.

        Memory is compared where the cost model says what training needs.
        """
        chunks = self.timeline.schedule.chunks
        uncut = [
            f"{label} is not {chunks} equal chunks"
            for label, stage in zip(self.labels, self.placement.stages, strict=True)
            if len(stage.layers) % chunks
        ]
        lacking = [
            f"{label} needs {need:.1f} GB of {limit:.1f}"
            for label, need, limit in zip(
                self.labels, self.memory_gb or (), self.limits_gb, strict=False
            )
            if need > limit * MEMORY_SLACK
        ]
        return "; ".join([*uncut, *lacking])

    @property
    def limits_gb(self) -> tuple[float, ...]:
        """What each rank's smallest GPU has."""
        return tuple(min(report.memory_limit_gb) for report in self.evaluation.stages)

    @property
    def rate(self) -> float:
        """Tokens/s of training: those of all microbatches over the time of one step."""
        return (
            self.timeline.schedule.microbatches
            * self.problem.workload.tokens
            / self.timeline.iteration_time
        )

    @property
    def bound(self) -> float:
        """Tokens/s if the busiest rank never idled: no schedule of these stages trains faster."""
        return (
            self.timeline.schedule.microbatches * self.problem.workload.tokens / self.timeline.ideal
        )

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization (`Roofline.mfu`); None where the cost model does not count FLOPs."""
        costs = self.problem.costs
        if not hasattr(costs, "mfu"):
            return None
        return float(costs.mfu(self.problem, self.placement, self.rate))

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Every rank in words, such as "stage 1: 20 layers on 2 × A100"."""
        return tuple(stage_label(self.evaluation, i) for i in range(len(self.placement)))

    @property
    def sentence(self) -> str:
        """The finding in words."""
        schedule = self.timeline.schedule
        used = "" if self.mfu is None else f" ({self.mfu:.0%} MFU)"
        return (
            f"{schedule.name} with {schedule.microbatches} microbatches trains {self.rate:,.6g} tokens/s{used}, "
            f"{self.rate / self.bound:.0%} of what the busiest stage allows"
        )

    def to_frame(self) -> "DataFrame":
        """The ranks as a table, one row each.

        Returns
        -------
        pandas.DataFrame
            Columns `stage` (what the rank holds, in words), `forward_s` and `backward_s` of one
            microbatch, and `busy`, the share of the makespan that it works. Where the cost model
            says what training keeps: `state_gb`, `activations_gb` at their peak,
            `memory_offered_gb`, what the GPU has, and what is computed a second time (`recompute`).
        """
        import pandas as pd

        timeline = self.timeline
        table_of, of_rank = timeline.costs.tables(timeline.schedule), timeline.columns.holder
        forward, backward = (
            [float(times[of_rank == rank].sum()) for rank in range(timeline.schedule.ranks)]
            for times in (
                table_of["forward"],
                table_of["backward_input"] + table_of["backward_weight"],
            )
        )
        columns = {
            "stage": self.labels,
            "forward_s": forward,
            "backward_s": backward,
            "busy": timeline.busy / timeline.makespan,
        }
        if self.stages is not None:
            columns["state_gb"] = [stage.state_gb for stage in self.stages]
            columns["activations_gb"] = [
                stage.working_gb + peak
                for stage, peak in zip(self.stages, timeline.peak_memory, strict=True)
            ]
            columns["memory_offered_gb"] = self.limits_gb
            columns["recompute"] = given(self.recompute)
        return pd.DataFrame(columns)

    def __repr__(self) -> str:
        return f"<TrainingTimeline {self.problem.name}: {self.sentence}>"

    def _repr_html_(self) -> str:
        return (
            f"<p class='{NO_FORMULAS}'><b>{escape(self.problem.name)}:</b> {escape(self.sentence)}.</p>"
            + (f"<p>It does not fit: {escape(self.shortfall)}.</p>" if self.shortfall else "")
            + table(self.to_frame())
        )


def training_timeline(
    problem: Problem,
    placement: Placement | Result,
    microbatches: int | None = None,
    *,
    schedule: str = "1F1B",
    backward_input: float | None = None,
    backward_weight: float | None = None,
    weight_activation: float | None = None,
    recompute: str | Sequence[str] | None = None,
    bytes_per_parameter: float | None = None,
) -> TrainingTimeline:
    """Run one training step of a placement: forward and backward over its stages, simulated.

    Messages between two ranks go one at a time, at the speed of the slower direction.
    With `Roofline` the times of both gradients, of the step at the end and what is kept in memory
    come from `Roofline.training_cost`. Other cost models give the forward alone. The placement must
    fit in memory for inference; for training, `TrainingTimeline.to_frame` shows what it needs.

    Parameters
    ----------
    problem : Problem
        With a workload of training or of prefill, and with `link_units="tokens"`, unless there is no link.
    placement : Placement or Result
        A reader's own, or what `pl.solve` returned.
    microbatches : int, optional
        By default the workload's where its phase is "training", else four for each stage.
    schedule : str
        Any name that `pl.schedule` knows. With several chunks per rank, every stage's work is cut
        into equal ones, embedding and head included; its layers should be a multiple.
    backward_input, backward_weight : float, optional
        As multiples of the forward, instead of what the cost model says; 1 and 1 where it says
        nothing. A matrix product y = xW has two products of the same size in its backward, one for
        the gradient of x and one for that of W.
    weight_activation : float, optional
        Share of a microbatch's activations that its weight gradient still needs. Only the memory of
        a schedule with a split backward depends on it; see `pl.StageCosts`.
    recompute : {"none", "selective", "full", "auto"} or a sequence of them, optional
        Which activations are computed a second time instead of kept, as for
        `Roofline.training_cost`; none by default. "auto": full on the stages that do not fit
        otherwise. Of a sequence, one for each stage.
    bytes_per_parameter : float, optional
        Of weights, gradients and the optimizer's state; by default 18, as Adam in mixed precision
        in Megatron, which adds gradients up in fp32 (`Engine.gradient_bytes`).

    Returns
    -------
    TrainingTimeline
        Times in seconds, rates in tokens/s, memory in GB.

    Raises
    ------
    InvalidPlacement
        The placement breaks a rule or does not fit; names stage, GPU, need and offer.
    InvalidValue
        Links are counted in transfers/s, there is no placement, the workload is of decode or mixed,
        the schedule has no backward, or a number does not fit.
    UnknownName
        There is no schedule of this name.
    TooLarge
        More than 5 million forwards, or one million in a V.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", link_units="tokens")
    >>> step = training_timeline(tiny, pl.Placement.of([(2, (0,)), (2, (1,))]), schedule="ZBH1")
    >>> print(step.sentence)
    ZBH1 with 8 microbatches trains 68.3264 tokens/s, 96% of what the busiest stage allows
    """
    what = "timeline_of"
    placement = placement_in(placement, what)
    evaluation = evaluate(problem, placement)
    refuse_transfers_per_second(evaluation, what)
    load = problem.workload
    if load.phase not in ("prefill", "training"):
        expected = "expected 'training', or 'prefill': training reads whole sequences"
        raise InvalidValue(what, [("problem.workload.phase", load.phase, expected)])
    if microbatches is None:
        microbatches = load.microbatches if load.phase == "training" else 4 * len(placement)
    microbatches = whole_number(what, "microbatches", microbatches)
    order = make_schedule(schedule, len(placement), microbatches)
    if columns_of(order).forward_only:
        expected = "expected a schedule with backwards, such as '1F1B'; without training=True, forwards run alone"
        raise InvalidValue(what, [("schedule", schedule, expected)])
    recipe = {} if bytes_per_parameter is None else {"bytes_per_parameter": bytes_per_parameter}
    found = stages_of(problem, evaluation, order, recompute, recipe)
    stages = None if found is None else tuple(cost for cost, _ in found)
    multiples = backward_input, backward_weight, weight_activation
    if stages is None:
        per_rank = by_multiples(evaluation, *multiples)
    else:
        per_rank = by_cost_model(stages, *multiples)
    costs = replace(per_rank.cut_for(order), comm=hops(in_training(problem), placement, order))
    timeline = simulate(order, costs, transfers="queued")
    how = None if found is None else tuple(mode for _, mode in found)
    return TrainingTimeline(problem, placement, evaluation, timeline, stages, how)


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
        reports, columns.held_counts, columns.held.tolist(), strict=True
    ):
        stored = cost(report, "none")
        fits = needed_gb(stored[0], held, parts) <= min(report.memory_limit_gb) * MEMORY_SLACK
        found.append(stored if fits else cost(report, "full"))
    return tuple(found)


def needed_gb(cost: TrainingCost, held: np.ndarray, chunks: int) -> float:
    """GB that a stage of so many chunks needs, on a rank whose order holds so much (`Columns.held_counts`)."""
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


@overload
def timeline_of(
    problem: Problem,
    placement: Placement | Result,
    microbatches: int | None = None,
    in_flight: int | None = None,
    *,
    training: Literal[False] = False,
) -> PlacedTimeline: ...
@overload
def timeline_of(
    problem: Problem,
    placement: Placement | Result,
    microbatches: int | None = None,
    *,
    training: Literal[True],
    **step: Any,
) -> TrainingTimeline: ...
def timeline_of(
    problem: Problem,
    placement: Placement | Result,
    microbatches: int | None = None,
    in_flight: int | None = None,
    *,
    training: bool = False,
    **step: Any,
) -> PlacedTimeline | TrainingTimeline:
    """Run a placement as an inference pipeline: its stage and link times as a schedule, simulated.

    Every stage and every link is a lane that works on one microbatch (the workload's batch) at a
    time. At most `in_flight` of them are in the pipeline: the next enters when one has left. In
    decode it is the same one that comes back for its next token, so that they go round in a closed
    loop; the token itself is assumed to reach the first stage in no time. A lane is busy for as
    long as its rate says; a stage whose GPUs take turns at whole sequences finishes a microbatch
    later than that, while the next one is already on it.

    Parameters
    ----------
    problem : Problem
        With `link_units="tokens"`, unless there is no link.
    placement : Placement or Result
        A reader's own, or what `pl.solve` returned.
    microbatches : int, optional
        How many to show: by default three times as many as are in flight.
    in_flight : int, optional
        By default the number with which the placement attains its rate (`Evaluation.in_flight`).
        Of more than memory holds, the sentence says so; stages then have the times they have with
        what it holds.
    training : bool
        Run one training step instead, forward and backward: see `training_timeline`. So it does
        wherever the workload's phase is "training".
    **step
        Options of a training step, such as `schedule="ZBH1"`.

    Returns
    -------
    PlacedTimeline, or TrainingTimeline
        Times in seconds, rates in tokens/s.

    Raises
    ------
    InvalidPlacement
        The placement breaks a rule or does not fit; names stage, GPU, need and offer.
    InvalidValue
        Links are counted in transfers/s, there is no placement, or a count is not a whole number of
        at least 1.
    TooLarge
        More than 5 million forwards.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", link_units="tokens")
    >>> placed = pl.timeline_of(tiny, pl.Placement.of([(2, (0,)), (2, (2,))]))
    >>> placed.in_flight_needed, round(placed.steady_rate, 3), round(placed.predicted_rate, 3)
    (2, 134.616, 134.616)
    >>> print(pl.timeline_of(tiny, placed.placement, in_flight=1).sentence)
    1 microbatch in flight: 82.5629 tokens/s, 61.3% of the rate of 134.616, which 2 would reach.
    """
    trains = isinstance(problem, Problem) and problem.workload.phase == "training"
    if true_or_false("timeline_of", "training", training) or trains:
        if in_flight is not None:
            expected = "expected None: a training step holds what its schedule says"
            raise InvalidValue("timeline_of", [("in_flight", in_flight, expected)])
        return training_timeline(problem, placement, microbatches, **step)
    if step:
        expected = "expected training=True: it is an option of a training step"
        raise InvalidValue("timeline_of", [(name, value, expected) for name, value in step.items()])
    placement = placement_in(placement, "timeline_of")
    evaluation = evaluate(problem, placement)
    if in_flight is not None:
        in_flight = whole_number("timeline_of", "in_flight", in_flight)
        evaluation = with_memory_for(problem, placement, in_flight) or evaluation
    costs, leaving = lane_costs(evaluation, problem.workload.tokens, "timeline_of")
    if in_flight is None:
        in_flight = given(evaluation.in_flight)
    if microbatches is None:
        microbatches = 3 * in_flight
    microbatches = whole_number("timeline_of", "microbatches", microbatches)
    timeline = simulate_in_flight(costs, microbatches, in_flight, leaving)
    return PlacedTimeline(problem, placement, evaluation, in_flight, timeline, leaving)
