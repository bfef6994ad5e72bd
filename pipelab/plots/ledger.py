"""The ledger in one picture: how many of each verdict, kind by kind and document by document."""

from typing import TYPE_CHECKING

from pipelab.errors import InvalidValue
from pipelab.ledger.claims import FAILS, KINDS
from pipelab.theme import VERDICT_COLOURS, ink_on, template

if TYPE_CHECKING:
    from pipelab.kinds import Figure
    from pipelab.ledger.book import Ledger

__all__ = ["plot_verdicts"]


def plot_verdicts(ledger: "Ledger") -> "Figure":
    """Stacked bars, one per document, one colour per verdict; numbers, statements and readings side by side.

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
        raise InvalidValue("plot_verdicts", [("ledger", "no entries", "expected at least one; see reproduce")])
    counts = ledger.counts
    documents = list(counts)
    longest = [max(sum(counts[d][v] for v in verdicts) for d in documents) for verdicts in KINDS.values()]
    figure = go.Figure()
    for axis, (kind, verdicts) in zip(("x", "x2", "x3"), KINDS.items(), strict=True):
        for verdict in (v for v in verdicts if any(counts[d][v] for d in documents)):
            numbers = [counts[d][verdict] for d in documents]
            colour = VERDICT_COLOURS[verdict]
            figure.add_trace(
                go.Bar(
                    orientation="h", name=verdict, y=documents, x=numbers, marker={"color": colour}, xaxis=axis,
                    text=[str(n) if n else "" for n in numbers], textposition="inside", insidetextanchor="middle",
                    textangle=0, textfont={"color": ink_on(colour)}, constraintext="none",
                    legendgroup=kind, legendgrouptitle={"text": f"{kind}s"},
                    hovertemplate=f"%{{y}}: %{{x}} {verdict}<extra></extra>",
                )
            )  # fmt: skip
    figure.update_layout(
        template=template(), title=_title(ledger), barmode="stack", height=270 + 52 * len(documents),
        yaxis={"autorange": "reversed", "automargin": True, "ticklabelstandoff": 8}, **_axes(longest),
        legend={"y": -0.3, "yanchor": "top", "x": 0, "xanchor": "left", "traceorder": "grouped"},
        margin={"t": 78, "b": 190},
    )  # fmt: skip
    return figure


def _axes(longest: list[int]) -> dict[str, dict]:
    """Three axes side by side, as wide as their longest bars, so that one row is as long in each."""
    gap = 0.06
    unit = (1 - 2 * gap) / max(sum(longest), 1)
    axes, left = {}, 0.0
    for name, kind, most in zip(("xaxis", "xaxis2", "xaxis3"), KINDS, longest, strict=True):
        right = min(left + unit * max(most, 1), 1.0)
        axes[name] = {
            "domain": [left, right], "range": [0, max(most, 1)], "title": {"text": f"{kind}s"}, "nticks": 6,
        }  # fmt: skip
        left = right + gap
    return axes


def _title(ledger: "Ledger") -> str:
    totals, kinds = ledger.totals, ledger.kinds
    wrong, fails = totals.get("wrong", 0), totals.get(FAILS, 0)
    finding = f"{wrong} of {kinds['number']} numbers are wrong, {fails} of {kinds['statement']} statements do not hold"
    return f"{finding}<br><sup>rows by verdict; {kinds['reading']} readings have none</sup>"
