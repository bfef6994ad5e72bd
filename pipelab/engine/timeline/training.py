"""A placement run as a training pipeline: forward and backward over its stages."""

from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

from pipelab.display import NO_FORMULAS, table
from pipelab.engine.schedules import schedule as make_schedule
from pipelab.engine.schedules.columns import columns_of
from pipelab.engine.timeline.costs import StageCosts
from pipelab.engine.timeline.event_times import simulate
from pipelab.engine.timeline.placed import refuse_transfers_per_second, stage_label
from pipelab.engine.timeline.timeline import Timeline
from pipelab.errors import InvalidValue
from pipelab.evaluation import Evaluation, evaluate
from pipelab.fields import real_number, whole_number
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
        Whose rules and rates count.
    placement : Placement
        What runs as a pipeline.
    evaluation : Evaluation
        The evaluated placement.
    timeline : Timeline
        In seconds; its ranks are the placement's stages. `pl.gantt` and every measure take it.

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

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Every rank in words, such as "stage 1: 20 layers on 2 × A100"."""
        return tuple(stage_label(self.evaluation, i) for i in range(len(self.placement)))

    @property
    def sentence(self) -> str:
        """The finding in words."""
        schedule = self.timeline.schedule
        return (
            f"{schedule.name} with {schedule.microbatches} microbatches trains {self.rate:,.6g} tokens/s, "
            f"{self.rate / self.bound:.0%} of what the busiest stage allows"
        )

    def to_frame(self) -> "DataFrame":
        """The ranks as a table, one row each.

        Returns
        -------
        pandas.DataFrame
            Columns `rank` (what it holds, in words), `forward_s` and `backward_s` of one
            microbatch, and `busy`, the share of the makespan that it works.
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
        return pd.DataFrame(
            {
                "rank": self.labels,
                "forward_s": forward,
                "backward_s": backward,
                "busy": timeline.busy / timeline.makespan,
            }
        )

    def __repr__(self) -> str:
        return f"<TrainingTimeline {self.problem.name}: {self.sentence}>"

    def _repr_html_(self) -> str:
        return (
            f"<p class='{NO_FORMULAS}'><b>{escape(self.problem.name)}:</b> {escape(self.sentence)}.</p>"
            + table(self.to_frame())
        )


def training_timeline(
    problem: Problem,
    placement: Placement | Result,
    microbatches: int | None = None,
    *,
    schedule: str = "1F1B",
    backward_input: float = 1.0,
    backward_weight: float = 1.0,
    weight_activation: float | None = None,
) -> TrainingTimeline:
    """Run one training step of a placement: forward and backward over its stages, simulated.

    Links are delays and carry any number of messages at a time, at the speed of their slower
    direction. Whether gradients and optimizer state fit in memory is not checked.

    Parameters
    ----------
    problem : Problem
        With a prefill workload, and with `link_units="tokens"`, unless there is no link.
    placement : Placement or Result
        A reader's own, or what `pl.solve` returned.
    microbatches : int, optional
        By default four for each stage.
    schedule : str
        Any name that `pl.schedule` knows. With several chunks per rank, every stage's work is cut
        into equal ones.
    backward_input, backward_weight : float
        As multiples of the forward. A matrix product y = xW has two products of the same size in
        its backward, one for the gradient of x and one for that of W: hence 1 and 1. Attention's
        own products have no weights, and recomputation would add one more forward: measured shares
        are better.
    weight_activation : float, optional
        Share of a microbatch's activations that its weight gradient still needs. Only the memory of
        a schedule with a split backward depends on it; see `pl.StageCosts`.

    Returns
    -------
    TrainingTimeline
        Times in seconds, rates in tokens/s.

    Raises
    ------
    InvalidPlacement
        The placement breaks a rule or does not fit; names stage, GPU, need and offer.
    InvalidValue
        Links are counted in transfers/s, there is no placement, the workload is not prefill, the
        schedule has no backward, or a number does not fit.
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
    phase = problem.workload.phase
    if phase != "prefill":
        expected = "expected 'prefill': training reads whole sequences"
        raise InvalidValue(what, [("problem.workload.phase", phase, expected)])
    microbatches = 4 * len(placement) if microbatches is None else microbatches
    microbatches = whole_number(what, "microbatches", microbatches)
    order = make_schedule(schedule, len(placement), microbatches)
    if columns_of(order).forward_only:
        expected = "expected a schedule with backwards, such as '1F1B'; without training=True, forwards run alone"
        raise InvalidValue(what, [("schedule", schedule, expected)])
    forward = [problem.workload.tokens / report.throughput for report in evaluation.stages]
    per_rank = StageCosts(
        forward,
        [_multiple("backward_input", backward_input) * time for time in forward],
        [_multiple("backward_weight", backward_weight) * time for time in forward],
        weight_activation=weight_activation,
        unit="s",
    )
    costs = replace(per_rank.cut_for(order), comm=_hops(_in_training(problem), placement, order))
    return TrainingTimeline(problem, placement, evaluation, simulate(order, costs))


def _multiple(field: str, value: Any) -> float:
    expected = "expected a multiple of the forward, at least 0"
    if real_number("timeline_of", field, value, expected) < 0:
        raise InvalidValue("timeline_of", [(field, value, expected)])
    return float(value)


def _in_training(problem: Problem) -> Problem:
    """With links that carry what stages send in training, where the cost model tells it from inference."""
    if hasattr(problem.costs, "for_training"):
        return replace(problem, costs=problem.costs.for_training())
    return problem


def _hops(problem: Problem, placement: Placement, order: Schedule) -> list[float]:
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
