"""The ledger in one picture: how many of each verdict, kind by kind and section by section."""

from collections import Counter
from typing import TYPE_CHECKING

from pipelab.course.ledger.book import FAILED
from pipelab.course.ledger.claims import FAILS, KINDS
from pipelab.errors import InvalidValue
from pipelab.figures.theme import VERDICT_COLOURS, ink_on, template

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from pipelab.course.ledger.book import Ledger


def plot_verdicts(ledger: "Ledger") -> "Figure":
    """Stacked bars, one per section, one colour per verdict; numbers, statements and readings side by side.

    Parameters
    ----------
    ledger : Ledger
        With at least one entry.

    Returns
    -------
    plotly.graph_objects.Figure
        In numbers of rows; the three parts share one scale.

    Raises
    ------
    InvalidValue
        The ledger has no entry.
    """
    import plotly.graph_objects as go

    if not len(ledger):
        raise InvalidValue(
            "plot_verdicts", [("ledger", "no entries", "expected at least one; see reproduce")]
        )
    sections = list(dict.fromkeys(e.section for e in ledger))
    found = Counter((e.claim.kind, e.verdict, e.section) for e in ledger)
    rows = Counter((e.claim.kind, e.section) for e in ledger)
    longest = {kind: max(rows[kind, s] for s in sections) for kind in KINDS}
    axes = {
        kind: f"x{i}" if i > 1 else "x"
        for i, kind in enumerate((k for k in KINDS if longest[k]), 1)
    }
    figure = go.Figure()
    for kind, axis in axes.items():
        for verdict in (
            v for v in (*KINDS[kind], FAILED) if any(found[kind, v, s] for s in sections)
        ):
            numbers = [found[kind, verdict, s] for s in sections]
            colour = VERDICT_COLOURS.get(verdict, "#FFFFFF")
            figure.add_trace(
                go.Bar(
                    orientation="h", name=verdict, y=sections, x=numbers, marker={"color": colour}, xaxis=axis,
                    text=[str(n) if n else "" for n in numbers], textposition="inside", insidetextanchor="middle",
                    textangle=0, textfont={"color": ink_on(colour)}, constraintext="none",
                    legendgroup=kind, legendgrouptitle={"text": f"{kind}s"},
                    hovertemplate=f"%{{y}}: %{{x}} {verdict}<extra></extra>",
                )
            )  # fmt: skip
    figure.update_layout(
        template=template(), title=_title(ledger), barmode="stack", height=270 + 40 * len(sections),
        yaxis={"autorange": "reversed", "automargin": True, "ticklabelstandoff": 8}, **_side_by_side(axes, longest),
        legend={"y": -0.3, "yanchor": "top", "x": 0, "xanchor": "left", "traceorder": "grouped"},
        margin={"t": 78, "b": 190},
    )  # fmt: skip
    return figure


def _side_by_side(axes: dict[str, str], longest: dict[str, int]) -> dict[str, dict]:
    """Axes as wide as their longest bars, so that one row is as long in each."""
    gap = 0.06
    unit = (1 - gap * (len(axes) - 1)) / sum(longest.values())
    layout, left = {}, 0.0
    for kind, axis in axes.items():
        right = min(left + unit * longest[kind], 1.0)
        layout[axis.replace("x", "xaxis")] = {
            "domain": [left, right], "range": [0, longest[kind]], "title": {"text": f"{kind}s"}, "nticks": 6,
        }  # fmt: skip
        left = right + gap
    return layout


def _title(ledger: "Ledger") -> str:
    totals, kinds = ledger.totals, ledger.kinds
    wrong, fails = totals.get("wrong", 0), totals.get(FAILS, 0)
    finding = f"{wrong} of {kinds['number']} numbers are wrong, {fails} of {kinds['statement']} statements do not hold"
    return f"{finding}<br><sup>rows by verdict; {kinds['reading']} readings have none</sup>"
