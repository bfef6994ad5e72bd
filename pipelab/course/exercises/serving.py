"""Exercises of notebooks 09 and 10: what a layer waits for, a calibration, and what a user waits for."""

import math
import random
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from pipelab.course.exercises.puzzle import Failure, Puzzle
from pipelab.display import counted

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_INPUTS = 200
MEASURING = 0.1  # standard deviation of the logarithm of a measured time, as in the kit's fit


class Layer(NamedTuple):
    """What a layer reads per pass and per sequence, what it computes per sequence, and how fast."""

    weights: int
    cache: int
    flops: int
    bandwidth: int
    speed: int

    def __repr__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._asdict().items())


class Rows(NamedTuple):
    """Predicted and measured times, and how unsure the default is."""

    rows: tuple[tuple[float, float], ...]
    unsure: float

    def __repr__(self) -> str:
        return f"rows={list(self.rows)}, unsure={self.unsure:g}"


class Times(NamedTuple):
    """Of every stage and link, in the order in which a microbatch meets them."""

    times: tuple[int, ...]

    def __repr__(self) -> str:
        return f"times={list(self.times)}"


class Request(NamedTuple):
    """A pipeline's times for a prompt and for one token, the length of an answer, and the load."""

    prefill: tuple[int, ...]
    decode: tuple[int, ...]
    tokens: int
    m: int

    def __repr__(self) -> str:
        times = f"prefill={list(self.prefill)}, decode={list(self.decode)}"
        return f"{times}, tokens={self.tokens}, m={self.m}"


# 09.1: from how many sequences on a layer computes for longer than it reads


@cache
def _layers() -> tuple[Layer, ...]:
    chance, found = random.Random(91), set[Layer]()
    while len(found) < _INPUTS:
        weights, per_sequence = chance.randint(1, 60), chance.choice((0, 1, 1, 2, 4))
        flops, reading, computing = (chance.randint(1, 9) for _ in range(3))
        gain = flops * reading - per_sequence * computing
        if gain <= 0 or weights * computing % gain:  # a tie would be decided by rounding
            found.add(Layer(weights, per_sequence, flops, reading, computing))
    return tuple(sorted(found, key=lambda given: (given.weights + given.cache, given)))


