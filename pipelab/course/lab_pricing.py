"""The lab *Prices that prove*: a deployment, and dual prices that say how good any other can be."""

import math
import random
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import LinearConstraint, linprog, milp

from pipelab.course.exercises import Exercise, Given
from pipelab.course.pictures import Block, BlockRow, colour_of, plot_rows
from pipelab.course.scored_labs import Lab, Try, problems
from pipelab.display import Figure
from pipelab.errors import shown

Mix = tuple[int, ...]  # GPUs of each type in a pipeline

_WORTH_IT = 5.0  # the baseline's gap is larger by so many per cent
_NOTHING_MORE = 1e-9  # of a rate: the arithmetic of the LP


class Pipelines(NamedTuple):
    """What column generation ends with."""

    chosen: list[Mix]  # one for each pipeline
    prices: np.ndarray  # of a GPU of each type, in microbatches per second


def _types(chance: random.Random) -> Given | None:
    """Draw types of GPUs, how many there are of each, and a model that no single GPU holds."""
    number = chance.randint(3, 5)
    layers = chance.randint(16, 32)
    given = Given(
        gpus=[chance.randint(10, 60) for _ in range(number)],
        ms=[chance.randint(4, 25) for _ in range(number)],
        most=[chance.randint(2, layers // 2) for _ in range(number)],
        overhead=chance.randint(10, 60),
        layers=layers,
    )
    if len(_alone(given)) < number:
        return None
    return given if _baseline(given) >= _WORTH_IT + _best(given) else None


# What a pipeline and prices are worth


def _steps(given: Given) -> list[int]:
    """Return the times in ms that a stage can take, the shortest first."""
    kinds = zip(given.ms, given.most, strict=True)
    return sorted({given.overhead + n * ms for ms, most in kinds for n in range(1, most + 1)})


def _room(given: Given, step: int) -> list[int]:
    """Return how many layers a GPU of each type holds without taking longer than a step."""
    left = step - given.overhead
    return [max(0, min(most, left // ms)) for ms, most in zip(given.ms, given.most, strict=True)]


def rate(given: Given, mix: Sequence[int]) -> float:
    """Microbatches per second of a pipeline with these GPUs; 0 where they do not hold the model."""
    for step in _steps(given):
        if np.dot(_room(given, step), mix) >= given.layers:
            return 1000 / step
    return 0.0


def _cheapest(given: Given, prices: Sequence[float], step: int) -> tuple[float, Mix]:
    """Return the least price of GPUs that hold the model within a step, and these GPUs.

    A knapsack by dynamic programming over layers: `cost[n]` is the least price of holding the last n.
    """
    layers, none = given.layers, (0,) * len(given.gpus)
    cost, chosen = [0.0] + [math.inf] * layers, [none] * (layers + 1)
    for kind, (room, have) in enumerate(zip(_room(given, step), given.gpus, strict=True)):
        if not room:
            continue
        for _ in range(min(have, -(-layers // room))):
            for n in range(layers, 0, -1):
                before = max(0, n - room)
                if cost[before] + prices[kind] < cost[n]:
                    cost[n] = cost[before] + prices[kind]
                    mix = chosen[before]
                    chosen[n] = (*mix[:kind], mix[kind] + 1, *mix[kind + 1 :])
    return cost[layers], chosen[layers]


def bound(given: Given, prices: Sequence[float]) -> float:
    """Microbatches per second that no deployment exceeds, by these prices (Farley, 1990).

    All prices are raised by one factor until no pipeline yields more than its GPUs cost; then all
    pipelines together yield no more than all GPUs cost.
    """
    total, factor = float(np.dot(prices, given.gpus)), 0.0
    for step in _steps(given):
        cost, _ = _cheapest(given, prices, step)
        if cost <= 0:
            return math.inf
        factor = max(factor, 1000 / step / cost)
    return factor * total


def _gap(given: Given, answer: tuple[Sequence[Mix], Sequence[float]]) -> float:
    """Per cent by which the bound of the prices is above the rate of the pipelines."""
    pipelines, prices = answer
    return 100 * (bound(given, prices) / sum(rate(given, mix) for mix in pipelines) - 1)


# The baseline, and the best


def _alone(given: Given) -> list[Mix]:
    """Of every type that can hold the model alone, the pipeline with the highest rate per GPU."""
    found = []
    for kind, have in enumerate(given.gpus):
        mixes = [tuple(n * (kind == k) for k in range(len(given.gpus))) for n in range(1, have + 1)]
        best = max(mixes, key=lambda mix: rate(given, mix) / sum(mix))
        if rate(given, best):
            found.append(best)
    return found


def _prices(given: Given, columns: Sequence[Mix]) -> np.ndarray:
    """Return the dual prices of the master program over these columns."""
    rates = [rate(given, mix) for mix in columns]
    return -linprog(-np.array(rates), np.array(columns).T, given.gpus).ineqlin.marginals


def _whole(given: Given, columns: Sequence[Mix]) -> list[Mix]:
    """Return the best pipelines among these columns, in whole numbers."""
    x = milp(
        [-rate(given, mix) for mix in columns],
        constraints=LinearConstraint(np.array(columns).T, ub=given.gpus),
        integrality=np.ones(len(columns)),
        options={"mip_rel_gap": 0},
    ).x
    return [mix for mix, times in zip(columns, x, strict=True) for _ in range(round(times))]


@cache
def generated(given: Given) -> Pipelines:
    """Generate columns with exact pricing, then choose whole numbers of them."""
    columns = _alone(given)
    while True:
        prices = _prices(given, columns)
        priced = ((step, *_cheapest(given, prices.tolist(), step)) for step in _steps(given))
        gain, new = max((1000 / step - cost, mix) for step, cost, mix in priced)
        if gain <= _NOTHING_MORE * max(rate(given, mix) for mix in columns) or new in columns:
            return Pipelines(_whole(given, columns), prices)
        columns.append(new)


@cache
def _baseline(given: Given) -> float:
    """Return the gap without pricing: the same from the first columns alone, of one type each."""
    columns = _alone(given)
    return _gap(given, (_whole(given, columns), _prices(given, columns).tolist()))


@cache
def _best(given: Given) -> float:
    found = generated(given)
    return _gap(given, (found.chosen, found.prices.tolist()))


# What is said of an answer


def _off(given: Given, answer: Any) -> str:
    pipelines, prices = answer
    if not pipelines or any(len(mix) != len(given.gpus) for mix in pipelines):
        return (
            f"expected pipelines of {len(given.gpus)} numbers each, yours gives {shown(pipelines)}"
        )
    for mix in pipelines:
        if not all(type(n) is int and n >= 0 for n in mix):
            return f"{shown(mix)} is no pipeline: expected whole numbers of GPUs"
        if not rate(given, mix):
            return f"the GPUs {[*mix]} do not hold {given.layers} layers"
    for kind, (used, have) in enumerate(zip(np.sum(pipelines, axis=0), given.gpus, strict=True)):
        if used > have:
            return f"all pipelines together have {used} GPUs of type {kind}, and there are {have}"
    if len(prices) != len(given.gpus) or not all(math.isfinite(p) and p >= 0 for p in prices):
        return f"expected one price per type, at least 0; yours gives {shown(prices)}"
    if math.isinf(bound(given, prices)):
        return "at these prices a whole pipeline costs nothing, so they bound nothing"
    return ""


def _draw(tried: Try) -> Figure:
    """What the pipelines yield, and what the prices allow, beside the same of the best."""
    given, found = tried.given, generated(tried.given)
    pairs = {"best": (found.chosen, found.prices.tolist())}
    if not tried.wrong:
        pairs = {"yours": tried.answer, **pairs}
    rows = []
    for whose, (pipelines, prices) in pairs.items():
        yields, most = sum(rate(given, mix) for mix in pipelines), bound(given, prices)
        rows.append(BlockRow(f"{whose}: pipelines", [Block(yields, colour_of(0), f"{yields:.4g}")]))
        rows.append(BlockRow(f"{whose}: bound", [Block(most, colour_of(1), f"{most:.4g}")]))
    text = f"The baseline has a gap of {tried.baseline:.3g} %, exact pricing of {tried.best:.3g} %"
    if not tried.wrong:
        text = f"Yours has a gap of {tried.value:.3g} %, exact pricing of {tried.best:.3g} %"
    return plot_rows(rows, text, "microbatches per second")


EXERCISES: dict[str, Exercise] = {
    "lab_pricing": Lab(
        signature="my_deployment(gpus, ms, most, overhead, layers)",
        inputs=problems(111, 10, _types),
        off=_off,
        expects=(
            "(pipelines, prices): a list of pipelines, each the numbers of its GPUs of every type, "
            "and a list of one price per type"
        ),
        value=_gap,
        baseline=_baseline,
        best=_best,
        baseline_is="the best pipelines of one type each, and their prices",
        best_is="exact pricing",
        measure="gap in %",
        size=lambda given: (
            f"{sum(given.gpus)} GPUs of {len(given.gpus)} types, {given.layers} layers"
        ),
        hint=lambda given: "which of the two is off, the pipelines or the bound?",
        advice=(
            "start the master program with pipelines of one type each; scipy's `linprog` gives rates and dual prices",
            "pricing: for every time t that a stage can take, which GPUs hold the model within t at the least price?",
            "that is a knapsack: the least price of holding n layers, for n = 0, 1, …, adding one GPU after the other",
            "stop when no pipeline yields more than its GPUs cost; its prices are then the best that there are",
            "whole numbers: the same program over the columns that you have, with scipy's `milp`",
        ),
        drawn=_draw,
    ),
}
