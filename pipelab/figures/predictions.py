"""Predicted times against measured ones."""

from typing import TYPE_CHECKING

from pipelab.display import DataFrame, Figure
from pipelab.errors import InvalidValue
from pipelab.figures.theme import BOTTLENECK, GRID, figure_of, finish, line, plain, points

if TYPE_CHECKING:
    from pipelab.hardware.calibration import Calibration

_COLUMNS = ("what", "measured", "predicted", "unit", "error", "phase", "note")
_ENGINES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
_APART = 0.09  # height between the engines' rows of points in one group


def plot_against_measured(table: DataFrame, explain_above: float = 0.2) -> Figure:
    """Draw by how much each predicted time is off, by phase and GPUs that cut a layer.

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
    from pipelab.hardware.measurements import cuts_and_engines, error_bands

    missing = [name for name in _COLUMNS if name not in table]
    if missing:
        expected = f"expected a table of against_measured, with {', '.join(missing)}"
        raise InvalidValue("plot_against_measured", [("table", list(table), expected)])
    bands = error_bands(table)
    groups = [key for key in bands.index if key[1] != "all" and key[2] == "all"][::-1]
    data: list[dict] = [
        line("", bands.loc[key, ["low", "high"]].tolist(), [at, at], GRID, 26, showlegend=False)
        for at, key in enumerate(groups)
    ]
    cuts, engine_of = cuts_and_engines(table)
    engines = list(dict.fromkeys(engine_of))
    for number, engine in enumerate(engines):
        mine = engine_of == engine
        rows, of_rows = table[mine], zip(table["phase"][mine], cuts[mine], strict=True)
        shift = _APART * (number - (len(engines) - 1) / 2)
        facts = rows[["measured", "predicted", "unit"]]
        facts = facts.assign(note=rows["note"].fillna(""), what=rows["what"].map(plain))
        data.append(
            points(
                engine or "no engine named",
                rows["error"].tolist(),
                [groups.index((phase, cut, "all")) + shift for phase, cut in of_rows],
                marker={"size": 9, "color": _ENGINES[number % len(_ENGINES)], "opacity": 0.85},
                customdata=facts.to_numpy(),
                hovertemplate="%{customdata[4]}<br>measured %{customdata[0]:.4g}, predicted "
                "%{customdata[1]:.4g} %{customdata[2]}<br>%{customdata[3]}<extra></extra>",
            )
        )
    off = table["error"].abs()
    reach = max(0.3, 1.15 * float(off.max()))
    names = [
        f"{phase}, {'one GPU' if cut == '1' else f'{cut} GPUs'} per layer<br>"
        f"median {bands.loc[(phase, cut, e), 'median']:.0%} of {bands.loc[(phase, cut, e), 'rows']:.0f}"
        for phase, cut, e in groups
    ]
    number = int((off > explain_above).sum())
    verb = "is" if number == 1 else "are"
    many = f"{number} of {len(table)} {verb} off by more than {explain_above:.0%}"
    parts = finish(
        data,
        f"Predicted times: median error {off.median():.1%}; {many}",
        x={
            "title": "predicted time / measured time − 1",
            "tickformat": "+.0%",
            "range": [-reach, reach],
        },
        y={"tickvals": list(range(len(groups))), "ticktext": names},
        height=190 + 78 * len(groups),
        margin={"t": 46, "b": 110},
        legend={"y": -0.28 * 4 / max(4, len(groups)), "yanchor": "top", "x": 0, "xanchor": "left"},
    )
    figure = figure_of(parts)
    within = {"x0": -explain_above, "x1": explain_above, "line_width": 0}
    figure.add_vrect(**within, fillcolor=GRID, opacity=0.35, layer="below")
    figure.add_vline(x=0, line={"color": BOTTLENECK, "width": 1.5})
    return figure


def plot_calibration(fit: "Calibration") -> Figure:
    """Draw by how much each time was off before constants were fitted, is after, and is when predicted from the others.

    Parameters
    ----------
    fit : Calibration
        From `pl.hardware.calibrate`.

    Returns
    -------
    plotly.graph_objects.Figure
        As `plot_against_measured`, with three points per row in three colours.
    """
    import pandas as pd

    rows = fit.table.assign(measured=fit.table["measured_ms"], unit="ms", note="")
    ways = [rows.assign(error=rows[way], engine=way) for way in ("before", "after", "left_out")]
    table = pd.concat(ways, ignore_index=True).replace("left_out", "predicted from the others")
    table["predicted"] = table["measured"] * (1 + table["error"])
    figure = plot_against_measured(table)
    # Bars and medians would be of all three together.
    figure.data = [trace for trace in figure.data if trace.showlegend is None]
    figure.update_yaxes(ticktext=[t.partition("<br>")[0] for t in figure.layout.yaxis.ticktext])
    return figure.update_layout(title_text=f"Calibration: {fit.sentence}")
