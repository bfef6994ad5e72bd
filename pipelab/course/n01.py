"""Notebook 01, Splitting layers: splits as bars and as the table of their recurrence, and exact cuts to write."""

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations_with_replacement, pairwise
from typing import NamedTuple, cast

import numpy as np

from pipelab.costs import LayerTimes
from pipelab.course.exercises import Exercise, Failure, Function, Given, Number, drawn
from pipelab.course.n00 import A100S, L4S, T4S, stage_cost, three_sites
from pipelab.course.pictures import (
    BARE,
    EMPTY,
    SAME,
    Block,
    BlockRow,
    add_layers,
    add_legend,
    add_times,
    colour_of,
    finish,
    plot_rows,
)
from pipelab.display import Figure, listed
from pipelab.fields import given
from pipelab.figures.theme import WRONG, colour_of_types, new_figure, plain
from pipelab.problem import Problem
from pipelab.splits import bottleneck, split_minmax

# Splits as pictures


class _Split(NamedTuple):
    """Layers and time of every stage, and whether each fits in memory."""

    name: str
    sizes: list[int]
    ms: list[float]
    fits: list[bool]

    @property
    def slowest(self) -> float:
        return max(self.ms)


def plot_splits(problem: Problem, splits: Mapping[str, Sequence[range]]) -> Figure:
    """A row per split: on the left the layers as blocks, on the right a time bar per stage.

    Links are left out, as every split leaves them out.

    Parameters
    ----------
    problem : Problem
        With one GPU per stage.
    splits : mapping of name to sequence of range
        Layers of the stage on each GPU, by id, numbered from 0; at least one split.

    Returns
    -------
    plotly.graph_objects.Figure
        In milliseconds per microbatch. The slowest stages of a split are framed; red does not fit.

    Examples
    --------
    >>> from pipelab.splits import split_even
    >>> from pipelab.course import three_sites
    >>> figure = plot_splits(three_sites(), {"even": split_even(80, 11)})
    >>> figure.layout.title.text.split("<br>")[0]
    'Even: 1,065 ms for the slowest stage'
    """
    from plotly.subplots import make_subplots

    types = [gpu.type for gpu in problem.cluster.gpus]
    rows = [_measured(problem, plain(name), split) for name, split in splits.items()]
    figure = make_subplots(
        rows=len(rows),
        cols=2,
        column_widths=[0.52, 0.48],
        horizontal_spacing=0.05,
        vertical_spacing=0.22 / len(rows),
    )
    figure.update_xaxes(showticklabels=False, **BARE)
    figure.update_xaxes(range=[0, problem.model.layers], col=1)
    figure.update_xaxes(range=[0.4, len(types) + 0.6], dtick=1, col=2)
    figure.update_xaxes(showticklabels=True, row=len(rows))
    figure.update_xaxes(title="decoder layer", row=len(rows), col=1)
    figure.update_xaxes(title="stage; bars: ms per batch", row=len(rows), col=2)
    top = [0, 1.3 * max(row.slowest for row in rows)]
    figure.update_yaxes(showticklabels=False, showgrid=False, range=top, col=2)
    colours = colour_of_types(types)
    for place, row in enumerate(rows, start=1):
        shown = [colours[of] if fits else WRONG for of, fits in zip(types, row.fits, strict=True)]
        held = [f"{n} layers" for n in row.sizes]
        add_layers(figure, row.sizes, shown, held, row=place, col=1)
        took = [f"stage {n}: {ms:,.1f} ms" for n, ms in enumerate(row.ms, start=1)]
        add_times(figure, row.ms, shown, took, row=place, col=2)
        says = f"{row.slowest:,.0f} ms" if all(row.fits) else "does not fit"
        label = {"tickvals": [0], "ticktext": [f"<b>{row.name}</b><br>{says}"], **BARE}
        figure.update_yaxes(range=[-0.5, 0.5], **label, row=place, col=1)
    add_legend(figure, colours)
    return finish(
        figure,
        _ranking(rows),
        "framed: the slowest stage of a split; red: does not fit in memory; links are left out",
        height=150 + 74 * len(rows),
        barmode="overlay",
    )


