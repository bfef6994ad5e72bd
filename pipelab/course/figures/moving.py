"""A pipeline at work: prompts move through stages and links, and queue where one is too slow."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pipelab.display import counted, listed
from pipelab.errors import InvalidValue
from pipelab.figures.theme import BOTTLENECK, NEUTRAL, colour_of_types, plain, template
from pipelab.placement import Placement
from pipelab.problem import Problem

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from pipelab.engine.timeline.placed import PlacedTimeline

_FRAMES, _OPENS_AT = 90, 0.62  # moments shown, and the share of the time at which it opens
_BOX, _WAITS = 0.64, 0.52  # width of a stage (a stage and a link are 1), height of a queue's place
_MOST_PROMPTS = 12


class _Dots(NamedTuple):
    """Where every prompt is at one moment."""

    x: list[float]
    y: list[float]


def plot_moving(problem: Problem, placement: Placement, prompts: int = 6) -> "go.Figure":
    """Prompts on their way through the pipeline, as frames to play, with a slider for the time.

    All prompts are there from the beginning, and each enters as soon as the first stage is free.

    Parameters
    ----------
    problem : Problem
        Of prefill, with links counted in tokens/s.
    placement : Placement
        Valid for this problem.
    prompts : int
        How many, from 2 to 12.

    Returns
    -------
    plotly.graph_objects.Figure
        Boxes are stages, with their layers; the bottleneck is black. Every frame moves the dots only.

    Raises
    ------
    InvalidValue
        Too few or too many prompts.

    Examples
    --------
    >>> from pipelab.course import three_sites
    >>> cut = Placement.of([(10, (3,)), (20, (0,)), (20, (1,)), (20, (2,)), (10, (4,))])
    >>> plot_moving(three_sites(), cut).layout.title.text.split("<br>")[0]
    'Once the pipeline is full, a prompt leaves every 818 ms: GPU 4 takes that long'
    """
    import plotly.graph_objects as go

    from pipelab.engine.timeline import timeline_of

    if not 2 <= prompts <= _MOST_PROMPTS:
        expected = f"expected 2 to {_MOST_PROMPTS}"
        raise InvalidValue("plot_moving", [("prompts", prompts, expected)])
    placed = timeline_of(problem, placement, prompts, in_flight=prompts)
    timeline, shape = placed.timeline, (len(placed.lanes), prompts)
    start, end = timeline.start.reshape(shape), timeline.end.reshape(shape)
    moments = np.linspace(0, end[-1, -1], _FRAMES)
    dots = [_dots(start, end, moment) for moment in moments]
    figure = go.Figure()
    _draw_pipeline(figure, problem, placement, placed)
    first = round(_OPENS_AT * _FRAMES)
    figure.add_scatter(
        x=dots[first].x, y=dots[first].y, mode="markers+text", showlegend=False, cliponaxis=False,
        text=[str(n) for n in range(1, prompts + 1)], textfont={"color": "white", "size": 11},
        marker={"size": 20, "color": NEUTRAL, "line": {"color": "white", "width": 1.5}},
        hovertemplate="prompt %{text}<extra></extra>",
    )  # fmt: skip
    moves = len(figure.data) - 1
    figure.frames = [
        go.Frame(name=str(n), traces=[moves], data=[{"type": "scatter", "x": at.x, "y": at.y}])
        for n, at in enumerate(dots)
    ]
    stages = len(placement.stages)
    figure.update_layout(
        template=template(), title=_title(placed, end), height=400, margin={"t": 84, "b": 84, "l": 20, "r": 20},
        legend={"itemclick": False, "itemdoubleclick": False},
        xaxis={"range": [-0.75, stages + 0.4], "visible": False, "fixedrange": True},
        yaxis={"range": [-0.8, 1 + _WAITS * prompts], "visible": False, "fixedrange": True},
        updatemenus=[_buttons()], sliders=[_slider(moments, first)],
    )  # fmt: skip
    return figure


def _dots(start: np.ndarray, end: np.ndarray, moment: float) -> _Dots:
    """Prompts at work are inside a stage or on a link; those that wait are stacked above it."""
    lanes, prompts = start.shape
    queues, dots = dict[int, int](), _Dots([], [])
    for prompt in range(prompts):
        lane = int((end[:, prompt] <= moment).sum())  # the first that is not done with it
        if lane < lanes and start[lane, prompt] <= moment:
            took = end[lane, prompt] - start[lane, prompt]
            x, y = _inside(lane, (moment - start[lane, prompt]) / took), 0.5
        else:
            place = queues.get(lane, 0)
            queues[lane] = place + 1
            x, y = _before(lane, lanes), 1.3 + _WAITS * place
        dots.x.append(round(x, 3))
        dots.y.append(round(y, 3))
    return dots


def _inside(lane: int, done: float) -> float:
    """Lanes are stage 1, link 1→2, stage 2, …; `done` runs from 0 to 1."""
    stage, link = divmod(lane, 2)
    left, width = (stage + _BOX, 1 - _BOX) if link else (stage + 0.1, _BOX - 0.2)
    return float(left + width * done)


def _before(lane: int, lanes: int) -> float:
    """Where prompts wait for a lane: at its entrance, and to the right of all when they are done."""
    if lane == 0:
        return -0.4
    return (lanes + 1) / 2 if lane == lanes else _inside(lane, 0)


def _draw_pipeline(
    figure: "go.Figure", problem: Problem, placement: Placement, placed: "PlacedTimeline"
) -> None:
    gpus = problem.cluster.gpus
    colours = colour_of_types(gpu.type for gpu in gpus)
    slowest, named = [lane.bottleneck for lane in placed.lanes], set[str]()
    for n, stage in enumerate(placement.stages):
        kind = gpus[stage.gpus[0]].type
        if n:
            held_up = slowest[2 * n - 1]
            line = {"color": BOTTLENECK if held_up else "#AAAAAA", "width": 7 if held_up else 4}
            figure.add_shape(
                type="line", x0=n - 1 + _BOX, x1=n, y0=0.5, y1=0.5, line=line, layer="below"
            )
        figure.add_shape(
            type="rect", x0=n, x1=n + _BOX, y0=0, y1=1, fillcolor=colours[kind], layer="below",
            line={"width": 0}, name=plain(kind), showlegend=kind not in named,
        )  # fmt: skip
        if slowest[2 * n]:  # apart, or the legend would have the frame, too
            figure.add_shape(
                type="rect", x0=n, x1=n + _BOX, y0=0, y1=1, layer="below", line={"color": BOTTLENECK, "width": 4},
            )  # fmt: skip
        named.add(kind)
        label = f"GPU {', '.join(map(str, stage.gpus))}<br>{counted(len(stage.layers), 'layer')}"
        _write(figure, n + _BOX / 2, -0.5, label)
    _write(figure, _before(0, 1), 0.5, "to do")
    _write(figure, _before(len(placed.lanes), len(placed.lanes)), 0.5, "done")


def _write(figure: "go.Figure", x: float, y: float, text: str) -> None:
    figure.add_annotation(x=x, y=y, text=text, showarrow=False, font={"size": 11})


def _title(placed: "PlacedTimeline", end: np.ndarray) -> str:
    every = 1000 * (end[-1, -1] - end[-1, -2])
    stages = placed.placement.stages
    names = [_named(i, stages) for i, lane in enumerate(placed.lanes) if lane.bottleneck]
    take = f"{listed(names)} take{'s' * (len(names) == 1)} that long"
    note = (
        "dots: prompts, stacked where they wait; black: the bottleneck; ▶ starts from the beginning"
    )
    return f"Once the pipeline is full, a prompt leaves every {every:,.0f} ms: {take}<br><sup>{note}</sup>"


def _named(lane: int, stages: Sequence[Any]) -> str:
    stage, link = divmod(lane, 2)
    of = [f"GPU {', '.join(map(str, s.gpus))}" for s in stages[stage : stage + 2]]
    return f"the link from {of[0]} to {of[1]}" if link else of[0]


def _buttons() -> dict:
    now = {"mode": "immediate", "transition": {"duration": 0}}
    play = {"frame": {"duration": 110, "redraw": False}, "fromcurrent": False} | {
        "mode": "immediate", "transition": {"duration": 110, "easing": "linear"}
    }  # fmt: skip
    stop = {"frame": {"duration": 0, "redraw": False}, **now}
    return {
        "type": "buttons", "direction": "left", "showactive": False, "x": 0, "xanchor": "left", "y": -0.1,
        "yanchor": "top", "pad": {"t": 10, "r": 10},
        "buttons": [
            {"label": "▶", "method": "animate", "args": [None, play]},
            {"label": "❚❚", "method": "animate", "args": [[None], stop]},
        ],
    }  # fmt: skip


def _slider(moments: np.ndarray, first: int) -> dict:
    jump = {
        "mode": "immediate",
        "frame": {"duration": 0, "redraw": False},
        "transition": {"duration": 0},
    }
    steps = [
        {"label": f"{moment:.1f}", "method": "animate", "args": [[str(n)], jump]}
        for n, moment in enumerate(moments)
    ]
    return {
        "active": first, "x": 0.13, "len": 0.87, "y": -0.1, "yanchor": "top", "pad": {"t": 10},
        "currentvalue": {"prefix": "time: ", "suffix": " s", "font": {"size": 13, "color": BOTTLENECK}}, "steps": steps,
        "tickcolor": "white", "ticklen": 0, "minorticklen": 0, "font": {"size": 1, "color": "rgba(0,0,0,0)"},
    }  # fmt: skip
