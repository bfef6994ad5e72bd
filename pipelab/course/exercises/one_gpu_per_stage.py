"""Exercises of notebook 03: a family of rows without which rings appear, and the staircase bound."""

import math
import random
from collections.abc import Callable
from functools import cache
from itertools import combinations, pairwise, permutations
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelab.course.exercises.exercise import Exercise, Mistake
from pipelab.course.exercises.puzzle import Claim, Failure, Puzzle
from pipelab.display import counted
from pipelab.fields import given

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from pipelab.problem import Problem

_PROGRAMS, _LINES = 38, 300
_LONG = 4  # with more GPUs than this, a pool is one line of identical ones


class Pool(NamedTuple):
    """Layers, the milliseconds per layer of every GPU, and the site at which it stands."""

    layers: int
    ms: tuple[int, ...]
    sites: tuple[int, ...]
    far_ms: int  # of a link from site to site; within a site it takes 1 ms

    def link_ms(self, a: int, b: int) -> int:
        return 1 if self.sites[a] == self.sites[b] else self.far_ms

    @property
    def line(self) -> bool:
        """Whether its GPUs are identical and at one site, so that one order of them is all orders."""
        return len(self.ms) > _LONG

    def __repr__(self) -> str:
        if self.line:
            return f"{self.layers} layers, {len(self.ms)} GPUs of {self.ms[0]} ms per layer"
        where = " and ".join(
            f"GPUs of {', '.join(str(t) for t, s in zip(self.ms, self.sites, strict=True) if s == site)} ms per layer"
            for site in sorted(set(self.sites))
        )
        far = f", {self.far_ms} ms apart" if len(set(self.sites)) > 1 else ""
        return f"{self.layers} layers, {where}{far}"


class Pipeline(NamedTuple):
    """GPU ids in order, and the time of the slowest stage or link."""

    ms: float
    order: tuple[int, ...]