def _measured(problem: Problem, name: str, split: Sequence[range]) -> _Split:
    costs = [stage_cost(problem, [g], layers) for g, layers in enumerate(split)]
    rooms = [gpu.memory_gb * SAME for gpu in problem.cluster.gpus]
    fits = [cost.memory_gb[0] <= room for cost, room in zip(costs, rooms, strict=True)]
    ms = [1000 * problem.workload.tokens / cost.throughput for cost in costs]
    return _Split(name, [len(part) for part in split], ms, fits)


def _ranking(rows: Sequence[_Split]) -> str:
    ranked = sorted((row for row in rows if all(row.fits)), key=lambda row: row.slowest)
    if not ranked:
        return "No split fits in memory"
    best, last = ranked[0], ranked[-1]
    others = [row for row in ranked if row.slowest > best.slowest * SAME]
    winners = listed([row.name for row in ranked if row not in others])
    says = f"{winners[:1].upper()}{winners[1:]}: {best.slowest:,.0f} ms for the slowest stage"
    if others:
        says += f"; {others[0].name} takes {others[0].slowest / best.slowest - 1:.0%} more"
    if len(others) > 1:
        names = listed([row.name for row in ranked if row.slowest * SAME >= last.slowest])
        says += f", {names} {last.slowest / best.slowest:.1f} times as much"
    return says


# The table behind the exact split


def plot_split_table(
    best: np.ndarray, start: np.ndarray, names: Sequence[str], filled: int | None = None
) -> Figure:
    """The table of the exact split's dynamic program, and the path that reads the split back.

    Parameters
    ----------
    best : array, stages + 1 by layers + 1
        The smallest bottleneck (ms) of the first j layers on the first s stages; infinite where
        they do not fit.
    start : array, stages + 1 by layers + 1
        Where the last of these stages starts.
    names : sequence of str
        Of the stages.
    filled : int, optional
        Show only the rows of the first so many stages; by default all.

    Returns
    -------
    plotly.graph_objects.Figure
        A row per stage, a column per number of layers. The path is drawn once the table is full.

    Examples
    --------
    >>> best = np.array([[0, np.inf, np.inf], [np.inf, 3, 5], [np.inf, np.inf, 4]])
    >>> start = np.array([[0, 0, 0], [0, 0, 0], [0, 0, 1]])
    >>> plot_split_table(best, start, ["a", "b"]).layout.title.text.split("<br>")[0]
    '2 layers on 2 GPUs take 4 ms; the path back reads 1 + 1'
    """
    stages, layers = best.shape[0] - 1, best.shape[1] - 1
    rows = stages if filled is None else filled
    shown = np.where(np.isfinite(best) & (best > 0), best, np.nan)[1:]
    low, high = np.log10(np.nanmin(shown)), np.log10(np.nanmax(shown))
    shown[rows:] = np.nan
    ticks = [t for t in (20, 50, 100, 200, 500, 1000, 2000, 5000) if low <= np.log10(t) <= high]
    powers, texts = np.log10(ticks).tolist(), [f"{t:,}" for t in ticks]
    hover = "first %{x} layers on the first %{y} GPUs: %{customdata:,.0f} ms<extra></extra>"
    figure = new_figure()
    figure.add_heatmap(
        z=np.log10(shown),
        x=list(range(layers + 1)),
        y=list(range(1, stages + 1)),
        zmin=low,
        zmax=high,
        colorscale="Blues",
        customdata=shown,
        hoverongaps=False,
        xgap=1,
        ygap=1,
        hovertemplate=hover,
        colorbar={"title": "ms", "tickvals": powers, "ticktext": texts},
    )
    path = _path(start) if rows == stages and np.isfinite(best[-1, -1]) else []
    if path:
        figure.add_scatter(
            x=[j for _, j in path],
            y=[s for s, _ in path],
            mode="lines+markers",
            showlegend=False,
            line={"color": "#D55E00", "width": 2.5},
            marker={"size": 9, "color": "#D55E00"},
            hoverinfo="skip",
        )
    for s, j in path[1:]:
        look = {"showarrow": False, "bgcolor": "white", "borderpad": 1, "font": {"size": 11}}
        figure.add_annotation(x=j, y=s, text=str(j), xshift=-22, **look)
    title, note = _table_title(best, path, rows)
    return finish(
        figure,
        title,
        note,
        height=460,
        x={"title": "j: the first j layers", "range": [-0.6, layers + 0.6], "dtick": 10, **BARE},
        y={
            "title": "s: on the first s GPUs",
            "range": [stages + 0.75, -0.4],
            "tickvals": list(range(1, stages + 1)),
            "ticktext": [f"{s} · {plain(name)}" for s, name in enumerate(names, start=1)],
            **BARE,
        },
    )


