"""A small cut: layers as blocks in a row, one bar of time per GPU below; for an exercise's input."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from pipelab.figures.theme import GRID, TYPE_COLOURS, ink_on, template

if TYPE_CHECKING:
    import plotly.graph_objects as go


def plot_line(
    costs: Sequence[float],
    speeds: Sequence[float],
    cuts: Sequence[int],
    layers: int,
    limit: float | None = None,
) -> "go.Figure":
    """Layers in the colour of the GPU that holds them, and what each GPU takes.

    Parameters
    ----------
    costs : sequence of float
        Of each layer; the width of its block.
    speeds : sequence of float
        Of each GPU.
    cuts : sequence of int
        How many layers come before the second GPU's, the third's, …
    layers : int
        How many layers are placed; the others are left white.
    limit : float, optional
        The longest that a GPU may take, drawn as a line.

    Returns
    -------
    plotly.graph_objects.Figure
        Its title has the slowest GPU's time.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    ends = [0, *cuts, layers]
    times = [sum(costs[a:b]) / speed for (a, b), speed in zip(pairwise(ends), speeds, strict=True)]
    figure = make_subplots(rows=2, cols=1, row_heights=[0.25, 0.75], vertical_spacing=0.26)
    start = 0.0
    for number, cost in enumerate(costs):
        gpu = next((g for g, (a, b) in enumerate(pairwise(ends)) if a <= number < b), None)
        colour = "#FFFFFF" if gpu is None else TYPE_COLOURS[gpu % len(TYPE_COLOURS)]
        figure.add_shape(
            type="rect", x0=start, x1=start + cost, y0=0, y1=1, fillcolor=colour, line={"color": "#444444", "width": 1},
            row=1, col=1,
        )  # fmt: skip
        figure.add_annotation(
            x=start + cost / 2, y=0.5, text=f"{cost:g}", showarrow=False, font={"color": ink_on(colour)}, row=1, col=1
        )  # fmt: skip
        start += cost
    names = [f"GPU {g}<br>speed {speed:g}" for g, speed in enumerate(speeds)]
    colours = [TYPE_COLOURS[g % len(TYPE_COLOURS)] for g in range(len(speeds))]
    bars = go.Bar(
        x=names, y=times, marker={"color": colours}, text=[f"{time:.4g}" for time in times],
        textposition="outside", cliponaxis=False, showlegend=False,
    )  # fmt: skip
    figure.add_trace(bars, row=2, col=1)
    top = max([*times, limit or 0.0, 1e-9])
    if limit is not None:
        figure.add_hline(y=limit, line={"dash": "dash", "color": "#111111"}, row=2, col=1)
    placed = "all layers" if layers == len(costs) else f"{layers} of {len(costs)} layers"
    figure.update_layout(
        template=template(), height=330, margin={"t": 56, "b": 40},
        title=f"The best cut of {placed}: the slowest GPU takes {max(times):.4g}",
        xaxis={"title": {"text": "costs of the layers"}, "range": [0, start], "showticklabels": False,
               "showgrid": False},
        yaxis={"visible": False, "range": [0, 1]},
        yaxis2={"title": {"text": "time"}, "gridcolor": GRID, "range": [0, 1.25 * top]},
    )  # fmt: skip
    return figure