def _best_pipeline(pool: Pool) -> Pipeline:
    """The one with the shortest time of the slowest part, by trying all sets of GPUs in all orders."""
    found, gpus = [], range(len(pool.ms))
    for size in range(1, min(len(pool.ms), pool.layers) + 1):
        for used in [gpus[:size]] if pool.line else combinations(gpus, size):
            stages = next(
                ms
                for ms in sorted({n * pool.ms[g] for g in used for n in range(1, pool.layers + 1)})
                if all(ms >= pool.ms[g] for g in used)
                and sum(ms // pool.ms[g] for g in used) >= pool.layers
            )
            for order in [used] if pool.line else permutations(used):
                links = max((pool.link_ms(a, b) for a, b in pairwise(order)), default=0)
                found.append(Pipeline(max(stages, links), tuple(order)))
    return min(found)


def _pipeline_ms(pool: Pool) -> float:
    return _best_pipeline(pool).ms


def _program_ms(family: Callable[..., Any], pool: Pool) -> float:
    """What the notebook's program claims with the reader's rows instead of those for positions."""
    from pyscipopt import Model, quicksum

    scip, gpus = Model(), range(len(pool.ms))
    scip.hideOutput()
    scip.setParam("limits/time", 10)
    link = {(a, b): pool.link_ms(a, b) for a, b in permutations(gpus, 2)}

    def each(kind: str, keys: Any) -> dict[Any, Any]:
        return {key: scip.addVar(vtype=kind) for key in keys}

    v = SimpleNamespace(
        T=scip.addVar(), n=each("I", gpus), used=each("B", gpus), first=each("B", gpus),
        last=each("B", gpus), x=each("B", link), done=each("C", gpus),
    )  # fmt: skip
    scip.addCons(quicksum(v.n.values()) == pool.layers)
    scip.addCons(quicksum(v.first.values()) == 1)
    scip.addCons(quicksum(v.last.values()) == 1)
    for g in gpus:
        scip.addCons(pool.ms[g] * v.n[g] <= v.T)
        scip.addCons(v.n[g] >= v.used[g])
        scip.addCons(v.n[g] <= pool.layers * v.used[g])
        scip.addCons(v.first[g] + quicksum(v.x[h, g] for h in gpus if h != g) == v.used[g])
        scip.addCons(v.last[g] + quicksum(v.x[g, h] for h in gpus if h != g) == v.used[g])
    for pair, ms in link.items():
        scip.addCons(ms * v.x[pair] <= v.T)
    for pair in pairwise(gpus) if pool.line else ():  # nothing to search for: do the rows allow it?
        scip.addCons(v.x[pair] == 1)
    family(scip, v, SimpleNamespace(G=gpus, ms=list(pool.ms), link=link, layers=pool.layers))
    scip.setObjective(v.T)
    scip.optimize()
    if not scip.getNSols():
        return math.inf
    layers = [round(scip.getVal(v.n[g])) for g in gpus]
    links = [pair for pair, x in v.x.items() if scip.getVal(x) > 0.5]
    return Claim.of(scip.getObjVal(), (layers, links))


def _problem_of(pool: Pool) -> "Problem":
    """With links of these times, and more memory than anything needs."""
    import numpy as np

    from pipelab.cluster import GPU, Cluster
    from pipelab.costs import LayerTimes
    from pipelab.problem import Model, Problem, Workload

    gpus = [GPU(f"{ms} ms per layer", 1.0) for ms in pool.ms]
    model, workload = Model("a model", pool.layers, 1024, 1024, 1e-3), Workload(1024, 1)
    times = LayerTimes({gpu.type: ms for gpu, ms in zip(gpus, pool.ms, strict=True)})
    ids, megabytes = range(len(gpus)), 1024 * 1024 * 2 / 1e6
    gb_per_s = np.array([[megabytes / pool.link_ms(a, b) for b in ids] for a in ids])
    return Problem(Cluster(tuple(gpus), gb_per_s), model, workload, times, 1)


def _draw_program(failure: Failure) -> "Figure":
    """What the reader's program answers, rings and all; or the pipeline that it cuts off."""
    from pipelab.course.figures.sites import plot_answer

    pool: Pool = failure.given
    best = _best_pipeline(pool)
    claim = failure.answer
    if isinstance(claim, Claim) and claim < best.ms:
        layers, links = claim.chosen
        title = f"Claimed: {claim:.4g} ms, in a ring; no pipeline takes less than {best.ms:.4g} ms"
    else:
        claim, left = best.ms, pool.layers
        layers, links = [0] * len(pool.ms), list(pairwise(best.order))
        for place, g in enumerate(best.order, start=1):
            layers[g] = min(int(best.ms // pool.ms[g]), left - (len(best.order) - place))
            left -= layers[g]
        title = f"A pipeline of {best.ms:.4g} ms, which your rows do not allow{failure.yours}"
    figure = plot_answer(_problem_of(pool), claim, layers, links)
    note = figure.layout.title.text.split("<br>")[1]
    return figure.update_layout(title={"text": f"{title}<br>{note}"})


@cache
def _pools() -> tuple[Pool, ...]:
    """Small ones first, in most of which a ring at a far site would pay; last, two long pipelines.

    A constant M that does for the small ones cuts those off.
    """
    chance, found = random.Random(3), set[Pool]()
    while len(found) < _PROGRAMS:
        sites = chance.choice([(0, 0), (0, 0, 1, 1), (0, 0, 1, 1), (0, 1, 1, 1), (0, 0, 0)])
        ms = tuple(chance.randint(1, 6) for _ in sites)
        found.add(Pool(chance.randint(2, 9), ms, sites, chance.choice((4, 20, 50))))
    lines = [Pool(100 * gpus, (3,) * gpus, (0,) * gpus, 1) for gpus in (12, 20)]
    return (*sorted(found, key=lambda pool: (len(pool.ms), pool.layers, pool)), *lines)


def _look_at_program(pool: Pool) -> str:
    if pool.line:
        return "every GPU is needed here; how large can `done` become, and is your M at least that large?"
    if len(pool.ms) < 4:
        return "no far link, so no ring pays here; do your rows cut off a pipeline, by an M that is too small?"
    return "a time below the expected one comes from a ring; a time above it, or inf, from an M that is too small"


class Stairs(NamedTuple):
    """What `sharper` is given."""

    ms: tuple[int, ...]
    most: tuple[int, ...]
    layers: int
    head: float

    def __repr__(self) -> str:
        return f"ms={list(self.ms)}, most={list(self.most)}, layers={self.layers}, head={self.head}"


def _held(stairs: Stairs, ms: float, last: int) -> list[int]:
    """The most layers of every GPU within this time, if one of them has the head as well."""
    return [
        min(top, math.floor(ms / each - (stairs.head if g == last else 0) + 1e-9))
        for g, (each, top) in enumerate(zip(stairs.ms, stairs.most, strict=True))
    ]


def _holds(stairs: Stairs, ms: float, last: int) -> bool:
    held = _held(stairs, ms, last)
    return held[last] >= 1 and sum(held) >= stairs.layers


def _bound(stairs: Stairs) -> float:
    """By trying every number of layers on every GPU, and every GPU as the last."""
    least = math.inf
    for last, tau in enumerate(stairs.ms):
        times: set[float] = {n * ms for ms in stairs.ms for n in range(stairs.layers + 1)}
        times |= {(n + stairs.head) * tau for n in range(1, stairs.layers + 1)}
        least = min([least, *(ms for ms in times if _holds(stairs, ms, last))])
    return least


def _draw_stairs(failure: Failure) -> "Figure":
    """What every GPU holds in the least time, and where the head is."""
    from pipelab.course.figures.rows import Block, Row, colour_of, plot_rows
    from pipelab.figures.theme import NEUTRAL

    stairs: Stairs = failure.given
    bound, left = _bound(stairs), stairs.layers
    last = next(g for g in range(len(stairs.ms)) if _holds(stairs, bound, g))
    rows = {}
    for g in sorted(range(len(stairs.ms)), key=lambda g: g != last):  # the head needs a layer
        held = min(_held(stairs, bound, last)[g], left)
        left -= held
        blocks = [Block(stairs.ms[g], colour_of(g), f"{stairs.ms[g]}")] * held
        if g == last and stairs.head:
            blocks = [*blocks, Block(stairs.head * stairs.ms[g], NEUTRAL, "head")]
        rows[g] = Row(f"GPU {g}, at most {counted(stairs.most[g], 'layer')}", blocks)
    title = (
        f"{counted(stairs.layers, 'layer')} and the head take {bound:g} ms at least{failure.yours}"
    )
    note = "a block: a layer, with its ms; dashed: the least time in which all layers fit"
    return plot_rows([rows[g] for g in sorted(rows)], title, "ms", note, limit=bound)


@cache
def _stairs() -> tuple[Stairs, ...]:
    chance, found = random.Random(4), set[Stairs]()
    while len(found) < _LINES:
        gpus = chance.randint(1, 4)
        ms = tuple(chance.randint(1, 9) for _ in range(gpus))
        most = tuple(chance.randint(1, 5) for _ in range(gpus))
        layers = chance.randint(1, 8)
        if sum(most) >= layers:
            found.add(Stairs(ms, most, layers, chance.choice((0, 0.25, 0.5))))
    return tuple(sorted(found, key=lambda x: (len(x.ms), x.layers, x)))


def _look_at_bound(stairs: Stairs) -> str:
    if not stairs.head:
        return "no head here: at which time do the GPUs together hold all layers, none more than its memory?"
    return "one of the GPUs needs time for the head; which of them loses the least by it?"


def _rate(counts: dict[str, int], whole: bool = True) -> float:
    """The staircase bound in tokens/s of so many GPUs of the course's problem."""
    from pipelab.course.main_problem import three_sites

    problem = three_sites()
    per_layer, layers = problem.costs.ms_per_layer, problem.model.layers
    if not whole:
        ms = layers / sum(n / per_layer[kind] for kind, n in counts.items())
    else:
        times = sorted({n * per_layer[kind] for kind in counts for n in range(1, layers + 1)})
        ms = next(
            ms
            for ms in times
            if sum(n * (ms // per_layer[kind]) for kind, n in counts.items()) >= layers
        )
    return 1000 * given(problem.workload).tokens / ms


_A100, _L4, _T4 = "A100-SXM-40", "L4", "T4"

ONE_GPU_PER_STAGE: dict[str, Exercise | Puzzle] = {
    "03.1": Puzzle(
        "no_rings(scip, v, d)", _pools, _pipeline_ms, _look_at_program, apply=_program_ms, picture=_draw_program
    ),
    "03.2": Puzzle(
        "sharper(ms, most, layers, head)", _stairs, _bound, _look_at_bound,
        apply=lambda mine, x: mine(list(x.ms), list(x.most), x.layers, x.head), picture=_draw_stairs,
    ),
    "03.3": Exercise(
        lambda: _rate({_A100: 4, _L4: 4, _T4: 4}),
        "tokens/s",
        "`bound` and `most` need only another cluster; does memory play a part?",
        (
            Mistake(
                lambda: _rate({_A100: 4, _L4: 4, _T4: 4}, whole=False),
                "that splits layers into parts; a GPU holds whole layers",
            ),
            Mistake(
                lambda: _rate({_A100: 3, _L4: 4, _T4: 4}),
                "that is the bound of the three sites as they are",
            ),
            Mistake(
                lambda: _rate({_A100: 3, _L4: 5, _T4: 4}), "that is with a fifth L4, not a fourth A100"
            ),
            Mistake(
                lambda: 2048000 / _rate({_A100: 4, _L4: 4, _T4: 4}),
                "that is the time of the slowest stage in ms; how many tokens per second is it?",
            ),
        ),
    ),
}  # fmt: skip
