"""Notebook 02, Exhaustive search: five GPUs, the rates of all placements, a bound, and placements to count."""

import random
from collections.abc import Mapping, Sequence
from math import comb, isclose, perm

import numpy as np

from pipelab.course.exercises import Exercise, Failure, Function, Given, Number, drawn
from pipelab.course.n00 import A100, L4, T4, on_sites
from pipelab.course.pictures import SAME, Block, BlockRow, colour_of, finish, plot_rows
from pipelab.display import Figure, counted, listed, number
from pipelab.figures.theme import BOTTLENECK, NEUTRAL, TYPE_COLOURS, line, new_figure, plain
from pipelab.problem import Problem

# The problem


FEW = {A100: 2, L4: 2, T4: 1}


def five_gpus() -> Problem:
    """Qwen2.5-32B on 2 A100-40, 2 L4 and 1 T4 of the same three sites: small enough to try everything.

    Their 150 GB, less what is reserved, are too little for Llama-3-70B.

    Returns
    -------
    Problem
        As `three_sites`, with one GPU per stage.

    Examples
    --------
    >>> problem = five_gpus()
    >>> problem.costs.ms_per_layer
    {'A100-SXM-40': 9.6, 'L4': 47.0, 'T4': 85.0}
    >>> problem.model.layers, round(problem.model.weight_gb(range(64)))
    (64, 66)
    """
    return on_sites("Qwen2.5-32B", FEW, 1, "Qwen2.5-32B on five GPUs")


# The rates of all placements


_BARS = 60


def plot_rates(rates: Sequence[float], marks: Mapping[str, float]) -> Figure:
    """How many placements reach which rate, and where the marked ones stand among them.

    Parameters
    ----------
    rates : sequence of float
        In tokens/s, one per placement; 0 does not fit. At least one fits.
    marks : mapping of name to float
        The rates of a few placements, such as those of rules; 0 does not fit and is not drawn.

    Returns
    -------
    plotly.graph_objects.Figure
        Of the placements that fit, on a logarithmic axis. Each mark says which share of them it
        beats.

    Examples
    --------
    >>> figure = plot_rates([0, 100, 200, 200, 400], {"even": 200, "odd": 0})
    >>> figure.layout.title.text.split("<br>")[0]
    'Even beats 25% of the placements that fit; the best is 2.0 times as fast'
    """
    fits = np.array([rate for rate in rates if rate > 0])
    best = float(fits.max())
    numbers, edges = np.histogram(fits, bins=_BARS, range=(0, 1.02 * best))
    figure = new_figure()
    figure.add_bar(
        x=(edges[:-1] + edges[1:]) / 2,
        y=numbers,
        width=0.9 * np.diff(edges),
        marker={"color": NEUTRAL},
        hovertemplate="%{y:,} placements near %{x:,.0f} tokens/s<extra></extra>",
        showlegend=False,
    )
    top = float(np.log10(numbers.max()))
    rows = _rows(marks, best)
    for place, (rate, names) in enumerate(rows):
        height = top + 0.55 * (len(rows) - place)
        ends = rate > 0.6 * best  # on the right, a label stands to the left of its line
        colour = BOTTLENECK if names == ["best"] else TYPE_COLOURS[0]
        dotted = line("", [rate] * 2, [0.6, 10**height], colour, 2, {"dash": "dot"})
        figure.add_trace(dotted | {"showlegend": False})
        figure.add_annotation(
            x=rate,
            y=height,
            text=f"<b>{plain(listed(names))}</b> {number(rate)} beats {_beaten(fits, rate)}",
            showarrow=False,
            xanchor="right" if ends else "left",
            xshift=-4 if ends else 4,
            font={"color": colour, "size": 12},
            bgcolor="white",
        )
    high = top + 0.55 * len(rows) + 0.4
    said = "dotted: the rates of some of them, and which share each beats"
    return finish(
        figure,
        _title(fits, marks),
        f"{len(fits):,} placements that fit; {said}",
        height=330 + 26 * len(rows),
        x={"title": "tokens/s", "range": [0, 1.03 * best]},
        y={
            "type": "log",
            "title": "placements (log scale)",
            "tickvals": [10**power for power in range(int(top) + 1)],
            "tickformat": ",",
            "range": [np.log10(0.6), high],
        },
    )


def _rows(marks: Mapping[str, float], best: float) -> list[tuple[float, list[str]]]:
    """Rates with the names of the marks that reach them, the best last."""
    rows: dict[float, list[str]] = {best: ["best"]}
    for name, rate in marks.items():
        if rate > 0:
            same = next((r for r in rows if max(r, rate) <= min(r, rate) * SAME), rate)
            rows.setdefault(same, []).append(name)
    return sorted(rows.items())


