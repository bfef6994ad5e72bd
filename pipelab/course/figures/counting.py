"""Counting in pictures: what a mix of GPUs holds at a rate, the bisection, and prices in layers."""

from collections.abc import Mapping, Sequence
from math import isclose
from typing import TYPE_CHECKING

from pipelab.figures.theme import (
    BOTTLENECK,
    GRID,
    NEUTRAL_LIGHT,
    TYPE_COLOURS,
    WRONG,
    colour_of_types,
    ink_on,
    plain,
    template,
)
from pipelab.problem import Problem

if TYPE_CHECKING:
    import plotly.graph_objects as go

USED = TYPE_COLOURS[0]
_REACHED = TYPE_COLOURS[2]
_SAME = 1 - 1e-9  # a total this close to all layers is enough for them


def plot_mixes(
    problem: Problem,
    rate: float,
    most: Mapping[tuple[int, ...], int],
    stages: list[tuple[int, ...]] | None,
) -> "go.Figure":
    """A bar per mix of GPUs: how many layers such a stage can hold at a rate.

    Parameters
    ----------
    problem : Problem
        Whose GPUs and layers these are.
    rate : float
        In tokens/s.
    most : dict of mix to int
        Layers; a mix is a tuple of indices into `problem.cluster.kinds`.
    stages : list of mix, or None
        Those that are used; None if no choice of stages holds all layers.

    Returns
    -------
    plotly.graph_objects.Figure
        In layers; the mixes that are used are blue.

    Examples
    --------
    >>> from pipelab.course import three_sites
    >>> plot_mixes(three_sites(), 8000, {(0,): 14, (1,): 3, (2,): 2}, None).layout.title.text
    'At 8,000.0 tokens/s, no choice of stages holds all 80 layers'
    """
    import plotly.graph_objects as go

    used = [(stages or []).count(mix) for mix in most]
    names = [_name_of(problem, mix) for mix in most]
    held = sum(n * h for n, h in zip(used, most.values(), strict=True))
    fits = f"{sum(used)} stages can hold {held:,} layers; the model has {problem.model.layers:,}"
    none = f"no choice of stages holds all {problem.model.layers:,} layers"
    figure = go.Figure()
    figure.add_bar(
        orientation="h", y=names, x=list(most.values()),
        marker={"color": [USED if n else NEUTRAL_LIGHT for n in used]},
        text=[f"<b>{h} × {n} stages</b>" if n > 1 else f"<b>{h} × 1 stage</b>" if n else f"{h}"
              for n, h in zip(used, most.values(), strict=True)],
        textposition="outside", cliponaxis=False, hoverinfo="skip",
    )  # fmt: skip
    figure.update_layout(
        template=template(), height=120 + 28 * len(most), showlegend=False,
        title=f"At {rate:,.1f} tokens/s, {none if stages is None else fits}",
        xaxis={"title": {"text": "layers that one such stage can hold"}, "gridcolor": GRID,
               "range": [0, 1.2 * max(1, *most.values())]},
        yaxis={"autorange": "reversed"}, margin={"l": 120, "t": 50},
    )  # fmt: skip
    return figure


def plot_bisection(rates: Sequence[float], tried: Mapping[float, bool]) -> "go.Figure":
    """What bisection knows before each step, and what it finds.

    Parameters
    ----------
    rates : sequence of float
        All possible rates in tokens/s, the lowest first.
    tried : dict of float to bool
        Whether each tried rate is reachable, in the order of the steps.

    Returns
    -------
    plotly.graph_objects.Figure
        A grey bar for the rates that are still open, and a mark per step.

    Examples
    --------
    >>> plot_bisection([10, 20, 30], {20: True, 30: False}).layout.title.text
    '2 of 3 rates tried: 20.0 tokens/s is the highest reachable one'
    """
    import plotly.graph_objects as go

    place = {rate: number for number, rate in enumerate(sorted(rates), start=1)}
    low, high, spans, best = 1, len(place), [], None
    for rate, reachable in tried.items():
        spans.append((low, high))
        low, high = (place[rate] + 1, high) if reachable else (low, place[rate] - 1)
        best = rate if reachable else best
    steps = list(range(1, len(tried) + 1))
    figure = go.Figure()
    figure.add_bar(
        name="still open", x=steps, base=[a - 0.5 for a, _ in spans], y=[b - a + 1 for a, b in spans],
        width=0.24, marker={"color": NEUTRAL_LIGHT}, hoverinfo="skip",
    )  # fmt: skip
    looks = {True: ("reachable", _REACHED, "circle"), False: ("not reachable", WRONG, "x")}
    for answer, (word, colour, symbol) in looks.items():
        shown = [
            (step, rate) for step, rate in zip(steps, tried, strict=True) if tried[rate] == answer
        ]
        figure.add_scatter(
            name=word, x=[step for step, _ in shown], y=[place[rate] for _, rate in shown], mode="markers+text",
            text=[f"   {rate:,.1f}" for _, rate in shown], textposition="middle right", cliponaxis=False,
            marker={"color": colour, "symbol": symbol, "size": 11}, hoverinfo="skip",
        )  # fmt: skip
    found = (
        "none is reachable"
        if best is None
        else f"{best:,.1f} tokens/s is the highest reachable one"
    )
    figure.update_layout(
        template=template(), height=440, title=f"{len(tried)} of {len(rates)} rates tried: {found}",
        xaxis={"title": {"text": "step, and the rate that it tries (tokens/s)"}, "dtick": 1, "showgrid": False,
               "range": [0.5, len(tried) + 0.9]},
        yaxis={"title": {"text": "possible rates, the lowest first"}, "gridcolor": GRID,
               "range": [0, len(place) + 1]},
        margin={"t": 90},
    )  # fmt: skip
    return figure


