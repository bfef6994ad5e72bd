"""A plan where GPUs are faster or slower than predicted, beside the best plan for each case."""

from typing import TYPE_CHECKING

from pipelab.figures.theme import BOTTLENECK, GRID, TYPE_COLOURS, WRONG, plain, template

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from pipelab.engine.speed_scenarios import Scenario, Sensitivity


def plot_sensitivity(found: "Sensitivity") -> "go.Figure":
    """A row per scenario: the plan's rate, the proven best, and what lies between.

    Parameters
    ----------
    found : Sensitivity
        Made by `pl.sensitivity`.

    Returns
    -------
    plotly.graph_objects.Figure
        In tokens/s; its title says in how many cases another plan is better, and by how much at
        most.

    Examples
    --------
    >>> import pipelab as pl
    >>> from pipelab import course
    >>> figure = plot_sensitivity(pl.sensitivity(course.five_gpus(), within=0.1))
    >>> figure.layout.title.text.split("<br>")[0]
    'In 2 of 8 cases another plan is better, by up to 2.7%'
    """
    import plotly.graph_objects as go

    scenarios = found.scenarios
    rows = [_name(scenario) for scenario in scenarios]
    plan = [scenario.throughput for scenario in scenarios]
    best = [scenario.best.bound or scenario.best.throughput or 0.0 for scenario in scenarios]
    flips = [i for i, scenario in enumerate(scenarios) if scenario.loss]
    figure = go.Figure()
    for i in flips:
        figure.add_scatter(
            x=[plan[i], best[i]], y=[rows[i]] * 2, mode="lines+text", showlegend=False, hoverinfo="skip",
            line={"color": WRONG, "width": 4}, text=["", f"    {scenarios[i].loss:.1%}"], textposition="middle right",
        )  # fmt: skip
    figure.add_scatter(
        x=best, y=rows, mode="markers", name="best plan",
        marker={"symbol": "circle-open", "size": 15, "color": BOTTLENECK, "line": {"width": 2}},
        hovertemplate="%{y}: at most %{x:,.1f} tokens/s<extra></extra>",
    )  # fmt: skip
    figure.add_scatter(
        x=plan, y=rows, mode="markers", name="the plan", marker={"size": 10, "color": TYPE_COLOURS[0]},
        hovertemplate="%{y}: the plan reaches %{x:,.1f} tokens/s<extra></extra>",
    )  # fmt: skip
    title = f"None of {len(rows) - 1} cases has a better plan"
    if flips:
        much = f"by up to {found.worst.loss:.1%}"
        title = f"In {len(flips)} of {len(rows) - 1} cases another plan is better, {much}"
    figure.update_layout(
        template=template(), title=title, height=110 + 34 * len(rows),
        xaxis={"title": {"text": "tokens/s"}, "gridcolor": GRID, "tickformat": ","},
        yaxis={"categoryorder": "array", "categoryarray": rows[::-1], "automargin": True,
               "ticklabelstandoff": 8, "gridcolor": GRID},
    )  # fmt: skip
    return figure


def _name(scenario: "Scenario") -> str:
    if scenario.speed == 1:
        return "as predicted"
    faster = "faster" if scenario.speed > 1 else "slower"
    kind = "all GPUs" if scenario.gpu_type == "all" else plain(scenario.gpu_type)
    return f"{kind} {abs(scenario.speed - 1):.0%} {faster}"
