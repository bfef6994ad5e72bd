"""A solver's answer: the pipeline from left to right, below it rings and idle GPUs, layers in each."""

from collections.abc import Sequence
from math import isclose
from typing import TYPE_CHECKING

from pipelab.errors import InvalidPlacement
from pipelab.evaluation import evaluate
from pipelab.figures.theme import BOTTLENECK, WRONG, colour_of_types, ink_on, plain, template
from pipelab.placement import Placement
from pipelab.problem import Problem

if TYPE_CHECKING:
    import plotly.graph_objects as go

Links = Sequence[tuple[int, int]]

_NODE, _BELOW = 0.27, -1.25  # where an arrow ends, and the height of the second row
_SAME = 1 + 1e-9


def plot_answer(problem: Problem, ms: float, layers: Sequence[int], links: Links) -> "go.Figure":
    """What a solver answered, and the first thing that is wrong with it.

    Parameters
    ----------
    problem : Problem
        With one GPU per stage.
    ms : float
        The time of the slowest stage or link that the solver claims.
    layers : sequence of int
        Of every GPU, by id.
    links : sequence of pairs of GPU ids
        From stage to stage; none where the program has no order yet.

    Returns
    -------
    plotly.graph_objects.Figure
        Red: layers that do not fit on their GPU, or links that form a ring.

    Examples
    --------
    >>> from pipelab.course import three_sites
    >>> plot_answer(three_sites(), 0, [0] * 11, []).layout.title.text.split("<br>")[0]
    'Claimed: 0 ms. But 80 layers are on no GPU'
    """
    import plotly.graph_objects as go

    rings = _rings(links)
    at, headings = _positions(layers, links, rings)
    in_ring = {gpu for ring in rings for gpu in ring}
    too_heavy = [g for g, n in enumerate(layers) if not _fits(problem, g, n)]
    figure = go.Figure()
    for kind, colour in colour_of_types(gpu.type for gpu in problem.cluster.gpus).items():
        ids = [g for g, gpu in enumerate(problem.cluster.gpus) if gpu.type == kind]
        fills = [WRONG if g in too_heavy else colour if layers[g] else "white" for g in ids]
        figure.add_scatter(
            x=[at[g][0] for g in ids], y=[at[g][1] for g in ids], mode="markers+text", name=plain(kind),
            text=[str(layers[g]) if layers[g] else "" for g in ids], hoverinfo="text",
            textfont={"size": 16, "color": [ink_on(fill) if fill != "white" else colour for fill in fills]},
            marker={"size": 42, "color": fills, "line": {"color": colour, "width": 2}}, showlegend=False,
            hovertext=[f"GPU {g}: {layers[g]} layers" for g in ids],
        )  # fmt: skip
        # The legend's own: a circle that is red or empty would give its colour to the legend.
        figure.add_scatter(
            x=[None], y=[None], mode="markers", name=plain(kind), marker={"size": 11, "color": colour},
        )  # fmt: skip
    for g, (x, y) in enumerate(at):
        figure.add_annotation(x=x, y=y - 0.4, text=f"GPU {g}", showarrow=False, font={"size": 11})
    for text, (x, y) in headings.items():
        figure.add_annotation(
            x=x - 0.3, y=y + 0.42, text=text, showarrow=False, xanchor="left", font={"size": 12}
        )
    for a, b in links:
        _draw_arrow(figure, at[a], at[b], WRONG if a in in_ring else BOTTLENECK)
    two_rows = any(y < 0 for _, y in at)
    note = "in a circle: layers; arrows: which GPU sends to which; red: not possible"
    title = f"{_title(problem, ms, layers, links, rings, too_heavy)}<br><sup>{note}</sup>"
    figure.update_layout(
        template=template(), title=title, height=330 if two_rows else 225, margin={"t": 92, "b": 10, "l": 20, "r": 20},
        xaxis={"visible": False, "range": [-0.6, max(10.0, *(x for x, _ in at)) + 0.6]},
        yaxis={"visible": False, "range": [(_BELOW if two_rows else 0) - 0.7, 0.6]}, legend={"y": 1.0},
    )  # fmt: skip
    return figure


