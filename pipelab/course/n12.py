"""Notebook 12, Deployments and rent: GPUs to divide, a bound on deployments, the fewest dollars for a load."""

import random
from math import isclose

from pipelab.course.exercises import Exercise, Failure, Function, Given, drawn
from pipelab.course.pictures import plot_lines
from pipelab.display import Figure, counted


def _rates(chance: random.Random) -> Given:
    """The best rate of a pipeline of 1, 2, … identical GPUs, and how many GPUs there are."""
    rates, rate = [], 0
    for _ in range(chance.randint(1, 6)):
        rate += chance.choice((0, 1, 2, 4, 5, 9))  # a pipeline need not use every GPU
        rates.append(rate)
    return Given(rates=rates, gpus=chance.randint(2, 14))


def _sums(given: Given) -> list[int]:
    """The best sum of rates for 0, 1, 2, … GPUs."""
    best = [0]
    while len(best) <= given.gpus:
        ways = zip(given.rates, best[::-1], strict=False)
        best.append(max(best[-1], *(rate + rest for rate, rest in ways)))
    return best


def _best_sum(given: Given) -> int:
    return _sums(given)[-1]


def _greedy(given: Given) -> int:
    """The sum of rates if pipelines with the highest rate per GPU are taken first."""
    left, total = given.gpus, 0
    numbers = range(1, len(given.rates) + 1)
    for n in sorted(numbers, key=lambda n: -given.rates[n - 1] / n):
        total += left // n * given.rates[n - 1]
        left %= n
    return total


def _draw_identical(failure: Failure) -> Figure:
    given = failure.given
    numbers, best = list(range(given.gpus + 1)), _sums(given)
    alone = [0, *given.rates, *[given.rates[-1]] * given.gpus][: given.gpus + 1]
    text = f"{counted(given.gpus, 'GPU')}: {best[-1]} with several pipelines, {alone[-1]} with one"
    lines = {"several pipelines": best, "one pipeline": alone}
    at = (given.gpus, best[-1])
    return plot_lines(numbers, lines, text + failure.yours, ("GPUs", "rate"), at)


def _look_at_identical(given: Given) -> str:
    if given.gpus <= len(given.rates) and _best_sum(given) == given.rates[given.gpus - 1]:
        return "here one pipeline on all of them is best"
    return "take one pipeline of 1, 2, … GPUs out: what do the GPUs that are left yield at best?"


def _priced(chance: random.Random) -> Given | None:
    """Pipelines (GPUs of each type, rate), a price for each type, and how many GPUs there are."""
    types = chance.randint(1, 3)
    mixes = {tuple(chance.randint(0, 3) for _ in range(types)) for _ in range(6)}
    listed = [([*m], chance.randint(1, 4 * sum(m))) for m in sorted(mixes) if any(m)]
    prices, gpus = ([chance.randint(1, 6) for _ in range(types)] for _ in range(2))
    if len(listed) <= 2:
        return None
    number = chance.randint(3, len(listed))
    return Given(pipelines=listed[:number], prices=prices, gpus=gpus)


def _price(given: Given, numbers: tuple[int, ...]) -> int:
    return sum(price * number for price, number in zip(given.prices, numbers, strict=True))


def _factor(given: Given) -> float:
    """By which all prices may be multiplied so that no pipeline yields more than its GPUs cost."""
    return max(rate / _price(given, mix) for mix, rate in given.pipelines)


def _bounds(given: Given) -> list[float]:
    """What all GPUs cost if prices are scaled for one pipeline alone."""
    total = _price(given, given.gpus)
    return [rate / _price(given, mix) * total for mix, rate in given.pipelines]


def _bound(given: Given) -> float:
    return max(_bounds(given))


def _draw_priced(failure: Failure) -> Figure:
    given = failure.given
    numbers = list(range(1, len(given.pipelines) + 1))
    times = _factor(given)
    lines: dict[str, list[float]] = {
        "price of its GPUs": [times * _price(given, mix) for mix, _ in given.pipelines],
        "rate": [rate for _, rate in given.pipelines],
    }
    text = f"At {times:.4g} times the prices no pipeline beats its GPUs; all GPUs cost {_bound(given):.5g}"
    return plot_lines(numbers, lines, text + failure.yours, ("pipeline", "tokens/s"))


def _look_at_priced(given: Given) -> str:
    if _factor(given) < 1:
        return "no pipeline yields what its GPUs cost: by which factor can all prices fall?"
    if _factor(given) > 1:
        return "a pipeline yields more than its GPUs cost: by which factor must all prices rise?"
    return "the prices are right as they are: what do all GPUs cost?"


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


def _draw_offers(failure: Failure) -> Figure:
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


EXERCISES: dict[str, Exercise] = {
    "12.1": Function(
        signature="divided(rates, gpus)",
        inputs=drawn(111, 200, _rates, lambda given: (given.gpus, len(given.rates))),
        target=_best_sum,
        hint=_look_at_identical,
        picture=_draw_identical,
        half=lambda given, answer: _greedy(given) <= answer <= _best_sum(given),
    ),
    "12.2": Function(
        signature="at_most(pipelines, prices, gpus)",
        inputs=drawn(112, 200, _priced, lambda given: (len(given.gpus), len(given.pipelines))),
        target=_bound,
        hint=_look_at_priced,
        picture=_draw_priced,
        half=lambda given, answer: any(isclose(answer, bound) for bound in _bounds(given)),
    ),
    "12.3": Function(
        signature="fewest_dollars(pipelines, load)",
        inputs=drawn(171, 200, _offers, lambda given: (len(given.pipelines), given.load)),
        target=_fewest,
        hint=_look_at_offers,
        picture=_draw_offers,
        half=lambda given, answer: answer == _cheapest_only(given),
    ),
}
