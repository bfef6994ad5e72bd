"""Predicted times against measured ones."""

from typing import TYPE_CHECKING, Any

from pipelab.errors import InvalidValue
from pipelab.figures.theme import BOTTLENECK, GRID, plain, template
from pipelab.hardware.expected_rates import error_bands

if TYPE_CHECKING:
    from pandas import DataFrame, Series
    from plotly.graph_objects import Figure

_COLUMNS = ("what", "measured", "predicted", "unit", "error", "phase", "note")
_ENGINES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
_APART = 0.09  # height between the engines' rows of points in one group


def plot_against_measured(table: "DataFrame", explain_above: float = 0.2) -> "Figure":
    """By how much each predicted time is off, in groups by phase and GPUs that cut a layer.

    Parameters
    ----------
    table : pandas.DataFrame
        From `against_measured`.
    explain_above : float
        Misses beyond this share are counted in the title.

    Returns
    -------
    plotly.graph_objects.Figure
        A point per row, at predicted time / measured time - 1, coloured by engine; a bar from the
        10 % to the 90 % quantile per group.

    Raises
    ------
    InvalidValue
        A column is missing.
    """
    import plotly.graph_objects as go

    missing = [name for name in _COLUMNS if name not in table]
    if missing:
        expected = f"expected a table of against_measured, with {', '.join(missing)}"
        raise InvalidValue("plot_against_measured", [("table", list(table), expected)])
    bands = error_bands(table)
    groups = [key for key in bands.index if key[1] != "all" and key[2] == "all"][::-1]
    figure = go.Figure()
    figure.add_vrect(
        x0=-explain_above, x1=explain_above, fillcolor=GRID, opacity=0.35, line_width=0, layer="below"
    )  # fmt: skip
    figure.add_vline(x=0, line={"color": BOTTLENECK, "width": 1.5})
    for at, key in enumerate(groups):
        band = bands.loc[key]
        figure.add_trace(
            go.Scatter(
                x=[band["low"], band["high"]], y=[at, at], mode="lines", showlegend=False,
                line={"color": GRID, "width": 26}, hoverinfo="skip",
            )
        )  # fmt: skip
    engines = list(dict.fromkeys(_engine_of(table)))
    for number, engine in enumerate(engines):
        rows = table[_engine_of(table) == engine]
        shift = _APART * (number - (len(engines) - 1) / 2)
        figure.add_trace(
            go.Scatter(
                x=rows["error"], y=[groups.index(_group(r)) + shift for r in rows.itertuples()],
                mode="markers", name=engine or "no engine named",
                marker={"size": 9, "color": _ENGINES[number % len(_ENGINES)], "opacity": 0.85},
                customdata=rows[["measured", "predicted", "unit"]].assign(
                    note=rows["note"].fillna(""), what=rows["what"].map(plain)
                ),
                hovertemplate="%{customdata[4]}<br>measured %{customdata[0]:.4g}, predicted "
                "%{customdata[1]:.4g} %{customdata[2]}<br>%{customdata[3]}<extra></extra>",
            )
        )  # fmt: skip
    off = table["error"].abs()
    reach = max(0.3, 1.15 * float(off.max()))
    names = [
        f"{phase}, {'one GPU' if cut == '1' else f'{cut} GPUs'} per layer<br>"
        f"median {bands.loc[(phase, cut, e), 'median']:.0%} of {bands.loc[(phase, cut, e), 'rows']:.0f}"
        for phase, cut, e in groups
    ]
    number = int((off > explain_above).sum())
    many = f"{number} of {len(table)} {'is' if number == 1 else 'are'} off by more than {explain_above:.0%}"
    figure.update_layout(
        template=template(),
        title=f"Predicted times: median error {off.median():.1%}; {many}",
        height=190 + 78 * len(groups),
        xaxis={"title": {"text": "predicted time / measured time − 1"}, "tickformat": "+.0%", "range": [-reach, reach]},
        yaxis={"tickvals": list(range(len(groups))), "ticktext": names, "automargin": True},
        legend={"orientation": "h", "y": -0.28 * 4 / max(4, len(groups)), "x": 0},
    )  # fmt: skip
    return figure


def _engine_of(table: "DataFrame") -> "Series":
    import pandas as pd

    return table.get("engine", pd.Series("", table.index)).fillna("")


def _group(row: Any) -> tuple[str, str, str]:
    degree = getattr(row, "tensor_parallel", 1)
    degree = 1 if degree != degree else int(degree)  # an empty cell is not a number
    return row.phase, "1" if degree == 1 else "2" if degree < 4 else "4 or more", "all"
