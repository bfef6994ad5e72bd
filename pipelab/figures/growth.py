"""What grows with the size of a problem: placements, programs, and seconds."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from pipelab.display import PROVEN, STOPPED
from pipelab.errors import InvalidValue
from pipelab.figures.theme import (
    GRID,
    TYPE_COLOURS,
    WRONG,
    figure_of,
    finish,
    line,
    plain,
    points,
    template,
)

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure

_YEAR = 3600 * 24 * 365


def plot_growth(sizes: Mapping[str, Mapping[str, int]], limit: int | None = None) -> "Figure":
    """Draw how the joint ILP grows: allocations, connections and variables of several problems.

    Parameters
    ----------
    sizes : mapping of label to dict of str to int
        The numbers of `joint_size`.
    limit : int, optional
        Draws a line at the number of variables that can still be built, such as `joint_capacity`
        gives.

    Returns
    -------
    plotly.graph_objects.Figure
        Numbers on a logarithmic axis.

    Raises
    ------
    InvalidValue
        There are no sizes.
    """
    if not sizes:
        expected = "expected at least one, as joint_size gives it"
        raise InvalidValue("plot_growth", [("sizes", sizes, expected)])
    labels, values = [plain(label) for label in sizes], list(sizes.values())
    counts = {
        what: [size[what] for size in values]
        for what in ("allocations", "connections", "variables")
    }
    first, last = values[0], values[-1]
    share = last["connections"] / last["allocations"]
    title = "Connections, not allocations, fill the model: "
    title += f"{share:,.0f} for each allocation of {labels[-1]}"
    note = f"{labels[0]}: {first['variables']:,} variables · "
    note += f"{labels[-1]}: {last['variables']:,} variables"
    limits = {}
    if limit:
        most = f"{float(f'{limit:.1e}'):,.0f} variables"
        limits[f"{most}: about what this machine can build"] = limit
    return _growing(labels, counts, limits, title, note, "problem", "markers")


def plot_search_growth(
    sizes: Sequence[int], counts: Mapping[str, Sequence[int]], per_second: float, axis: str
) -> "Figure":
    """Draw numbers of placements (or of splits) against size, and what a second and a year can try.

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
    counts = {plain(name): values for name, values in counts.items()}
    limits = {"one second of search": per_second, "one year": per_second * _YEAR}
    steepest = max(counts, key=lambda name: counts[name][-1])
    tried = zip(sizes, counts[steepest], strict=True)
    out = next((n for n, number in tried if number > per_second * _YEAR), None)
    end = f": beyond a year of search from {out} {axis} on" if out else " grows fastest"
    title = f"{steepest[:1].upper()}{steepest[1:]}{end}"
    note = f"{per_second:,.0f} placements tried per second on this machine"
    return _growing(sizes, counts, limits, title, note, axis, "lines+markers")


def _growing(
    sizes: Sequence[Any],
    counts: Mapping[str, Sequence[int]],
    limits: Mapping[str, float],
    title: str,
    note: str,
    axis: str,
    mode: str,
) -> "Figure":
    """Draw numbers against sizes on a logarithmic axis, with limits as dashed lines."""
    data = [
        line(
            name,
            list(sizes),
            [float(number) for number in numbers],
            colour,
            mode=mode,
            marker={"symbol": symbol, "size": 11, "color": colour},
            customdata=[f"{number:,}" for number in numbers],
            hovertemplate=f"%{{x}}<br>%{{customdata}}<extra>{name}</extra>",
        )
        for (name, numbers), colour, symbol in zip(
            counts.items(),
            cycle(TYPE_COLOURS),
            cycle(("circle", "diamond", "square", "x")),
            strict=False,
        )
    ]
    vertical = {"title": "number (log scale)", "type": "log", "exponentformat": "power"}
    figure = figure_of(finish(data, title, note, x=axis, y=vertical, height=430, showlegend=True))
    for label, limit in limits.items():
        figure.add_hline(y=limit, line={"color": WRONG, "dash": "dash"})
        figure.add_annotation(  # a log axis wants the logarithm here
            x=0,
            xref="paper",
            xanchor="left",
            y=math.log10(limit),
            yanchor="bottom",
            text=label,
            showarrow=False,
        )
    return figure


