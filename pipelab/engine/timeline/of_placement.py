"""From a placement to its pipeline: what the judge says of stages and links as costs, and as a timeline."""

from itertools import zip_longest
from numbers import Real
from typing import Any, Literal, overload

from pipelab.engine.timeline.costs import StageCosts
from pipelab.engine.timeline.placed import PlacedTimeline, placed_timeline
from pipelab.engine.timeline.training import TrainingTimeline, training_timeline
from pipelab.errors import InvalidValue
from pipelab.evaluation import Evaluation, evaluate
from pipelab.fields import instance, real_number, true_or_false
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.solving import Result, placement_in

__all__ = ["inference_costs", "timeline_of"]


def inference_costs(problem: Problem, placement: Placement, tokens: float) -> StageCosts:
    """Forward times of a placement's stages and links, for microbatches of so many tokens.

    Every link is a stage of its own here: it carries one microbatch at a time, just as a stage
    computes one, and can therefore be the bottleneck. `comm` is what a microbatch waits besides,
    while the next one may begin: a stage whose GPUs take turns (`pipelab.costs`) is through
    with it later than it is free. Of the last stage that is not in here, as nothing comes after it;
    `pl.timeline_of` and `seconds_per_pass` count it.

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
        tokens, or what is given is no problem or no placement.
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


def _costs(judged: Evaluation, tokens: float, what: str) -> tuple[StageCosts, float]:
    """The lanes' times, and what passes between the end of the last lane and the moment a microbatch has left."""
    if judged.links and judged.link_unit != "tokens":
        expected = (
            "expected 'tokens': the time of a message of so many tokens is not known from transfers/s; "
            "take dataclasses.replace(problem, link_units='tokens')"
        )
        raise InvalidValue(what, [("problem.link_units", judged.link_unit, expected)])
    lanes = [
        lane
        for pair in zip_longest(judged.stages, judged.links)
        for lane in pair
        if lane is not None
    ]
    share = tokens / judged.tokens
    times = [tokens / lane.throughput for lane in lanes]
    waits = [share * lane.seconds - time for lane, time in zip(lanes, times, strict=True)]
    # Where a pass takes what the rate says, the difference is a rounding error.
    waits = [wait if wait > 1e-9 * time else 0.0 for wait, time in zip(waits, times, strict=True)]
    return StageCosts(
        tuple(times), comm=tuple(waits[:-1]) if any(waits[:-1]) else 0.0, unit="s"
    ), waits[-1]


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
    in_flight: int | None = None,
    *,
    training: bool,
    schedule: str | None = None,
    backward_input: float = 1.0,
    backward_weight: float = 1.0,
    weight_activation: float | None = None,
) -> PlacedTimeline | TrainingTimeline: ...
def timeline_of(
    problem: Problem,
    placement: Placement | Result,
    microbatches: int | None = None,
    in_flight: int | None = None,
    *,
    training: bool = False,
    schedule: str | None = None,
    backward_input: float = 1.0,
    backward_weight: float = 1.0,
    weight_activation: float | None = None,
) -> PlacedTimeline | TrainingTimeline:
    """Run a placement as a pipeline: its stage and link times as a schedule, simulated.

    In inference every stage and every link is a lane that works on one microbatch (the workload's
    batch) at a time. At most `in_flight` of them are in the pipeline: the next enters when one has
    left. In decode it is the same one that comes back for its next token, so that they go round in
    a closed loop; the token itself is taken to reach the first stage in no time. A lane is taken
    for as long as its rate says; a stage whose GPUs take turns at whole sequences hands on later
    than that, while the next microbatch is already on it.

    Parameters
    ----------
    problem : Problem
        With `link_units="tokens"`, unless there is no link.
    placement : Placement or Result
        A reader's own, or what `pl.solve` returned.
    microbatches : int, optional
        Passes to show: by default three times as many as are in flight, in training four for each
        stage.
    in_flight : int, optional
        By default as many as it takes to reach what `pl.evaluate` promises. Memory is judged for
        `Workload.in_flight`, whatever stands here.
    training : bool
        One training step instead: forward and backward over the stages. Links are delays there and
        carry any number of messages at a time, at the speed of their slower direction. Whether
        gradients and optimizer state fit in memory is not asked.
    schedule : str, optional
        Of training: any name that `pl.schedule` knows, "1F1B" by default. With several chunks per
        rank, every stage's work is cut into equal ones.
    backward_input, backward_weight : float
        Of training, as multiples of the forward. A matrix product y = xW has two products of the
        same size in its backward, one for the gradient of x and one for that of W: hence 1 and 1.
        Attention's own products have no weights, and recomputation would add one more forward:
        measured shares are better.
    weight_activation : float, optional
        Of training: share of a microbatch's activations that its weight gradient still needs. Only
        the memory of a schedule with a split backward asks for it; see `pl.StageCosts`.

    Returns
    -------
    PlacedTimeline or TrainingTimeline
        The latter with `training`. Times in seconds, rates in tokens/s.

    Raises
    ------
    InvalidPlacement
        The placement breaks a rule or does not fit; names stage, GPU, need and offer.
    InvalidValue
        Links counted in transfers/s, no placement, a count that is none, or an option of the other
        kind of timeline.
    UnknownName
        There is no schedule of this name.
    TooLarge
        More than 5 million forwards, or one million in a V.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", link_units="tokens")
    >>> placed = pl.timeline_of(tiny, pl.Placement.of([(2, (0,)), (2, (2,))]))
    >>> placed.in_flight_needed, round(placed.steady_rate, 3), round(placed.promise, 3)
    (2, 134.616, 134.616)
    >>> print(pl.timeline_of(tiny, placed.placement, in_flight=1).sentence)
    1 microbatch in flight: 82.5629 tokens/s, 61.3% of the promised 134.616, which 2 would reach.
    """
    placement = placement_in(placement, "timeline_of")
    training = true_or_false("timeline_of", "training", training)
    _refuse_mixture(
        training, in_flight, schedule, (backward_input, backward_weight), weight_activation
    )
    judged = evaluate(problem, placement)
    costs, leaving = _costs(judged, problem.workload.tokens, "timeline_of")
    if training:
        options = (
            "1F1B" if schedule is None else schedule,
            microbatches,
            backward_input,
            backward_weight,
        )
        return training_timeline(problem, placement, judged, *options, weight_activation)
    return placed_timeline(problem, placement, judged, costs, leaving, microbatches, in_flight)


def _refuse_mixture(
    training: bool, in_flight: int | None, schedule: Any, backward: Any, kept: Any
) -> None:
    """An option that would be ignored is a misunderstanding."""
    if training and in_flight is not None:
        expected = (
            "expected None with training=True: there the schedule decides how many are in flight"
        )
        raise InvalidValue("timeline_of", [("in_flight", in_flight, expected)])
    if not training and schedule is not None:
        expected = "expected None: inference runs forward alone; training=True takes a schedule"
        raise InvalidValue("timeline_of", [("schedule", schedule, expected)])
    if not training and not all(isinstance(b, Real) and b == 1.0 for b in backward):
        expected = "expected the default: inference runs forward alone; training=True has backwards"
        raise InvalidValue("timeline_of", [("backward_input, backward_weight", backward, expected)])
    if not training and kept is not None:
        expected = "expected None: inference runs forward alone; training=True has weight gradients"
        raise InvalidValue("timeline_of", [("weight_activation", kept, expected)])
