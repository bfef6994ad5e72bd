"""Notebook 00, Start here: Llama-3-70B on eleven GPUs at three sites; a cut in the picture; cuts to rate."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from statistics import mean
from typing import Any, NamedTuple, cast

import numpy as np

from pipelab.cluster import GPU, Cluster
from pipelab.costs import LayerTimes
from pipelab.course.exercises import Exercise, Failure, Function, Given, Number, drawn
from pipelab.course.pictures import SAME, add_layers, add_legend, add_times, finish
from pipelab.display import Figure, counted, listed, number
from pipelab.engine.solving import solve
from pipelab.engine.timeline import timeline_of
from pipelab.engine.timeline.placement_timelines import PlacedTimeline
from pipelab.errors import InvalidPlacement
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.figures.theme import (
    BOTTLENECK,
    NEUTRAL,
    NEUTRAL_LIGHT,
    WRONG,
    colour_of_types,
    new_figure,
    plain,
)
from pipelab.hardware.known_gpus import load_gpus
from pipelab.hardware.known_models import load_model
from pipelab.hardware.roofline import Roofline
from pipelab.placement import Placement
from pipelab.problem import Model, Problem, StageCost, Workload
from pipelab.splits import split_proportional

# The problem


A100, L4, T4 = "A100-SXM-40", "L4", "T4"

GPUS = {A100: 3, L4: 4, T4: 4}

# Gb/s. Each type is one site; a company's own network joins two of them, and the third is far away.
LINKS = {(A100, A100): 10, (L4, L4): 10, (T4, T4): 10, (A100, L4): 10, (A100, T4): 1, (L4, T4): 0.1}

PROMPT = Workload(sequence_length=2048, batch_size=1)

RESERVED_GB = 2.0  # of every GPU, for activations, the KV cache and buffers


def three_sites(max_gpus_per_stage: int = 1) -> Problem:
    """Llama-3-70B, prefill of 2,048-token prompts, on 3 A100-40, 4 L4 and 4 T4.

    Parameters
    ----------
    max_gpus_per_stage : int
        As in `Problem`.

    Returns
    -------
    Problem
        Its `costs` are `LayerTimes`: milliseconds per layer, two digits of the roofline's. First and
        last layer also weigh the embedding and the head; the head takes time, too.

    Examples
    --------
    >>> problem = three_sites()
    >>> problem.costs.ms_per_layer
    {'A100-SXM-40': 17.0, 'L4': 81.0, 'T4': 150.0}
    >>> round(problem.model.weight_gb(range(80)))
    141
    """
    return on_sites("Llama-3-70B", GPUS, max_gpus_per_stage, "Llama-3-70B on three sites")


def _two_digits(number: float) -> float:
    """Round to two significant digits, with which a pencil can count."""
    return float(f"{number:.2g}")


@cache
def _roofline_times(model_name: str) -> tuple[dict[str, float], float]:
    """Milliseconds per layer of each type, and the last layer's work with the head, to two digits."""
    model, roof = load_model(model_name), Roofline()

    def ms(kind: str, layer: int) -> float:
        gpu = GPU(kind, load_gpus()[kind].memory_gb)
        return 1000 * roof.pass_seconds(model, PROMPT, gpu, range(layer, layer + 1))

    head = mean(ms(kind, model.layers - 1) / ms(kind, 1) for kind in GPUS)
    return {kind: _two_digits(ms(kind, 1)) for kind in GPUS}, _two_digits(head)


def on_sites(
    model_name: str, counts: Mapping[str, int], max_gpus_per_stage: int, name: str
) -> Problem:
    whole = load_model(model_name)
    gigabytes = {pair: gigabits / 8 for pair, gigabits in LINKS.items()}
    memory = {kind: load_gpus()[kind].memory_gb for kind in counts}
    cluster = Cluster.from_counts(counts, memory, gigabytes)
    one_layer = whole.weight_gb(range(1, 2))
    ends = round(whole.weight_gb(range(whole.layers - 1, whole.layers)) / one_layer, 2)
    between = whole.layers - 2
    ms_per_layer, head = _roofline_times(model_name)
    model = Model(
        whole.name,
        whole.layers,
        whole.d_model,
        whole.d_hidden,
        round(one_layer, 2),
        weight_factors=(ends, *[1.0] * between, ends),
        work_factors=(*[1.0] * (between + 1), head),
    )
    costs = LayerTimes(ms_per_layer, reserved_gb=RESERVED_GB, filling="synchronous")
    return Problem(
        cluster, model, PROMPT, costs, max_gpus_per_stage, same_type_stages=False, name=name
    )


