"""From a placement to its pipeline in inference: the evaluated rates as costs, and as a timeline."""

from itertools import zip_longest
from typing import Any, Literal, overload

from pipelab.engine.timeline.costs import StageCosts
from pipelab.engine.timeline.placed import (
    PlacedTimeline,
    placed_timeline,
    refuse_transfers_per_second,
    with_memory_for,
)
from pipelab.engine.timeline.training import TrainingTimeline, training_timeline
from pipelab.errors import InvalidValue
from pipelab.evaluation import Evaluation, evaluate
from pipelab.fields import instance, real_number, true_or_false, whole_number
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.solving import Result, placement_in


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
    return _costs(evaluate(problem, placement), tokens, "inference_costs")[0]


def _costs(evaluation: Evaluation, tokens: float, what: str) -> tuple[StageCosts, float]:
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
    costs, leaving = _costs(evaluation, problem.workload.tokens, "timeline_of")
    return placed_timeline(problem, placement, evaluation, costs, leaving, microbatches, in_flight)
