"""Notebook 03, One GPU per stage: the staircase, an answer on its sites, and rows to write."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from io import StringIO
from itertools import combinations, pairwise, permutations
from textwrap import fill
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np

from pipelab.cluster import GPU, Cluster
from pipelab.costs import LayerTimes
from pipelab.course.exercises import ClaimedValue, Exercise, Failure, Function, Given, Number, drawn
from pipelab.course.n00 import GPUS, stage_cost, three_sites
from pipelab.course.pictures import ARROW, BARE, SAME, add_legend, finish, retitle
from pipelab.display import Figure, number
from pipelab.errors import InvalidPlacement
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.figures import theme
from pipelab.figures.theme import BOTTLENECK, WRONG, colour_of_types, ink_on, line, plain
from pipelab.placement import Placement
from pipelab.problem import Model, Problem, Workload

# The bound as a staircase


_STEPS, _RATES = 400, (3000, 9000)  # tokens/s that are always shown, in so many steps


def plot_staircase(problem: Problem, most: Callable[[GPU, float], int], rate: float) -> Figure:
    """The layers that fit at every rate, stacked by GPU type, with one rate marked.

    Parameters
    ----------
    problem : Problem
        Its model's layers are the line to reach.
    most : callable
        The most layers that a GPU holds without falling below a rate in tokens/s.
    rate : float
        The rate that is marked.

    Returns
    -------
    plotly.graph_objects.Figure
        In tokens/s and layers.

    Examples
    --------
    >>> from pipelab.course import three_sites
    >>> figure = plot_staircase(three_sites(), lambda gpu, rate: int(40000 / rate), 6000)
    >>> figure.layout.title.text.split("<br>")[0]
    'At 6,000 tokens/s 66 layers fit: 14 too few'
    """
    counts = Counter(gpu.type for gpu in problem.cluster.gpus)
    one_of = {gpu.type: gpu for gpu in problem.cluster.gpus}
    needed = problem.model.layers
    low, high = min(_RATES[0], rate), max(_RATES[1], rate)
    rates = sorted({rate, *(low + (high - low) * i / _STEPS for i in range(_STEPS + 1))})
    held = {kind: [n * most(one_of[kind], t) for t in rates] for kind, n in counts.items()}
    totals = list(map(sum, zip(*held.values(), strict=True)))
    at_rate = totals[rates.index(rate)]
    figure = theme.new_figure()
    for kind, colour in colour_of_types(counts).items():
        hover = f"{plain(kind)}: %{{y}} layers at %{{x:,.0f}} tokens/s<extra></extra>"
        area: dict[str, Any] = {"stackgroup": "layers", "fillcolor": colour, "opacity": 0.9}
        figure.add_trace(
            line(
                plain(kind),
                rates,
                held[kind],
                colour,
                0.5,
                {"shape": "vh"},
                hovertemplate=hover,
                **area,
            )
        )
    enough = at_rate >= needed
    mark = BOTTLENECK if enough else WRONG
    ends: dict[str, Any] = {"mode": "lines+markers", "marker": {"color": mark, "size": [0, 11]}}
    figure.add_trace(line("", [rate] * 2, [0, at_rate], mark, 2.5, showlegend=False, **ends))
    figure.add_hline(
        y=needed,
        line={"color": BOTTLENECK, "width": 1.5, "dash": "dash"},
        annotation={"text": f"the model: {needed} layers", "font": {"size": 12}},
        annotation_position="top right",
    )
    verdict = "enough" if enough else f"{needed - at_rate} too few"
    return finish(
        figure,
        f"At {number(rate)} tokens/s {at_rate} layers fit: {verdict}",
        "height: layers that all GPUs hold together at that rate; dashed: what the model needs",
        height=400,
        x={"title": "target rate t, tokens/s", "range": [low, high], **BARE},
        y={"title": "layers that fit", "range": [0, 1.1 * max(totals)]},
    )


# The program with one GPU per stage: everything but its rows


class ScipAnswer(NamedTuple):
    """What SCIP answers."""

    ms: float  # the time of the slowest part; infinite without an answer
    at_least: float  # SCIP's bound on it
    layers: list[float]  # of every GPU, by id; whole numbers unless the program is relaxed
    x: dict[tuple[int, int], float]  # which GPU sends to which: 1, or a fraction
    status: str
    nodes: int  # of its search

    @property
    def links(self) -> list[tuple[int, int]]:
        """The pairs, as `plot_answer` takes them."""
        return list(self.x)


_ZERO = 1e-6  # what SCIP takes for 0
_LOG_WIDTH = 100  # characters, so that no line of the log is broken in mid-word

# The columns of SCIP's log that the notebook reads.
_COLUMNS = [
    "solfound",
    "time",
    "nnodes",
    "nodesleft",
    "memtotal",
    "cuts",
    "dualbound",
    "primalbound",
    "gap",
]


def ask_scip(
    problem: Problem,
    *families: Callable[[Any, Any, Any], None],
    nodes: int = 20_000,
    relaxed: bool = False,
    log: bool = False,
    symmetry: bool = True,
) -> ScipAnswer:
    """Minimise the time of the slowest stage or link under families of rows, one GPU per stage.

    Parameters
    ----------
    problem : Problem
        With one GPU per stage.
    *families : callable
        Each gets the model of SCIP, to which it adds its rows, the variables and the data. Variables:
        `T`; by GPU `n`, `used`, `first`, `last`, `place` and `done`; `x` by pair of GPUs. Data: `G`,
        the ids; `ms` and `room_gb` of each GPU; `link`, the milliseconds of a message by pair; `layers`.
    nodes : int
        SCIP stops after so many, on every machine at the same point.
    relaxed : bool
        Whether fractions are allowed.
    log : bool
        Print what SCIP says while it works, with the columns that the notebook reads.
    symmetry : bool
        Whether SCIP may look for variables that can be exchanged.

    Returns
    -------
    ScipAnswer
        With `ms` infinite and nothing chosen where no answer was found.

    Examples
    --------
    >>> from pipelab.course import three_sites
    >>> ask_scip(three_sites()).ms  # without a row, nothing takes no time
    0.0
    """
    from pyscipopt import Model

    scip, gpus, costs = Model(), problem.cluster.gpus, cast(LayerTimes, problem.costs)
    ids, message = range(len(gpus)), 1000 * problem.tensor_gb()
    data = SimpleNamespace(
        G=ids,
        ms=[costs.ms_per_layer[gpu.type] for gpu in gpus],
        room_gb=[gpu.memory_gb - costs.reserved_gb for gpu in gpus],
        link={
            (g, h): message / problem.cluster.bandwidth_between(g, h)
            for g, h in permutations(ids, 2)
        },
        layers=problem.model.layers,
    )
    variables = _variables(scip, ids, data.link, relaxed)
    if log:
        _shorten_log(scip)
    else:
        scip.hideOutput()
    scip.setParam("limits/nodes", nodes)
    if not symmetry:
        scip.setParam("misc/usesymmetry", 0)
    for family in families:
        family(scip, variables, data)
    scip.setObjective(variables.T, "minimize")
    with redirect_stdout(StringIO()) as said:
        scip.optimize()
    for row in said.getvalue().splitlines():
        print(fill(row, _LOG_WIDTH, subsequent_indent="    "))
    ms, layers, sends = math.inf, [], {}
    if scip.getNSols():
        ms, whole = scip.getObjVal(), (lambda value: value) if relaxed else round
        layers = [whole(scip.getVal(n)) for n in variables.n.values()]
        chosen = {pair: whole(scip.getVal(x)) for pair, x in variables.x.items()}
        sends = {pair: x for pair, x in chosen.items() if x > _ZERO}
    return ScipAnswer(
        ms, scip.getDualbound(), layers, sends, scip.getStatus(), scip.getNTotalNodes()
    )


def rows_of_03(problem: Problem) -> tuple[Callable[[Any, Any, Any], None], ...]:
    """Return the families that notebook 03 ends with, for `ask_scip`.

    Parameters
    ----------
    problem : Problem
        With one GPU per stage and identical layers.

    Returns
    -------
    tuple of callable
        Times and neighbours, memory, and places against rings.

    Examples
    --------
    >>> from pipelab.course import one_network
    >>> round(ask_scip(one_network(), *rows_of_03(one_network())).ms)
    324
    """

    def memory(scip: Any, v: Any, d: Any) -> None:
        for g in d.G:
            scip.addCons(problem.model.layer_weight_gb * v.n[g] <= d.room_gb[g])

    def places(scip: Any, v: Any, d: Any) -> None:
        for (g, h), x in v.x.items():
            scip.addCons(v.place[h] >= v.place[g] + 1 - len(d.G) * (1 - x))

    return _chain, memory, places


def _chain(scip: Any, v: Any, d: Any) -> None:
    """Add times of stages and links, all layers, and neighbours: rings are still possible."""
    from pyscipopt import quicksum

    scip.addCons(quicksum(v.n.values()) == d.layers)
    scip.addCons(quicksum(v.first.values()) == 1)
    scip.addCons(quicksum(v.last.values()) == 1)
    for g in d.G:
        scip.addCons(d.ms[g] * v.n[g] <= v.T)
        scip.addCons(v.n[g] >= v.used[g])
        scip.addCons(v.n[g] <= d.layers * v.used[g])
        scip.addCons(v.first[g] + quicksum(v.x[h, g] for h in d.G if h != g) == v.used[g])
        scip.addCons(v.last[g] + quicksum(v.x[g, h] for h in d.G if h != g) == v.used[g])
    for pair, ms in d.link.items():
        scip.addCons(ms * v.x[pair] <= v.T)


def _variables(scip: Any, gpus: range, links: Any, relaxed: bool = False) -> SimpleNamespace:
    """All at least 0; "B" is binary, "I" whole, "C" continuous."""

    def each(kind: str, keys: Any) -> dict[Any, Any]:
        kept, top = ("C" if relaxed else kind), (1 if kind == "B" else None)
        return {key: scip.addVar(vtype=kept, ub=top) for key in keys}

    binary = {name: each("B", gpus) for name in ("used", "first", "last")}
    free = {name: each("C", gpus) for name in ("place", "done")}
    return SimpleNamespace(T=scip.addVar(), n=each("I", gpus), x=each("B", links), **binary, **free)


def _shorten_log(scip: Any) -> None:
    """One start, no presolving round by round, a row at a new answer and every 200 nodes, few columns."""
    scip.redirectOutput()
    for name, value in {"verblevel": 3, "freq": 200}.items():
        scip.setParam(f"display/{name}", value)
    scip.setParam("presolving/maxrestarts", 0)
    for name in scip.getParams():
        _, _, column = name.removesuffix("/active").partition("display/")
        if column and name.endswith("/active"):
            scip.setParam(name, 2 * (column in _COLUMNS))  # 2: always, 0: never


# A solver's answer, rings and all


Links = Sequence[tuple[int, int]]

_ANSWER = "in a circle: layers; arrows: which GPU sends to which; red: not possible"
_NODE, _BELOW = 0.27, -1.25  # where an arrow ends, and the height of the second row


def plot_answer(problem: Problem, ms: float, layers: Sequence[int], links: Links) -> Figure:
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
    rings, gpus = _rings(links), problem.cluster.gpus
    at, headings = _positions(layers, links, rings)
    in_ring = {gpu for ring in rings for gpu in ring}
    too_heavy = [g for g, n in enumerate(layers) if not _fits(problem, g, n)]
    colours = colour_of_types(gpu.type for gpu in gpus)
    lines = [colours[gpu.type] for gpu in gpus]
    used = [colour if n else "#FFFFFF" for colour, n in zip(lines, layers, strict=True)]
    fills = [WRONG if g in too_heavy else colour for g, colour in enumerate(used)]
    figure = theme.new_figure()
    figure.add_scatter(
        x=[x for x, _ in at],
        y=[y for _, y in at],
        mode="markers+text",
        text=[str(n or "") for n in layers],
        hoverinfo="text",
        textfont={"size": 16, "color": [ink_on(colour) for colour in fills]},
        marker={"size": 42, "color": fills, "line": {"color": lines, "width": 2}},
        showlegend=False,
        hovertext=[f"GPU {g}: {n} layers" for g, n in enumerate(layers)],
    )
    add_legend(figure, colours)
    for g, (x, y) in enumerate(at):
        figure.add_annotation(x=x, y=y - 0.4, text=f"GPU {g}", showarrow=False, font={"size": 11})
    for text, (x, y) in headings.items():
        look = {"showarrow": False, "xanchor": "left", "font": {"size": 12}}
        figure.add_annotation(x=x - 0.3, y=y + 0.42, text=text, **look)
    for a, b in links:
        _draw_arrow(figure, at[a], at[b], WRONG if a in in_ring else BOTTLENECK)
    two_rows = any(y < 0 for _, y in at)
    return finish(
        figure,
        _claim(problem, ms, layers, links, rings, too_heavy),
        _ANSWER,
        height=330 if two_rows else 225,
        margin={"t": 92, "b": 10, "l": 20, "r": 20},
        x={"visible": False, "range": [-0.6, max(10.0, *(x for x, _ in at)) + 0.6]},
        y={"visible": False, "range": [(_BELOW if two_rows else 0) - 0.7, 0.6]},
    )


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
    figure: Figure, a: tuple[float, float], b: tuple[float, float], colour: str
) -> None:
    """Straight to the right; back to the left, in an arc below."""
    (x, y), (to, height) = a, b
    tip = {**ARROW, "arrowsize": 1.1, "arrowwidth": 2, "arrowcolor": colour}
    if to > x:
        figure.add_annotation(ax=x + _NODE, ay=y, x=to - _NODE, y=height, **tip)
        return
    y, low = y - 0.52, y - 0.68
    path = f"M {x},{y} L {x},{low} L {to},{low} L {to},{y - 0.04}"
    figure.add_shape(type="path", path=path, line={"color": colour, "width": 2})
    figure.add_annotation(ax=to, ay=low, x=to, y=y, **tip)


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
    inner = range(1, 1 + min(layers, problem.model.layers - 2))
    room = problem.cluster.gpus[gpu].memory_gb * SAME
    return not inner or stage_cost(problem, [gpu], inner).memory_gb[0] <= room


def _claim(
    problem: Problem,
    ms: float,
    layers: Sequence[int],
    links: Links,
    rings: list[list[int]],
    too_heavy: list[int],
) -> str:
    """What is claimed, and the first thing that is wrong with it."""
    missing = problem.model.layers - sum(layers)
    if missing:
        some = "1 layer is" if missing == 1 else f"{missing} layers are"
        return f"Claimed: {ms:,.0f} ms. But {some} on no GPU"
    rate = 1000 * problem.workload.tokens / ms
    claim = f"Claimed: {number(rate)} tokens/s."
    if too_heavy:
        return f"{claim} But {_gpus(too_heavy)} cannot hold that many layers"
    if rings:
        some = " and ".join(_gpus(sorted(ring)) for ring in rings)
        return f"{claim} But {some} form {'a ring' if len(rings) == 1 else 'rings'} that nothing enters"
    if not links:
        return f"{claim} But no GPU sends to another"
    placement = Placement.of([(layers[g], (g,)) for g in _path(links)])
    try:
        really = evaluate(problem, placement).throughput
    except InvalidPlacement as error:
        return f"{claim} But {plain(error.defects[0])}"
    if math.isclose(really, rate, rel_tol=1e-6):
        return f"{number(rate)} tokens/s, and the evaluator agrees"
    return f"{claim} But the evaluator says {number(really)}"


def _gpus(ids: Sequence[int]) -> str:
    return f"GPU{'s' * (len(ids) > 1)} {', '.join(map(str, ids))}"


# Exercises


_LONG = 4  # with more GPUs than this, a pool is one line of identical ones


class Pool(Given):
    """Layers, the milliseconds per layer of every GPU, its site, and what a link between sites takes."""

    layers: int
    ms: list[int]
    sites: list[int]
    far_ms: int  # within a site a link takes 1 ms

    def link_ms(self, a: int, b: int) -> int:
        return 1 if self.sites[a] == self.sites[b] else self.far_ms

    @property
    def line(self) -> bool:
        """Whether its GPUs are identical and at one site, so that one order of them is all orders."""
        return len(self.ms) > _LONG

    def __repr__(self) -> str:
        if self.line:
            return f"{self.layers} layers, {len(self.ms)} GPUs of {self.ms[0]} ms per layer"
        sites = []
        for site in sorted(set(self.sites)):
            here = [str(t) for t, s in zip(self.ms, self.sites, strict=True) if s == site]
            sites.append(f"GPUs of {', '.join(here)} ms per layer")
        far = f", {self.far_ms} ms apart" if len(sites) > 1 else ""
        return f"{self.layers} layers, {' and '.join(sites)}{far}"


class TimedOrder(NamedTuple):
    """GPU ids in order, and the time of the slowest stage or link."""

    ms: float
    order: tuple[int, ...]


def _best_pipeline(pool: Pool) -> TimedOrder:
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
                found.append(TimedOrder(max(stages, links), tuple(order)))
    return min(found)


def _worst_ms(pool: Pool) -> float:
    """No pipeline takes longer: its slowest stage has all layers, or its slowest link is between sites."""
    return max(pool.layers * max(pool.ms), pool.far_ms)


def _program_ms(family: Callable[..., Any], pool: Pool) -> float:
    """What the notebook's program claims with the reader's rows instead of those for positions."""

    def whole_line(scip: Any, v: Any, d: Any) -> None:
        for pair in pairwise(d.G) if pool.line else ():  # nothing to search: do the rows allow it?
            scip.addCons(v.x[pair] == 1)

    problem = small_problem(pool.layers, pool.ms, pool.link_ms, "ms per layer")
    answer = ask_scip(problem, _chain, whole_line, family)
    return ClaimedValue.of(answer.ms, (answer.layers, answer.links))


def small_problem(
    layers: int, ms: Sequence[int], link_ms: Callable[[int, int], int], unit: str, most: int = 1
) -> Problem:
    """Layers and links that take these times, with more memory than anything needs.

    A microbatch is one token, so rates are per second; `unit` is for the names of the GPU types.
    """
    gpus, ids = [GPU(f"{each} {unit}", 1.0) for each in ms], range(len(ms))
    times = LayerTimes({f"{each} {unit}": each for each in ms}, filling="synchronous")
    model, megabytes = Model("a model", layers, 1024, 1024, 1e-3), 1024 * 2 / 1e6
    gb_per_s = np.array([[megabytes / (link_ms(a, b) if a != b else 1) for b in ids] for a in ids])
    cluster, token = Cluster(tuple(gpus), gb_per_s), Workload(1, 1)
    return Problem(cluster, model, token, times, most, same_type_stages=False)


def _draw_program(failure: Failure) -> Figure:
    """What the reader's program answers, rings and all; or the pipeline that it cuts off."""
    pool = failure.given
    best = _best_pipeline(pool)
    claim = failure.answer
    if isinstance(claim, ClaimedValue) and claim < best.ms:
        layers, links = claim.chosen
        title = f"Claimed: {claim:.4g} ms, in a ring; no pipeline takes less than {best.ms:.4g} ms"
    else:
        claim, left = best.ms, pool.layers
        layers, links = [0] * len(pool.ms), list(pairwise(best.order))
        for place, g in enumerate(best.order, start=1):
            layers[g] = min(int(best.ms // pool.ms[g]), left - (len(best.order) - place))
            left -= layers[g]
        title = f"A pipeline of {best.ms:.4g} ms, which your rows do not allow{failure.yours}"
    problem = small_problem(pool.layers, pool.ms, pool.link_ms, "ms per layer")
    return retitle(plot_answer(problem, claim, layers, links), title, _ANSWER)


def _pool(chance: random.Random) -> Pool:
    """One in which, most often, a ring at a far site would pay."""
    sites = chance.choice([(0, 0), (0, 0, 1, 1), (0, 0, 1, 1), (0, 1, 1, 1), (0, 0, 0)])
    ms = [chance.randint(1, 6) for _ in sites]
    layers = chance.randint(2, 9)
    return Pool(layers=layers, ms=ms, sites=[*sites], far_ms=chance.choice((4, 20, 50)))


_small_pools = drawn(3, 38, _pool, lambda pool: (len(pool.ms), pool.layers))


def _pools(hidden: int = 0) -> tuple[Pool, ...]:
    """Last come two long pipelines: a constant M that does for the small ones cuts those off."""
    lines = [Pool(layers=100 * n, ms=[3] * n, sites=[0] * n, far_ms=1) for n in (12, 20)]
    return (*_small_pools(hidden), *lines)


def _look_at_program(pool: Pool) -> str:
    if pool.line:
        return "every GPU is needed here; how large can `done` become, and is your M at least that large?"
    if len(pool.ms) < 4:
        return "no far link, so no ring pays here; do your rows cut off a pipeline, by an M that is too small?"
    return "a time below the expected one comes from a ring; a time above it, or inf, from an M that is too small"


def _staircase_rate(a100s: int = 4, l4s: int = 4, whole: bool = True) -> float:
    """The staircase bound in tokens/s of so many GPUs of the course's problem."""
    problem = three_sites()
    times, layers = cast(LayerTimes, problem.costs).ms_per_layer, problem.model.layers
    gpus = [(times[kind], n) for kind, n in zip(GPUS, (a100s, l4s, 4), strict=True)]
    if not whole:
        ms = layers / sum(n / each for each, n in gpus)
    else:
        steps = sorted({n * each for each, _ in gpus for n in range(1, layers + 1)})
        ms = next(ms for ms in steps if sum(n * (ms // each) for each, n in gpus) >= layers)
    return 1000 * given(problem.workload).tokens / ms


EXERCISES: dict[str, Exercise] = {
    "03.1": Function(
        signature="no_rings(scip, v, d)",
        inputs=_pools,
        target=lambda pool: _best_pipeline(pool).ms,
        hint=_look_at_program,
        call=_program_ms,
        picture=_draw_program,
        half=lambda pool, claim: (
            _best_pipeline(pool).ms <= claim <= _worst_ms(pool) or claim == math.inf  # none is left
        ),
    ),
    "03.2": Number(
        target=lambda: _staircase_rate(),
        unit="tokens/s",
        hint="`bound` and `most` need only another cluster; does memory play a part?",
        half={
            "that splits layers into parts; a GPU holds whole layers": (
                lambda: _staircase_rate(whole=False)
            ),
            "that is the time of the slowest stage in ms; how many tokens per second is it?": (
                lambda: 2048000 / _staircase_rate()
            ),
        },
        mistakes={
            "that is the bound of the three sites as they are": (lambda: _staircase_rate(a100s=3)),
            "that is with a fifth L4, not a fourth A100": (lambda: _staircase_rate(a100s=3, l4s=5)),
        },
    ),
}
