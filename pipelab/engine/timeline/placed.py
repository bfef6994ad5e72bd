"""A placement run as an inference pipeline: its lanes, its steady rate, and how many in flight that takes."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import zip_longest
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipelab.display import NO_FORMULAS, counted, table
from pipelab.engine.timeline.costs import StageCosts
from pipelab.engine.timeline.timeline import Timeline
from pipelab.errors import InvalidPlacement, InvalidValue
from pipelab.evaluation import Evaluation, evaluate, tally
from pipelab.fields import given, instance, real_number, whole_number
from pipelab.placement import Placement
from pipelab.problem import Problem

if TYPE_CHECKING:
    from pandas import DataFrame

_MOST_POINTS = 40  # of a figure; more would only be slower to look at


class Lane(NamedTuple):
    """What works on one microbatch at a time: a stage, or the link between two stages."""

    name: str  # "stage 1", "link 1→2", as `Evaluation.bottlenecks` has them
    label: str  # "stage 1: 20 layers on 2 × A100"
    link: bool
    seconds: float  # for which one microbatch takes it up
    bottleneck: bool
    # seconds from there until the microbatch is handed on, with the next one already at work
    wait: float = 0.0


@dataclass(frozen=True, eq=False)
class PlacedTimeline:
    """A placement's pipeline in inference; made by `pl.timeline_of`. Times are in seconds, rates in tokens/s.

    Attributes
    ----------
    problem : Problem
        Its rules and rates count.
    placement : Placement
        What runs as a pipeline.
    evaluation : Evaluation
        The evaluated placement, with memory for `in_flight` or for as many as it holds.
    in_flight : int
        Most microbatches in the pipeline at any time.
    timeline : Timeline
        The simulated passes; its ranks are the lanes: stage 1, link 1→2, stage 2, …
    leaving : float
        Seconds from the end of the last lane to the moment a microbatch has left.

    Examples
    --------
    >>> import pipelab as pl
    >>> medium = pl.load_case("medium", link_units="tokens")
    >>> placed = pl.timeline_of(medium, pl.solve(medium, "aggregated"))
    >>> placed.in_flight_needed, round(placed.steady_rate, 3), round(placed.predicted_rate, 3)
    (9, 264.236, 264.236)
    """

    problem: Problem
    placement: Placement
    evaluation: Evaluation
    in_flight: int
    timeline: Timeline
    leaving: float = 0.0

    @property
    def microbatches(self) -> int:
        """Passes that `timeline` shows."""
        return self.timeline.schedule.microbatches

    @property
    def returns(self) -> bool:
        """Whether the microbatches go round (decode and mixed): each pass of one waits for its pass before."""
        return self.problem.workload.phase in ("decode", "mixed")

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """Stages and links in pipeline order, one for each rank of `timeline`."""
        costs = self.timeline.costs
        waits = [*costs.arrays(np.size(costs.forward), None)["comm"].tolist(), self.leaving]
        return lanes_of(self.evaluation, np.atleast_1d(costs.forward).tolist(), waits)

    @property
    def predicted_rate(self) -> float:
        """What a full pipeline yields (`Evaluation.rate`), in tokens/s: the rate of its slowest lane."""
        return self.evaluation.rate

    @property
    def fits(self) -> bool:
        """Whether memory holds `in_flight` microbatches on every stage."""
        return self.in_flight <= given(self.evaluation.in_flight)

    @cached_property
    def steady_rate(self) -> float:
        """Tokens/s of the full pipeline; filling and draining do not count.

        The tokens of `in_flight` microbatches over the time between two completions that lie so
        many apart (`pipelab.engine.timeline.placed.round_time`).
        """
        return self._rate(self.in_flight)

    def _rate(self, in_flight: int) -> float:
        return (
            in_flight
            * self.problem.workload.tokens
            / round_time(self.timeline.costs, in_flight, self.leaving)
        )

    @property
    def reaches_predicted_rate(self) -> bool:
        """Whether the steady rate equals the predicted rate to 1e-6."""
        return abs(self.steady_rate / self.predicted_rate - 1) <= 1e-6

    @property
    def latency_s(self) -> float:
        """From a microbatch's entry into an empty pipeline to its exit: every stage and link once, no waiting."""
        lanes = self.timeline.schedule.ranks
        return float(self.timeline.end.reshape(lanes, self.microbatches)[-1, 0]) + self.leaving

    @property
    def time_per_token_s(self) -> float | None:
        """From one token of a sequence to its next, waiting included; None in prefill, which writes none."""
        return (
            round_time(self.timeline.costs, self.in_flight, self.leaving) if self.returns else None
        )

    @cached_property
    def in_flight_needed(self) -> int:
        """The fewest microbatches in flight for which the steady rate equals the predicted rate to 1e-6."""
        return least_in_flight(
            self.timeline.costs, self.predicted_rate / self.problem.workload.tokens, self.leaving
        )

    def sweep(self, in_flight: Iterable[int] | None = None) -> "DataFrame":
        """The steady rate against microbatches in flight.

        Parameters
        ----------
        in_flight : iterable of int, optional
            By default from 1 to some more than are needed, and `in_flight`. Stages have the times
            that they have with `in_flight`.

        Returns
        -------
        pandas.DataFrame
            `in_flight`, `steady_rate_tokens_per_s`, `bound_tokens_per_s` (no more than the rate of
            the slowest lane, and no more than that many microbatches per latency), and `fits`:
            whether memory holds so many.

        Raises
        ------
        InvalidValue
            A number is no positive whole one.
        """
        import pandas as pd

        asked = self._counts() if in_flight is None else in_flight
        counts = [whole_number("sweep", "in_flight", count) for count in asked]
        alone = self.problem.workload.tokens / self.latency_s
        return pd.DataFrame(
            {
                "in_flight": counts,
                "steady_rate_tokens_per_s": [self._rate(count) for count in counts],
                "bound_tokens_per_s": [min(self.predicted_rate, count * alone) for count in counts],
                "fits": [
                    with_memory_for(self.problem, self.placement, count) is not None
                    for count in counts
                ],
            }
        )

    def _counts(self) -> list[int]:
        last = self.in_flight_needed + max(2, self.in_flight_needed // 4)
        every = -(-last // _MOST_POINTS)
        return sorted({1, *range(every, last + 1, every), self.in_flight_needed, self.in_flight})

    @property
    def sentence(self) -> str:
        """The finding in words."""
        several = "microbatches" if self.in_flight > 1 else "microbatch"
        rate = f"{self.in_flight} {several} in flight: {self.steady_rate:,.7g} tokens/s"
        if self.reaches_predicted_rate:
            text = f"{rate}, the rate of its slowest lane; {self.in_flight_needed} are needed for that."
        else:
            share = self.steady_rate / self.predicted_rate
            full = (
                f"the rate of {self.predicted_rate:,.7g}, which {self.in_flight_needed} would reach"
            )
            text = f"{rate}, {share:.1%} of {full}."
        if not self.fits:
            text += f" Memory does not hold {self.in_flight}."
        return text

    def to_frame(self) -> "DataFrame":
        """The lanes as a table, one row each.

        Returns
        -------
        pandas.DataFrame
            Columns `lane`, `seconds_per_microbatch`, `rate_tokens_per_s`, `busy_when_full` (share
            of the time it works once the pipeline is full) and `bottleneck`; where some lane hands
            a microbatch on later than it takes the next one, also `handed_on_after_seconds`.
        """
        import pandas as pd

        tokens = self.problem.workload.tokens
        frame = pd.DataFrame(
            {
                "lane": [lane.label for lane in self.lanes],
                "seconds_per_microbatch": [lane.seconds for lane in self.lanes],
                "rate_tokens_per_s": [tokens / lane.seconds for lane in self.lanes],
                "busy_when_full": [lane.seconds * self.steady_rate / tokens for lane in self.lanes],
                "bottleneck": ["◀" if lane.bottleneck else "" for lane in self.lanes],
            }
        )
        if any(lane.wait for lane in self.lanes):
            frame.insert(
                2, "handed_on_after_seconds", [lane.seconds + lane.wait for lane in self.lanes]
            )
        return frame

    def __repr__(self) -> str:
        return f"<PlacedTimeline {self.problem.name}: {self.sentence}>"

    def _repr_html_(self) -> str:
        return (
            f"<p class='{NO_FORMULAS}'><b>{escape(self.problem.name)}:</b> {escape(self.sentence)}</p>"
            + table(self.to_frame())
        )


def stage_label(evaluation: Evaluation, index: int) -> str:
    """A stage in words, such as "stage 1: 20 layers on 2 × A100"."""
    report = evaluation.stages[index]
    layers = len(report.stage.layers)
    return f"stage {index + 1}: {counted(layers, 'layer')} on {tally(report.gpu_types)}"


def lanes_of(
    evaluation: Evaluation, seconds: Iterable[float], waits: Iterable[float]
) -> tuple[Lane, ...]:
    """The lanes of an evaluated placement, with their times."""
    lanes = []
    for position, (each, wait) in enumerate(zip(seconds, waits, strict=True)):
        stage, link = divmod(position, 2)
        name = f"link {stage + 1}→{stage + 2}" if link else f"stage {stage + 1}"
        label = name if link else stage_label(evaluation, stage)
        lanes.append(Lane(name, label, bool(link), each, name in evaluation.bottlenecks, wait))
    return tuple(lanes)


def with_memory_for(problem: Problem, placement: Placement, number: int) -> Evaluation | None:
    """The evaluation with so many in flight; None where memory does not hold them."""
    try:
        return evaluate(problem.with_in_flight(number), placement)
    except InvalidPlacement:
        return None


def round_time(costs: StageCosts, in_flight: int, leaving: float = 0.0) -> float:
    """Return how long a full pipeline takes for `in_flight` completions, in the costs' unit.

    No shorter than the slowest lane works on them, and no shorter than one microbatch's traversal,
    after which the next may enter in its place; and as long as the longer of the two, as whatever
    leaves was delayed either by the slowest lane, which then never idles, or by nothing but its own
    traversal. `simulate_in_flight` shows the same.
    """
    return max(in_flight * float(np.max(costs.forward)), _traversal(costs, leaving))


def least_in_flight(
    costs: StageCosts, rate: float, leaving: float = 0.0, tolerance: float = 1e-6
) -> int:
    """Return the fewest microbatches in flight with which a full pipeline completes `rate` per unit of time.

    Little's law: the rate times the traversal.

    Raises
    ------
    InvalidValue
        The rate is beyond the slowest lane's.
    """
    slowest = float(np.max(costs.forward))
    if rate * slowest * (1 - tolerance) > 1:
        raise InvalidValue(
            "least_in_flight", [("rate", rate, f"expected at most {1 / slowest:.9g}")]
        )
    return max(1, ceil(rate * (1 - tolerance) * _traversal(costs, leaving)))


def _traversal(costs: StageCosts, leaving: float) -> float:
    """From the entry into an empty pipeline to the exit."""
    lanes = np.size(costs.forward)
    return float(np.sum(costs.forward) + np.sum(costs.arrays(lanes, None)["comm"])) + leaving


def inference_costs(problem: Problem, placement: Placement, tokens: float) -> StageCosts:
    """Forward times of a placement's stages and links, for microbatches of so many tokens.

    Every link is a stage of its own here: it carries one microbatch at a time, just as a stage
    computes one, and can therefore be the bottleneck. `comm` is how much longer a microbatch takes,
    while the next one may begin: a stage whose GPUs take turns (`costs.pass_time`) is free
    again before it has finished a microbatch. The last stage's is not in the costs, as nothing
    comes after it; `pl.timeline_of` and `seconds_per_pass` count it.

    Parameters
    ----------
    problem : Problem
        With `link_units="tokens"`, unless there is no link.
    placement : Placement
        Checked by `pl.evaluate`, whose rates are used.
    tokens : float
        Tokens of one microbatch, above 0.

    Returns
    -------
    StageCosts
        In seconds: stage 1, link 1→2, stage 2, …; `comm` from each of these to the next.

    Raises
    ------
    InvalidValue
        `tokens` is not positive, the problem counts links in transfers, which have no size in
        tokens, or an argument is not a problem or not a placement.
    InvalidPlacement
        The placement is not valid for this problem.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", link_units="tokens")
    >>> costs = pl.inference_costs(tiny, pl.Placement.of([(2, (0,)), (2, (2,))]), tokens=1000)
    >>> len(costs.forward)
    3
    >>> many = pl.simulate(pl.schedule("Inference", 3, 10_000), costs)
    >>> round(10_000 * 1000 / many.makespan, 1)  # tokens/s
    134.6
    """
    instance(
        "inference_costs", "problem", problem, Problem, "a Problem; load one with pl.load_case(...)"
    )
    instance(
        "inference_costs",
        "placement",
        placement,
        Placement,
        "a Placement, such as pl.solve(problem).placement",
    )
    if real_number("inference_costs", "tokens", tokens) <= 0:
        raise InvalidValue("inference_costs", [("tokens", tokens, "expected more than 0")])
    return lane_costs(evaluate(problem, placement), tokens, "inference_costs")[0]


def lane_costs(evaluation: Evaluation, tokens: float, what: str) -> tuple[StageCosts, float]:
    """The lanes' times, and how long after the end of the last lane a microbatch has left the pipeline."""
    refuse_transfers_per_second(evaluation, what)
    lanes = [
        lane
        for pair in zip_longest(evaluation.stages, evaluation.links)
        for lane in pair
        if lane is not None
    ]
    share = tokens / evaluation.tokens
    busy = [tokens / lane.throughput for lane in lanes]
    waits = [share * lane.seconds - time for lane, time in zip(lanes, busy, strict=True)]
    # Where a lane is busy for as long as a microbatch is on it, the difference is a rounding error.
    waits = [wait if wait > 1e-9 * time else 0.0 for wait, time in zip(waits, busy, strict=True)]
    *between, leaving = waits
    comm = tuple(between) if any(between) else 0.0
    return StageCosts(tuple(busy), comm=comm, unit="s"), leaving


def refuse_transfers_per_second(evaluation: Evaluation, what: str) -> None:
    """Raise `InvalidValue` if links are counted in transfers/s, which have no size in tokens."""
    if evaluation.links and evaluation.link_unit != "tokens":
        expected = (
            "expected 'tokens': the time of a message of so many tokens is not known from transfers/s; "
            "take dataclasses.replace(problem, link_units='tokens')"
        )
        raise InvalidValue(what, [("problem.link_units", evaluation.link_unit, expected)])
