"""What the mix explorer draws of a plan: layers across GPUs, the bottleneck framed. Always the same traces.

Given as plain dicts: checked once, when they are put into a chart, and not once more before.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelab.costs import MEMORY_SLACK
from pipelab.display import DOES_NOT_FIT
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.figures.theme import BOTTLENECK, GRID, colour_of_types, ink_on, plain, room_for
from pipelab.placement import Placement, named_layers
from pipelab.problem import Problem

if TYPE_CHECKING:
    from pipelab.evaluation import Evaluation
    from pipelab.placement import Stage

_TALL, _LOW = 26, 11  # pixels of a row with few GPUs, and with many
_NAMED = 0.07  # of all layers: a bar at least so long has room for more than its stage's number
_CLEAR = "rgba(0,0,0,0)"


def first_of(names: Sequence[str]) -> str:
    """The first three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def limited_by(bottlenecks: Sequence[str]) -> str:
    """What limits a placement, and how drawings mark it: stages are framed, links are dotted lines.

    Examples
    --------
    >>> limited_by(["stage 2", "link 2→3"])
    'limited by stage 2, link 2→3 (stages framed, links dotted)'
    """
    kinds = {name.split()[0] for name in bottlenecks}
    marks = (
        "stages framed, links dotted"
        if len(kinds) > 1
        else "framed"
        if kinds == {"stage"}
        else "dotted"
    )
    return f"limited by {first_of(bottlenecks)} ({marks})"


def what_limits(evaluation: "Evaluation") -> str:
    """What limits a placement's attainable rate: too few in flight, or what `limited_by` names.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", link_units="tokens").with_in_flight(1)
    >>> what_limits(pl.evaluate(tiny, pl.Placement.of([(2, (0,)), (2, (2,))])))
    'limited by 1 in flight, where 2 would reach 134.616 tokens/s; slowest: stage 2 (framed)'
    """
    slow = limited_by(evaluation.bottlenecks)
    if evaluation.attainable >= evaluation.rate * (1 - 1e-6):
        return slow
    full = f"{evaluation.in_flight_needed} would reach {evaluation.rate:,.6g} tokens/s"
    slowest = slow.replace("limited by", "slowest:")
    return f"limited by {evaluation.in_flight} in flight, where {full}; {slowest}"


def plan_parts(
    problem: Problem | None,
    placement: Placement | None,
    headline: str,
    note: str = "",
    fits: bool = True,
) -> dict:
    """A plan: layers across, the GPUs in use down in pipeline order, the bottleneck framed.

    Parameters
    ----------
    problem : Problem or None
        None if there is no problem: the axes stay empty.
    placement : Placement or None
        Need not be valid, as long as its layers and GPUs exist.
    headline, note : str
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
    >>> parts = plan_parts(tiny, pl.Placement.of([(1, (0,)), (3, (2,))]), "two stages")
    >>> [len(trace["y"]) for trace in parts["data"]]
    [2, 1, 0]
    """
    stages = placement.stages if placement else ()
    blocks = [(i, stage, g) for i, stage in enumerate(stages) for g in stage.gpus]
    evaluation = evaluate(given(problem), placement) if placement and fits else None
    slow = evaluation.bottlenecks if evaluation else ()
    return {
        "data": [
            _blocks(problem, blocks, evaluation),
            _frames(blocks, slow),
            _slow_links(evaluation, blocks),
        ],
        "layout": _layout(problem, blocks, slow, f"{headline}<br><sup>{note}</sup>"),
    }


def _blocks(
    problem: Problem | None,
    blocks: "Sequence[tuple[int, Stage, int]]",
    evaluation: "Evaluation | None",
) -> dict:
    """A bar for every GPU of every stage; colour by type, hatched where its memory does not suffice."""
    if problem and evaluation:
        problem = problem.with_in_flight(evaluation.in_flight)
    colours = colour_of_types(gpu.type for gpu in problem.cluster.gpus) if problem else {}
    fill, text, hover, hatch = [], [], [], []
    for i, stage, g in blocks:
        problem = given(problem)
        gpus = [problem.cluster.gpus[one] for one in stage.gpus]
        cost = problem.costs.stage(
            problem.model, problem.workload, gpus, stage.layers, problem.batch_split
        )
        own = stage.gpus.index(g)
        gpu, need = gpus[own], cost.memory_gb[own]
        over = need > gpu.memory_gb * MEMORY_SLACK
        fill.append(colours[gpu.type])
        hatch.append(DOES_NOT_FIT.pattern if over else "")
        name = (
            f"stage {i + 1}" if len(stage.layers) >= _NAMED * problem.model.layers else f"{i + 1}"
        )
        text.append(f"{DOES_NOT_FIT.symbol} {name}" if over else name)
        hover.append(
            f"<b>stage {i + 1}: {named_layers(stage.layers)}</b>"
            f"<br>GPU {g} ({plain(gpu.type)}), {len(gpus)} in this stage<br>stage rate {cost.throughput:,.6g} tokens/s"
            f"<br>memory {need:.4g} of {gpu.memory_gb:g} GB"
            + (f": {need - gpu.memory_gb:.3g} GB too much" if over else "")
        )
    ink = ["black" if over else ink_on(colour) for over, colour in zip(hatch, fill, strict=True)]
    return {
        "type": "bar", "name": "stages", "orientation": "h", "width": 0.85, "y": list(range(len(blocks))),
        "x": [len(stage.layers) for _, stage, _ in blocks],
        "base": [stage.layers.start + 0.5 for _, stage, _ in blocks],
        "text": text, "textposition": "inside", "textangle": 0, "insidetextanchor": "middle",
        "textfont": {"color": ink or "black"}, "hovertext": hover, "hoverinfo": "text",
        "marker": {
            "color": fill, "line": {"color": "white", "width": 1},
            "pattern": {
                "shape": hatch, "fgcolor": DOES_NOT_FIT.fill, "size": 9, "solidity": 0.3, "fillmode": "overlay",
            },
        },
    }  # fmt: skip


