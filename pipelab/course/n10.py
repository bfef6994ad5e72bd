"""Notebook 10, From placement to timeline: shared stages, and how long an answer takes."""

import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipelab.course.exercises import Exercise, Failure, Function, Given, drawn
from pipelab.course.pictures import SAME, bars_of, finish, plot_lines
from pipelab.display import counted, listed
from pipelab.engine.timeline.placement_timelines import PlacedTimeline
from pipelab.errors import UnknownName, nearest, shown
from pipelab.fields import Frozen
from pipelab.figures.theme import BOTTLENECK, NEUTRAL_LIGHT, colour_of_types, plain
from pipelab.files.bundled_folders import data_dir

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


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
    import pandas as pd

    def table(file: str) -> "pd.DataFrame":
        return pd.read_csv(data_dir() / "helix" / file, keep_default_na=False)

    facts = table("instances.csv").set_index("instance")
    if name not in facts.index:
        raise UnknownName(f"Helix ships no {shown(name)}; {nearest(name, facts.index)}")
    of, nodes = facts.loc[name], table("nodes.csv").query("instance == @name")
    rates: dict[str, dict[int, float]] = {}
    for row in table("rates.csv").itertuples():
        if name in row.instances.split("; "):
            rates.setdefault(row.machine, {})[row.layers] = row.tokens_per_s
    megabytes = np.full((len(nodes), len(nodes)), _INSIDE_MEGABYTES_PER_S)
    for link in table("links.csv").query("instance == @name").itertuples():
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


# Stages in time, identical ones in one row


def plot_stage_groups(placed: "PlacedTimeline") -> "Figure":
    """A bar for every kind of stage: GPU type, number of layers, and what a microbatch takes there.

    Parameters
    ----------
    placed : PlacedTimeline
        Made by `pl.timeline_of`, in inference.

    Returns
    -------
    plotly.graph_objects.Figure
        In milliseconds per microbatch; the slowest are framed. Links are one row, the slowest of
        them.

    Examples
    --------
    >>> import pipelab as pl
    >>> from pipelab import course
    >>> problem = course.three_sites()
    >>> figure = plot_stage_groups(pl.timeline_of(problem, pl.solve(problem)))
    >>> figure.layout.title.text.split("<br>")[0]
    '4 stages of 4 layers on L4 set the pace: 6,321.0 tokens/s'
    """
    stages = [lane for lane in placed.lanes if not lane.link]
    links = [1000 * lane.seconds for lane in placed.lanes if lane.link]
    groups = Counter[tuple[str, int, float]]()
    for report, lane in zip(placed.evaluation.stages, stages, strict=True):
        of = " + ".join(sorted(set(report.gpu_types)))
        groups[of, len(report.stage.layers), round(1000 * lane.seconds, 6)] += 1
    colours = colour_of_types(of for of, _, _ in groups)
    rows = [
        (f"{n} × {of}, {counted(layers, 'layer')}", ms, colours[of])
        for (of, layers, ms), n in groups.items()
    ]
    if links:
        rows.append((f"{counted(len(links), 'link')}, the slowest", max(links), NEUTRAL_LIGHT))
    slowest = max(ms for _, ms, _ in rows)
    frames = {"color": BOTTLENECK, "width": [3 * (ms * SAME >= slowest) for _, ms, _ in rows]}
    pace = [
        f"{counted(n, 'stage')} of {counted(layers, 'layer')} on {of}"
        for (of, layers, ms), n in groups.items()
        if ms * SAME >= slowest
    ] or ["a link"]
    one = len(pace) == 1 and (pace[0].startswith("1 ") or pace == ["a link"])
    figure = bars_of(
        [plain(name) for name, _, _ in rows],
        [ms for _, ms, _ in rows],
        [f"{ms:.3g} ms" for _, ms, _ in rows],
        "%{y}: %{x:.4g} ms per microbatch",
        marker={"color": [colour for *_, colour in rows], "line": frames},
    )
    rate = f"{placed.predicted_rate:,.1f} tokens/s"
    return finish(
        figure,
        f"{plain(listed(pace))} set{'s' * one} the pace: {rate}",
        "identical stages in one row; a frame marks what is slowest",
        height=150 + 34 * len(rows),
        x={"title": "ms per microbatch", "range": [0, 1.14 * slowest]},
    )


# Exercises


def _times(chance: random.Random) -> Given:
    """Of every stage and link, in the order in which a microbatch meets them."""
    return Given(times=[chance.randint(1, 12) for _ in range(chance.randint(1, 7))])


def _needed(given: Given) -> int:
    return -(-sum(given.times) // max(given.times))


def _draw_times(failure: Failure) -> "Figure":
    given = failure.given
    needed = _needed(given)
    numbers = list(range(1, needed + 4))
    rates = [min(1 / max(given.times), n / sum(given.times)) for n in numbers]
    text = f"{needed} in flight reach what the slowest stage or link allows"
    axes = ("microbatches in flight", "microbatches per second")
    return plot_lines(numbers, {"rate": rates}, text, axes, (needed, rates[needed - 1]))


def _look_at_times(given: Given) -> str:
    if len(given.times) == 1:
        return "one stage is never without work if one microbatch is always there"
    if sum(given.times) % max(given.times) == 0:
        return "here the rate is reached exactly; is one more needed?"
    return (
        "what is the rate at most, how long is one microbatch on its way, and what does Little say?"
    )


def _request(chance: random.Random) -> Given:
    """A pipeline's times for a prompt and for one token, the length of an answer, and the load."""
    stages = chance.randint(1, 5)
    prefill, decode = ([chance.randint(a, b) for _ in range(stages)] for a, b in ((5, 40), (1, 9)))
    tokens, m = chance.randint(1, 12), chance.randint(1, 8)
    return Given(prefill=prefill, decode=decode, tokens=tokens, m=m)


def _seconds(given: Given, one_more: bool = False) -> float:
    each = max(sum(given.decode), given.m * max(given.decode))
    return sum(given.prefill) + (given.tokens - 1 + one_more) * each


def _look_at_request(given: Given) -> str:
    if given.tokens == 1:
        return "the first token comes out of the prefill"
    if given.m * max(given.decode) > sum(given.decode):
        return "the slowest stage serves all microbatches in turn before this one is back"
    return "the first token comes out of the prefill; how many traversals of decode are left?"


EXERCISES: dict[str, Exercise] = {
    "10.1": Function(
        signature="in_flight(times)",
        inputs=drawn(101, 200, _times, lambda given: len(given.times)),
        target=_needed,
        hint=_look_at_times,
        picture=_draw_times,
        half=lambda given, n: _needed(given) - 1 <= n <= _needed(given),
    ),
    "10.2": Function(
        signature="answer_seconds(prefill, decode, tokens, m)",
        inputs=drawn(102, 200, _request, lambda given: (len(given.decode), given.tokens)),
        target=_seconds,
        hint=_look_at_request,
        half=lambda given, seconds: seconds == _seconds(given, one_more=True),
    ),
}