# A cut as a picture


class _Part(NamedTuple):
    """A stage or a link: one bar."""

    name: str
    label: str
    of: str  # GPU type, or "link"
    ms: float
    layers: int = 0
    lacks: str = ""  # what does not fit


def plot_cut(problem: Problem, placement: Placement) -> Figure:
    """Layers as blocks, and below them a bar for the time of every stage and of every link.

    Also of a placement that memory does not hold, which `evaluate` refuses: the figure says where.

    Parameters
    ----------
    problem : Problem
        With links counted in tokens/s, so that they have a time.
    placement : Placement
        All layers, in order.

    Returns
    -------
    plotly.graph_objects.Figure
        In milliseconds per batch; the longest bars are framed.

    Examples
    --------
    >>> from pipelab.course import three_sites
    >>> cut = Placement.of([(10, (3,)), (20, (0,)), (20, (1,)), (20, (2,)), (10, (4,))])
    >>> plot_cut(three_sites(), cut).layout.title.text.split("<br>")[0]
    '2,503 tokens/s: GPU 4 takes 818 ms'
    """
    from plotly.subplots import make_subplots

    parts = _cut_parts(problem, placement)
    stages = [part for part in parts if part.layers]
    colours = colour_of_types(gpu.type for gpu in problem.cluster.gpus) | {"link": NEUTRAL_LIGHT}
    shade = {part: WRONG if part.lacks else colours[part.of] for part in parts}
    figure = make_subplots(rows=2, cols=1, row_heights=[0.14, 0.86], vertical_spacing=0.22)
    add_layers(
        figure,
        [part.layers for part in stages],
        [shade[part] for part in stages],
        [part.lacks or f"{part.name}: {part.layers} layers" for part in stages],
        row=1,
        col=1,
    )
    times = [part.ms for part in parts]
    hover = [f"{part.name}: {part.ms:,.1f} ms" for part in parts]
    add_times(figure, times, [shade[part] for part in parts], hover, row=2, col=1)
    add_legend(figure, colours, row=2, col=1)
    return finish(
        figure,
        *_cut_title(problem, placement, parts),
        height=470,
        barmode="overlay",
        x={
            "title": "decoder layer",
            "range": [0, problem.model.layers],
            "showgrid": False,
            "dtick": 10,
        },
        y={"visible": False, "range": [-0.5, 0.5]},
        xaxis2={
            "tickvals": list(range(1, len(parts) + 1)),
            "ticktext": [part.label for part in parts],
            "showgrid": False,
            "tickangle": 0,
            "range": [0.4, len(parts) + 0.6],
            "tickfont": {"size": 11},
        },
        yaxis2={"title": "ms per batch", "range": [0, 1.14 * max(times)], "exponentformat": "none"},
    )


def stage_cost(problem: Problem, gpus: Sequence[int], layers: range) -> StageCost:
    """What the cost model says of a stage, whether it fits or not; the GPUs by id."""
    members = [problem.cluster.gpus[g] for g in gpus]
    return problem.stage_cost(members, layers)


def _cut_parts(problem: Problem, placement: Placement) -> list[_Part]:
    """Stages and the links between them, in pipeline order."""
    parts, cluster, tokens = [], problem.cluster, 1000 * problem.workload.tokens
    before: tuple[int, ...] = ()
    for place, stage in enumerate(placement.stages, start=1):
        if before:
            pairs = product(before, stage.gpus)
            rate = problem.link_throughput(min(cluster.bandwidth_between(*p) for p in pairs))
            name = f"the link from {_gpus(before)} to {_gpus(stage.gpus)}"
            parts.append(_Part(name, "→", "link", tokens / rate))
        cost = stage_cost(problem, stage.gpus, stage.layers)
        members = [cluster.gpus[g] for g in stage.gpus]
        short = [
            f"stage {place} needs {need:.3g} GB, and {plain(gpu.type)} has {gpu.memory_gb:g}"
            for gpu, need in zip(members, cost.memory_gb, strict=True)
            if need > gpu.memory_gb * SAME
        ]
        label, lacks, ms = _gpus(stage.gpus), (short or [""])[0], tokens / cost.throughput
        of = members[0].type
        parts.append(_Part(f"stage {place}", label, of, ms, len(stage.layers), lacks))
        before = stage.gpus
    return parts


