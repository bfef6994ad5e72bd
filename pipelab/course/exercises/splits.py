"""Exercises of notebook 01: the exact split of the course's own problem, and its recurrence."""

import random
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations_with_replacement, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelab.course.exercises.exercise import Exercise, Mistake
from pipelab.course.exercises.puzzle import Failure, Puzzle
from pipelab.fields import given

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

A100, L4, T4 = (0, 1, 2), (3, 4, 5, 6), (7, 8, 9, 10)
_INPUTS = 300


def _exact(gpus: Sequence[int], memory: bool = True, ends: bool = True, head: bool = True) -> float:
    """Tokens/s of the exact split on these GPUs in this order; with False, as one may get it wrong."""
    from pipelab.course.main_problem import three_sites
    from pipelab.splits import bottleneck, split_minmax

    problem = three_sites()
    model, costs = problem.model, problem.costs
    pool = [problem.cluster.gpus[g] for g in gpus]
    work = given(model.work_factors) if head else [1.0] * model.layers
    speeds = [1 / costs.ms_per_layer[gpu.type] for gpu in pool]
    weights = [model.weight_gb(range(n, n + 1)) for n in range(model.layers)]
    room = {
        "memory": weights if ends else [model.layer_weight_gb] * model.layers,
        "limits": [gpu.memory_gb - costs.reserved_gb for gpu in pool],
    }
    split = given(split_minmax(work, len(pool), speeds=speeds, **(room if memory else {})))
    return 1000 * problem.workload.tokens / bottleneck(split, work, speeds)


class Line(NamedTuple):
    """Layers and GPUs in a row; `ms` is the longest that a stage may take, where it is asked for."""

    costs: tuple[int, ...]
    speeds: tuple[int, ...]
    ms: int | None = None

    def __repr__(self) -> str:
        limit = "" if self.ms is None else f", ms={self.ms}"
        return f"costs={list(self.costs)}, speeds={list(self.speeds)}{limit}"


def _bottlenecks(line: Line, layers: int, least: int) -> list[float]:
    """Of every way to cut the first so many layers, at least `least` on each GPU; by trying all."""
    inner = combinations_with_replacement(range(layers + 1), len(line.speeds) - 1)
    found = []
    for cuts in inner:
        parts = list(pairwise([0, *cuts, layers]))
        if all(b - a >= least for a, b in parts):
            found.append(_slowest(line, [0, *cuts, layers]))
    return found


def _reach(line: Line) -> float:
    """The most layers, from the first on, that fit if no stage may take longer than `ms`."""
    fits = [
        n
        for n in range(len(line.costs) + 1)
        if min(_bottlenecks(line, n, 0)) <= given(line.ms) * (1 + 1e-9)
    ]
    return max(fits)


def _split(line: Line) -> float:
    return min(_bottlenecks(line, len(line.costs), 0))


def _lines(most: int | None) -> Callable[[], tuple[Line, ...]]:
    @cache
    def lines() -> tuple[Line, ...]:
        chance, found = random.Random(1), set[Line]()
        while len(found) < _INPUTS:
            costs = tuple(chance.randint(1, 9) for _ in range(chance.randint(1, 6)))
            speeds = tuple(chance.randint(1, 4) for _ in range(chance.randint(1, 4)))
            found.add(Line(costs, speeds, most and chance.randint(1, most)))
        return tuple(
            sorted(found, key=lambda x: (len(x.costs) + len(x.speeds), sum(x.costs), repr(x)))
        )

    return lines


def _with_lists(mine: Callable[..., Any], line: Line) -> Any:
    limit = () if line.ms is None else (line.ms,)
    return mine(list(line.costs), list(line.speeds), *limit)


def _look_at_reach(line: Line) -> str:
    if any(cost / speed > given(line.ms) for cost in line.costs for speed in line.speeds):
        return "here a layer is too slow for one of the GPUs; who takes it then?"
    if _reach(line) == len(line.costs):
        return "here all layers fit; may a stage take exactly `ms`, and what does the last one do once none is left?"
    return (
        "how many layers can a GPU take before it is too slow, and where does the next one begin?"
    )


def _look_at_split(line: Line) -> str:
    if len(line.costs) < len(line.speeds):
        return "here are fewer layers than GPUs; which of them stay empty?"
    if _split(line) < min(_bottlenecks(line, len(line.costs), 1)):
        return "here the best cut leaves a GPU out; does your recurrence allow an empty stage?"
    return "one stage takes the layers after i, the stages before it the others; which of the two is slower?"


def _drawn(failure: Failure) -> "Figure":
    """A row per GPU in the best cut; where a stage has a limit, of as many layers as keep it."""
    from pipelab.course.figures.rows import EMPTY, Block, Row, colour_of, plot_rows

    line: Line = failure.given
    layers = len(line.costs) if line.ms is None else int(_reach(line))
    cuts = combinations_with_replacement(range(layers + 1), len(line.speeds) - 1)
    cut = min(cuts, key=lambda inner: _slowest(line, [0, *inner, layers]))
    rows = [
        Row(
            f"GPU {gpu}, speed {speed}",
            [Block(cost / speed, colour_of(gpu), f"{cost}") for cost in line.costs[a:b]],
        )
        for gpu, (speed, (a, b)) in enumerate(
            zip(line.speeds, pairwise([0, *cut, layers]), strict=True)
        )
    ]
    if line.costs[layers:]:
        rows.append(Row("not held", [Block(c, EMPTY, f"{c}") for c in line.costs[layers:]]))
    slowest = _slowest(line, [0, *cut, layers])
    title = f"The best cut of all layers: the slowest GPU takes {slowest:.4g}"
    if line.ms is not None:
        title = f"Layers that fit in {line.ms} ms per stage: {layers} of {len(line.costs)}"
    note = "a block: a layer, with its cost; dashed: the most time that a GPU may take"
    return plot_rows(
        rows,
        title + failure.yours,
        "time: cost / speed",
        note if line.ms else note.split(";")[0],
        line.ms,
    )


def _slowest(line: Line, ends: Sequence[int]) -> float:
    loads = [sum(line.costs[a:b]) for a, b in pairwise(ends)]
    return max(load / speed for load, speed in zip(loads, line.speeds, strict=True))


SPLITS: dict[str, Exercise | Puzzle] = {
    "01.1": Exercise(
        lambda: _exact((*A100, *T4)),
        "tokens/s",
        "seven speeds, seven limits; the slowest stage's time turns into a rate",
        (
            Mistake(
                lambda: _exact((*A100, *T4), memory=False),
                "that does not fit: were the limits left out, or what is reserved?",
            ),
            Mistake(
                lambda: _exact((*A100, *T4), head=False),
                "the last layer counts as more than one; look at `work`",
            ),
            Mistake(lambda: _exact((*A100, *L4)), "that is without the T4s; the L4s are down"),
            Mistake(lambda: _exact((*A100, *L4, *T4)), "that is with the L4s"),
            Mistake(
                lambda: 2048000 / _exact((*A100, *T4)),
                "that is the time of the slowest stage in ms; how many tokens per second is it?",
            ),
        ),
    ),
    "01.2": Puzzle(
        "reach(costs, speeds, ms)",
        _lines(14),
        _reach,
        _look_at_reach,
        apply=_with_lists,
        picture=_drawn,
    ),
    "01.3": Puzzle(
        "split(costs, speeds)",
        _lines(None),
        _split,
        _look_at_split,
        apply=_with_lists,
        picture=_drawn,
    ),
}
