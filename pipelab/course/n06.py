"""Notebook 06, Taming the explosion: counting in pictures, a certificate to check, and run times."""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate
from math import isclose
from typing import cast

from pipelab.cluster import Cluster
from pipelab.counting import rates_of_mixes
from pipelab.course.exercises import Exercise, Failure, Function, Given, Number, drawn
from pipelab.course.n00 import GPUS, three_sites
from pipelab.course.pictures import SAME, Block, BlockRow, colour_of, finish, plot_rows
from pipelab.display import Figure, counted, number
from pipelab.engine.solving import solve
from pipelab.figures.theme import BOTTLENECK, WRONG, colour_of_types, ink_on, new_figure, plain
from pipelab.problem import Model, Problem

# The problem


ONE_NETWORK = 10 / 8  # GB/s


def one_network(max_gpus_per_stage: int = 1, counts: Sequence[int] = (3, 4, 4)) -> Problem:
    """Make the problem of 00 without all that gives a stage its place in the pipeline.

    Parameters
    ----------
    max_gpus_per_stage : int
        As in `Problem`.
    counts : sequence of int
        How many A100-40, L4 and T4.

    Returns
    -------
    Problem
        With neither embedding nor head, so all layers are identical, and with 10 Gb/s between all
        GPUs, which is never the bottleneck.

    Examples
    --------
    >>> problem = one_network(2)
    >>> problem.model.uniform, len(problem.cluster)
    (True, 11)
    """
    problem = three_sites(max_gpus_per_stage)
    memory = {gpu.type: gpu.memory_gb for gpu in problem.cluster.kinds}
    present = {name: count for name, count in zip(GPUS, counts, strict=True) if count}
    cluster = Cluster.from_counts(present, {name: memory[name] for name in present}, ONE_NETWORK)
    return replace(
        problem,
        cluster=cluster,
        model=replace(cast(Model, problem.model), weight_factors=None, work_factors=None),
        name=f"Llama-3-70B on {len(cluster)} GPUs",
    )


# Counting in pictures


def plot_prices(problem: Problem, prices: Mapping[float, Sequence[float]], best: float) -> Figure:
    """At each rate, the prices of all GPUs in layers, end to end, beside the layers of the model.

    Parameters
    ----------
    problem : Problem
        Whose GPUs and layers these are.
    prices : dict of float to list of float
        By rate in tokens/s, the lowest first: of a GPU of each of `problem.cluster.kinds`, in
        layers.
    best : float
        The optimum in tokens/s; there is a higher rate among those of `prices`.

    Returns
    -------
    plotly.graph_objects.Figure
        A row per rate; the optimum's is bold.

    Examples
    --------
    >>> from pipelab.course import three_sites
    >>> prices = {6321.0: [19, 4, 2], 6340.6: [19, 3.5, 2]}
    >>> plot_prices(three_sites(), prices, 6321).layout.title.text
    'At 6,341 tokens/s, just above the optimum, all GPUs cost 79 of 80 layers: 1 too few'
    """
    kinds, counts = problem.cluster.kinds, problem.cluster.kind_count.tolist()
    layers = problem.model.layers
    names = [f"<b>{number(r)}</b>" if isclose(r, best) else f"{number(r)}" for r in prices]
    colours = colour_of_types(kind.type for kind in kinds)
    parts = [[n * u for n, u in zip(counts, us, strict=True)] for us in prices.values()]
    totals = {rate: sum(part) for rate, part in zip(prices, parts, strict=True)}
    most = max(*totals.values(), layers)
    figure = new_figure()
    for k, kind in enumerate(kinds):
        figure.add_bar(
            orientation="h",
            name=_short(kind.type),
            y=names,
            x=[part[k] for part in parts],
            hoverinfo="skip",
            marker={"color": colours[kind.type], "line": {"color": "white", "width": 1.5}},
        )
    for name, us, part, total in zip(names, prices.values(), parts, totals.values(), strict=True):
        ends = list(accumulate(part, initial=0.0))
        for kind, n, u, begin, end in zip(kinds, counts, us, ends[:-1], ends[1:], strict=True):
            font = {"color": ink_on(colours[kind.type]), "size": 12}
            at = {"x": _beside(begin, end, layers), "y": name, "showarrow": False}
            if end > begin:
                figure.add_annotation(text=f"{n} × {u:.3g}", font=font, **at)
        font = {"color": WRONG if total * SAME < layers else "#222222"}
        at = {"x": 1.04 * most, "y": name, "showarrow": False, "xanchor": "left"}
        figure.add_annotation(text=f"<b>{total:.4g}</b>", font=font, **at)
    figure.add_vline(
        x=layers,
        line={"color": BOTTLENECK, "width": 3},
        annotation={"text": f"{layers} layers", "xanchor": "center"},
        annotation_position="top",
    )
    return finish(
        figure,
        _verdict(totals, layers, best),
        barmode="stack",
        height=180 + 38 * len(prices),
        x={"title": "layers: number of GPUs × price of each", "range": [0, 1.14 * most]},
        y={"title": "tokens/s", "type": "category"},
        legend={"y": 1 + 26 / (38 * len(prices)), "traceorder": "normal"},  # above the line's label
        margin={"t": 110},
    )


