"""Methods side by side: on one problem as bars, on many as a grid of shares."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipelab.display import (
    NOT_PROVEN,
    OUTCOMES,
    STOPPED,
    Outcome,
    listed,
    named,
    outcome_of,
    proven_among,
)
from pipelab.errors import InvalidValue
from pipelab.fields import given
from pipelab.figures.baselines import Row, baseline_parts
from pipelab.figures.theme import WRONG, plain, template

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from pipelab.engine.comparison import Comparison
    from pipelab.solving import Result


def plot_comparison(comparison: "Comparison") -> "Figure":
    """Throughput of every method, or why it has none; the look of a bar says how the method ended.

    Parameters
    ----------
    comparison : Comparison
        Made by `compare`.

    Returns
    -------
    plotly.graph_objects.Figure
        A row per method, in tokens/s; a predicted rate without a placement is a cross. The title
        says who loses most.
    """
    import plotly.graph_objects as go

    rows = [_row(method, result) for method, result in comparison.results.items()]
    rows += [
        Row(method, None, comparison.outcomes[method], why)
        for method, why in comparison.refused.items()
    ]
    parts = baseline_parts(rows, comparison.optimum)
    predicted = [
        (y, r.details["predicted"])
        for y, r in enumerate(comparison.results.values())
        if r.details.get("predicted")
    ]
    crosses = {
        "type": "scatter", "x": [rate for _, rate in predicted], "y": [y for y, _ in predicted], "mode": "markers+text",
        "name": "predicted, no placement", "text": [f"{rate:.5g}" for _, rate in predicted],
        "showlegend": bool(predicted), "textposition": "middle right",
        "marker": {"symbol": "x", "size": 13, "color": WRONG},
    }  # fmt: skip
    layout = parts["layout"] | {
        "title": {"text": _comparison_title(comparison)},
        "template": template(),
    }
    most = max([layout["xaxis"]["range"][1], *(1.15 * rate for _, rate in predicted)])
    layout["xaxis"] = layout["xaxis"] | {"range": [0, most]}
    layout["yaxis"] = layout["yaxis"] | {"range": [max(1, len(rows)) - 0.5, -0.5]}
    # two lines of title, a legend
    layout |= {"height": 160 + 30 * len(rows), "margin": layout["margin"] | {"t": 96}}
    return go.Figure([*parts["data"], crosses], layout)


def _row(method: str, result: "Result") -> Row:
    among, outcome = proven_among(result), outcome_of(result)
    name = f"{method} ({among})" if among else method
    if result.throughput is not None:
        return Row(name, result.throughput, outcome, str(result.placement))
    return Row(
        name, None, outcome, "it names no GPU" if "predicted" in result.details else result.reason
    )


def _comparison_title(comparison: "Comparison") -> str:
    best, name, outcomes = comparison.optimum, plain(comparison.problem.name), comparison.outcomes
    infeasible = [m for m, r in comparison.results.items() if r.status == "infeasible"]
    if infeasible:
        return f"{name}: infeasible, proven by {listed(infeasible)}"
    # What a method had when its time was up says nothing of the method.
    rates = {
        m: given(r.throughput)
        for m, r in comparison.results.items()
        if r.placement and outcomes[m] != STOPPED
    }
    if best is None or not rates:
        return f"{name}: no method proved its answer"
    lost = {m: f"{1 - rate / best:.0%}" for m, rate in rates.items()}
    slowest = min(rates, key=rates.__getitem__)
    if lost[slowest] == "0%":
        return f"{name}: every method reaches the proven optimum of {best:,.6g} tokens/s"
    note = f"the proven optimum is {best:,.6g} tokens/s (dotted)"
    who = named([m for m in rates if lost[m] == lost[slowest]])
    return f"{name}: {who} {lost[slowest]} against the optimum<br><sup>{note}</sup>"


def plot_shares(comparisons: Mapping[str, "Comparison"]) -> "Figure":
    """Every method's share of the proven optimum, GPU mixes down, methods across.

    Parameters
    ----------
    comparisons : mapping of mix to Comparison
        Made by `compare`. At least one method has a placement where another has proven the optimum.

    Returns
    -------
    plotly.graph_objects.Figure
        A bar in every cell, as long as the share; its look says how the method ended. Where there
        is no placement, the cell says why. The title covers methods without a bound, and
        not of those that were stopped early.

    Raises
    ------
    InvalidValue
        A value is not a `Comparison`, or no share is known.
    """
    import plotly.graph_objects as go

    from pipelab.engine.comparison import Comparison

    if not isinstance(comparisons, Mapping) or not all(
        isinstance(c, Comparison) for c in comparisons.values()
    ):
        expected = "expected a mapping of name to Comparison, as pl.compare makes them"
        raise InvalidValue("plot_shares", [("comparisons", comparisons, expected)])
    methods = list(dict.fromkeys(m for c in comparisons.values() for m in c.outcomes))
    cells = [
        (x, y, c.shares().get(method), c.outcomes[method])
        for y, c in enumerate(comparisons.values())
        for x, method in enumerate(methods)
        if method in c.outcomes
    ]
    if all(share is None for _, _, share, _ in cells):
        raise InvalidValue(
            "plot_shares", [("comparisons", list(comparisons), "expected at least one known share")]
        )
    figure = go.Figure([_share_bars(cells, outcome) for outcome in OUTCOMES])
    figure.add_trace(
        go.Scatter(
            x=[x - 0.45 for x, *_ in cells], y=[y - 0.22 for _, y, *_ in cells], mode="text", showlegend=False,
            text=[str(o) if share is None else f"{o.symbol} {share:.0%}" for *_, share, o in cells],
            textposition="middle right", textfont={"color": [o.ink for *_, o in cells]}, hoverinfo="skip",
        )
    )  # fmt: skip
    note = "the length of a bar is throughput as a share of the proven optimum, its look how the method ended"
    limited = {
        f"{m} is for {proven_among(r)}"
        for c in comparisons.values()
        for m, r in c.results.items()
        if proven_among(r)
    }
    note += "".join(f"; the proof of {each}" for each in sorted(limited))
    figure.update_layout(
        template=template(), height=170 + 50 * len(comparisons), barmode="overlay", margin={"t": 100},
        title=f"{_shares_title(list(comparisons), cells)}<br><sup>{note}</sup>",
        yaxis={
            "range": [len(comparisons) - 0.5, -0.5], "tickvals": list(range(len(comparisons))), "zeroline": False,
            "ticktext": [plain(mix) for mix in comparisons], "showgrid": False, "automargin": True,
        },
        xaxis={
            "range": [-0.5, len(methods) - 0.5], "tickvals": list(range(len(methods))), "ticktext": methods,
            "showgrid": False, "zeroline": False, "title": {"text": "method"},
        },
    )  # fmt: skip
    return figure


def _share_bars(
    cells: "Sequence[tuple[int, int, float | None, Outcome]]", outcome: Outcome
) -> dict:
    """The bars of the cells that ended so; the grey ground of a cell is the whole optimum."""
    mine = [(x, y, share) for x, y, share, ended in cells if share is not None and ended is outcome]
    return {
        "type": "bar", "orientation": "h", "name": str(outcome), "showlegend": bool(mine), "width": 0.36,
        "base": [x - 0.45 for x, _, _ in mine], "x": [0.9 * share for _, _, share in mine],
        "y": [y + 0.16 for _, y, _ in mine], "marker": outcome.bar | {"line": {"width": 0}},
        "hovertext": [f"{share:.1%} of the proven optimum, {outcome.word}" for *_, share in mine], "hoverinfo": "text",
    }  # fmt: skip


def _shares_title(
    mixes: Sequence[str], cells: "Sequence[tuple[int, int, float | None, Outcome]]"
) -> str:
    known = [
        (share, mixes[y])
        for _, y, share, ended in cells
        if share is not None and ended is NOT_PROVEN
    ]
    if not known:
        return "Every method that found a placement in time proves it"
    (least, mix), (most, _) = min(known), max(known)
    if f"{least:.0%}" == f"{most:.0%}":
        return f"Methods without a proof keep {least:.0%} of the optimum"
    return f"Methods without a proof keep {least:.0%} to {most:.0%} of the optimum, least on {plain(mix)}"
