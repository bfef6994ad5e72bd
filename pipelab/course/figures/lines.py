"""A few lines over one axis: for an exercise's input."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipelab.figures.theme import BOTTLENECK, GRID, TYPE_COLOURS, plain, template

if TYPE_CHECKING:
    import plotly.graph_objects as go

_TICKS = 12  # at most, one for each whole number


def plot_lines(
    x: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    finding: str,
    axes: tuple[str, str],
    marked: tuple[float, float] | None = None,
    *,
    ranges: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> "go.Figure":
    """Lines with markers, and one point marked.

    Parameters
    ----------
    x : sequence of float
        Where all lines have their points.
    lines : mapping of name to sequence of float
        One number for each of `x`.
    finding : str
        The title.
    axes : (str, str)
        What x and y are.
    marked : (float, float), optional
        A point to look at.
    ranges : mapping of name to sequence of (float, float), optional
        For each line the least and the most at each of `x`, drawn as bars.

    Returns
    -------
    plotly.graph_objects.Figure
        A trace per line.

    Examples
    --------
    >>> figure = plot_lines([1, 2], {"a": [1, 4]}, "a grows by more than twice", ("n", "s"), (2, 4))
    >>> [trace.name for trace in figure.data]
    ['a', None]
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    for i, ((name, y), colour) in enumerate(zip(lines.items(), TYPE_COLOURS, strict=False)):
        figure.add_scatter(
            x=list(x), y=list(y), name=plain(name), mode="lines+markers", line={"color": colour, "width": 3},
            marker={"size": 8}, showlegend=len(lines) > 1,
            error_y=None if ranges is None else _bars(y, ranges[name], 4 + 6 * (len(lines) - 1 - i)),
        )  # fmt: skip
    if marked:
        figure.add_scatter(
            x=[marked[0]], y=[marked[1]], mode="markers", showlegend=False, hoverinfo="skip",
            marker={"size": 18, "symbol": "circle-open", "color": BOTTLENECK, "line": {"width": 3}},
        )  # fmt: skip
    figure.update_layout(
        template=template(), height=330, title=finding,
        xaxis={"title": {"text": axes[0]}, "gridcolor": GRID, "zeroline": False},
        yaxis={"title": {"text": axes[1]}, "gridcolor": GRID, "rangemode": "tozero"},
    )  # fmt: skip
    if all(float(at).is_integer() for at in x) and max(x) - min(x) <= _TICKS:
        figure.update_xaxes(dtick=1)  # plotly would put a tick at half a token
    return figure


def _bars(
    y: Sequence[float], ranges: Sequence[tuple[float, float]], width: float
) -> dict[str, object]:
    """Error bars; later ones cover earlier ones, whose ends are wider."""
    return {
        "array": [most - value for value, (_, most) in zip(y, ranges, strict=True)],
        "arrayminus": [value - least for value, (least, _) in zip(y, ranges, strict=True)],
        "symmetric": False,
        "thickness": 1.5,
        "width": width,
    }
