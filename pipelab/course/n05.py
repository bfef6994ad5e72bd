"""Notebook 05, One joint integer program: its seven GPUs, what it chose, its tree, and families of rows to write."""

import math
import random
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelab.candidates import Allocation, Connection, list_allocations, list_connections
from pipelab.cluster import GPU, Cluster
from pipelab.costs import LayerTimes
from pipelab.course.exercises import Claim, Exercise, Failure, Function, Given, Number, drawn
from pipelab.display import counted
from pipelab.engine.tolerances import NOT_SOLVED
from pipelab.errors import InvalidPlacement, InvalidValue, UnknownName, nearest
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.figures.theme import (
    GRID,
    TYPE_COLOURS,
    WRONG,
    colour_of_types,
    ink_on,
    plain,
    template,
)
from pipelab.hardware.known_models import load_model
from pipelab.joint_ilp import state_families
from pipelab.placement import Placement, Stage
from pipelab.problem import Model, Problem, Workload
from pipelab.solving import solve

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


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
    pairs = dict(zip([(H100, A10), (H100, T4), (A10, T4)], gbps, strict=True))
    pairs |= {(kind, kind): 10 for kind in counts}
    cluster = Cluster.from_counts(
        counts,
        {name: MEMORY_GB[name] for name in counts},
        {pair: speed / 8 for pair, speed in pairs.items() if set(pair) <= set(counts)},
    )
    times = {name: layers_per_block * MS_PER_LAYER[name] for name in counts}
    model = Model(
        f"{llama.name} in int4",
        llama.layers // layers_per_block,
        llama.d_model,
        llama.d_hidden,
        layers_per_block * LAYER_GB,
    )
    return Problem(
        cluster,
        model,
        PROMPT,
        LayerTimes(times, reserved_gb=RESERVED_GB),
        max_gpus_per_stage,
        same_type_stages=True,
        name=f"Llama-3-70B in int4, blocks of {layers_per_block}",
    )


# What a family of constraints is for


class LeftOut(NamedTuple):
    """What came of it."""

    without: str
    predicted_tokens_per_s: float | None  # what the solver claims
    verdict: str  # what `evaluate` finds wrong with the stages it chose


