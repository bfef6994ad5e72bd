"""Methods side by side: on one problem as bars, on many as a table of shares."""

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

from pipelab.checked import given
from pipelab.errors import InvalidValue
from pipelab.theme import WRONG, template
from pipelab.words import listed

if TYPE_CHECKING:
    from pipelab.compare import Comparison
    from pipelab.kinds import Figure
    from pipelab.result import Result

__all__ = ["named", "plot_comparison", "plot_shares", "plot_split_costs"]


def plot_comparison(comparison: "Comparison") -> "Figure":
    """Throughput of every method; what is proven is solid, what is not is hatched.

    Parameters
    ----------
    comparison : Comparison
        Made by `compare`.

    Returns
    -------
    plotly.graph_objects.Figure
        A bar per method, in tokens/s; a promise without a placement is a cross. The title says who loses most.
    """
    import plotly.graph_objects as go

    results = {m: r for m, r in comparison.results.items() if r.throughput is not None}
    promises = {m: r.details["promised"] for m, r in comparison.results.items() if r.details.get("promised")}
    figure = go.Figure()
    for proven, name, pattern in ((True, "proven optimal", ""), (False, "not proven", "/")):
        mine = {m: r for m, r in results.items() if (r.status == "optimal") == proven}
        figure.add_trace(
            go.Bar(
                orientation="h", name=name, y=list(mine), x=[r.throughput for r in mine.values()],
                marker={
                    "color": "#0072B2" if proven else "#56B4E9", "pattern": {"shape": pattern, "fgcolor": "#222222"},
                },
                text=[f"{r.throughput:.4g}" for r in mine.values()], textposition="outside",
                hovertext=[str(r.placement) for r in mine.values()], hoverinfo="text+x",
            )
        )  # fmt: skip
    figure.add_trace(
        go.Scatter(
            x=list(promises.values()), y=list(promises), mode="markers+text", name="promised, no placement",
            text=[f"{v:.4g}" for v in promises.values()], textposition="middle right",
            marker={"symbol": "x", "size": 13, "color": WRONG},
        )
    )  # fmt: skip
    shown = [m for m in comparison.results if m in results or m in promises]
    figure.update_layout(
        template=template(), title=_comparison_title(comparison, results), height=150 + 38 * max(2, len(shown)),
        barmode="overlay",
        xaxis={"title": {"text": "tokens/s"}, "rangemode": "tozero"},
        yaxis={"categoryorder": "array", "categoryarray": shown[::-1], "automargin": True, "ticklabelstandoff": 8},
    )  # fmt: skip
    return figure


def _comparison_title(comparison: "Comparison", results: "Mapping[str, Result]") -> str:
    best, name = comparison.optimum, comparison.problem.name
    infeasible = [m for m, r in comparison.results.items() if r.status == "infeasible"]
    if infeasible:
        return f"{name}: infeasible, proven by {listed(infeasible)}"
    if best is None or not results:
        return f"{name}: no method proved its answer"
    lost = {m: f"{1 - given(r.throughput) / best:.0%}" for m, r in results.items()}
    slowest = min(results, key=lambda m: given(results[m].throughput))
    if lost[slowest] == "0%":
        return f"{name}: every method reaches the proven optimum of {best:.6g} tokens/s"
    note = f"the proven optimum is {best:.6g} tokens/s; hatched bars are not proven"
    who = named([m for m in results if lost[m] == lost[slowest]])
    return f"{name}: {who} {lost[slowest]} against the optimum<br><sup>{note}</sup>"


def named(methods: list[str], one: str = "loses", several: str = "lose") -> str:
    """Up to two by name and the others by number, with the verb."""
    if len(methods) == 1:
        return f"{methods[0]} {one}"
    if len(methods) == 2:
        return f"{methods[0]} and {methods[1]} {several}"
    return f"{methods[0]}, {methods[1]} and {len(methods) - 2} more {several}"


