"""The lab *A heuristic against the optimum*: which GPUs, in which order, with how many layers each."""

import random
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, cast

import numpy as np

from pipelab.cluster import GPU, Cluster
from pipelab.costs import LayerTimes
from pipelab.course.exercises import Exercise, Given
from pipelab.course.pictures import Block, BlockRow, colour_of, plot_rows
from pipelab.course.scored_labs import Lab, Try, problems
from pipelab.display import Figure
from pipelab.engine.answers import Result
from pipelab.engine.solving import solve
from pipelab.errors import shown
from pipelab.figures.theme import NEUTRAL_LIGHT
from pipelab.problem import Model, Problem, Workload

Stages = Sequence[tuple[int, int]]  # layers and GPU of each stage, in their order

_EXPECTS = "a list of (layers, GPU), one per stage"
_SHOWN = 20  # stages and links in a figure
_WORTH_IT = 2  # the optimum is at least so many times the baseline


def _cluster(chance: random.Random) -> Given | None:
    """Draw 26 to 40 GPUs of four or five types at six or eight sites, two at every step of a way.

    Links from a step to the next are mostly quick, few others are, and the last sites have the fastest
    GPUs. So who begins with the fastest GPU soon has nowhere to go, who leaves a site cannot come back,
    and of the two sites of a step one is left out: that more GPUs can be reached says little.
    """
    types = [
        (chance.randint(3, 5), chance.randint(8, 12)),
        (chance.randint(5, 8), chance.randint(6, 9)),
        (chance.randint(8, 12), chance.randint(4, 7)),
        (chance.randint(13, 18), chance.randint(3, 5)),
        (chance.randint(18, 26), chance.randint(2, 4)),
    ][: chance.randint(4, 5)]
    number, ways = chance.randint(26, 40), chance.randint(3, 4)
    sites = range(2 * ways)
    site = [chance.choice(sites) for _ in range(number)]
    gpus = [types[int(len(types) * chance.random() * (1 - 0.6 * (at // 2) / ways))] for at in site]
    ms = [[_between(chance, a, b) for b in sites] for a in sites]
    link = [[0 if i == j else ms[a][b] for j, b in enumerate(site)] for i, a in enumerate(site)]
    most = [layers for _, layers in gpus]
    given = Given(
        ms=[each for each, _ in gpus],
        most=most,
        link=link,
        layers=int(sum(most) * chance.uniform(0.5, 0.65)),
    )
    proven = _proven(given).status == "optimal"
    return given if proven and _best(given) >= _WORTH_IT * _baseline(given) else None


def _between(chance: random.Random, a: int, b: int) -> int:
    """Draw the milliseconds from a GPU at site a to one at site b; sites 0 and 1 are the first step."""
    if a == b:
        return chance.randint(2, 15) if chance.random() < 0.85 else chance.randint(40, 90)
    ahead = b // 2 - a // 2
    quick = 0.9 if ahead == 1 else 0.15 if ahead > 1 else 0.1
    return chance.randint(8, 25) if chance.random() < quick else chance.randint(100, 250)


def _problem(given: Given) -> Problem:
    """State the problem for the kit: a microbatch of 1,000 tokens, so that links take what is given."""
    model = Model("a model", given.layers, 1000, 1000, layer_weight_gb=1)
    ms, gpus = {}, []
    for time, most in zip(given.ms, given.most, strict=True):
        kind = f"{time} ms, {most} layers"
        ms[kind] = time
        gpus.append(GPU(kind, most))
    link = np.array(given.link) + np.eye(len(gpus))  # nothing is sent from a GPU to itself
    gb = 1000 * model.d_model * model.bytes_per_element / 1e9
    cluster = Cluster(tuple(gpus), 1000 * gb / link)
    return Problem(cluster, model, Workload(1000, 1), LayerTimes(ms), name="a lab")


@cache
def _proven(given: Given) -> Result:
    return solve(_problem(given), objective="rate")


@cache
def _best(given: Given) -> float:
    return cast(float, _proven(given).throughput) / 1000


def times(given: Given, stages: Stages) -> list[int]:
    """Milliseconds of every stage and of every link between two."""
    links = [given.link[a][b] for (_, a), (_, b) in pairwise(stages)]
    return [n * given.ms[gpu] for n, gpu in stages] + links


def _rate(given: Given, stages: Stages) -> float:
    return 1000 / max(times(given, stages))


@cache
def _baseline(given: Given) -> float:
    """The least stage time at which all GPUs together hold the model; they stand in the order given."""
    gpus = zip(given.ms, given.most, strict=True)
    steps = sorted({n * ms for ms, most in gpus for n in range(1, most + 1)})
    for step in steps:
        room = [min(n, step // ms) for ms, n in zip(given.ms, given.most, strict=True)]
        if sum(room) >= given.layers:
            break
    stages, left = [], given.layers
    for gpu, layers in enumerate(room):
        if min(layers, left):
            stages.append((min(layers, left), gpu))
            left -= stages[-1][0]
    return _rate(given, stages)


def _off(given: Given, stages: Any) -> str:
    why = _why_not(given, stages)
    return f"yours gives {shown(stages)}: {why}" if why else ""


def _why_not(given: Given, stages: Any) -> str:
    if not stages:
        return f"expected {_EXPECTS}"
    for layers, gpu in stages:
        if not (type(layers) is type(gpu) is int and 0 <= gpu < len(given.ms) and layers > 0):
            return (
                f"({layers!r}, {gpu!r}) is no stage: expected at least one layer, and a GPU from 0"
            )
        if layers > given.most[gpu]:
            return f"GPU {gpu} holds at most {given.most[gpu]} layers, not {layers}"
    used = [gpu for _, gpu in stages]
    twice = next((gpu for gpu in used if used.count(gpu) > 1), None)
    if twice is not None:
        return f"GPU {twice} has two stages"
    held = sum(layers for layers, _ in stages)
    return "" if held == given.layers else f"that is {held} of {given.layers} layers"


def _draw(tried: Try) -> Figure:
    """The longest of all stages and links, the slowest framed; where yours is not allowed, of the optimum."""
    given, stages = tried.given, tried.answer
    whose = "Yours"
    if tried.wrong:
        proven = cast(Any, _proven(given).placement).stages
        stages, whose = [(len(stage.layers), stage.gpus[0]) for stage in proven], "The optimum"
    slowest, rows = max(times(given, stages)), []
    for before, (layers, gpu) in zip([None, *stages], stages, strict=False):
        if before:
            ms = given.link[before[1]][gpu]
            rows.append((f"link {before[1]} → {gpu}", ms, NEUTRAL_LIGHT))
        rows.append((f"GPU {gpu}, {layers} layers", layers * given.ms[gpu], colour_of(0)))
    text = f"{whose} needs {slowest} ms per microbatch; {1000 / tried.best:g} are possible"
    shown = sorted(rows, key=lambda row: -row[1])[:_SHOWN]
    drawn = [
        BlockRow(name, [Block(ms, colour, f"{ms}")], framed=ms == slowest)
        for name, ms, colour in rows
        if (name, ms, colour) in shown
    ]
    note = f"framed: the slowest part; the {len(shown)} longest of {len(rows)} are shown"
    return plot_rows(drawn, text, "ms", note)


EXERCISES: dict[str, Exercise] = {
    "lab_placement": Lab(
        signature="my_placement(ms, most, link, layers)",
        inputs=problems(31, 10, _cluster),
        off=_off,
        expects=_EXPECTS,
        value=_rate,
        baseline=_baseline,
        best=_best,
        baseline_is="the least possible stage time, GPUs in the order listed",
        best_is="the proven optimum",
        measure="microbatches per second",
        size=lambda given: f"{len(given.ms)} GPUs, {given.layers} layers",
        hint=lambda given: (
            "is its slowest part a stage or a link? What would have to change for a faster one?"
        ),
        advice=(
            "guess a time t: which links are no slower than t, and how many layers may each GPU hold within t?",
            "at t a placement is a path along fast links whose GPUs hold enough layers together; search t by bisection",
            "a path that is stuck: begin at another GPU, or put a GPU between two neighbours of the path",
            "first the GPUs that hold the most layers within t; those that hold none are left out, or are they?",
            "a search that gives up at t proves nothing about t: try again from elsewhere, or at a smaller t",
            "a GPU can take the place of several: of all places on the path, where does that gain most layers?",
        ),
        drawn=_draw,
    ),
}