def _path(start: np.ndarray) -> list[tuple[int, int]]:
    """(Stages, layers) from nothing to everything, read backwards from the last field."""
    path = [(start.shape[0] - 1, start.shape[1] - 1)]
    while path[-1][0]:
        path.append((path[-1][0] - 1, int(start[path[-1]])))
    return path[::-1]


def _table_title(best: np.ndarray, path: Sequence[tuple[int, int]], rows: int) -> tuple[str, str]:
    """What the table says, and how to read it."""
    layers, last = best.shape[1] - 1, best[rows]
    if path:
        sizes = " + ".join(str(b - a) for (_, a), (_, b) in pairwise(path))
        says = (
            f"{layers} layers on {rows} GPUs take {last[-1]:,.0f} ms; the path back reads {sizes}"
        )
        return says, "the path: how many layers the first s GPUs hold together in the best split"
    note = "white: not filled in yet, or it does not fit, or there are fewer layers than GPUs"
    who = f"first {rows} GPUs" if rows > 1 else "first GPU"
    if np.isfinite(last[-1]):
        return f"{layers} layers on the {who} take {last[-1]:,.0f} ms", note
    holds = int(np.flatnonzero(np.isfinite(last)).max(initial=0))
    return f"The {who} hold{'s' * (rows == 1)} at most {holds} of {layers} layers", note


# Exercises


def _exact(gpus: Sequence[int], memory: bool = True, head: bool = True) -> float:
    """Tokens/s of the exact split on these GPUs in this order; with False, as one may get it wrong."""
    problem = three_sites()
    model, costs = problem.model, cast(LayerTimes, problem.costs)
    pool = [problem.cluster.gpus[g] for g in gpus]
    work = [model.work(range(n, n + 1)) if head else 1.0 for n in range(model.layers)]
    speeds = [1 / costs.ms_per_layer[gpu.type] for gpu in pool]
    room = {
        "memory": [model.weight_gb(range(n, n + 1)) for n in range(model.layers)],
        "limits": [gpu.memory_gb - costs.reserved_gb for gpu in pool],
    }
    split = given(split_minmax(work, len(pool), speeds=speeds, **(room if memory else {})))
    return 1000 * problem.workload.tokens / bottleneck(split, work, speeds)


def _slowest(line: Given, ends: Sequence[int]) -> float:
    """What the slowest GPU takes for its layers."""
    loads = [sum(line.costs[a:b]) for a, b in pairwise(ends)]
    return max(load / speed for load, speed in zip(loads, line.speeds, strict=True))


def _best_cut(line: Given, layers: int, least: int = 0) -> list[int]:
    """Where the layers of each GPU end if the first so many are cut best; by trying all cuts.

    Every GPU has at least `least` layers.
    """
    inner = combinations_with_replacement(range(layers + 1), len(line.speeds) - 1)
    cuts = ([0, *ends, layers] for ends in inner)
    wide = (cut for cut in cuts if all(b - a >= least for a, b in pairwise(cut)))
    return min(wide, key=lambda cut: _slowest(line, cut))


def _reach(line: Given) -> float:
    """The most layers, from the first on, that fit if no stage may take longer than `ms`."""
    numbers = range(len(line.costs) + 1)
    return max(n for n in numbers if _slowest(line, _best_cut(line, n)) <= line.ms * SAME)


def _split(line: Given) -> float:
    return _slowest(line, _best_cut(line, len(line.costs)))


def _line(most: int | None) -> Callable[[random.Random], Given]:
    """Layers and GPUs in a row; with `ms`, the longest that a stage may take, up to `most`."""

    def draw(chance: random.Random) -> Given:
        costs = [chance.randint(1, 9) for _ in range(chance.randint(1, 6))]
        speeds = [chance.randint(1, 4) for _ in range(chance.randint(1, 4))]
        limit = {"ms": chance.randint(1, most)} if most else {}
        return Given(costs=costs, speeds=speeds, **limit)

    return draw


def _size(line: Given) -> tuple[int, int, str]:
    return len(line.costs) + len(line.speeds), sum(line.costs), str(line)