def plot_run_times(frame: "DataFrame", series: Sequence[str]) -> "Figure":
    """Draw seconds against size for series of a saved run: every problem a dot, medians joined.

    Parameters
    ----------
    frame : pandas.DataFrame
        Columns series, value, seed, seconds, status, variables; see `saved_run`.
    series : list of str
        Which of its series, a panel each.

    Returns
    -------
    plotly.graph_objects.Figure
        Seconds against size, both on logarithmic axes.
    """
    from plotly.subplots import make_subplots

    columns = 2 if len(series) in (2, 4) else min(3, len(series))
    lines = math.ceil(len(series) / columns)
    figure = make_subplots(
        lines, columns, subplot_titles=list(series), horizontal_spacing=0.08, vertical_spacing=0.24
    )
    decades = [10.0**e for e in range(-2, 3)]
    for i, name in enumerate(series):
        where = {"row": i // columns + 1, "col": i % columns + 1}
        part = frame[frame["series"] == name].astype({"value": float})
        median = part.groupby("value")["seconds"].median()
        for trace in _run_time_traces(part, median):
            figure.add_trace(trace, **where)
        figure.update_xaxes(
            type="log",
            tickvals=(shown := _apart(median.index.tolist())),
            ticktext=[f"{v:,.0f}" for v in shown],
            tickangle=0,
            **where,
        )
        figure.update_yaxes(
            type="log",
            tickvals=decades,
            ticktext=[f"{v:g}" for v in decades],
            gridcolor=GRID,
            range=[-2.2, 2.2],
            title={"text": "seconds" if where["col"] == 1 else ""},
            **where,
        )
    note = "saved run on two cores; a dot per random problem, medians joined (logarithmic axes)"
    title = f"{_how_slow(frame[frame['series'].isin(series)])}<br><sup>{note}</sup>"
    figure.update_layout(
        template=template(),
        title=title,
        height=60 + 270 * lines,
        showlegend=False,
        margin={"t": 110},
    )
    return figure


def _apart(sizes: list[float]) -> list[float]:
    """Return the sizes that have room for a label on a logarithmic axis.

    >>> _apart([4, 6, 8, 10, 12, 14, 16, 20, 24, 28])
    [4, 6, 8, 12, 16, 20, 28]
    """
    widest = len(f"{sizes[-1]:,.0f}")
    room = max(0.11, 0.03 * widest) * math.log(sizes[-1] / sizes[0])
    shown = sizes[-1:]
    for size in reversed(sizes[:-1]):
        if math.log(shown[0] / size) >= room:
            shown.insert(0, size)
    return shown


def _run_time_traces(part: "DataFrame", median: Any) -> list[dict]:
    joined = line("", median.index, median, TYPE_COLOURS[0])
    proven = _is_proven(part)
    return [joined] + [
        points(
            "",
            dots["value"],
            dots["seconds"],
            marker={"color": outcome.fill, "symbol": outcome.marker, "size": 8},
            customdata=dots["variables"],
            hovertemplate=f"%{{x:g}}: %{{y:.3g}} s, %{{customdata}} variables, {outcome.word}"
            "<extra></extra>",
        )
        for outcome, dots in ((PROVEN, part[proven]), (STOPPED, part[~proven]))
    ]


def _how_slow(shown: "DataFrame") -> str:
    """Say how many problems, how long the slowest took, and how many were stopped early."""
    ended = _is_proven(shown)
    slowest = f"{len(shown)} problems, the slowest solved in {shown['seconds'][ended].max():.3g} s"
    unproven = len(shown) - int(ended.sum())
    limit = f"{shown['seconds'][~ended].min():.0f} s (open diamonds)"
    return f"{slowest}, {unproven} stopped early after {limit}" if unproven else slowest


def _is_proven(part: "DataFrame") -> Any:
    """Return which problems were answered in time, infeasible ones among them."""
    return part["status"].isin(("optimal", "infeasible"))
