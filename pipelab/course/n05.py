"""Notebook 05, One joint integer program: its seven GPUs, what it chose, its tree, and families of rows to write."""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, count, pairwise
from statistics import mean
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from pipelab.candidates import Allocation, Connection, list_allocations, list_connections
from pipelab.cluster import Cluster
from pipelab.costs import LayerTimes
from pipelab.course.exercises import ClaimedValue, Exercise, Failure, Function, Given, Number, drawn
from pipelab.course.n03 import small_problem
from pipelab.course.pictures import ARROW, BARE, SAME, add_legend, finish, retitle
from pipelab.display import Figure, counted, number
from pipelab.engine.solving import solve
from pipelab.errors import InvalidValue
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.figures import theme
from pipelab.figures.theme import WRONG, colour_of_types, ink_on, new_figure, plain
from pipelab.hardware.known_models import load_model
from pipelab.placement import Placement, Stage
from pipelab.problem import Model, Problem, Workload

# The problem: cuts are allowed between blocks of layers only, so that the joint ILP stays small enough to look at


H100, A10, T4 = "H100-SXM", "A10", "T4"

# Stated round numbers, within 40% of the roofline's, as a test says: its int4 runs faster on the H100 and A10.
MEMORY_GB = {H100: 80.0, A10: 24.0, T4: 16.0}

MS_PER_LAYER = {H100: 8.0, A10: 57.0, T4: 120.0}

LAYER_GB = 0.43  # four bits per weight

PROMPT = Workload(sequence_length=2048, batch_size=1)

RESERVED_GB = 4.0  # of every GPU, for activations, the KV cache and buffers


def seven_gpus(
    layers_per_block: int = 16,
    max_gpus_per_stage: int = 4,
    *,
    t4s: int = 4,
    gbps: tuple[float, float, float] = (10, 1, 0.1),
) -> Problem:
    """Llama-3-70B in int4, prefill of 2,048-token prompts, on 1 H100, 2 A10 and 4 T4.

    Parameters
    ----------
    layers_per_block : int
        A divisor of 80. A layer of the problem is a block of so many decoder layers.
    max_gpus_per_stage : int
        As in `Problem`; GPUs of one stage are of one type.
    t4s : int
        How many T4 there are, 0 to 4.
    gbps : tuple of float
        Gb/s from the H100 to an A10, from the H100 to a T4, and from an A10 to a T4. Between GPUs
        of one type it is 10.

    Returns
    -------
    Problem
        Its `costs` are `LayerTimes`: round milliseconds per block, not the roofline's. The
        embedding and the head are left out.

    Raises
    ------
    InvalidValue
        80 layers make no such blocks.

    Examples
    --------
    >>> problem = seven_gpus()
    >>> problem.model.layers, problem.costs.ms_per_layer
    (5, {'H100-SXM': 128.0, 'A10': 912.0, 'T4': 1920.0})
    """
    llama = load_model("Llama-3-70B", precision="int4")
    if layers_per_block < 1 or llama.layers % layers_per_block:
        expected = f"expected a divisor of {llama.layers}"
        raise InvalidValue("seven_gpus", [("layers_per_block", layers_per_block, expected)])
    counts = {H100: 1, A10: 2, T4: t4s} if t4s else {H100: 1, A10: 2}
    speeds = dict(zip(combinations((H100, A10, T4), 2), gbps, strict=True))
    speeds |= {(name, name): 10 for name in counts}
    cluster = Cluster.from_counts(
        counts,
        {name: MEMORY_GB[name] for name in counts},
        {pair: speed / 8 for pair, speed in speeds.items() if set(pair) <= set(counts)},
    )
    blocks, name = llama.layers // layers_per_block, f"{llama.name} in int4"
    weight = layers_per_block * LAYER_GB
    ms = {name: layers_per_block * MS_PER_LAYER[name] for name in counts}
    costs = LayerTimes(ms, reserved_gb=RESERVED_GB, filling="synchronous")
    return Problem(
        cluster,
        Model(name, blocks, llama.d_model, llama.d_hidden, weight),
        PROMPT,
        costs,
        max_gpus_per_stage,
        same_type_stages=True,
        name=f"{name}, blocks of {layers_per_block}",
    )


# The joint program: everything but its rows


class JointAnswer(NamedTuple):
    """What SCIP answers."""

    claim: float  # tokens/s; minus infinity without an answer
    z: np.ndarray  # of every allocation, 1 if it is chosen, or a fraction
    e: np.ndarray  # of every connection


