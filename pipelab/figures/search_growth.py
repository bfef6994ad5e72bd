"""How fast the number of placements outgrows any search."""

import math
from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

from pipelab.figures.theme import TYPE_COLOURS, WRONG, plain, template

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_YEAR = 3600 * 24 * 365


def plot_search_growth(
    sizes: Any, counts: Mapping[str, list[int]], per_second: float, axis: str
) -> "Figure":
    """Numbers of placements (or of splits) against size, with what one second and one year of search can try.

    Parameters
    ----------
    sizes : list of int
        Ascending.
    counts : mapping of name to list of int
        One number per size, whole numbers of any length.
    per_second : float
        Placements tried in one second, measured.
    axis : str
        What `sizes` counts.

    Returns
    -------
    plotly.graph_objects.Figure
        Numbers on a logarithmic axis.
    """
    import plotly.graph_objects as go

    counts = {plain(name): values for name, values in counts.items()}
    figure, symbols = go.Figure(), ("circle", "diamond", "square", "x")
    for (name, values), colour, symbol in zip(
        counts.items(), cycle(TYPE_COLOURS), cycle(symbols), strict=False
    ):
        figure.add_trace(
            go.Scatter(
                x=sizes, y=[float(v) for v in values], name=name, mode="lines+markers", line={"color": colour},
                marker={"symbol": symbol, "size": 9}, customdata=[f"{v:,}" for v in values],
                hovertemplate=f"%{{x}} {axis}<br>%{{customdata}}<extra>{name}</extra>",
            )
        )  # fmt: skip
    for seconds, label in ((1, "one second of search"), (_YEAR, "one year")):
        figure.add_hline(y=per_second * seconds, line={"color": WRONG, "dash": "dash"})
        figure.add_annotation(  # a log axis wants the logarithm here
            x=0, xref="paper", xanchor="left", y=math.log10(per_second * seconds), yanchor="bottom", text=label,
            showarrow=False,
        )  # fmt: skip
    steepest = max(counts, key=lambda name: counts[name][-1])
    out = next(
        (n for n, v in zip(sizes, counts[steepest], strict=True) if v > per_second * _YEAR), None
    )
    title = (
        f"{steepest[:1].upper()}{steepest[1:]}: beyond a year of search from {out} {axis} on"
        if out
        else f"{steepest[:1].upper()}{steepest[1:]} grows fastest"
    )
    note = f"{per_second:,.0f} placements tried per second on this machine"
    figure.update_layout(
        template=template(), title=f"{title}<br><sup>{note}</sup>", height=430,
        yaxis={"type": "log", "title": {"text": "number (log scale)"}, "exponentformat": "power"},
        xaxis={"title": {"text": axis}},
    )  # fmt: skip
    return figure