def _beside(begin: float, end: float, line: float) -> float:
    """The middle of a bar's part, or of the longer side where a line crosses it."""
    if begin < line < end:
        begin, end = (begin, line) if line - begin > end - line else (line, end)
    return (begin + end) / 2


def _verdict(totals: Mapping[float, float], layers: int, best: float) -> str:
    """What the prices prove of the next rate above the optimum."""
    after = min(rate for rate in totals if rate > best and not isclose(rate, best))
    where = (
        f"At {number(after)} tokens/s, just above the optimum, all GPUs cost {totals[after]:.4g}"
    )
    if totals[after] * SAME < layers:
        return f"{where} of {layers:,} layers: {layers - totals[after]:.3g} too few"
    return f"{where} layers: prices prove nothing here"


def _short(gpu_type: str) -> str:
    """A type's name up to its form factor: A100 of A100-SXM-40."""
    return plain(gpu_type.split("-")[0])


# Exercises


_A100, _L4, _T4 = range(3)


def _total(claim: Given) -> float:
    """What all GPUs cost, in layers."""
    return math.fsum(n * u for n, u in zip(claim.counts, claim.prices, strict=True))


def _unpaid(claim: Given) -> list[bool]:
    """For each stage, whether it holds more layers than its GPUs cost."""
    return [most > sum(claim.prices[k] for k in gpus) for gpus, most in claim.stages]


def _refutes(claim: Given) -> bool:
    return min(claim.prices) >= 0 and not any(_unpaid(claim)) and _total(claim) < claim.layers


def _prices(chance: random.Random) -> Given | None:
    """A proof, or a claim that fails in one of three respects, often only just.

    Prices are in layers; a stage is the class of each GPU, and the most layers at the rate.
    """
    kinds = range(chance.randint(1, 3))
    low = chance.choice((0, 0, 0, -1))
    prices = [chance.randint(2 * low, 6) / 2 for _ in kinds]
    counts = [chance.randint(1, 4) for _ in kinds]
    mixes = {tuple(sorted(chance.choices(kinds, k=chance.randint(1, 2)))) for _ in range(3)}
    more = chance.choice((0, 0, 0, 1))
    stages = []
    for mix in sorted(mixes):
        paid = math.floor(sum(prices[k] for k in mix))
        stages.append(([*mix], max(1, paid + more * chance.randint(0, 1))))
    claim = Given(prices=prices, stages=stages, counts=counts, layers=0)
    claim.layers = math.ceil(_total(claim)) + chance.choice((0, 0, 1, 2, 3))
    return claim if claim.layers > 0 else None