def _beaten(fits: np.ndarray, rate: float) -> str:
    """Which share is slower, in per cent; never 100% where one is left."""
    share = float((fits * SAME < rate).mean())
    if share in (0, 1):
        return "all" if share else "none"
    if share > 0.99995:
        return "over 99.99%"
    return f"{share:.{0 if share < 0.985 else 2}%}"


def _title(fits: np.ndarray, marks: Mapping[str, float]) -> str:
    best, fast = float(fits.max()), max(marks.values(), default=0.0)
    if not fast:
        return f"No rule finds a placement that fits; the best has {number(best)} tokens/s"
    name = max(marks, key=lambda mark: marks[mark])
    name, beats = plain(name[:1].upper() + name[1:]), _beaten(fits, fast)
    if fast * SAME >= best:
        return f"{name} is as fast as the best of all placements, {number(best)} tokens/s"
    who = "No rule beats any" if beats == "none" else f"{name} beats {beats}"
    times = best / fast
    more = f"{times - 1:.0%} faster" if times < 2 else f"{times:.1f} times as fast"
    return f"{who} of the placements that fit; the best is {more}"


# Exercises


_KINDS = (3, 4, 4)  # GPUs of `three_sites`, by type
_LAYERS, _BLOCKS = 80, 16  # and its layers, one by one or in blocks of five


def _orders(kinds: Sequence[int], stages: int) -> int:
    """Of so many stages, with identical GPUs not told apart: the first stage's type, then the others."""
    if not stages:
        return 1
    left = ([*kinds[:k], n - 1, *kinds[k + 1 :]] for k, n in enumerate(kinds) if n)
    return sum(_orders(rest, stages - 1) for rest in left)


def _distinct(layers: int, kinds: Sequence[int]) -> int:
    """Placements whose types or cuts differ."""
    stages = range(1, min(layers, sum(kinds)) + 1)
    return sum(_orders(kinds, s) * comb(layers - 1, s - 1) for s in stages)


def _all_used(layers: int, kinds: Sequence[int]) -> int:
    return comb(layers - 1, sum(kinds) - 1) * _orders(kinds, sum(kinds))


def _told_apart(layers: int, gpus: int) -> int:
    return sum(comb(layers - 1, s - 1) * perm(gpus, s) for s in range(1, gpus + 1))


def _fleet(chance: random.Random) -> Given:
    """Layers, and the milliseconds per layer of every GPU."""
    ms = [chance.randint(1, 9) for _ in range(chance.randint(1, 5))]
    return Given(layers=chance.randint(1, 12), ms=ms)


def _whole_ms(fleet: Given) -> float:
    """The least time in which the GPUs together finish all layers, each a whole number of them."""
    moments = sorted(n * tau for tau in fleet.ms for n in range(1, fleet.layers + 1))
    return moments[fleet.layers - 1]


def _look_at_fleet(fleet: Given) -> str:
    if len(set(fleet.ms)) == 1:
        return "here all GPUs are identical: how many layers has the one with the most of them?"
    return (
        "how many whole layers does each GPU finish in some time, and which times need to be tried?"
    )


def _draw_fleet(failure: Failure) -> Figure:
    """What every GPU finishes in the least time."""
    layers, ms = failure.given.layers, failure.given.ms
    least = _whole_ms(failure.given)
    rows = [
        BlockRow(f"GPU {g}, {tau} ms per layer", [Block(tau, colour_of(g), "")] * int(least // tau))
        for g, tau in enumerate(ms)
    ]
    title = f"{counted(layers, 'layer')} take {least} ms: in less time fewer are finished"
    note = "a block: a finished layer; dashed: the least time"
    return plot_rows(rows, title + failure.yours, "ms", note, least)


EXERCISES: dict[str, Exercise] = {
    "02.1": Function(
        signature="whole_ms(layers, ms)",
        inputs=drawn(2, 200, _fleet, lambda fleet: fleet.layers + len(fleet.ms)),
        target=_whole_ms,
        hint=_look_at_fleet,
        picture=_draw_fleet,
        half=lambda fleet, answer: (
            isclose(answer, fleet.layers / sum(1 / tau for tau in fleet.ms))
            or answer == _whole_ms(fleet)
        ),
    ),
    "02.2": Number(
        target=lambda: _distinct(_BLOCKS, _KINDS),
        unit="placements",
        hint="how many blocks are there, and how many cuts has an order of so many GPUs?",
        half={
            "that cuts between any two layers; the blocks have five layers each": (
                lambda: float(_distinct(_LAYERS, _KINDS))
            ),
            "those are the placements that use every GPU; GPUs may stay idle": (
                lambda: _all_used(_BLOCKS, _KINDS)
            ),
        },
        mistakes={"that distinguishes identical GPUs": (lambda: _told_apart(_BLOCKS, sum(_KINDS)))},
    ),
}
