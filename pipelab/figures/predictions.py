"""Predicted times against measured ones."""

from typing import TYPE_CHECKING

from pipelab.errors import InvalidValue
from pipelab.figures.theme import BOTTLENECK, GRID, WRONG, plain, template

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure

_COLUMNS = ("what", "measured", "predicted", "unit", "error", "note")


def plot_against_measured(table: "DataFrame", explain_above: float = 0.2) -> "Figure":
    """By how much each predicted time is off, as points beside a band of ±`explain_above`.

    Parameters
    ----------
    table : pandas.DataFrame
        From `against_measured`.
    explain_above : float
        Misses beyond this share are marked, with the note of their row.

    Returns
    -------
    plotly.graph_objects.Figure
        A point per row, at predicted time / measured time - 1.

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
    rows = table.iloc[::-1].assign(what=table["what"].map(plain))  # the first row at the top
    missed = rows["error"].abs() > explain_above
    figure = go.Figure()
    figure.add_vrect(
        x0=-explain_above,
        x1=explain_above,
        fillcolor=GRID,
        opacity=0.35,
        line_width=0,
        layer="below",
    )
    figure.add_vline(x=0, line={"color": BOTTLENECK, "width": 1.5})
    for mask, name, colour, symbol in (
        (~missed, f"within ±{explain_above:.0%}", "#0072B2", "circle"),
        (missed, "beyond", WRONG, "diamond"),
    ):
        mine = rows[mask]
        figure.add_trace(
            go.Scatter(
                x=mine["error"], y=mine["what"], mode="markers+text", name=name,
                marker={"size": 12, "color": colour, "symbol": symbol},
                text=[f"{e:+.0%}".replace("-", "−") for e in mine["error"]],
                textposition=["middle left" if e < 0 else "middle right" for e in mine["error"]],
                customdata=mine[["measured", "predicted", "unit"]].assign(note=mine["note"].fillna("")),
                hovertemplate="measured %{customdata[0]:.4g}, predicted %{customdata[1]:.4g} %{customdata[2]}"
                "<br>%{customdata[3]}<extra></extra>",
            )
        )  # fmt: skip
    for row in rows[missed].itertuples():
        left = row.error > 0  # the side on which there is room
        figure.add_annotation(
            x=row.error, y=row.what, text=plain(str(row.note).split(":")[0]), showarrow=False, yshift=17,
            xanchor="right" if left else "left", font={"color": WRONG, "size": 12},
        )  # fmt: skip
    reach = max(0.3, 1.25 * float(rows["error"].abs().max()))
    median, number = rows["error"].abs().median(), int(missed.sum())
    many = f"{number} of {len(rows)} {'is' if number == 1 else 'are'} off by more than {explain_above:.0%}"
    figure.update_layout(
        template=template(), title=f"Predicted times: median error {median:.1%}; {many}",
        height=150 + 34 * len(rows),
        xaxis={"title": {"text": "predicted time / measured time − 1"}, "tickformat": "+.0%", "range": [-reach, reach]},
        yaxis={
            "categoryorder": "array", "categoryarray": list(rows["what"]), "automargin": True, "ticklabelstandoff": 8,
        },
    )  # fmt: skip
    return figure