def _too_slow_or_just(line: Given) -> bool:
    """Whether a layer is too slow for a GPU, or just meets the limit."""
    slow = any(cost / speed > line.ms for cost in line.costs for speed in line.speeds)
    less = Given(**{**vars(line), "ms": line.ms * (1 - 1e-6)})
    return slow or _reach(less) < _reach(line)


def _leaves_one_out(line: Given) -> bool:
    """Whether a GPU without a layer makes the best cut."""
    layers = len(line.costs)
    fewer = layers < len(line.speeds)
    return fewer or _split(line) < _slowest(line, _best_cut(line, layers, least=1))


def _look_at_reach(line: Given) -> str:
    if any(cost / speed > line.ms for cost in line.costs for speed in line.speeds):
        return "here a layer is too slow for one of the GPUs; who takes it then?"
    if _reach(line) == len(line.costs):
        return "here all layers fit; may a stage take exactly `ms`, and what does the last one do once none is left?"
    return (
        "how many layers can a GPU take before it is too slow, and where does the next one begin?"
    )


def _look_at_split(line: Given) -> str:
    if len(line.costs) < len(line.speeds):
        return "here are fewer layers than GPUs; which of them stay empty?"
    if _leaves_one_out(line):
        return "here the best cut leaves a GPU out; does your recurrence allow an empty stage?"
    return "one stage takes the layers after i, the stages before it the others; which of the two is slower?"


def _draw_reach(failure: Failure) -> Figure:
    """As many layers as keep the limit, and those that are left."""
    line = failure.given
    layers = int(_reach(line))
    rows = _rows(line, _best_cut(line, layers))
    if line.costs[layers:]:
        rows.append(BlockRow("not held", [Block(c, EMPTY, f"{c}") for c in line.costs[layers:]]))
    title = f"Layers that fit in {line.ms} ms per stage: {layers} of {len(line.costs)}"
    note = f"{_NOTE}; dashed: the most time that a GPU may take"
    return plot_rows(rows, title + failure.yours, "time: cost / speed", note, line.ms)


def _draw_split(failure: Failure) -> Figure:
    line = failure.given
    title = f"The best cut of all layers: the slowest GPU takes {_split(line):.4g}"
    rows = _rows(line, _best_cut(line, len(line.costs)))
    return plot_rows(rows, title + failure.yours, "time: cost / speed", _NOTE)


_NOTE = "a block: a layer, with its cost"


def _rows(line: Given, cut: Sequence[int]) -> list[BlockRow]:
    """A row per GPU."""
    rows = []
    for gpu, (speed, (a, b)) in enumerate(zip(line.speeds, pairwise(cut), strict=True)):
        blocks = [Block(cost / speed, colour_of(gpu), f"{cost}") for cost in line.costs[a:b]]
        rows.append(BlockRow(f"GPU {gpu}, speed {speed}", blocks))
    return rows


EXERCISES: dict[str, Exercise] = {
    "01.1": Number(
        target=lambda: _exact((*A100S, *T4S)),
        unit="tokens/s",
        hint="seven speeds, seven limits; the slowest stage's time turns into a rate",
        half={
            "that does not fit: were the limits left out, or what is reserved?": (
                lambda: _exact((*A100S, *T4S), memory=False)
            ),
            "the last layer counts as more than one; look at `work`": (
                lambda: _exact((*A100S, *T4S), head=False)
            ),
            "that is the time of the slowest stage in ms; how many tokens per second is it?": (
                lambda: 2048000 / _exact((*A100S, *T4S))
            ),
        },
        mistakes={
            "that is without the T4s; the L4s are down": (lambda: _exact((*A100S, *L4S))),
            "that is with the L4s": (lambda: _exact((*A100S, *L4S, *T4S))),
        },
    ),
    "01.2": Function(
        signature="reach(costs, speeds, ms)",
        inputs=drawn(1, 300, _line(14), _size),
        target=_reach,
        hint=_look_at_reach,
        picture=_draw_reach,
        half=lambda line, _: _too_slow_or_just(line),
    ),
    "01.3": Function(
        signature="split(costs, speeds)",
        inputs=drawn(1, 300, _line(None), _size),
        target=_split,
        hint=_look_at_split,
        picture=_draw_split,
        half=lambda line, _: _leaves_one_out(line),
    ),
}
