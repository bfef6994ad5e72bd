"""Notebook 10, In flight: stages in time, how many microbatches a rate takes, and the best of those that fit."""

import random
from collections import Counter
from math import isclose

from pipelab.course.exercises import Exercise, Failure, Function, Given, drawn
from pipelab.course.pictures import SAME, bars_of, finish, plot_lines
from pipelab.display import Figure, counted, listed
from pipelab.engine.timeline.placement_timelines import PlacedTimeline
from pipelab.figures.theme import BOTTLENECK, NEUTRAL_LIGHT, colour_of_types, plain

# Stages in time, identical ones in one row


def plot_stage_groups(placed: "PlacedTimeline") -> Figure:
    """A bar for every kind of stage: GPU type, number of layers, and what a microbatch takes there.

    Parameters
    ----------
    placed : PlacedTimeline
        Made by `pl.timeline_of`, in inference.

    Returns
    -------
    plotly.graph_objects.Figure
        In milliseconds per microbatch; the slowest are framed. Links are one row, the slowest of
        them.

    Examples
    --------
    >>> import pipelab as pl
    >>> from pipelab import course
    >>> problem = course.three_sites()
    >>> figure = plot_stage_groups(pl.timeline_of(problem, pl.solve(problem)))
    >>> figure.layout.title.text.split("<br>")[0]
    '4 stages of 4 layers on L4 set the pace: 6,321.0 tokens/s'
    """
    stages = [lane for lane in placed.lanes if not lane.link]
    links = [1000 * lane.seconds for lane in placed.lanes if lane.link]
    groups = Counter[tuple[str, int, float]]()
    for report, lane in zip(placed.evaluation.stages, stages, strict=True):
        of = " + ".join(sorted(set(report.gpu_types)))
        groups[of, len(report.stage.layers), round(1000 * lane.seconds, 6)] += 1
    colours = colour_of_types(of for of, _, _ in groups)
    rows = [
        (f"{n} × {of}, {counted(layers, 'layer')}", ms, colours[of])
        for (of, layers, ms), n in groups.items()
    ]
    if links:
        rows.append((f"{counted(len(links), 'link')}, the slowest", max(links), NEUTRAL_LIGHT))
    slowest = max(ms for _, ms, _ in rows)
    frames = {"color": BOTTLENECK, "width": [3 * (ms * SAME >= slowest) for _, ms, _ in rows]}
    pace = [
        f"{counted(n, 'stage')} of {counted(layers, 'layer')} on {of}"
        for (of, layers, ms), n in groups.items()
        if ms * SAME >= slowest
    ] or ["a link"]
    one = len(pace) == 1 and (pace[0].startswith("1 ") or pace == ["a link"])
    figure = bars_of(
        [plain(name) for name, _, _ in rows],
        [ms for _, ms, _ in rows],
        [f"{ms:.3g} ms" for _, ms, _ in rows],
        "%{y}: %{x:.4g} ms per microbatch",
        marker={"color": [colour for *_, colour in rows], "line": frames},
    )
    rate = f"{placed.predicted_rate:,.1f} tokens/s"
    return finish(
        figure,
        f"{plain(listed(pace))} set{'s' * one} the pace: {rate}",
        "identical stages in one row; a frame marks what is slowest",
        height=150 + 34 * len(rows),
        x={"title": "ms per microbatch", "range": [0, 1.14 * slowest]},
    )


# Exercises


def _times(chance: random.Random) -> Given:
    """Of every stage and link, in the order in which a microbatch meets them."""
    return Given(times=[chance.randint(1, 12) for _ in range(chance.randint(1, 7))])


def _needed(given: Given) -> int:
    return -(-sum(given.times) // max(given.times))


def _draw_times(failure: Failure) -> Figure:
    given = failure.given
    needed = _needed(given)
    numbers = list(range(1, needed + 4))
    rates = [min(1 / max(given.times), n / sum(given.times)) for n in numbers]
    text = f"{needed} in flight reach what the slowest stage or link allows"
    axes = ("microbatches in flight", "microbatches per second")
    return plot_lines(numbers, {"rate": rates}, text, axes, (needed, rates[needed - 1]))


def _look_at_times(given: Given) -> str:
    if len(given.times) == 1:
        return "one stage is never without work if one microbatch is always there"
    if sum(given.times) % max(given.times) == 0:
        return "here the rate is reached exactly; is one more needed?"
    return (
        "what is the rate at most, how long is one microbatch on its way, and what does Little say?"
    )


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
    "10.1": Function(
        signature="in_flight(times)",
        inputs=drawn(101, 200, _times, lambda given: len(given.times)),
        target=_needed,
        hint=_look_at_times,
        picture=_draw_times,
        half=lambda given, n: _needed(given) - 1 <= n <= _needed(given),
    ),
    "10.2": Function(
        signature="best_rate(reads, each, promise, room)",
        inputs=drawn(172, 200, _promise, lambda given: (len(given.reads), given.room)),
        target=_best_rate,
        hint=_look_at_promise,
        half=lambda given, rate: isclose(rate, max(_rates(given, in_flight=False))),
    ),
}