def plot_shares(shares: Mapping[str, Mapping[str, float | None]]) -> "Figure":
    """Every method's share of the proven optimum, GPU mixes down, methods across.

    Parameters
    ----------
    shares : mapping of mix to mapping of method to float or None
        As `Comparison.shares` has them for each mix; None where the method has no placement. At least one is known.

    Returns
    -------
    plotly.graph_objects.Figure
        A heat map of shares.

    Raises
    ------
    InvalidValue
        No share is known.
    """
    import plotly.graph_objects as go

    mixes, methods = list(shares), list(next(iter(shares.values()), {}))
    values = [[shares[mix].get(method) for method in methods] for mix in mixes]
    text = [["–" if v is None else f"{v:.0%}" for v in row] for row in values]
    known = [(v, mix, method) for mix in mixes for method in methods if (v := shares[mix].get(method)) is not None]
    if not known:
        raise InvalidValue("plot_shares", [("shares", shares, "expected at least one that is known")])
    worst, mix, _ = min(known)
    who = named([m for v, x, m in known if x == mix and f"{v:.0%}" == f"{worst:.0%}"], "keeps", "keep")
    figure = go.Figure(
        go.Heatmap(
            z=values, x=methods, y=mixes, text=text, texttemplate="%{text}", textfont={"color": "#111111", "size": 14},
            zmin=0, zmax=1, xgap=3, ygap=3,
            colorscale=[[0, "#E08040"], [0.5, "#F3D9B1"], [1, "#8CC4E8"]],
            colorbar={"title": {"text": "share of<br>optimum"}, "tickformat": ".0%"},
            hovertemplate="%{y}<br>%{x}: %{text} of the proven optimum<extra></extra>",
        )
    )  # fmt: skip
    title = f"{who} only {worst:.0%} of the optimum on {mix}"
    note = "each cell: throughput as a share of the proven optimum; – where a method finds none or is refused"
    figure.update_layout(
        template=template(), title=f"{title}<br><sup>{note}</sup>", height=170 + 46 * len(mixes),
        yaxis={"autorange": "reversed", "automargin": True, "ticklabelstandoff": 8, "showgrid": False},
        xaxis={"side": "bottom", "showgrid": False},
    )  # fmt: skip
    return figure


def plot_split_costs(costs: Any, splits: Mapping[str, tuple[range, ...]]) -> "Figure":
    """The cost of every stage under several splits of the same layers; the tallest bar is the bottleneck.

    Parameters
    ----------
    costs : sequence of float, length M
        Of every layer, in any unit.
    splits : mapping of str to tuple of range
        Splits of these layers, by name; at least one.

    Returns
    -------
    plotly.graph_objects.Figure
        A bar per split and stage, in the unit of the costs.
    """
    import plotly.graph_objects as go

    figure, worst = go.Figure(), {}
    colours = ("#56B4E9", "#E69F00", "#009E73", "#0072B2", "#CC79A7")
    for (name, split), colour in zip(splits.items(), cycle(colours), strict=False):
        stage_costs = [sum(costs[layer] for layer in part) for part in split]
        worst[name] = max(stage_costs)
        figure.add_trace(
            go.Bar(
                name=name, x=[f"stage {i + 1}" for i in range(len(split))], y=stage_costs, marker={"color": colour},
                text=[f"{c:g}" for c in stage_costs], textposition="outside",
                hovertext=[f"{name}: layers {part.start + 1}–{part.stop}" for part in split], hoverinfo="text+y",
            )
        )  # fmt: skip
    best, last = min(worst, key=worst.__getitem__), max(worst, key=worst.__getitem__)
    more = worst[last] / worst[best] - 1 if worst[best] else 0.0
    title = f"{last} has a bottleneck {more:.0%} above {best}'s" if more > 0 else "All splits have the same bottleneck"
    note = ", ".join(f"{name} {cost:g}" for name, cost in worst.items())
    figure.update_layout(
        template=template(), title=f"{title}<br><sup>largest stage cost: {note}</sup>", height=400, barmode="group",
        yaxis={"title": {"text": "cost of the stage"}, "rangemode": "tozero"},
    )  # fmt: skip
    return figure