def _gpus(ids: Sequence[int]) -> str:
    return f"GPU {', '.join(map(str, ids))}"


def _cut_title(problem: Problem, placement: Placement, parts: list[_Part]) -> tuple[str, str]:
    """What limits the cut, and how to read the picture."""
    short = [part for part in parts if part.lacks]
    if short:
        more = f"; memory is too small {len(short) - 1} more times" if short[1:] else ""
        return f"Does not fit: {short[0].lacks}{more}", "red: memory is too small"
    longest = max(part.ms for part in parts)
    slowest = [part for part in parts if part.ms * SAME >= longest]
    stages = ", ".join(part.label.removeprefix("GPU ") for part in slowest if part.layers)
    several = "," in stages
    named = [f"GPU{'s' * several} {stages}"] if stages else []
    named += [part.name for part in slowest if not part.layers]
    takes = f"take{'' if several or named[1:] else 's'} {slowest[0].ms:,.0f} ms{' each' * (len(slowest) > 1)}"
    rate = 1000 * problem.workload.tokens / slowest[0].ms
    idle = len(problem.cluster) - len(placement.gpus)
    note = "framed: the bottleneck" + (f"; {counted(idle, 'GPU')} idle" if idle else "")
    return f"{number(rate)} tokens/s: {' and '.join(named)} {takes}", note


# A pipeline at work


_FRAMES, _OPENS_AT = 90, 0.62  # moments shown, and the share of the time at which it opens

_BOX, _WAITS = 0.64, 0.52  # width of a stage (a stage and a link are 1), height of a queue's place

_PROMPTS = 6


def plot_moving(problem: Problem, placement: Placement) -> Figure:
    """Six prompts on their way through the pipeline, as frames to play, with a slider for the time.

    All prompts are there from the beginning, and each enters as soon as the first stage is free.

    Parameters
    ----------
    problem : Problem
        Of prefill, with links counted in tokens/s.
    placement : Placement
        Valid for this problem.

    Returns
    -------
    plotly.graph_objects.Figure
        Boxes are stages, with their layers; the bottleneck is black. Every frame moves the dots only.

    Examples
    --------
    >>> from pipelab.course import three_sites
    >>> cut = Placement.of([(10, (3,)), (20, (0,)), (20, (1,)), (20, (2,)), (10, (4,))])
    >>> plot_moving(three_sites(), cut).layout.title.text.split("<br>")[0]
    'Once the pipeline is full, a prompt leaves every 818 ms: GPU 4 takes that long'
    """
    placed = timeline_of(problem, placement, _PROMPTS, in_flight=_PROMPTS)
    timeline, shape = placed.timeline, (len(placed.lanes), _PROMPTS)
    start, end = timeline.start.reshape(shape), timeline.end.reshape(shape)
    moments = np.linspace(0, end[-1, -1], _FRAMES)
    dots = [_dots(start, end, moment) for moment in moments]
    figure, first = new_figure(), round(_OPENS_AT * _FRAMES)
    _draw_pipeline(figure, problem, placement, placed)
    moves = len(figure.data)
    figure.add_scatter(
        **dots[first],
        mode="markers+text",
        showlegend=False,
        cliponaxis=False,
        text=[str(n) for n in range(1, _PROMPTS + 1)],
        textfont={"color": "white", "size": 11},
        marker={"size": 20, "color": NEUTRAL, "line": {"color": "white", "width": 1.5}},
        hovertemplate="prompt %{text}<extra></extra>",
    )
    figure.frames = [
        {"name": str(n), "traces": [moves], "data": [{"type": "scatter", **at}]}
        for n, at in enumerate(dots)
    ]
    slow = listed([_lane(n, placement) for n, lane in enumerate(placed.lanes) if lane.bottleneck])
    takes = f"{slow} take{'s' * (sum(lane.bottleneck for lane in placed.lanes) == 1)} that long"
    every = f"a prompt leaves every {1000 * (end[-1, -1] - end[-1, -2]):,.0f} ms"
    waits = "dots: prompts, stacked where they wait"
    hidden = {"visible": False, "fixedrange": True}
    return finish(
        figure,
        f"Once the pipeline is full, {every}: {takes}",
        f"{waits}; black: the bottleneck; ▶ starts from the beginning",
        height=400,
        margin={"t": 84, "b": 84, "l": 20, "r": 20},
        legend={"itemclick": False, "itemdoubleclick": False},
        x={"range": [-0.75, len(placement) + 0.4], **hidden},
        y={"range": [-0.8, 1 + _WAITS * _PROMPTS], **hidden},
        **_controls(moments, first),
    )


