"""Layers in time: what one takes, by what it does."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipelab.display import Figure
from pipelab.figures.theme import BOTTLENECK, GRID, TYPE_COLOURS, WRONG, line, plain, template

# What is drawn: its colour, dash and width. "reading" is all that has to be moved.
_LINES = {
    "reading": (TYPE_COLOURS[1], "solid", 2.5),
    "of that, keys and values": (TYPE_COLOURS[1], "dot", 2),
    "computing": (TYPE_COLOURS[0], "solid", 2.5),
    "the whole layer": (BOTTLENECK, "solid", 4),
}
_LEAST_SHARE_DRAWN = 0.01  # of the time to read: not drawn, as it would only be a corner of a line


def plot_layer_times(costs: Any, model: Any, panels: Mapping[str, tuple]) -> Figure:
    """Draw the time of one layer against the new tokens of a pass: computing, reading, the crossing.

    Parameters
    ----------
    costs : Roofline
        Its `layer_times` are drawn.
    model : Transformer
        Whose ordinary layer it is.
    panels : mapping of title to (GPU, sequence of Workload)
        One panel each, side by side on the same axes; workloads in the order of their tokens.

    Returns
    -------
    plotly.graph_objects.Figure
        Milliseconds against new tokens, both on logarithmic axes.
    """
    from plotly.subplots import make_subplots

    # A title is slightly above the lines, which end at the upper edge of some panel.
    figure = make_subplots(
        cols=len(panels),
        shared_yaxes=True,
        horizontal_spacing=0.05,
        subplot_titles=list(map(plain, panels)),
    )
    crossings, lowest, highest = {}, np.inf, 0.0
    for column, (name, (gpu, workloads)) in enumerate(panels.items(), 1):
        tokens = np.array([w.tokens_passed for w in workloads])
        times = _lines([costs.layer_times(model, w, gpu) for w in workloads])
        for trace in _traces(times, tokens):
            trace["showlegend"] = trace["name"] not in {shown.name for shown in figure.data}
            figure.add_trace(trace, row=1, col=column)
        lowest = min(lowest, times["computing"].min() / 2, times["reading"].min() / 2)
        highest = max(highest, 1.5 * times["the whole layer"].max())
        crossings[plain(name)] = crossing = _crossing(tokens, times["computing"], times["reading"])
        if crossing:
            line = {"color": WRONG, "dash": "dash", "width": 2}
            figure.add_vline(x=crossing, line=line, row=1, col=column)
            figure.add_annotation(
                x=np.log10(crossing),
                y=0.02,
                yref="y domain",
                text=f"{crossing:,.0f} ",
                showarrow=False,
                xanchor="right",
                yanchor="bottom",
                font={"color": WRONG, "size": 13},
                row=1,
                col=column,
            )
    axis = {"type": "log", "gridcolor": GRID, "dtick": 1}
    figure.update_xaxes(**axis, tickformat=",d", title={"text": "new tokens in a pass"})
    # What takes next to no time, such as a prompt's own keys and values, would only press the rest
    # together.
    figure.update_yaxes(**axis, tickformat="~g", range=[np.log10(lowest), np.log10(highest)])
    figure.update_layout(
        template=template(),
        height=460,
        title=_who_crosses(crossings),
        margin={"t": 118, "l": 70},
        yaxis={"title": {"text": "time of one layer (ms)"}},
        legend={"y": 1.1},
    )
    return figure


def _lines(times: list[dict[str, float]]) -> dict[str, np.ndarray]:
    """Return milliseconds by what they are for."""
    part = {name: 1000 * np.array([t[name] for t in times]) for name in times[0]}
    reading = part["weights"] + part["keys and values"] + part["activations"]
    values = (reading, part["keys and values"], part["computing"], part["layer"])
    return dict(zip(_LINES, values, strict=True))


def _traces(times: dict[str, np.ndarray], tokens: np.ndarray) -> list[dict]:
    return [
        line(
            name,
            tokens,
            times[name],
            colour,
            width,
            {"dash": dash},
            legendgroup=name,
            hovertemplate=f"{name}: %{{y:.3g}} ms for %{{x:,.0f}} tokens<extra></extra>",
        )
        for name, (colour, dash, width) in _LINES.items()
        if times[name].max() >= _LEAST_SHARE_DRAWN * times["reading"].max()
    ]


def _crossing(tokens: np.ndarray, computing: np.ndarray, reading: np.ndarray) -> float | None:
    """Return where computing overtakes reading, along straight lines between points, or None."""
    ahead = computing - reading
    over = np.flatnonzero((ahead[1:] > 0) & (ahead[:-1] <= 0))
    if not len(over):
        return None
    i = over[0]
    return float(tokens[i] + (tokens[i + 1] - tokens[i]) * -ahead[i] / (ahead[i + 1] - ahead[i]))


def _who_crosses(crossings: Mapping[str, float | None]) -> str:
    some = {name: x for name, x in crossings.items() if x}
    if not some:
        return "Reading takes longer than computing throughout"
    at = [f"{x:,.0f}" for x in some.values()]
    at[0] += " new tokens"
    places = [f"{place} ({name})" for name, place in zip(some, at, strict=True)]
    places += [f"nowhere here ({name})" for name, x in crossings.items() if not x]
    return f"Computing overtakes reading at {', '.join(places)}"