def _positions(
    layers: Sequence[int], links: Links, rings: list[list[int]]
) -> tuple[list[tuple[float, float]], dict[str, tuple[float, float]]]:
    """Where each GPU stands, and where the headings of the groups do."""
    linked = {gpu for pair in links for gpu in pair}
    in_ring = {gpu for ring in rings for gpu in ring}
    if linked:
        path = _path([pair for pair in links if pair[0] not in in_ring])
        rest = [g for g in range(len(layers)) if g not in in_ring and g not in path]
        if not path:  # a pipeline of one GPU has no link
            path = [g for g in rest if layers[g]]
            rest = [g for g in rest if not layers[g]]
    else:
        path, rest = list(range(len(layers))), []
    at: dict[int, tuple[float, float]] = {g: (x, 0.0) for x, g in enumerate(path)}
    headings = {"pipeline": (0.0, 0.0)} if linked else {}
    x = 0.0
    for name, group in [*((f"ring {i + 1}", ring) for i, ring in enumerate(rings)), ("idle", rest)]:
        if group:
            headings[name] = (x, _BELOW)
            at |= {g: (x + i, _BELOW) for i, g in enumerate(group)}
            x += len(group) + 0.5
    return [at[g] for g in sorted(at)], headings


def _draw_arrow(
    figure: "go.Figure", a: tuple[float, float], b: tuple[float, float], colour: str
) -> None:
    """Straight to the right; back to the left, in an arc below."""
    tip = {
        "axref": "x", "ayref": "y", "showarrow": True, "text": "", "arrowhead": 2, "arrowsize": 1.1,
        "arrowwidth": 2, "arrowcolor": colour,
    }  # fmt: skip
    if b[0] > a[0]:
        figure.add_annotation(ax=a[0] + _NODE, ay=a[1], x=b[0] - _NODE, y=b[1], **tip)
        return
    y, low = a[1] - 0.52, a[1] - 0.68
    path = f"M {a[0]},{y} L {a[0]},{low} L {b[0]},{low} L {b[0]},{y - 0.04}"
    figure.add_shape(type="path", path=path, line={"color": colour, "width": 2})
    figure.add_annotation(ax=b[0], ay=low, x=b[0], y=y, **tip)


def _path(links: Links) -> list[int]:
    """From the GPU that nothing enters, along the links."""
    after = dict(links)
    path = sorted(set(after) - set(after.values()))[:1]
    while path and path[-1] in after:
        path.append(after[path[-1]])
    return path


def _rings(links: Links) -> list[list[int]]:
    after, rings, seen = dict(links), [], set[int]()
    for begin in after:
        path = [begin]
        while path[-1] in after and after[path[-1]] not in path:
            path.append(after[path[-1]])
        if after.get(path[-1]) == begin and begin not in seen:
            rings.append(path)
            seen.update(path)
    return rings


def _fits(problem: Problem, gpu: int, layers: int) -> bool:
    """Memory for so many layers from the middle of the model: without embedding and head."""
    here = problem.cluster.gpus[gpu]
    inner = range(1, 1 + min(layers, problem.model.layers - 2))
    if not inner:
        return True
    cost = problem.costs.stage(problem.model, problem.workload, [here], inner, problem.batch_split)
    return cost.memory_gb[0] <= here.memory_gb * _SAME


def _title(
    problem: Problem, ms: float, layers: Sequence[int], links: Links, rings: list[list[int]],
    too_heavy: list[int],
) -> str:  # fmt: skip
    """What is claimed, and the first thing that is wrong with it."""
    missing = problem.model.layers - sum(layers)
    if missing:
        some = "1 layer is" if missing == 1 else f"{missing} layers are"
        return f"Claimed: {ms:,.0f} ms. But {some} on no GPU"
    rate = 1000 * problem.workload.tokens / ms
    claim = f"Claimed: {rate:,.1f} tokens/s."
    if too_heavy:
        return f"{claim} But {_gpus(too_heavy)} cannot hold that many layers"
    if rings:
        some = " and ".join(_gpus(sorted(ring)) for ring in rings)
        return f"{claim} But {some} form {'a ring' if len(rings) == 1 else 'rings'} that nothing enters"
    if not links:
        return f"{claim} But no GPU sends to another"
    try:
        really = evaluate(
            problem, Placement.of([(layers[g], (g,)) for g in _path(links)])
        ).throughput
    except InvalidPlacement as error:
        return f"{claim} But {plain(error.defects[0])}"
    if isclose(really, rate, rel_tol=1e-6):
        return f"{rate:,.1f} tokens/s, and the evaluator agrees"
    return f"{claim} But the evaluator says {really:,.1f}"


def _gpus(ids: Sequence[int]) -> str:
    return f"GPU{'s' * (len(ids) > 1)} {', '.join(map(str, ids))}"