def _dots(start: np.ndarray, end: np.ndarray, moment: float) -> dict[str, list[float]]:
    """Prompts at work are inside a stage or on a link; those that wait are stacked above it."""
    lanes, queues, x, y = len(start), Counter[int](), list[float](), list[float]()
    for begins, ends in zip(start.T, end.T, strict=True):
        lane = int((ends <= moment).sum())  # the first that is not done with it
        if lane < lanes and begins[lane] <= moment:
            done = (moment - begins[lane]) / (ends[lane] - begins[lane])
            x.append(round(_inside(lane, done), 3))
            y.append(0.5)
        else:
            x.append(round(_before(lane, lanes), 3))
            y.append(round(1.3 + _WAITS * queues[lane], 3))
            queues[lane] += 1
    return {"x": x, "y": y}


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
    figure: Figure, problem: Problem, placement: Placement, placed: PlacedTimeline
) -> None:
    gpus, lanes = problem.cluster.gpus, len(placed.lanes)
    colours = colour_of_types(gpu.type for gpu in gpus)
    texts = [(_before(0, 1), 0.5, "to do"), (_before(lanes, lanes), 0.5, "done")]
    for n, stage in enumerate(placement.stages):
        slow, slow_link = placed.lanes[2 * n].bottleneck, n and placed.lanes[2 * n - 1].bottleneck
        if n:
            line = (
                {"color": BOTTLENECK, "width": 7} if slow_link else {"color": "#AAAAAA", "width": 4}
            )
            figure.add_shape(
                type="line", x0=n - 1 + _BOX, x1=n, y0=0.5, y1=0.5, line=line, layer="below"
            )
        fill, frame = colours[gpus[stage.gpus[0]].type], {"color": BOTTLENECK, "width": 4 * slow}
        box = {"type": "rect", "x0": n, "x1": n + _BOX, "y0": 0, "y1": 1, "layer": "below"}
        figure.add_shape(**box, fillcolor=fill, line=frame)
        label = f"{_gpus(stage.gpus)}<br>{counted(len(stage.layers), 'layer')}"
        texts.append((n + _BOX / 2, -0.5, label))
    for x, y, text in texts:
        figure.add_annotation(x=x, y=y, text=text, showarrow=False, font={"size": 11})
    used = {gpus[g].type for g in placement.gpus}
    add_legend(figure, {name: colour for name, colour in colours.items() if name in used})


def _lane(lane: int, placement: Placement) -> str:
    stage, link = divmod(lane, 2)
    names = [_gpus(each.gpus) for each in placement.stages[stage : stage + 2]]
    return f"the link from {names[0]} to {names[1]}" if link else names[0]


def _controls(moments: np.ndarray, first: int) -> dict[str, list[dict]]:
    """Two buttons, and a slider for the time."""
    play, jump = (
        {
            "mode": "immediate",
            "frame": {"duration": ms, "redraw": False},
            "transition": {"duration": ms, "easing": "linear"},
        }
        for ms in (110, 0)
    )

    def shows(label: str, *frames: Any) -> dict:
        return {"label": label, "method": "animate", "args": list(frames)}

    buttons = {
        "type": "buttons",
        "direction": "left",
        "showactive": False,
        "x": 0,
        "xanchor": "left",
        "pad": {"t": 10, "r": 10},
        "buttons": [shows("▶", None, play), shows("❚❚", [None], jump)],
    }
    now = {"prefix": "time: ", "suffix": " s", "font": {"size": 13, "color": BOTTLENECK}}
    slider = {
        "active": first,
        "x": 0.13,
        "len": 0.87,
        "pad": {"t": 10},
        "currentvalue": now,
        "steps": [shows(f"{t:.1f}", [str(n)], jump) for n, t in enumerate(moments)],
        "ticklen": 0,
        "minorticklen": 0,
        "font": {"size": 1, "color": "rgba(0,0,0,0)"},
    }
    below = {"y": -0.1, "yanchor": "top"}
    return {"updatemenus": [buttons | below], "sliders": [slider | below]}