def plot_prices(
    problem: Problem, prices: Mapping[float, Sequence[float]], best: float
) -> "go.Figure":
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
    'At 6,340.6 tokens/s, just above the optimum, all GPUs cost 79 of 80 layers: 1 too few'
    """
    import plotly.graph_objects as go

    kinds, counts = problem.cluster.kinds, problem.cluster.kind_count.tolist()
    layers = problem.model.layers
    names = [f"<b>{r:,.1f}</b>" if isclose(r, best) else f"{r:,.1f}" for r in prices]
    colours = colour_of_types(kind.type for kind in kinds)
    totals = {r: sum(n * u for n, u in zip(counts, us, strict=True)) for r, us in prices.items()}
    figure = go.Figure()
    begin = dict.fromkeys(names, 0.0)
    for k, (kind, count) in enumerate(zip(kinds, counts, strict=True)):
        colour, parts = colours[kind.type], [count * us[k] for us in prices.values()]
        figure.add_bar(
            orientation="h", name=_short(kind.type), y=names, x=parts, hoverinfo="skip",
            marker={"color": colour, "line": {"color": "white", "width": 1.5}},
        )  # fmt: skip
        for name, part, us in zip(names, parts, prices.values(), strict=True):
            if part:
                figure.add_annotation(
                    x=_beside(begin[name], begin[name] + part, layers), y=name, showarrow=False,
                    text=f"{count} × {us[k]:.3g}", font={"color": ink_on(colour), "size": 12},
                )  # fmt: skip
            begin[name] += part
    figure.add_vline(x=layers, line={"color": BOTTLENECK, "width": 3})
    figure.add_annotation(
        x=layers, y=1, yref="paper", yanchor="bottom", showarrow=False, text=f"{layers} layers"
    )
    most = max(*totals.values(), layers)
    for name, total in zip(names, totals.values(), strict=True):
        figure.add_annotation(
            x=1.04 * most, y=name, text=f"<b>{total:.4g}</b>", showarrow=False, xanchor="left",
            font={"color": WRONG if total < layers * _SAME else "#222222"},
        )  # fmt: skip
    figure.update_layout(
        template=template(), barmode="stack", height=160 + 38 * len(prices), title=_verdict(totals, layers, best),
        xaxis={"title": {"text": "layers: number of GPUs × price of each"}, "range": [0, 1.14 * most],
               "gridcolor": GRID},
        yaxis={"title": {"text": "tokens/s"}, "type": "category"}, margin={"t": 96},
        legend={"y": 1.06, "traceorder": "normal"},
    )  # fmt: skip
    return figure


def _beside(begin: float, end: float, line: float) -> float:
    """The middle of a bar's part, or of the longer side where a line crosses it."""
    if begin < line < end:
        begin, end = (begin, line) if line - begin > end - line else (line, end)
    return (begin + end) / 2


def _verdict(totals: Mapping[float, float], layers: int, best: float) -> str:
    """What the prices prove of the next rate above the optimum."""
    after = min(rate for rate in totals if rate > best and not isclose(rate, best))
    where = f"At {after:,.1f} tokens/s, just above the optimum, all GPUs cost {totals[after]:.4g}"
    if totals[after] < layers * _SAME:
        return f"{where} of {layers:,} layers: {layers - totals[after]:.3g} too few"
    return f"{where} layers: prices prove nothing here"


def _name_of(problem: Problem, mix: Sequence[int]) -> str:
    return " + ".join(_short(problem.cluster.kinds[k].type) for k in mix)


def _short(gpu_type: str) -> str:
    """A type's name up to its form factor: A100 of A100-SXM-40."""
    return plain(gpu_type.split("-")[0])
