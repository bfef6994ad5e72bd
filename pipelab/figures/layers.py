"""Layers in time: what one takes by what it does, and what a stage of many yields."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelab.figures.theme import BOTTLENECK, GRID, TYPE_COLOURS, WRONG, plain, template

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# What is drawn: its colour, dash and width. "reading" is all that has to be moved.
_LINES = {
    "reading": (TYPE_COLOURS[1], "solid", 2.5),
    "of that, keys and values": (TYPE_COLOURS[1], "dot", 2),
    "computing": (TYPE_COLOURS[0], "solid", 2.5),
    "the whole layer": (BOTTLENECK, "solid", 4),
}


def plot_layer_times(costs: Any, model: Any, panels: Mapping[str, tuple]) -> "Figure":
    """Time of one layer against the new tokens of a pass: computing, reading, and where they cross.

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
        horizontal_spacing=0.03,
        subplot_titles=list(map(plain, panels)),
    )
    crossings, lowest, highest = {}, np.inf, 0.0
    for column, (name, (gpu, workloads)) in enumerate(panels.items(), 1):
        tokens = np.array([w.tokens_passed for w in workloads])
        times = _lines([costs.layer_times(model, w, gpu) for w in workloads])
        _add_lines(figure, times, tokens, column)
        lowest = min(lowest, times["computing"].min() / 2, times["reading"].min() / 2)
        highest = max(highest, 1.5 * times["the whole layer"].max())
        crossings[plain(name)] = crossing = _crossing(tokens, times["computing"], times["reading"])
        if crossing:
            figure.add_vline(
                x=crossing, line={"color": WRONG, "dash": "dash", "width": 2}, row=1, col=column
            )
            figure.add_annotation(
                x=np.log10(crossing), y=0.02, yref="y domain", text=f"{crossing:,.0f} ", showarrow=False,
                xanchor="right", yanchor="bottom", font={"color": WRONG, "size": 13}, row=1, col=column,
            )  # fmt: skip
    axis = {
        "type": "log",
        "gridcolor": GRID,
        "dtick": 1,
        "tickformat": ",d",
        "title": {"text": "new tokens in a pass"},
    }
    figure.update_xaxes(**axis)
    # What takes next to no time, such as a prompt's own keys and values, would only press the rest
    # together.
    figure.update_yaxes(
        type="log",
        gridcolor=GRID,
        dtick=1,
        tickformat="~g",
        range=[np.log10(lowest), np.log10(highest)],
    )
    figure.update_layout(
        template=template(), height=460, title=_who_crosses(crossings), margin={"t": 118, "l": 70},
        yaxis={"title": {"text": "time of one layer (ms)"}}, legend={"y": 1.1},
    )  # fmt: skip
    return figure


def _lines(times: list[dict[str, float]]) -> dict[str, np.ndarray]:
    """Milliseconds by what they are for."""
    part = {name: 1000 * np.array([t[name] for t in times]) for name in times[0]}
    reading = part["weights"] + part["keys and values"] + part["activations"]
    values = (reading, part["keys and values"], part["computing"], part["layer"])
    return dict(zip(_LINES, values, strict=True))


def _add_lines(
    figure: "Figure", times: dict[str, np.ndarray], tokens: np.ndarray, column: int
) -> None:
    import plotly.graph_objects as go

    for name, (colour, dash, width) in _LINES.items():
        figure.add_trace(
            go.Scatter(
                x=tokens, y=times[name], name=name, mode="lines", legendgroup=name, showlegend=column == 1,
                line={"color": colour, "dash": dash, "width": width},
                hovertemplate=f"{name}: %{{y:.3g}} ms for %{{x:,.0f}} tokens<extra></extra>",
            ),
            row=1, col=column,
        )  # fmt: skip


def _crossing(tokens: np.ndarray, computing: np.ndarray, reading: np.ndarray) -> float | None:
    """Where computing overtakes reading, between two points along straight lines; None where it does not."""
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
    first, last = min(some, key=some.__getitem__), max(some, key=some.__getitem__)
    text = f"Computing overtakes reading at {some[first]:,.0f} new tokens ({first})"
    return text if first == last else f"{text} or only at {some[last]:,.0f} ({last})"


def plot_stage_rates(layers: Sequence[int], rates: Mapping[str, Sequence[float]]) -> "Figure":
    """How the rate of one GPU changes with the layers it holds, for several cost models.

    Parameters
    ----------
    layers : sequence of int
        On the GPU, ascending.
    rates : mapping of name to sequence of float
        Tokens/s for each number of layers. Shown as multiples of the first, since the models count
        different things.

    Returns
    -------
    plotly.graph_objects.Figure
        A line per cost model; hover gives tokens/s.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    rates = {plain(name): values for name, values in rates.items()}
    share = {name: np.asarray(values) / values[0] for name, values in rates.items()}
    looks = zip(
        cycle((WRONG, *TYPE_COLOURS)),
        cycle(("dash", "solid", "dot", "dashdot", "longdash")),
        strict=False,
    )
    # both looks go round without end
    for (name, values), (colour, dash) in zip(share.items(), looks, strict=False):
        figure.add_trace(
            go.Scatter(
                x=list(layers), y=values, name=name, mode="lines+markers", line={"color": colour, "dash": dash},
                customdata=rates[name],
                hovertemplate="%{x} layers: %{customdata:.4g} tokens/s<extra>" + name + "</extra>",
            )
        )  # fmt: skip
    ends = [f"{name} {values[-1] - 1:+.0%}" for name, values in share.items()]
    figure.update_layout(
        template=template(), height=380,
        title=f"{layers[-1]} layers on a GPU instead of {layers[0]}: {', '.join(ends)}",
        xaxis={"title": {"text": "layers on the GPU"}, "gridcolor": GRID, "zeroline": False},
        yaxis={"title": {"text": f"rate ÷ rate with {layers[0]}"}, "rangemode": "tozero", "gridcolor": GRID},
    )  # fmt: skip
    return figure