# Exercises


A100S, L4S, T4S = (0, 1, 2), (3, 4, 5, 6), (7, 8, 9, 10)  # GPU ids
Cuts = Sequence[tuple[int, int]]  # (number of layers, GPU id), in pipeline order


@cache
def _problem() -> Problem:
    return three_sites()


def _rate(cuts: Cuts) -> float:
    """In tokens/s; 0 where a GPU's memory is too small. GPUs without a layer are no stages."""
    placement = Placement.of([(layers, (gpu,)) for layers, gpu in cuts if layers])
    try:
        return evaluate(_problem(), placement).throughput
    except InvalidPlacement:
        return 0.0


def _by_speed(order: Sequence[int]) -> float:
    """Layers in proportion to speed: to layers per unit of time."""
    problem = _problem()
    ms = cast(LayerTimes, problem.costs).ms_per_layer
    weights = [1 / ms[problem.cluster.gpus[gpu].type] for gpu in order]
    parts = split_proportional(problem.model.layers, weights)
    return _rate(tuple((len(part), gpu) for part, gpu in zip(parts, order, strict=True)))


def _solved(method: str, order: Sequence[int] | None = None) -> float:
    options: dict[str, Any] = {} if order is None else {"gpus": order}
    return given(solve(_problem(), method, **options).throughput)


def _some_cuts(chance: random.Random) -> Given | None:
    """A cut of all layers: some do not fit, in some a GPU holds nothing."""
    sites = chance.choice([(L4S, A100S, T4S), tuple(chance.sample((A100S, L4S, T4S), 3))])
    gpus = [gpu for site in sites for gpu in chance.sample(site, chance.randint(1, len(site)))]
    # These fit, even with the embedding or the head; two layers more often do not.
    more = chance.choice((0, 0, 2))
    most = [more + (20 if gpu in A100S else 11 if gpu in L4S else 6) for gpu in gpus]
    most = [chance.choice((0, top, top, top)) for top in most]
    if sum(most) < _problem().model.layers:
        return None
    return Given(cuts=list(zip(_dealt(most, chance), gpus, strict=True)))


def _dealt(most: Sequence[int], chance: random.Random) -> list[int]:
    """All layers of the model dealt one by one, no GPU above its `most`."""
    layers = [0] * len(most)
    while sum(layers) < _problem().model.layers:
        place = chance.randrange(len(most))
        layers[place] += layers[place] < most[place]
    return layers


def _look_at(given: Given) -> str:
    """What a wrong answer on these cuts has probably missed."""
    if not _rate(given.cuts):
        return "does every GPU's memory hold its layers, and what is reserved?"
    if any(layers == 0 for layers, _ in given.cuts):
        return (
            "a GPU without layers is no stage; its neighbours are linked directly "
            "(if yours is 0: which layers did you weigh?)"
        )
    return "the slowest stage or link sets the pace; which one is it here, and what does it take?"


def _drawn(failure: Failure) -> Figure:
    cuts = failure.given.cuts
    return plot_cut(_problem(), Placement.of([(n, (gpu,)) for n, gpu in cuts if n]))


EXERCISES: dict[str, Exercise] = {
    "00.1": Number(
        target=lambda: _by_speed((*T4S, *A100S, *L4S)),
        unit="tokens/s",
        hint="how fast is a GPU that takes so many milliseconds per layer? Is each part on its GPU, in that order?",
        half={
            "that sends over the link from the L4s to the T4s; put the A100s between them": (
                lambda: _by_speed((*A100S, *L4S, *T4S))
            ),
            "that is by memory; the weights asked for are speeds": (
                lambda: _solved("proportional", (*T4S, *A100S, *L4S))
            ),
        },
        mistakes={
            "that is the proven optimum; the rule comes near, but not to it": (
                lambda: _solved("auto")
            )
        },
    ),
    "00.2": Function(
        signature="rate(cuts)",
        inputs=drawn(0, 200, _some_cuts, lambda given: len(given.cuts)),
        target=lambda given: _rate(given.cuts),
        hint=_look_at,
        picture=_drawn,
        half=lambda given, _: not _rate(given.cuts) or not all(n for n, _ in given.cuts),
    ),
}