def _frames(blocks: "Sequence[tuple[int, Stage, int]]", slow: Sequence[str]) -> dict:
    """A black frame around every GPU of the slowest stages."""
    framed = [
        (row, stage.layers) for row, (i, stage, _) in enumerate(blocks) if f"stage {i + 1}" in slow
    ]
    return {
        "type": "bar", "name": "bottleneck", "orientation": "h", "width": 0.85, "y": [row for row, _ in framed],
        "x": [len(layers) for _, layers in framed], "base": [layers.start + 0.5 for _, layers in framed],
        "hoverinfo": "skip", "marker": {"color": _CLEAR, "line": {"color": BOTTLENECK, "width": 3}},
    }  # fmt: skip


def _slow_links(
    evaluation: "Evaluation | None", blocks: "Sequence[tuple[int, Stage, int]]"
) -> dict:
    """The links that are the bottleneck, from GPU to GPU along the boundary of their stages."""
    row = {g: r for r, (_, _, g) in enumerate(blocks)}
    xs, ys, texts = [], [], []
    for i, link in enumerate(evaluation.links if evaluation else ()):
        assert evaluation is not None
        if f"link {i + 1}→{i + 2}" in evaluation.bottlenecks:
            edge = evaluation.stages[i].stage.layers.stop + 0.5
            xs += [edge, edge, None]
            ys += [row[link.sender], row[link.receiver], None]
            texts += [
                f"slowest link {i + 1}→{i + 2}: {link.throughput:,.6g} {evaluation.link_unit}/s"
            ] * 2 + [""]
    return {
        "type": "scatter", "name": "slowest link", "mode": "lines+markers", "x": xs, "y": ys,
        "hovertext": texts, "hoverinfo": "text", "line": {"color": BOTTLENECK, "width": 4, "dash": "dot"},
        "marker": {"size": 10, "color": BOTTLENECK},
    }  # fmt: skip


def _layout(
    problem: Problem | None,
    blocks: "Sequence[tuple[int, Stage, int]]",
    slow: Sequence[str],
    title: str,
) -> dict:
    layers = problem.model.layers if problem else 1
    marks = ["<b>{} ◀</b>" if f"stage {i + 1}" in slow else "{}" for i, _, _ in blocks]
    types = [gpu.type for gpu in problem.cluster.gpus] if problem else []
    labels = [
        m.format(f"GPU {g} · {plain(types[g])}") for m, (_, _, g) in zip(marks, blocks, strict=True)
    ]
    # in steps, so that the page does not jump with every GPU
    room = max(6, 4 * -(-len(blocks) // 4))
    each = _TALL if room <= 16 else max(_LOW, 416 // room)
    size = 12 if each > 13 else 9
    # What plotly would find out by drawing twice: "automargin" takes a third of the browser's time.
    left = room_for(labels, size)
    return {
        "title": {"text": title}, "height": 130 + each * room, "showlegend": False,
        "margin": {"t": 66, "b": 52, "l": left}, "barmode": "overlay", "bargap": 0.15,
        "uniformtext": {"minsize": 8, "mode": "hide"},
        "xaxis": {
            "title": {"text": "decoder layer"}, "range": [0.5, layers + 0.5], "gridcolor": GRID, "zeroline": False,
            "dtick": max(1, -(-layers // 20)), "tick0": 1, "ticklabeloverflow": "allow",
        },
        "yaxis": {
            "tickvals": list(range(len(labels))), "ticktext": labels, "range": [max(len(labels), 1) - 0.5, -0.5],
            "showgrid": False, "zeroline": False, "ticklabelstandoff": 8, "ticklabeloverflow": "allow",
            "tickfont": {"size": size},
        },
    }  # fmt: skip
