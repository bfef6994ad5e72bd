"""A placement as a picture: layers across, GPUs down in pipeline order, the bottleneck framed."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pipelab.display import DOES_NOT_FIT, Figure, counted, rate
from pipelab.engine.answers import Result, placement_in
from pipelab.evaluation import Evaluation, evaluate
from pipelab.fields import given
from pipelab.figures import theme
from pipelab.placement import Placement, Stage, named_layers
from pipelab.problem import Problem, fits_in

_MOST_GPUS_DRAWN_IDLE = 16  # of more GPUs, those without a stage are left out
_TALL_PIXELS, _LOW_PIXELS = 26, 11  # a row of few GPUs, and of many
# Of all layers: room for "stage 1", and for its number.
_NAMED_SHARE, _INSIDE_SHARE = 1 / 14, 1 / 60


class _StageBlock(NamedTuple):
    """A GPU's part in a stage; `row` is counted from the top, `number` from 1."""

    row: int
    number: int
    stage: Stage
    gpu: int


def first_of(names: Sequence[str]) -> str:
    """Return the first three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def limited_by(bottlenecks: Sequence[str]) -> str:
    """Say what limits a placement, and how drawings mark it: stages are framed, links dotted.

    Examples
    --------
    >>> limited_by(["stage 2", "link 2→3"])
    'limited by stage 2, link 2→3 (stages framed, links dotted)'
    """
    marks = {"stage": "framed", "link": "dotted"}
    first, *others = dict.fromkeys(name.split()[0] for name in bottlenecks)
    mark = "stages framed, links dotted" if others else marks[first]
    return f"limited by {first_of(bottlenecks)} ({mark})"


def what_limits(evaluation: Evaluation) -> str:
    """Say what limits a placement's attainable rate: too few in flight, or what `limited_by` names.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", link_units="tokens").with_in_flight(1)
    >>> what_limits(pl.evaluate(tiny, pl.Placement.of([(2, (0,)), (2, (2,))])))
    'limited by 1 in flight, where 2 would reach 134.6 tokens/s; slowest: stage 2 (framed)'
    """
    slow = limited_by(evaluation.bottlenecks)
    if evaluation.attainable >= evaluation.rate * (1 - 1e-6):
        return slow
    full = f"{evaluation.reached_by} {rate(evaluation.rate)}"
    slowest = slow.replace("limited by", "slowest:")
    return f"limited by {evaluation.in_flight} in flight, where {full}; {slowest}"


def plot_result(result: Result) -> Figure:
    """Draw the placement of a result, as `plot_placement` does."""
    return plot_placement(result.problem, result)


def plot_placement(problem: Problem, placement: Placement | Result | None = None) -> Figure:
    """Draw a placement: layers across, GPUs down, a block per GPU of a stage, the bottleneck framed.

    Parameters
    ----------
    problem : Problem
        Whose cluster is drawn.
    placement : Placement or Result, optional
        Must be valid. Without one, the empty cluster is drawn.

    Returns
    -------
    plotly.graph_objects.Figure
        The traces of `placement_parts`; hover gives rate, batch share and memory.

    Raises
    ------
    InvalidPlacement
        The placement is not valid for this problem.
    InvalidValue
        The argument is not a placement.
    """
    placement = None if placement is None else placement_in(placement, "plot_placement")
    return theme.figure_of(placement_parts(problem, placement, *_headline(problem, placement)))


def _headline(problem: Problem, placement: Placement | None) -> tuple[str, str]:
    """Return the title of a figure of its own, and the note."""
    name = theme.plain(problem.name)
    if placement is None:
        gpus, layers = counted(len(problem.cluster), "GPU"), counted(problem.model.layers, "layer")
        return f"{name}: {gpus}, {layers} to place", ""
    evaluation = evaluate(problem, placement)
    # A link counted in transfers/s is compared with tokens/s: the write-up's mistake, named where
    # it shows.
    links_only = all(name.startswith("link") for name in evaluation.bottlenecks)
    reached = rate(evaluation.attainable, evaluation.link_unit if links_only else "tokens")
    flight = "" if evaluation.in_flight is None else f" with {evaluation.in_flight} in flight"
    title = f"{name}: {reached} in {counted(len(evaluation.stages), 'stage')}{flight}"
    return title, f"{what_limits(evaluation)}; hover for rates, shares and memory"


def placement_parts(
    problem: Problem | None,
    placement: Placement | None,
    title: str,
    note: str = "",
    fits: bool = True,
) -> dict:
    """Return the drawing of a placement, for `figure_of` or a chart that stays on the page.

    Parameters
    ----------
    problem : Problem or None
        None if there is no problem: the axes stay empty.
    placement : Placement or None
        Need not be valid, as long as its layers and GPUs exist.
    title, note : str
        The title and the line below it.
    fits : bool
        Whether the placement is valid. Otherwise stages beyond the memory of a GPU are hatched and
        say so, and there is no bottleneck.

    Returns
    -------
    dict
        "data": three traces, whatever is drawn (blocks, frames, slowest links); and "layout".

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", link_units="tokens")
    >>> parts = placement_parts(tiny, pl.Placement.of([(1, (0,)), (3, (2,))]), "two stages")
    >>> [len(trace["y"]) for trace in parts["data"]]
    [2, 1, 0]
    """
    stages = enumerate(placement.stages if placement else (), start=1)
    pairs = [(number, stage, gpu) for number, stage in stages for gpu in stage.gpus]
    blocks = [_StageBlock(row, *pair) for row, pair in enumerate(pairs)]
    evaluation = evaluate(given(problem), placement) if placement and fits else None
    slow = evaluation.bottlenecks if evaluation else ()
    marked = ["<b>{} ◀</b>" if f"stage {b.number}" in slow else "{}" for b in blocks]
    labels, hidden = [], 0
    if problem:
        names = [f"GPU {g} · {theme.plain(gpu.type)}" for g, gpu in enumerate(problem.cluster.gpus)]
        idle = sorted({*range(len(names))} - {b.gpu for b in blocks})
        labels = [mark.format(names[b.gpu]) for mark, b in zip(marked, blocks, strict=True)]
        if len(names) <= _MOST_GPUS_DRAWN_IDLE:
            labels += [f"{names[g]} (idle)" for g in idle]
        else:
            hidden = len(idle)
    if hidden:
        verb = "is" if hidden == 1 else "are"
        unseen = f"{counted(hidden, 'GPU')} without a stage {verb} not shown"
        note = f"{note}; {unseen}" if note else unseen
    layers = problem.model.layers if problem else 1
    # in steps, so that the page does not jump with every GPU
    room = max(6, 4 * -(-len(labels) // 4))
    pixels = _TALL_PIXELS if room <= 16 else max(_LOW_PIXELS, 416 // room)
    return theme.finish(
        [_blocks(problem, blocks, evaluation), _frames(blocks, slow), _links(evaluation, blocks)],
        title,
        note,
        x=layer_axis(layers) | {"visible": problem is not None},
        y=theme.rows(labels, tickfont={"size": 12 if pixels > 13 else 9}),
        height=130 + pixels * room,
        showlegend=False,
        barmode="overlay",
        bargap=0.15,
        uniformtext={"minsize": 8, "mode": "hide"},
    )


def layer_axis(layers: int) -> dict:
    """Return the horizontal axis of a model's layers, at most 20 of them with a number."""
    return {
        "title": "decoder layer",
        "range": [0.5, layers + 0.5],
        "dtick": max(1, -(-layers // 20)),
        "tick0": 1,
    }


def _blocks(
    problem: Problem | None, blocks: Sequence[_StageBlock], evaluation: Evaluation | None
) -> dict:
    """Return a bar for every GPU of every stage; colour by type, hatched where its memory is too small."""
    if problem and evaluation:
        problem = problem.with_in_flight(evaluation.in_flight)
    colours = theme.colour_of_types(gpu.type for gpu in problem.cluster.gpus) if problem else {}
    looks = [_look(given(problem), block, colours) for block in blocks]
    fill, text, place, ink, hatch, hover = zip(*looks, strict=True) if looks else [()] * 6
    return _bars("stages", blocks) | {
        "text": text,
        "textposition": place or "inside",
        "cliponaxis": False,
        "textangle": 0,
        "insidetextanchor": "middle",
        "insidetextfont": {"color": ink or "black"},
        "hovertext": hover,
        "hoverinfo": "text",
        "marker": {
            # the colour of a hatched bar is that of its hatch
            "color": [DOES_NOT_FIT.fill if h else f for f, h in zip(fill, hatch, strict=True)],
            "line": {"color": "white", "width": 1},
            "pattern": {"shape": hatch, "bgcolor": fill, "size": 9, "solidity": 0.3},
        },
    }


def _look(problem: Problem, block: _StageBlock, colours: Mapping[str, str]) -> tuple[str, ...]:
    """Return colour, text, its place and ink, hatch and hover of a block."""
    _, number, stage, g = block
    gpus, layers = problem.cluster.gpus, problem.model.layers
    mine = [gpus[one] for one in stage.gpus]
    cost, at = problem.stage_cost(mine, stage.layers), stage.gpus.index(g)
    need, offered = cost.memory_gb[at], gpus[g].memory_gb
    over = not fits_in(need, offered)
    name = f"stage {number}" if len(stage.layers) >= _NAMED_SHARE * layers else f"{number}"
    colour = colours[gpus[g].type]
    return (
        colour,
        f"{DOES_NOT_FIT.symbol} {name}" if over else name,
        "inside" if len(stage.layers) > _INSIDE_SHARE * layers else "outside",
        theme.ink_on(DOES_NOT_FIT.fill if over else colour),
        DOES_NOT_FIT.pattern if over else "",
        f"<b>stage {number}: {named_layers(stage.layers)}</b>"
        f"<br>GPU {g} ({theme.plain(gpus[g].type)}), {len(mine)} in this stage"
        f"<br>stage rate {cost.throughput:,.6g} tokens/s"
        f"<br>batch share {cost.batch[at]:.4g} sequences<br>memory {need:.4g} of {offered:g} GB"
        + (f": {need - offered:.3g} GB too much" if over else ""),
    )


def _bars(name: str, blocks: Sequence[_StageBlock]) -> dict:
    start = np.array([b.stage.layers.start + 0.5 for b in blocks])
    end = np.array([b.stage.layers.stop + 0.5 for b in blocks])
    return theme.bar(name, [b.row for b in blocks], start, end, width=0.85)


def _frames(blocks: Sequence[_StageBlock], slow: Sequence[str]) -> dict:
    """Return a black frame around every GPU of the slowest stages."""
    framed = _bars("bottleneck", [b for b in blocks if f"stage {b.number}" in slow])
    outline = {"color": "rgba(0,0,0,0)", "line": {"color": theme.BOTTLENECK, "width": 3}}
    return framed | {"hoverinfo": "skip", "marker": outline}


def _links(evaluation: Evaluation | None, blocks: Sequence[_StageBlock]) -> dict:
    """Return the links that are the bottleneck, from GPU to GPU along the boundary of their stages."""
    row = {b.gpu: b.row for b in blocks}
    xs: list[float | None] = []
    ys: list[int | None] = []
    texts: list[str] = []
    if evaluation is not None:
        for i, link in enumerate(evaluation.links):
            if f"link {i + 1}→{i + 2}" in evaluation.bottlenecks:
                edge = evaluation.stages[i].stage.layers.stop + 0.5
                speed = f"{link.throughput:,.6g} {evaluation.link_unit}/s"
                xs += [edge, edge, None]
                ys += [row[link.sender], row[link.receiver], None]
                texts += [f"slowest link {i + 1}→{i + 2}: {speed}"] * 2 + [""]
    said = {"hovertext": texts, "hoverinfo": "text"}
    marks = {"mode": "lines+markers", "marker": {"size": 10, "color": theme.BOTTLENECK}}
    return theme.line("slowest link", xs, ys, theme.BOTTLENECK, 4, {"dash": "dot"}, **said, **marks)
