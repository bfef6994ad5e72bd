"""Notebook 17, Flows: Helix's clusters, where every request takes its own way."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isclose

import numpy as np

from pipelab.cluster import GPU, Cluster
from pipelab.costs import LayerTimes
from pipelab.course.exercises import Exercise, Failure, Function, Given, drawn
from pipelab.course.pictures import plot_lines
from pipelab.display import Figure
from pipelab.engine.flows.flowing import flow
from pipelab.engine.flows.result import Flow
from pipelab.engine.solvers.solver_run import Progress
from pipelab.errors import UnknownName, nearest, shown
from pipelab.fields import Frozen
from pipelab.files.csv_rows import bundled_frame
from pipelab.hardware.measured_times import Measured
from pipelab.problem import Model, Problem, Workload

# Helix's clusters


_INSIDE_MEGABYTES_PER_S = 1000.0  # or a little more; no node is as fast as that


@dataclass(frozen=True, eq=False)
class HelixCluster(Frozen):
    """One instance of Helix (ASPLOS 2025).

    Attributes
    ----------
    name : str
    layers : int
        Of the model, Llama-2-70B.
    machines : tuple of str
        Type of every node, such as "L4x2" for a node of two L4.
    sites : tuple of str
        Of every node; "" where all are in one place.
    rates : dict of str to dict of int to float
        Tokens/s of a node, by its type and by the number of layers that it holds.
    links : float array, shape (N, N)
        Tokens/s from node to node.
    shipped : tuple of (int, int)
        First and last layer on every node in the placement that Helix ships; layers count from 1.
    reported, reported_bound : float
        What this placement yields, and what its solver could exclude when it was stopped, in tokens/s.
    """

    name: str
    layers: int
    machines: tuple[str, ...]
    sites: tuple[str, ...]
    rates: dict[str, dict[int, float]]
    links: np.ndarray
    shipped: tuple[tuple[int, int], ...]
    reported: float
    reported_bound: float


def helix_cluster(name: str) -> HelixCluster:
    """An instance of the Helix paper, from `data/helix`.

    Parameters
    ----------
    name : {"single24", "geo24", "hetero42"}
        24 nodes in one place, the same at three sites, and 42 nodes of seven types.

    Returns
    -------
    HelixCluster
        Rates in tokens/s, which count those of prompts and of answers.

    Raises
    ------
    UnknownName
        There is no such instance.

    References
    ----------
    Y. Mei et al., *Helix: Serving Large Language Models over Heterogeneous GPUs and Network via
    Max-Flow*, ASPLOS 2025.

    Examples
    --------
    >>> single = helix_cluster("single24")
    >>> len(single.machines), single.rates["T4"][4], single.shipped[0]
    (24, 757.8531857, (8, 11))
    """
    table = partial(bundled_frame, keep_default_na=False)
    facts = table("helix/instances.csv").set_index("instance")
    if name not in facts.index:
        raise UnknownName(f"Helix ships no {shown(name)}; {nearest(name, facts.index)}")
    of, nodes = facts.loc[name], table("helix/nodes.csv").query("instance == @name")
    rates: dict[str, dict[int, float]] = {}
    for row in table("helix/rates.csv").itertuples():
        if name in row.instances.split("; "):
            rates.setdefault(row.machine, {})[row.layers] = row.tokens_per_s
    megabytes = np.full((len(nodes), len(nodes)), _INSIDE_MEGABYTES_PER_S)
    for link in table("helix/links.csv").query("instance == @name").itertuples():
        megabytes[link.node, link.other] = megabytes[link.other, link.node] = link.megabytes_per_s
    return HelixCluster(
        name,
        int(of["layers"]),
        tuple(nodes["machine"]),
        tuple(nodes["site"]),
        rates,
        megabytes * 1e6 / float(of["bytes_per_token"]),
        tuple(zip(nodes["first_layer"].tolist(), nodes["last_layer"].tolist(), strict=True)),
        float(of["reported_tokens_per_s"]),
        float(of["reported_bound_tokens_per_s"]),
    )


def helix_problem(name: str) -> Problem:
    """An instance of the Helix paper with its own profile: rates by the number of layers that a node holds.

    The profile has the KV cache and its batches in it; so objective="rate" is right here, and counts no
    memory twice.

    Parameters
    ----------
    name : str
        As `helix_cluster` has it.

    Returns
    -------
    Problem
        One GPU for each node, with memory for as many layers as the profile has.

    Raises
    ------
    UnknownName
        There is no such instance.
    """
    of = helix_cluster(name)
    ms = {m: {(k, 1.0): 1000 / r for k, r in rates.items()} for m, rates in of.rates.items()}
    costs = Measured(ms, LayerTimes(dict.fromkeys(ms, 1)), beyond="leave out")
    nodes = tuple(GPU(machine, 100) for machine in of.machines)
    network = Cluster(nodes, of.links * 8192 * 2 / 1e9)
    model = Model("Llama-2-70B", of.layers, 8192, 28672, 1)
    return Problem(network, model, Workload(1, 1, "decode"), costs, name=of.name)


def helix_flow(name: str, *, stop: Callable[[Progress], object] | None = None) -> Flow:
    """The best flow of an instance of the Helix paper, with its own profile.

    Parameters
    ----------
    name : str
        As `helix_cluster` has it.
    stop : function of Progress, optional
        As for `pipelab.flow`.

    Returns
    -------
    Flow
        Tokens/s count those of prompts and of answers.

    Raises
    ------
    UnknownName
        There is no such instance.
    InvalidValue
        `stop` is no function.

    Examples
    --------
    >>> best = helix_flow("single24")
    >>> best.status, round(best.throughput), round(helix_cluster("single24").reported)
    ('optimal', 2046, 1290)
    """
    return flow(helix_problem(name), "rate", stop=stop)


# Exercises


def _spans(chance: random.Random) -> Given:
    """Spans of layers with rates, of which some layer may be held by nobody."""
    layers = chance.randint(1, 7)
    spans = []
    for _ in range(chance.randint(1, 6)):
        first = chance.randint(1, layers)
        spans.append([first, chance.randint(first, layers)])
    return Given(spans=spans, rates=[chance.randint(1, 9) for _ in spans], layers=layers)


def _passed(given: Given) -> list[int]:
    """What the stages of each layer let pass together."""
    each = list(zip(given.spans, given.rates, strict=True))
    return [
        sum(rate for (first, last), rate in each if first <= layer <= last)
        for layer in range(1, given.layers + 1)
    ]


def _least(given: Given) -> int:
    return min(_passed(given))


def _draw_spans(failure: Failure) -> Figure:
    given = failure.given
    passed = _passed(given)
    layer = 1 + passed.index(min(passed))
    text = f"Layer {layer} lets {min(passed)} pass, no other less"
    axes = ("layer", "rate of its stages")
    numbers = list(range(1, given.layers + 1))
    return plot_lines(numbers, {"rate": passed}, text + failure.yours, axes, (layer, min(passed)))


def _look_at_spans(given: Given) -> str:
    if not _least(given):
        return "some layer is held by nobody: what passes it?"
    if given.layers == 1:
        return "all stages hold the one layer: what do they let pass together?"
    return "go through the layers one by one: which stages hold it, and what do they let pass together?"


def _ways(chance: random.Random) -> Given:
    """Ways, each with its stages, tokens per second and seconds; a stage; and the tokens of a microbatch."""
    stages = chance.randint(1, 5)
    ways = []
    for _ in range(chance.randint(1, 4)):
        on_it = sorted(chance.sample(range(stages), chance.randint(1, stages)))
        ways.append([on_it, chance.randint(1, 40), chance.randint(1, 9)])
    return Given(ways=ways, stage=chance.randrange(stages), tokens=chance.choice((1, 4, 10, 16)))


def _kept(given: Given) -> list[float]:
    """Microbatches in flight on each way that passes the stage."""
    through = (way for way in given.ways if given.stage in way[0])
    return [rate * seconds / given.tokens for _, rate, seconds in through]


def _places(given: Given) -> int:
    """For how many whole microbatches the stage needs memory."""
    tokens = sum(rate * seconds for way, rate, seconds in given.ways if given.stage in way)
    return -(-tokens // given.tokens)


def _look_at_ways(given: Given) -> str:
    if not _kept(given):
        return "a stage that is on no way keeps nothing"
    if len(_kept(given)) == 1:
        return "Little: how many tokens are on the one way at a time? The stage keeps all of them"
    return "the stage keeps what is in flight on each of its ways, for as long as that way takes"


EXERCISES: dict[str, Exercise] = {
    "17.1": Function(
        signature="least_layer(spans, rates, layers)",
        inputs=drawn(161, 200, _spans, lambda given: (len(given.spans), given.layers)),
        target=_least,
        hint=_look_at_spans,
        picture=_draw_spans,
        half=lambda given, answer: answer == min(filter(None, _passed(given))),
    ),
    "17.2": Function(
        signature="memory_for(ways, stage, tokens)",
        inputs=drawn(162, 200, _ways, lambda given: (len(given.ways), given.stage)),
        target=_places,
        hint=_look_at_ways,
        half=lambda given, answer: isclose(answer, sum(_kept(given))),
    ),
}