def _crossing(given: Layer) -> float:
    """In whole numbers: b · flops · bandwidth ≥ (weights + b · cache) · speed."""
    gain = given.flops * given.bandwidth - given.cache * given.speed
    return max(1, -(-given.weights * given.speed // gain)) if gain > 0 else math.inf


def _draw_layer(failure: Failure) -> "Figure":
    from pipelab.course.figures.lines import plot_lines

    given: Layer = failure.given
    cross = _crossing(given)
    most = 12 if math.isinf(cross) else max(4, int(1.6 * cross))
    batches = sorted({1 + round(i * (most - 1) / 24) for i in range(25)})
    reading = [(given.weights + b * given.cache) / given.bandwidth for b in batches]
    lines = {"computing": [b * given.flops / given.speed for b in batches], "reading": reading}
    if math.isinf(cross):
        text = "Reading always takes longer than computing"
        return plot_lines(batches, lines, text, ("sequences", "seconds"))
    text = f"Computing takes at least as long as reading from {counted(int(cross), 'sequence')} on"
    at = (cross, cross * given.flops / given.speed)
    return plot_lines(batches, lines, text, ("sequences", "seconds"), at)


def _look_at_layer(given: Layer) -> str:
    if math.isinf(_crossing(given)):
        return "what does one more sequence add to reading, and what to computing?"
    if _crossing(given) == 1:
        return "there is no batch without a sequence: the least answer is 1"
    if given.cache:
        return "each sequence also brings `cache` bytes to read"
    return "a fraction of a sequence does not exist: which way do you round?"


# 09.2: a factor for all predictions


@cache
def _measurements() -> tuple[Rows, ...]:
    chance, found = random.Random(92), set[Rows]()
    while len(found) < _INPUTS:
        true = math.exp(chance.gauss(0, 0.3))
        rows = []
        for _ in range(chance.randint(1, 5)):
            predicted = chance.randint(1, 40)
            rows.append((predicted, round(predicted * true * math.exp(chance.gauss(0, 0.1)), 1)))
        if min(measured for _, measured in rows) > 0:
            found.add(Rows(tuple(rows), chance.choice((0.05, 0.15, 0.5))))
    return tuple(sorted(found, key=lambda given: (len(given.rows), given)))


def _factor(given: Rows) -> float:
    logs = [math.log(measured / predicted) for predicted, measured in given.rows]
    return math.exp(sum(logs) / MEASURING**2 / (len(logs) / MEASURING**2 + 1 / given.unsure**2))


def _draw_rows(failure: Failure) -> "Figure":
    from pipelab.course.figures.lines import plot_lines

    given: Rows = failure.given
    numbers = list(range(1, len(given.rows) + 1))
    ratios = [measured / predicted for predicted, measured in given.rows]
    lines = {"measured / predicted": ratios, "the factor": [_factor(given)] * len(numbers)}
    text = f"The factor {_factor(given):.4g} lies between 1 and the measured ratios"
    return plot_lines(numbers, lines, text, ("row", "times the prediction"))


def _look_at_rows(given: Rows) -> str:
    if len(given.rows) == 1:
        return "with ln x as the unknown this is a parabola; where is its lowest point?"
    return "what counts is the mean of logarithms, drawn towards 0 by the last term"


# 10.1: how many microbatches must be in flight


@cache
def _pipelines() -> tuple[Times, ...]:
    chance, found = random.Random(101), set[Times]()
    while len(found) < _INPUTS:
        found.add(Times(tuple(chance.randint(1, 12) for _ in range(chance.randint(1, 7)))))
    return tuple(sorted(found, key=lambda given: (len(given.times), given)))


def _needed(given: Times) -> int:
    return -(-sum(given.times) // max(given.times))


def _draw_times(failure: Failure) -> "Figure":
    from pipelab.course.figures.lines import plot_lines

    given: Times = failure.given
    needed = _needed(given)
    numbers = list(range(1, needed + 4))
    rates = [min(1 / max(given.times), n / sum(given.times)) for n in numbers]
    text = f"{needed} in flight reach what the slowest stage or link allows"
    axes = ("microbatches in flight", "microbatches per second")
    return plot_lines(numbers, {"rate": rates}, text, axes, (needed, rates[needed - 1]))


def _look_at_times(given: Times) -> str:
    if len(given.times) == 1:
        return "one stage is never without work if one microbatch is always there"
    if sum(given.times) % max(given.times) == 0:
        return "here the rate is reached exactly; is one more needed?"
    return (
        "what is the rate at most, how long is one microbatch on its way, and what does Little say?"
    )


# 10.2: how long an answer takes


@cache
def _requests() -> tuple[Request, ...]:
    chance, found = random.Random(102), set[Request]()
    while len(found) < _INPUTS:
        stages = chance.randint(1, 5)
        prefill, decode = (
            tuple(chance.randint(a, b) for _ in range(stages)) for a, b in ((5, 40), (1, 9))
        )
        found.add(Request(prefill, decode, chance.randint(1, 12), chance.randint(1, 8)))
    return tuple(sorted(found, key=lambda given: (len(given.decode), given.tokens, given)))


def _seconds(given: Request, tokens: int | None = None) -> float:
    each = max(sum(given.decode), given.m * max(given.decode))
    return sum(given.prefill) + ((tokens or given.tokens) - 1) * each


def _draw_request(failure: Failure) -> "Figure":
    from pipelab.course.figures.lines import plot_lines

    given: Request = failure.given
    numbers = list(range(1, given.tokens + 1))
    ends = [_seconds(given, n) for n in numbers]
    text = f"The first token is there after {ends[0]:g}, all {given.tokens} after {ends[-1]:g}"
    return plot_lines(numbers, {"time": ends}, text, ("token", "seconds"), (given.tokens, ends[-1]))


def _look_at_request(given: Request) -> str:
    if given.tokens == 1:
        return "the first token comes out of the prefill"
    if given.m * max(given.decode) > sum(given.decode):
        return "the slowest stage serves all microbatches in turn before this one is back"
    return "the first token comes out of the prefill; how many traversals of decode are left?"


SERVING: dict[str, Puzzle] = {
    "09.1": Puzzle(
        "crossing(weights, cache, flops, bandwidth, speed)",
        _layers,
        _crossing,
        _look_at_layer,
        apply=lambda mine, given: mine(*given),
        picture=_draw_layer,
    ),
    "09.2": Puzzle(
        "factor(rows, unsure)",
        _measurements,
        _factor,
        _look_at_rows,
        apply=lambda mine, given: mine(list(given.rows), given.unsure),
        picture=_draw_rows,
    ),
    "10.1": Puzzle(
        "in_flight(times)",
        _pipelines,
        _needed,
        _look_at_times,
        apply=lambda mine, given: mine(list(given.times)),
        picture=_draw_times,
    ),
    "10.2": Puzzle(
        "answer_seconds(prefill, decode, tokens, m)",
        _requests,
        _seconds,
        _look_at_request,
        apply=lambda mine, x: mine(list(x.prefill), list(x.decode), x.tokens, x.m),
        picture=_draw_request,
    ),
}  # fmt: skip