def ask_joint(
    problem: Problem, *families: Callable[[Any, Any, Any], None], relaxed: bool = False
) -> JointAnswer:
    """Maximise the rate of the pipeline under families of rows.

    Parameters
    ----------
    problem : Problem
        Small enough to be listed.
    *families : callable
        Each gets the model of SCIP, to which it adds its rows, the variables and the data. Variables: `z`
        of every allocation, `e` of every connection, and `t`, the rate. Data: `allocations` and
        `connections`, as `pipelab.candidates` lists them; `blocks` and `gpus`, their ids; `M`, the
        highest rate of an allocation.
    relaxed : bool
        Whether fractions are allowed.

    Returns
    -------
    JointAnswer
        With a claim of minus infinity and nothing chosen where the rows have no solution.

    Examples
    --------
    >>> def one(scip, v, d):
    ...     scip.addCons(v.t <= 1)
    >>> ask_joint(seven_gpus(), one).claim
    1.0
    """
    from pyscipopt import Model as Program

    allocations = list_allocations(problem)
    data = SimpleNamespace(
        allocations=allocations,
        connections=list_connections(problem, allocations),
        blocks=range(problem.model.layers),
        gpus=range(len(problem.cluster)),
        M=max(a.rate for a in allocations),
    )
    scip, kind = Program(), "C" if relaxed else "B"
    variables = SimpleNamespace(
        t=scip.addVar(lb=None),
        z=_each(scip, kind, len(allocations)),
        e=_each(scip, kind, len(data.connections)),
    )
    for family in families:
        family(scip, variables, data)
    scip.setObjective(variables.t, "maximize")
    scip.setParam("numerics/feastol", 1e-9)  # a big-M makes much of little
    scip.hideOutput()
    scip.optimize()
    found = bool(scip.getNSols())
    z, e = (
        np.array([scip.getVal(one) if found else 0.0 for one in of])
        for of in (variables.z, variables.e)
    )
    return JointAnswer(scip.getObjVal() if found else -math.inf, z, e)


def _each(scip: Any, kind: str, number: int) -> Any:
    """Variables from 0 to 1 that can be added one by one or multiplied by a matrix."""
    return scip.addMatrixVar(number, vtype=kind, lb=0, ub=1) if number else []


# What an integer program chose


_CHOSEN = 0.5  # of a variable that should be 0 or 1


def plot_choice(
    problem: Problem,
    allocations: Sequence[Allocation],
    z: Any,
    claim: float,
    connections: Sequence[Connection] = (),
    e: Any = (),
) -> Figure:
    """Chosen allocations as boxes, one row per GPU; chosen connections as arrows.

    Also of a choice that is no placement: the title says what is wrong.

    Parameters
    ----------
    problem : Problem
        Whose GPUs and layers these are.
    allocations : sequence of Allocation
        The candidates.
    z : sequence of float
        1 for those that are chosen.
    claim : float
        What the program says it reaches, in tokens/s.
    connections, e : sequence, optional
        The same for links. Of those that leave a chosen stage, the fastest is drawn; a receiver
        that is not chosen is an empty, dotted box.

    Returns
    -------
    plotly.graph_objects.Figure
        Boxes that overlap share a GPU and a layer. A stage whose GPUs are not neighbours has several
        boxes, with its rate in the first.
    """
    chosen = [a for a, value in zip(allocations, z, strict=True) if value > _CHOSEN]
    used = _links(allocations, chosen, connections, e)
    figure, gpus, layers = new_figure(), problem.cluster.gpus, problem.model.layers
    colours = colour_of_types(gpu.type for gpu in gpus)
    for end in dict.fromkeys(receiver for receiver in used.values() if receiver not in chosen):
        _draw_box(figure, end, "rgba(255,255,255,0)", dash="dot")
    for a in chosen:
        colour = colours[gpus[a.gpus[0]].type]
        _draw_box(figure, a, colour)
        at = {"x": (a.layers.start + a.layers.stop + 1) / 2, "y": _height(a)}
        look = {"showarrow": False, "font": {"color": ink_on(colour), "size": 12}}
        figure.add_annotation(text=f"{a.rate:,.0f}", **at, **look)
    for sender, receiver in used.items():  # from the right edge of one box to the left of the other
        ends = {"x": receiver.layers.start + 0.56, "ax": sender.layers.stop + 0.44}
        heights = {"y": _height(receiver), "ay": _height(sender)}
        figure.add_annotation(**ends, **heights, arrowwidth=2.5, arrowcolor="#222222", **ARROW)
    add_legend(figure, colours)
    arrows = "; arrows: chosen links; dotted: not chosen" if connections else ""
    return finish(
        figure,
        _says(problem, chosen, claim),
        f"boxes: chosen stages, with their tokens/s{arrows}",
        height=330,
        x={"title": "block of layers", "range": [0.45, layers + 0.55], "dtick": 1, **BARE},
        y=theme.rows([f"GPU {g} · {plain(gpu.type)}" for g, gpu in enumerate(gpus)], showgrid=True),
    )


