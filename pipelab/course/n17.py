"""Notebook 17, What to rent: the fewest dollars for a load, and the best rate that keeps a promise."""

import random
from math import isclose
from typing import TYPE_CHECKING

from pipelab.course.exercises import Exercise, Failure, Function, Given, drawn
from pipelab.course.pictures import plot_lines
from pipelab.display import counted

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def _offers(chance: random.Random) -> Given:
    """Pipelines on offer, each with its dollars and its rate, and a load."""
    pipelines = {(chance.randint(1, 9), chance.randint(1, 12)) for _ in range(chance.randint(1, 4))}
    listed = [[*each] for each in sorted(pipelines)]
    return Given(pipelines=listed, load=chance.randint(1, 30))


def _dollars(given: Given) -> list[int]:
    """The fewest for every load from 0 on."""
    fewest = [0]
    for load in range(1, given.load + 1):
        fewest.append(min(price + fewest[max(0, load - rate)] for price, rate in given.pipelines))
    return fewest


def _fewest(given: Given) -> int:
    return _dollars(given)[-1]


def _cheapest_only(given: Given) -> int:
    """What copies of one pipeline cost, that with the fewest dollars per token."""
    price, rate = min(given.pipelines, key=lambda pipeline: (pipeline[0] / pipeline[1], pipeline))
    return -(-given.load // rate) * price


def _draw_offers(failure: Failure) -> "Figure":
    given = failure.given
    loads, fewest = list(range(given.load + 1)), _dollars(given)
    text = f"A load of {given.load} costs {fewest[-1]}"
    axes = ("load", "dollars")
    at = (given.load, fewest[-1])
    figure = plot_lines(loads, {"fewest dollars": fewest}, text + failure.yours, axes, at)
    return figure.update_traces(line_shape="vh", selector=0)


def _look_at_offers(given: Given) -> str:
    if len(given.pipelines) == 1:
        return "with one sort of pipeline, how many copies are needed?"
    if _fewest(given) < _cheapest_only(given):
        return "the last copy of the pipeline with the cheapest tokens is half empty here"
    return "take one pipeline out: which load is left, and what does it cost?"


def _promise(chance: random.Random) -> Given:
    """Stages, whose time grows with the sequences in a microbatch; a promise, and room for sequences."""
    stages = chance.randint(1, 4)
    reads, each = ([chance.randint(a, b) for _ in range(stages)] for a, b in ((1, 8), (1, 3)))
    promise, room = chance.randint(4, 60), chance.randint(1, 16)
    return Given(reads=reads, each=each, promise=promise, room=room)


def _rates(given: Given, *, in_flight: bool = True) -> list[float]:
    """The rates of all microbatches and numbers in flight that fit and keep the promise; and 0."""
    rates = [0.0]
    for batch in range(1, given.room + 1):
        times = [read + batch * more for read, more in zip(given.reads, given.each, strict=True)]
        for number in range(1, (given.room // batch if in_flight else 1) + 1):
            seconds = max(sum(times), number * max(times))
            if seconds <= given.promise:
                rates.append(number * batch / seconds)
    return rates


def _best_rate(given: Given) -> float:
    return max(_rates(given))


def _look_at_promise(given: Given) -> str:
    if _best_rate(given) == 0:
        return "not even one sequence alone has its token in time: the rate is 0"
    if _best_rate(given) > max(_rates(given, in_flight=False)):
        return "more than one microbatch in flight is best here; all of them share the room"
    return f"here one microbatch in flight is best; how many of {counted(given.room, 'sequence')} are in it?"


EXERCISES: dict[str, Exercise] = {
    "17.1": Function(
        signature="fewest_dollars(pipelines, load)",
        inputs=drawn(171, 200, _offers, lambda given: (len(given.pipelines), given.load)),
        target=_fewest,
        hint=_look_at_offers,
        picture=_draw_offers,
        half=lambda given, answer: answer == _cheapest_only(given),
    ),
    "17.2": Function(
        signature="best_rate(reads, each, promise, room)",
        inputs=drawn(172, 200, _promise, lambda given: (len(given.reads), given.room)),
        target=_best_rate,
        hint=_look_at_promise,
        half=lambda given, rate: isclose(rate, max(_rates(given, in_flight=False))),
    ),
}
