"""The stages of a pipeline in time, identical ones in one row: how many, and how long each takes."""

from typing import TYPE_CHECKING

from pipelab.display import counted, listed
from pipelab.figures.theme import BOTTLENECK, NEUTRAL_LIGHT, colour_of_types, plain, template

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from pipelab.engine.timeline.placed import PlacedTimeline

_SAME = 1 - 1e-9


def plot_stage_groups(placed: "PlacedTimeline") -> "go.Figure":
    """A bar for every kind of stage: GPU type, number of layers, and what a microbatch takes there.

    Parameters
    ----------
    placed : PlacedTimeline
        Made by `pl.timeline_of`, in inference.

    Returns
    -------
    plotly.graph_objects.Figure
        In milliseconds per microbatch; the slowest are framed. Links are one row, the slowest of
        them.

    Examples
    --------
    >>> import pipelab as pl
    >>> from pipelab import course
    >>> problem = course.three_sites()
    >>> figure = plot_stage_groups(pl.timeline_of(problem, pl.solve(problem)))
    >>> figure.layout.title.text.split("<br>")[0]
    '4 stages of 4 layers on L4 set the pace: 6,321.0 tokens/s'
    """
    import plotly.graph_objects as go

    reports = placed.evaluation.stages
    stages = [lane for lane in placed.lanes if not lane.link]
    groups: dict[tuple[str, int, float], int] = {}
    for report, stage, lane in zip(reports, placed.placement.stages, stages, strict=True):
        kind = " + ".join(sorted(set(report.gpu_types)))
        key = (kind, len(stage.layers), round(1000 * lane.seconds, 6))
        groups[key] = groups.get(key, 0) + 1
    links = [1000 * lane.seconds for lane in placed.lanes if lane.link]
    rows = [
        (f"{n} × {kind}, {counted(layers, 'layer')}", ms)
        for (kind, layers, ms), n in groups.items()
    ]
    colours = colour_of_types(kind for kind, _, _ in groups)
    bars = [colours[kind] for kind, _, _ in groups]
    if links:
        rows.append((f"{counted(len(links), 'link')}, the slowest", max(links)))
        bars.append(NEUTRAL_LIGHT)
    slowest = max(ms for _, ms in rows)
    frames = [3 if ms >= slowest * _SAME else 0 for _, ms in rows]
    pace = [
        f"{counted(n, 'stage')} of {counted(layers, 'layer')} on {kind}"
        for (kind, layers, ms), n in groups.items()
        if ms >= slowest * _SAME
    ] or ["a link"]
    one = len(pace) == 1 and (pace[0].startswith("1 ") or pace == ["a link"])
    figure = go.Figure(
        go.Bar(
            x=[ms for _, ms in rows], y=[plain(name) for name, _ in rows], orientation="h",
            marker={"color": bars, "line": {"color": BOTTLENECK, "width": frames}},
            text=[f"{ms:.3g} ms" for _, ms in rows], textposition="outside", cliponaxis=False,
            hovertemplate="%{y}: %{x:.4g} ms per microbatch<extra></extra>",
        )
    )  # fmt: skip
    rate = f"{placed.predicted_rate:,.1f} tokens/s"
    note = "identical stages in one row; a frame marks what is slowest"
    figure.update_layout(
        template=template(), height=150 + 34 * len(rows),
        title=f"{plain(listed(pace))} set{'s' * one} the pace: {rate}<br><sup>{note}</sup>",
        xaxis={"title": {"text": "ms per microbatch"}, "range": [0, 1.14 * slowest]},
        yaxis={"autorange": "reversed", "automargin": True, "ticklabelstandoff": 8},
    )  # fmt: skip
    return figure