def _links(
    allocations: Sequence[Allocation],
    chosen: Sequence[Allocation],
    connections: Sequence[Connection],
    e: Any,
) -> dict[Allocation, Allocation]:
    """Receiver by sender. Programs may switch on hundreds of links that cost them nothing."""
    on = [c for c, value in zip(connections, e, strict=True) if value > _CHOSEN]
    on.sort(key=lambda c: c.rate)
    ends = [(allocations[c.sender], allocations[c.receiver]) for c in on]
    return {sender: receiver for sender, receiver in ends if sender in chosen}


def _draw_box(figure: Figure, a: Allocation, colour: str, dash: str = "solid") -> None:
    """A box per run of neighbouring GPUs, so that none covers a GPU that the stage does not have."""
    line = {"color": "#444444", "width": 1.2, "dash": dash}
    x = {"x0": a.layers.start + 0.54, "x1": a.layers.stop + 0.46}
    for first, last in _runs(a.gpus):
        y = {"y0": first - 0.4, "y1": last + 0.4}
        figure.add_shape(type="rect", fillcolor=colour, line=line, **x, **y)


def _runs(gpus: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of neighbouring GPUs.

    >>> _runs((0, 3, 4, 6))
    [(0, 0), (3, 4), (6, 6)]
    """
    starts = [g for g in gpus if g - 1 not in gpus]
    ends = [g for g in gpus if g + 1 not in gpus]
    return list(zip(starts, ends, strict=True))


def _height(a: Allocation) -> float:
    """The middle of a stage's first box, where its label and its arrows are."""
    return mean(_runs(a.gpus)[0])


def _says(problem: Problem, chosen: Sequence[Allocation], claim: float) -> str:
    """The claim, and what is true."""
    said = f"The program claims {number(claim)} tokens/s"
    stages = Counter(g for a in chosen for g in a.gpus)
    gpu, most = max(stages.items(), key=lambda item: item[1], default=(0, 0))
    layers = [layer for a in chosen for layer in a.layers]
    if most > 1:
        return f"{said}, with {counted(most, 'stage')} on GPU {gpu}"
    if sorted(layers) != list(range(problem.model.layers)):
        return f"{said}, with {len(layers)} of {problem.model.layers} blocks placed"
    true = evaluate(problem, _placement(chosen)).throughput
    if abs(true - claim) < 1e-6 * true:
        return f"{said}, and that is what the placement reaches"
    return f"{said}; the placement reaches {number(true)}"


def _placement(chosen: Sequence[Allocation]) -> Placement:
    ordered = sorted(chosen, key=lambda a: a.layers.start)
    return Placement(tuple(Stage(a.layers, a.gpus) for a in ordered))


# Branch and bound as pictures


_SPELT_OUT = 2  # levels of the tree that have room for the question in words
_NUMBERED = 4  # levels that have room for bounds; below, only placements have a number

Node = Mapping[str, Any]  # parent (its number, or None), choice, bound, best and fate

# Symbol and colour of a node by its fate.
_FATES = {
    "branched": ("circle", "#0072B2"),
    "placement": ("star", "#009E73"),
    "cut off": ("square", "#999999"),
    "infeasible": ("x", WRONG),
}


def plot_tree(nodes: Sequence[Node]) -> Figure:
    """Every node with its bound below its parent, and why nothing is below it.

    Parameters
    ----------
    nodes : sequence of dict
        In the order in which they were solved. `parent` is a number in this list (None for the
        first), `choice` what was decided on the way from there, `bound` the relaxation's value,
        `best` the best placement known afterwards, `fate` "branched", "placement", "cut off" or
        "infeasible".

    Returns
    -------
    plotly.graph_objects.Figure
        Bounds in tokens/s.
    """
    x, depth = _lay_out(nodes)
    parents = {n: node["parent"] for n, node in enumerate(nodes) if node["parent"] is not None}
    figure = new_figure()
    for wanted, dash in (("yes", "solid"), ("no", "dot")):
        pairs = [(n, p) for n, p in parents.items() if nodes[n]["choice"].endswith(wanted)]
        across = [v for n, p in pairs for v in (x[p], x[n], None)]
        down = [v for n, p in pairs for v in (depth[p], depth[n], None)]
        figure.add_trace(theme.line(wanted, across, down, "#777777", 1.5, {"dash": dash}))
    hover = "%{customdata[0]}<br>bound %{customdata[1]} tokens/s"
    asks = {p: nodes[n]["choice"].partition(":")[0] for n, p in parents.items()}
    for fate, (symbol, colour) in _FATES.items():
        members = [n for n, node in enumerate(nodes) if node["fate"] == fate]
        said = [f"{nodes[n]['bound']:,.0f}" if fate != "infeasible" else "" for n in members]
        asked = [
            f"{plain(asks[n])}?<br>" if n in asks and depth[n] < _SPELT_OUT else " "
            for n in members
        ]
        written = [
            before + text if fate == "placement" or depth[n] < _NUMBERED else ""
            for n, before, text in zip(members, asked, said, strict=True)
        ]
        led_by = [plain(nodes[n]["choice"]) or "the root" for n in members]
        if members:
            figure.add_scatter(
                x=[x[n] for n in members],
                y=[depth[n] for n in members],
                name=fate,
                mode="markers+text",
                marker={"symbol": symbol, "size": 13, "color": colour},
                text=written,
                textposition=[_beside(n, nodes[n], x, depth) for n in members],
                textfont={"size": 11},
                customdata=list(zip(led_by, said, strict=True)),
                hovertemplate=f"{hover}<extra>{fate}</extra>",
            )
    lowest = max(depth)
    return finish(
        figure,
        f"{len(nodes)} nodes prove that {number(nodes[-1]['best'])} tokens/s is the optimum",
        "numbers: bounds in tokens/s; hover over a node for its bound and the choice that led to it",
        height=222 + 62 * lowest,
        x={"visible": False},
        y={"title": "decisions made", "range": [lowest + 0.6, -0.9], "dtick": 1, **BARE},
    )


def _beside(n: int, node: Node, x: Sequence[float], depth: Sequence[int]) -> str:
    """Where the text of a node crosses no edge."""
    if node["fate"] != "branched":
        return "bottom center"
    if node["parent"] is None:
        return "top center"
    if depth[n] < _SPELT_OUT:
        return "top left" if x[n] < x[node["parent"]] else "top right"
    return "middle right"


def _lay_out(nodes: Sequence[Node]) -> tuple[list[float], list[int]]:
    """Leaves side by side, every other node above the middle of its children; and how deep each is."""
    x, depth, leaves = [0.0] * len(nodes), [0] * len(nodes), count()

    def place(n: int, level: int) -> float:
        below = [child for child, node in enumerate(nodes) if node["parent"] == n]
        middles = [place(child, level + 1) for child in below]
        x[n], depth[n] = mean(middles) if middles else float(next(leaves)), level
        return x[n]

    place(0, 0)
    return x, depth


# Exercises


def _optimum(**changes: Any) -> float:
    return given(solve(seven_gpus(**changes)).throughput)


def _link_as_slow_as(rate: float) -> float:
    """Gb/s of a link with this many tokens/s."""
    return 8 * rate / given(seven_gpus().link_throughput(1.0))


class Case(Given):
    """A small placement problem: a stage takes layers × the slowest GPU's ms, over its GPUs."""

    layers: int
    ms: list[int]  # per layer, of each GPU
    link_ms: list[int]  # of every pair of GPUs: 0–1, 0–2, …, 1–2, …

    @property
    def links(self) -> dict[tuple[int, int], int]:
        return dict(zip(combinations(range(len(self.ms)), 2), self.link_ms, strict=True))

    @property
    def problem(self) -> Problem:
        """With stages of one or two GPUs; rates are microbatches per second."""

        def link(a: int, b: int) -> int:
            return self.links[min(a, b), max(a, b)]

        return small_problem(self.layers, self.ms, link, "ms", most=2)

    def lists(self) -> tuple[list[Allocation], list[Connection]]:
        allocations = list_allocations(self.problem)
        return allocations, list_connections(self.problem, allocations)

    def __repr__(self) -> str:
        links = ", ".join(f"{a}–{b} {ms}" for (a, b), ms in self.links.items())
        said = f"{counted(self.layers, 'layer')}, GPUs with {self.ms} ms per layer"
        return said + (f", links of {links} ms" if links else "")


def _case(chance: random.Random) -> Case:
    ms = [chance.randint(1, 9) for _ in range(chance.randint(1, 3))]
    links = [chance.randint(1, 20) for _ in combinations(ms, 2)]
    return Case(layers=chance.randint(1, 3), ms=ms, link_ms=links)


def _size(case: Case) -> tuple[int, int, str]:
    return len(case.ms) + case.layers, sum(case.ms), str(case)


def _allowed(case: Case) -> Iterator[tuple[float, tuple[Allocation, ...]]]:
    """Rate and stages of every placement, by trying all."""
    allocations, connections = case.lists()
    links = {(allocations[c.sender], allocations[c.receiver]): c.rate for c in connections}
    left: list[tuple[float, tuple[Allocation, ...]]] = [(math.inf, ())]
    while left:
        rate, stages = left.pop()
        at = stages[-1].layers.stop if stages else 0
        used = {g for stage in stages for g in stage.gpus}
        if at < case.layers:
            for a in reversed(allocations):
                if a.layers.start == at and not used & {*a.gpus}:
                    link = links[stages[-1], a] if stages else math.inf
                    left.append((min(rate, a.rate, link), (*stages, a)))
        else:
            yield rate, stages


def _best_rate(case: Case) -> float:
    return max(rate for rate, _ in _allowed(case))


def _least_rate(case: Case) -> float:
    """That of the slowest stage or link: no program that leaves a placement claims less."""
    allocations, connections = case.lists()
    return min([*(a.rate for a in allocations), *(c.rate for c in connections)])


def _claim(mine: Callable[..., Any], case: Case) -> float:
    """What the program claims with the reader's rows for links in it."""

    def rows(scip: Any, v: Any, d: Any) -> None:
        for block in d.blocks:
            scip.addCons(sum(v.z[i] for i, a in enumerate(d.allocations) if block in a.layers) == 1)
        for gpu in d.gpus:
            scip.addCons(sum(v.z[i] for i, a in enumerate(d.allocations) if gpu in a.gpus) <= 1)
        for i, a in enumerate(d.allocations):
            scip.addCons(v.t <= a.rate * v.z[i] + d.M * (1 - v.z[i]))
        for i, c in enumerate(d.connections):
            scip.addCons(v.t <= min(c.rate, d.M) * v.e[i] + d.M * (1 - v.e[i]))
        readers_rows = mine(v.z, v.e, d.connections) if d.connections else ()
        for row in np.ravel(np.asarray(readers_rows, dtype=object)):
            scip.addCons(row)

    found = ask_joint(case.problem, rows)
    if found.claim == -math.inf:
        raise ValueError("your constraints leave no placement")
    return ClaimedValue.of(found.claim, (found.z, found.e))


def _drawn(failure: Failure) -> Figure:
    """What the reader's program chooses where it claims too much, else what it does not allow."""
    case, claim, best = failure.given, failure.answer, _best_rate(failure.given)
    allocations, connections = case.lists()
    if isinstance(claim, ClaimedValue) and claim >= best:
        z, e = claim.chosen
        title = f"Your program claims {number(claim)} per second; no placement has more than {number(best)}"
    else:
        _, stages = max(_allowed(case), key=lambda p: (p[0], -len(p[1])))
        z, links = [a in stages for a in allocations], [*pairwise(stages)]
        e = [(allocations[c.sender], allocations[c.receiver]) in links for c in connections]
        claim, allow = best, f"do not allow this placement: {number(best)} per second"
        title = f"Your rows {allow}{failure.yours}"
    figure = plot_choice(case.problem, allocations, z, claim, connections, e)
    note = "boxes: stages, with their rates per second; arrows: chosen links; dotted: not chosen"
    return retitle(figure, title, note)


def _look_at_links(case: Case) -> str:
    _, stages = max(_allowed(case), key=lambda p: (p[0], -len(p[1])))
    if len(stages) == 1:
        return "here one stage is best: it needs no link, and all others must pay for theirs"
    return "here the best placement has a link: which two stages does it join, and can the program avoid it?"


EXERCISES: dict[str, Exercise] = {
    "05.1": Number(
        target=lambda: _link_as_slow_as(_optimum(t4s=0)),
        unit="Gb/s",
        hint="how long does the slowest stage take without the T4s, and how large is the message?",
        half={
            "that link takes as long as the slowest stage today; may it not take longer?": (
                lambda: _link_as_slow_as(_optimum())
            ),
            "you compare with one GPU per stage; the A10s may still share one": (
                lambda: _link_as_slow_as(_optimum(max_gpus_per_stage=1))
            ),
            "that is in GB/s; one byte has eight bits": (
                lambda: _link_as_slow_as(_optimum(t4s=0)) / 8
            ),
        },
        rel=1e-3,
    ),
    "05.2": Function(
        signature="linked(z, e, connections)",
        inputs=drawn(2, 40, _case, _size),
        target=_best_rate,
        hint=_look_at_links,
        call=_claim,
        picture=_drawn,
        half=lambda case, claim: _least_rate(case) <= claim * SAME and claim <= _best_rate(case),
    ),
}