def leave_out(problem: Problem, *families: str) -> LeftOut:
    """Solve the joint ILP without some families (with HiGHS) and check the answer with `evaluate`.

    Parameters
    ----------
    problem : Problem
        Small enough to be listed.
    *families : str
        Names of `pipelab.joint_ilp.state_families`; none leaves nothing out.

    Returns
    -------
    LeftOut
        `without`, the families; `predicted_tokens_per_s`, what the solver claims, None where it has
        no answer; and `verdict`, what `evaluate` finds wrong with the stages it chose.

    Raises
    ------
    UnknownName
        There is no such family.
    """
    import cvxpy as cp

    allocations = list_allocations(problem)
    connections = list_connections(problem, allocations)
    stated, variables = state_families(problem, allocations, connections)
    for family in families:
        if family not in stated:
            raise UnknownName(f"there is no family {family!r}; {nearest(family, stated)}")
    kept = [rows for name, rows in stated.items() if name not in families]
    program = cp.Problem(cp.Maximize(variables["t"]), kept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an unbounded program is one of the answers here
        program.solve(solver=cp.HIGHS)
    name = " and ".join(families) or "(nothing)"
    if not program.status.startswith("optimal"):
        return LeftOut(name, None, f"the program is {program.status.replace('_', ' ')}")
    chosen = [a for a, z in zip(allocations, variables["z"].value, strict=True) if z > 0.5]
    chosen.sort(key=lambda a: a.layers.start)
    placement = Placement(tuple(Stage(a.layers, a.gpus) for a in chosen))
    claimed = float(program.value)
    try:
        true = evaluate(problem, placement).throughput
    except (InvalidPlacement, InvalidValue) as error:
        return LeftOut(name, claimed, str(error))
    right = abs(true - claimed) <= NOT_SOLVED * true
    return LeftOut(name, claimed, "holds" if right else f"it yields only {true:,.6g} tokens/s")


# What an integer program chose


_CHOSEN = 0.5  # of a variable that should be 0 or 1


def plot_choice(
    problem: Problem,
    allocations: Sequence[Allocation],
    z: Any,
    claim: float,
    connections: Sequence[Connection] = (),
    e: Any = (),
) -> "Figure":
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
    import plotly.graph_objects as go

    chosen = [a for a, value in zip(allocations, z, strict=True) if value > _CHOSEN]
    used = list(_links(allocations, chosen, connections, e).items())
    figure = go.Figure()
    for end in dict.fromkeys(receiver for _, receiver in used if receiver not in chosen):
        _box(figure, end, "rgba(255,255,255,0)", dash="dot")
    gpus = problem.cluster.gpus
    colours = colour_of_types(gpu.type for gpu in gpus)
    for a in chosen:
        _box(figure, a, colours[gpus[a.gpus[0]].type])
        middle = (a.layers.start + a.layers.stop + 1) / 2, _height(a)
        colour = ink_on(colours[gpus[a.gpus[0]].type])
        figure.add_annotation(
            x=middle[0],
            y=middle[1],
            text=f"{a.rate:,.0f}",
            showarrow=False,
            font={"color": colour, "size": 12},
        )
    for sender, receiver in used:
        _arrow(figure, sender, receiver)
    for kind, colour in colours.items():  # the legend
        figure.add_bar(x=[None], y=[None], name=plain(kind), marker={"color": colour})
    note = "boxes: chosen stages, with their tokens/s"
    note += "; arrows: chosen links; dotted: not chosen" if connections else ""
    layers = problem.model.layers
    figure.update_layout(
        template=template(),
        title=f"{_says(problem, chosen, claim)}<br><sup>{note}</sup>",
        height=330,
        margin={"t": 84, "b": 46, "l": 120},
        xaxis={
            "title": {"text": "block of layers"},
            "range": [0.45, layers + 0.55],
            "dtick": 1,
            "showgrid": False,
            "zeroline": False,
        },
        yaxis={
            "range": [len(gpus) - 0.45, -0.55],
            "tickvals": list(range(len(gpus))),
            "gridcolor": GRID,
            "zeroline": False,
            "ticktext": [f"GPU {g} · {plain(gpu.type)}" for g, gpu in enumerate(gpus)],
        },
    )
    return figure


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


def _box(figure: "Figure", a: Allocation, colour: str, dash: str = "solid") -> None:
    """A box per run of neighbouring GPUs, so that none covers a GPU that the stage does not have."""
    for first, last in _runs(a.gpus):
        figure.add_shape(
            type="rect",
            x0=a.layers.start + 0.54,
            x1=a.layers.stop + 0.46,
            y0=first - 0.4,
            y1=last + 0.4,
            fillcolor=colour,
            line={"color": "#444444", "width": 1.2, "dash": dash},
        )


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
    first, last = _runs(a.gpus)[0]
    return (first + last) / 2


def _arrow(figure: "Figure", sender: Allocation, receiver: Allocation) -> None:
    """From the right edge of one box to the left edge of the other."""
    figure.add_annotation(
        x=receiver.layers.start + 0.56,
        y=_height(receiver),
        ax=sender.layers.stop + 0.44,
        ay=_height(sender),
        xref="x",
        yref="y",
        axref="x",
        ayref="y",
        showarrow=True,
        arrowhead=2,
        arrowwidth=2.5,
        arrowcolor="#222222",
        text="",
    )


def _says(problem: Problem, chosen: Sequence[Allocation], claim: float) -> str:
    """The claim, and what is true."""
    said = f"The program claims {claim:,.1f} tokens/s"
    stages = Counter(g for a in chosen for g in a.gpus)
    gpu, most = max(stages.items(), key=lambda item: item[1], default=(0, 0))
    layers = [layer for a in chosen for layer in a.layers]
    if most > 1:
        return f"{said}, with {counted(most, 'stage')} on GPU {gpu}"
    if sorted(layers) != list(range(problem.model.layers)):
        return f"{said}, with {len(layers)} of {problem.model.layers} blocks placed"
    ordered = sorted(chosen, key=lambda a: a.layers.start)
    placement = Placement.of([(len(a.layers), a.gpus) for a in ordered])
    true = evaluate(problem, placement).throughput
    if abs(true - claim) < 1e-6 * true:
        return f"{said}, and that is what the placement reaches"
    return f"{said}; the placement reaches {true:,.1f}"


# Branch and bound as pictures


_SAME = 1e-6  # a gap smaller than this is none

_SPELT_OUT = 2  # levels of the tree that have room for the question in words

Node = Mapping[str, Any]  # parent (its number, or None), choice, bound, best and fate

# Symbol and colour of a node by its fate.
_FATES = {
    "branched": ("circle", "#0072B2"),
    "placement": ("star", "#009E73"),
    "cut off": ("square", "#999999"),
    "infeasible": ("x", WRONG),
}


def plot_tree(nodes: Sequence[Node]) -> "Figure":
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
    import plotly.graph_objects as go

    children: dict[int, list[int]] = {n: [] for n in range(len(nodes))}
    for n, node in enumerate(nodes):
        if node["parent"] is not None:
            children[node["parent"]].append(n)
    x: dict[int, float] = {}
    depth: dict[int, int] = {}
    _lay_out(0, 0, children, x, depth)
    figure = go.Figure()
    ends = [(n, node["parent"]) for n, node in enumerate(nodes) if node["parent"] is not None]
    for wanted, dash in (("yes", "solid"), ("no", "dot")):
        pairs = [(n, p) for n, p in ends if nodes[n]["choice"].endswith(wanted)]
        figure.add_scatter(
            x=[v for n, p in pairs for v in (x[p], x[n], None)],
            y=[v for n, p in pairs for v in (depth[p], depth[n], None)],
            mode="lines",
            name=wanted,
            line={"color": "#777777", "width": 1.5, "dash": dash},
            hoverinfo="skip",
        )
    asks = {p: nodes[n]["choice"].partition(":")[0] for n, p in ends}
    for fate, (symbol, colour) in _FATES.items():
        own = [n for n, node in enumerate(nodes) if node["fate"] == fate]
        said = [f"{nodes[n]['bound']:,.0f}" if fate != "infeasible" else "" for n in own]
        spelt = [
            f"{plain(asks[n])}?<br>{text}" if n in asks and depth[n] < _SPELT_OUT else f" {text}"
            for n, text in zip(own, said, strict=True)
        ]
        if own:
            figure.add_scatter(
                x=[x[n] for n in own],
                y=[depth[n] for n in own],
                name=fate,
                mode="markers+text",
                marker={"symbol": symbol, "size": 13, "color": colour},
                text=spelt,
                textposition=[_beside(n, nodes[n], x, depth) for n in own],
                textfont={"size": 11},
                customdata=[
                    [plain(nodes[n]["choice"]) or "the root", t]
                    for n, t in zip(own, said, strict=True)
                ],
                hovertemplate="%{customdata[0]}<br>bound %{customdata[1]} tokens/s<extra>"
                + fate
                + "</extra>",
            )
    best = nodes[-1]["best"]
    note = "numbers: the node's bound in tokens/s; hover over a node for the choice that led to it"
    title = f"{len(nodes)} nodes prove that {best:,.1f} tokens/s is the optimum"
    figure.update_layout(
        template=template(),
        height=160 + 62 * (1 + max(depth.values())),
        legend={"y": 1.0},
        title=f"{title}<br><sup>{note}</sup>",
        xaxis={"visible": False},
        margin={"t": 92, "b": 24, "l": 70},
        yaxis={
            "title": {"text": "decisions made"},
            "range": [max(depth.values()) + 0.6, -0.9],
            "dtick": 1,
            "showgrid": False,
            "zeroline": False,
        },
    )
    return figure


def _beside(n: int, node: Node, x: Mapping[int, float], depth: Mapping[int, int]) -> str:
    """Where the text of a node crosses no edge."""
    if node["fate"] != "branched":
        return "bottom center"
    if node["parent"] is None:
        return "top center"
    if depth[n] < _SPELT_OUT:
        return "top left" if x[n] < x[node["parent"]] else "top right"
    return "middle right"


def _lay_out(
    n: int,
    level: int,
    children: Mapping[int, Sequence[int]],
    x: dict[int, float],
    depth: dict[int, int],
) -> None:
    """Leaves side by side, every other node above the middle of its children."""
    depth[n] = level
    for child in children[n]:
        _lay_out(child, level + 1, children, x, depth)
    if children[n]:
        x[n] = sum(x[child] for child in children[n]) / len(children[n])
    else:
        x[n] = float(sum(not children[m] for m in x))


def plot_closing(searches: Mapping[str, Sequence[Node]]) -> "Figure":
    """Bound and incumbent of several searches, node by node.

    Parameters
    ----------
    searches : mapping of name to nodes
        As `plot_tree` takes them, of searches that take the node of the highest bound first.

    Returns
    -------
    plotly.graph_objects.Figure
        In tokens/s, on a logarithmic axis; solid lines are incumbents, dashed ones bounds.
    """
    import plotly.graph_objects as go

    figure, said = go.Figure(), []
    for (label, nodes), colour in zip(searches.items(), TYPE_COLOURS, strict=False):
        name, best = plain(label), nodes[-1]["best"]
        # The node of the highest bound is next, so nothing that is left exceeds its parent's bound.
        bounds = [nodes[node["parent"] or 0]["bound"] for node in nodes[1:]] + [_open_bound(nodes)]
        found = [node["best"] or None for node in nodes]
        for values, what, dash in ((bounds, "bound", "dash"), (found, "incumbent", "solid")):
            figure.add_scatter(
                x=list(range(1, len(nodes) + 1)),
                y=values,
                name=f"{name}: {what}",
                mode="lines",
                line_shape="hv",
                line={"color": colour, "dash": dash, "width": 3},
                hovertemplate="after %{x} nodes: %{y:,.1f} tokens/s<extra>"
                + f"{name}, {what}</extra>",
            )
        gap = bounds[-1] / best - 1
        state = f"open by {gap:.0%}" if gap > _SAME else "proven"
        said.append(f"{name}: {state} after {len(nodes)} nodes")
    most = max(len(nodes) for nodes in searches.values())
    note = "dashed: the bound; solid: the best placement so far (the incumbent)"
    figure.update_layout(
        template=template(),
        height=400,
        title=f"Bound and placement meet – {'; '.join(said)}<br><sup>{note}</sup>",
        xaxis={"title": {"text": "nodes solved"}, "range": [0, 1.04 * most + 1]},
        margin={"t": 104},
        legend={"y": 1.0},
        yaxis={
            "title": {"text": "tokens/s (log scale)"},
            "type": "log",
            "gridcolor": GRID,
            "tickvals": [2000, 3000, 4000, 5000, 7000, 10000, 15000],
            "tickformat": ",",
        },
    )
    return figure


def _open_bound(nodes: Sequence[Node]) -> float:
    """What the best placement may still be: the highest bound of a node that is not done."""
    best, children = nodes[-1]["best"], Counter(node["parent"] for node in nodes)
    left = [
        node["bound"]
        for n, node in enumerate(nodes)
        if node["fate"] == "branched" and children[n] < len(("yes", "no"))
    ]
    return max([best, *left])


# Exercises


_MARGIN = 1.1  # the author's code: M of an unused connection is this times the fastest link


def _optimum(**changes: Any) -> float:
    return given(solve(seven_gpus(**changes)).throughput)


def _link_as_slow_as(rate: float) -> float:
    """Gb/s of a link with this many tokens/s."""
    return 8 * rate / given(seven_gpus().link_throughput(1.0))


def _slowdown(margin: float, optimum: float) -> float:
    """By what factor links are slower once margin × the fastest of them falls below the optimum."""
    problem = seven_gpus()
    fastest = problem.link_throughput(problem.cluster.bandwidth_between(0, 1))
    return margin * float(fastest) / optimum


def _without_links() -> float:
    """The optimum when all links are too slow to be used."""
    return _optimum(gbps=(1e-3, 1e-3, 1e-3))


class Case(Given):
    """A small placement problem: a stage takes layers × the slowest GPU's ms, over its GPUs."""

    layers: int
    ms: list[int]  # per layer, of each GPU
    link_ms: list[int]  # of every pair of GPUs: 0–1, 0–2, …, 1–2, …
    price: list[int]
    most: int

    def __repr__(self) -> str:
        pairs = zip(combinations(range(len(self.ms)), 2), self.link_ms, strict=True)
        links = ", ".join(f"{a}–{b} {ms}" for (a, b), ms in pairs)
        said = f"{counted(self.layers, 'layer')}, GPUs with {self.ms} ms per layer"
        said += f", links of {links} ms" if links else ""
        return said + (f", prices {self.price}, most={self.most}" if self.price else "")


def _case(priced: bool) -> Callable[[random.Random], Case]:
    def draw(chance: random.Random) -> Case:
        ms = [chance.randint(1, 9) for _ in range(chance.randint(1, 3))]
        links = [chance.randint(1, 20) for _ in combinations(ms, 2)]
        case = Case(layers=chance.randint(1, 3), ms=ms, link_ms=links, price=[], most=0)
        if priced:
            case.price = [chance.randint(1, 5) for _ in ms]
            case.most = chance.randint(min(case.price), sum(case.price))
        return case

    return draw


def _size(case: Case) -> tuple[int, int, str]:
    return len(case.ms) + case.layers, sum(case.ms), str(case)


def allocations_of(case: Case) -> list[Allocation]:
    """Every run of layers on every set of one or two GPUs; rates in microbatches per second."""
    gpus = range(len(case.ms))
    sets = [ids for size in (1, 2) for ids in combinations(gpus, size)]
    runs = [range(a, b) for a, b in combinations(range(case.layers + 1), 2)]
    return [
        Allocation(run, ids, 1000 * len(ids) / (len(run) * max(case.ms[g] for g in ids)))
        for run in runs
        for ids in sets
    ]


def connections_of(case: Case, allocations: Sequence[Allocation]) -> list[Connection]:
    pairs = combinations(range(len(case.ms)), 2)
    link = {frozenset(pair): ms for pair, ms in zip(pairs, case.link_ms, strict=True)}
    return [
        Connection(i, j, 1000 / max(link[frozenset((g, h))] for g in a.gpus for h in b.gpus))
        for i, a in enumerate(allocations)
        for j, b in enumerate(allocations)
        if a.layers.stop == b.layers.start and not {*a.gpus} & {*b.gpus}
    ]


def placements_of(case: Case) -> list[tuple[float, tuple[Allocation, ...]]]:
    """Rate and stages of every placement, by trying all."""
    allocations = allocations_of(case)
    rate_of = {
        (allocations[c.sender], allocations[c.receiver]): c.rate
        for c in connections_of(case, allocations)
    }

    def extend(stages: tuple[Allocation, ...], rate: float) -> list[Any]:
        at = stages[-1].layers.stop if stages else 0
        if at == case.layers:
            return [(rate, stages)]
        used = {g for stage in stages for g in stage.gpus}
        found = []
        for a in allocations:
            if a.layers.start == at and not used & {*a.gpus}:
                link = rate_of[stages[-1], a] if stages else math.inf
                found += extend((*stages, a), min(rate, a.rate, link))
        return found

    return extend((), math.inf)


def cost_of(case: Case, stages: Sequence[Allocation]) -> int:
    return sum(case.price[g] for stage in stages for g in stage.gpus)


def allowed(case: Case) -> list[tuple[float, tuple[Allocation, ...]]]:
    return [p for p in placements_of(case) if not case.price or cost_of(case, p[1]) <= case.most]


def best_rate(case: Case) -> float:
    return max(rate for rate, _ in allowed(case))


def _problem_of(case: Case) -> "Problem":
    """With links of these times; a microbatch is one token, so that rates are per second."""
    import numpy as np

    gpus = [GPU(f"{ms} ms", 1.0) for ms in case.ms]
    times = LayerTimes({gpu.type: ms for gpu, ms in zip(gpus, case.ms, strict=True)})
    model, workload = Model("a model", case.layers, 1024, 1024, 1e-3), Workload(1, 1)
    gb_per_s = np.ones((len(gpus), len(gpus)))
    for (a, b), ms in zip(combinations(range(len(gpus)), 2), case.link_ms, strict=True):
        gb_per_s[a, b] = gb_per_s[b, a] = 1000 * 1024 * 2 / 1e9 / ms
    return Problem(
        Cluster(tuple(gpus), gb_per_s), model, workload, times, 2, same_type_stages=False
    )


def _claim(case: Case, families: Callable[..., Any]) -> float:
    """What the program claims with the reader's families in it; they are given z, e and the lists."""
    import cvxpy as cp
    import numpy as np

    allocations = allocations_of(case)
    connections = connections_of(case, allocations)
    z, t = cp.Variable(len(allocations), boolean=True), cp.Variable()
    e = cp.Variable(len(connections), boolean=True) if connections else None
    covers = np.array([[layer in a.layers for a in allocations] for layer in range(case.layers)])
    uses = np.array([[g in a.gpus for a in allocations] for g in range(len(case.ms))])
    theta = np.array([a.rate for a in allocations])
    top = theta.max()
    rows = [covers @ z == 1, uses @ z <= 1, t <= cp.multiply(theta, z) + top * (1 - z)]
    if e is not None:
        nu = np.minimum([c.rate for c in connections], top)
        rows += [t <= cp.multiply(nu, e) + top * (1 - e)]
    mine = families(z, e, allocations, connections)
    rows += list(mine) if isinstance(mine, list | tuple) else [mine]
    program = cp.Problem(cp.Maximize(t), rows)
    program.solve(solver=cp.HIGHS)
    if program.status != cp.OPTIMAL:
        raise ValueError("your constraints leave no placement")
    used = np.flatnonzero(np.asarray(z.value) > 0.5).tolist()
    chosen = Chosen(tuple(used), () if e is None else tuple(np.asarray(e.value).tolist()))
    return Claim.of(float(program.value), chosen)


class Chosen(NamedTuple):
    """What a program answers: indices of allocations, and a value for every connection."""

    allocations: tuple[int, ...]
    e: tuple[float, ...]


def _plot(case: Case, chosen: Chosen, claim: float, title: str) -> "Figure":
    allocations = allocations_of(case)
    connections = connections_of(case, allocations) if chosen.e else []
    z = [i in chosen.allocations for i in range(len(allocations))]
    figure = plot_choice(_problem_of(case), allocations, z, claim, connections, chosen.e)
    note = "boxes: stages, with their rates per second; arrows: chosen links; dotted: not chosen"
    return figure.update_layout(title={"text": f"{title}<br><sup>{note}</sup>"})


def _best_choice(case: Case) -> Chosen:
    """The best placement that is allowed, as a program should have chosen it."""
    allocations = allocations_of(case)
    _, stages = max(allowed(case), key=lambda p: (p[0], -len(p[1])))
    picked = [allocations.index(stage) for stage in stages]
    links = set(pairwise(picked))
    e = tuple(float(c[:2] in links) for c in connections_of(case, allocations))
    return Chosen(tuple(picked), e)


def _drawn(failure: Failure) -> "Figure":
    """What the reader's program chooses where it claims too much, else what it does not allow."""
    case, claim, best = failure.given, failure.answer, best_rate(failure.given)
    if not isinstance(claim, Claim) or claim < best:
        title = f"Your rows do not allow this placement: {best:,.1f} per second"
        return _plot(case, _best_choice(case), best, title + failure.yours)
    title = f"Your program claims {claim:,.1f} per second; no placement has more than {best:,.1f}"
    if case.price:
        used = [allocations_of(case)[i] for i in claim.chosen.allocations]
        title = f"Your program pays {cost_of(case, used)} for this placement; at most {case.most} are allowed"
    return _plot(case, claim.chosen, claim, title)


def _with_links(mine: Callable[..., Any], case: Case) -> float:
    def families(z: Any, e: Any, allocations: Any, connections: Any) -> Any:
        return mine(z, e, connections) if connections else []

    return _claim(case, families)


def _with_budget(mine: Callable[..., Any], case: Case) -> float:
    def families(z: Any, e: Any, allocations: Any, connections: Any) -> Any:
        linked = [e[i] >= z[c.sender] + z[c.receiver] - 1 for i, c in enumerate(connections)]
        return [mine(z, allocations, list(case.price), case.most), *linked]

    return _claim(case, families)


def _look_at_links(case: Case) -> str:
    best = max(placements_of(case), key=lambda p: (p[0], -len(p[1])))
    if len(best[1]) == 1:
        return "here one stage is best: it needs no link, and all others must pay for theirs"
    return "here the best placement has a link: which two stages does it join, and can the program avoid it?"


def _look_at_budget(case: Case) -> str:
    best = max(allowed(case), key=lambda p: (p[0], -cost_of(case, p[1])))
    if any(len(stage.gpus) > 1 for stage in best[1]):
        return "here two GPUs share a stage; which of them does your sum pay for?"
    return "write down which GPUs are paid for when this placement is chosen"


EXERCISES: dict[str, Exercise] = {
    "05.1": Number(
        target=lambda: _link_as_slow_as(_optimum(t4s=0)),
        unit="Gb/s",
        hint="how long does the slowest stage take without the T4s, and how large is the message?",
        mistakes={
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
    "05.2": Number(
        target=lambda: _slowdown(_MARGIN, _without_links()),
        hint="with links that slow, which placement is best, and which links does it use?",
        mistakes={
            "that M is max ν; theirs is 1.1 times as large": (
                lambda: _slowdown(1.0, _without_links())
            ),
            "you divide by today's optimum; with slower links the best placement is another": (
                lambda: _slowdown(_MARGIN, _optimum())
            ),
            "upside down: slowing the links down divides max ν": (
                lambda: 1 / _slowdown(_MARGIN, _without_links())
            ),
        },
        rel=1e-3,
    ),
    "05.3": Function(
        signature="linked(z, e, connections)",
        inputs=drawn(2, 40, _case(False), _size),
        target=best_rate,
        hint=_look_at_links,
        call=_with_links,
        picture=_drawn,
    ),
    "05.4": Function(
        signature="budget(z, allocations, price, most)",
        inputs=drawn(2, 40, _case(True), _size),
        target=best_rate,
        hint=_look_at_budget,
        call=_with_budget,
        picture=_drawn,
    ),
}
