"""The ledger in one picture: how many of each verdict, document by document."""

from typing import TYPE_CHECKING

from pipelab.errors import InvalidValue
from pipelab.theme import VERDICT_COLOURS, ink_on, template

if TYPE_CHECKING:
    from pipelab.kinds import Figure
    from pipelab.ledger.book import Ledger

__all__ = ["plot_verdicts"]


def plot_verdicts(ledger: "Ledger") -> "Figure":
    """Stacked bars, one per document, one colour per verdict.

    Parameters
    ----------
    ledger : Ledger
        With at least one entry.

    Returns
    -------
    plotly.graph_objects.Figure
        In numbers of claims.

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
    verdicts = [v for v in next(iter(counts.values())) if any(counts[d][v] for d in documents)]
    figure = go.Figure()
    for verdict in verdicts:
        numbers = [counts[d][verdict] for d in documents]
        colour = VERDICT_COLOURS.get(verdict, "#FFFFFF")
        figure.add_trace(
            go.Bar(
                orientation="h", name=verdict, y=documents, x=numbers, marker={"color": colour},
                text=[str(n) if n else "" for n in numbers], textposition="inside", insidetextanchor="middle",
                textangle=0, textfont={"color": ink_on(colour)}, constraintext="none",
                hovertemplate=f"%{{y}}: %{{x}} {verdict}<extra></extra>",
            )
        )  # fmt: skip
    figure.update_layout(
        template=template(), title=_title(ledger), barmode="stack", height=172 + 52 * len(documents),
        xaxis={"title": {"text": "claims"}, "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "automargin": True, "ticklabelstandoff": 8},
        legend={"y": -0.26, "yanchor": "top", "x": 0, "xanchor": "left", "traceorder": "normal"},
        margin={"t": 62, "b": 110},
    )  # fmt: skip
    return figure


def _title(ledger: "Ledger") -> str:
    wrong = {d: counts["wrong"] / sum(counts.values()) for d, counts in ledger.counts.items()}
    worst, best = max(wrong, key=wrong.__getitem__), min(wrong, key=wrong.__getitem__)
    total = sum(counts["wrong"] for counts in ledger.counts.values())
    note = f"claims by verdict; {len(ledger)} in all"
    if worst == best:
        return f"{total} of {len(ledger)} claims of {worst} are wrong<br><sup>{note}</sup>"
    text = f"{total} of {len(ledger)} claims are wrong: {wrong[worst]:.0%} in {worst}, {wrong[best]:.0%} in {best}"
    return f"{text}<br><sup>{note}</sup>"