def _look_at_claim(claim: Given) -> str:
    if min(claim.prices) < 0:
        return "a price is below 0 here; what does a GPU that stays idle do to the total?"
    if any(_unpaid(claim)):
        return "compare each stage's layers with what its GPUs cost; what about the last ones?"
    return (
        "every stage is covered here; what must the total of all GPUs be, compared with the layers?"
    )


def _draw_claim(failure: Failure) -> Figure:
    """What every stage's GPUs cost, beside what it holds; and what all GPUs cost, beside the model."""
    claim = failure.given
    total, lowest = _total(claim), min(claim.prices)

    def row(name: str, gpus: Iterable[int], mark: float, wrong: bool) -> BlockRow:
        prices = [(k, claim.prices[k]) for k in gpus]
        blocks = [Block(price, colour_of(k), f"{price:g}") for k, price in prices]
        return BlockRow(name, blocks, mark, wrong=wrong)

    rows = []
    for (gpus, most), unpaid in zip(claim.stages, _unpaid(claim), strict=True):
        rows.append(
            row(f"a stage of {' + '.join(map(str, gpus))} holds {most}", gpus, most, unpaid)
        )
    everything = [k for k, count in enumerate(claim.counts) for _ in range(count)]
    enough = total >= claim.layers or lowest < 0
    name = f"all GPUs; {counted(claim.layers, 'layer')}"
    rows.append(row(name, everything, claim.layers, enough))
    if lowest < 0:
        title = f"No proof: a GPU of class {claim.prices.index(lowest)} costs less than nothing"
    elif any(_unpaid(claim)):
        title = "No proof: a stage holds more layers than its GPUs cost"
    elif total >= claim.layers:
        title = f"No proof: all GPUs cost {total:g} layers, and the model has {claim.layers}"
    else:
        title = f"A proof: every stage is paid for, and all GPUs cost {total:g} of {claim.layers} layers"
    note = "a block: the price of a GPU; black line: layers held, last of all the model's; red: why it is no proof"
    return plot_rows(rows, title, "layers", note)


@cache
def _out_of_reach() -> float:
    """Return the lowest rate in tokens/s that no placement of two GPUs per stage reaches."""
    problem = one_network(2)
    best = solve(problem).throughput or 0.0
    rates = [rate for of_mix in rates_of_mixes(problem).values() for rate in of_mix]
    return min(rate for rate in rates if rate > best * (1 + 1e-9))


@cache
def _least_price(per_stage: int) -> float:
    """Of an L4, in layers, so that no stage at the rate holds more than its GPUs cost.

    An A100 and a T4 cost what one of them holds alone.
    """
    rates, least = rates_of_mixes(one_network(per_stage)), _out_of_reach() * (1 - 1e-9)
    most = {mix: sum(rate >= least for rate in of_mix) for mix, of_mix in rates.items()}
    price = {_A100: most[_A100,], _T4: most[_T4,]}
    return max(
        (held - sum(price.get(k, 0) for k in mix)) / mix.count(_L4)
        for mix, held in most.items()
        if _L4 in mix
    )


EXERCISES: dict[str, Exercise] = {
    "06.1": Function(
        signature="refutes(prices, stages, counts, layers)",
        inputs=drawn(
            2, 300, _prices, lambda x: (len(x.counts) + len(x.stages), sum(x.counts), str(x))
        ),
        target=_refutes,
        hint=_look_at_claim,
        picture=_draw_claim,
        half=lambda claim, _: min(claim.prices) < 0 or _total(claim) == claim.layers,
    ),
    "06.2": Number(
        target=lambda: _least_price(3),
        unit="layers",
        hint="which stage is the first to hold more than its GPUs cost, and how many L4s has it?",
        half={
            "that is for two GPUs per stage; allow three": (lambda: _least_price(2)),
            "that covers every stage, but a price need not be a whole number": (
                lambda: math.ceil(_least_price(3))
            ),
        },
        mistakes={"that is what one L4 holds alone": (lambda: _least_price(1))},
        rel=1e-3,
    ),
}
