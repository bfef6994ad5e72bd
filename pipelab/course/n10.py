"""Notebook 10, From placement to timeline: shared stages, batches that change, and how long an answer takes."""

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from pipelab.course.exercises import Exercise, Failure, Function, Given, drawn
from pipelab.course.pictures import (
    SAME,
    Block,
    BlockRow,
    add_legend,
    bars_of,
    finish,
    plot_lines,
    plot_rows,
)
from pipelab.display import counted, listed
from pipelab.engine.timeline.placement_timelines import PlacedTimeline
from pipelab.errors import UnknownName, nearest, shown
from pipelab.fields import Frozen
from pipelab.figures.theme import BOTTLENECK, NEUTRAL_LIGHT, TYPE_COLOURS, colour_of_types, plain
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


# Batches that change from pass to pass


Batching = Literal["batch by batch", "continuous", "in chunks"]
BATCHING: tuple[Batching, ...] = ("batch by batch", "continuous", "in chunks")

READS, WRITES, WAITS, IDLE = "reads its prompt", "writes an answer", "waits", ""
_COLOURS = {READS: TYPE_COLOURS[0], WRITES: TYPE_COLOURS[1], WAITS: NEUTRAL_LIGHT, IDLE: "#FFFFFF"}


class Moment(NamedTuple):
    """What a slot of the batch does in one pass, for the request of this number."""

    state: str
    request: int
    seconds: float


@dataclass
class _Sequence:
    """A request in a slot: what is left of it, and when its tokens came."""

    request: int
    prompt: int
    answer: int
    tokens: list[float] = field(default_factory=list)


class Served(NamedTuple):
    """Requests that were served: what every slot did, when all were done, and what users waited.

    Attributes
    ----------
    batching : str
        How batches were formed.
    slots : tuple of tuple of Moment
        Of every slot, one after another.
    seconds : float
        Until the last answer was complete.
    first_token : float
        Seconds to the first token, in the mean.
    longest_wait : float
        The most seconds from one token of an answer to the next.
    """

    batching: Batching
    slots: tuple[tuple[Moment, ...], ...]
    seconds: float
    first_token: float
    longest_wait: float


def serve(
    pass_seconds: Callable[[int, int], float],
    requests: Sequence[tuple[int, int]],
    slots: int,
    batching: Batching,
    chunk: int = 256,
) -> Served:
    """Serve requests that are all there at the beginning, pass by pass.

    Parameters
    ----------
    pass_seconds : function of (int, int)
        How long a pass takes that reads so many tokens of prompts, and writes one token each for so
        many sequences.
    requests : sequence of (int, int)
        Tokens of the prompt and of the answer.
    slots : int
        Sequences in a batch at most.
    batching : {"batch by batch", "continuous", "in chunks"}
        The first begins with new requests once all of the batch are done. The others give a slot
        away as soon as it is free. The first two read prompts whole, and nobody writes meanwhile; the
        last reads a chunk in each pass beside those that write, of the earliest request first.
    chunk : int
        Tokens of prompts that a pass reads at most, "in chunks".

    Returns
    -------
    Served
        The last token of a prompt gives the first one of the answer.

    Examples
    --------
    >>> served = serve(lambda read, write: 1, [(2, 3), (2, 1)], 2, "in chunks", chunk=2)
    >>> served.seconds, served.first_token, [moment.state for moment in served.slots[1]]
    (3.0, 1.5, ['waits', 'reads its prompt', ''])
    """
    waiting = deque(_Sequence(n, *request) for n, request in enumerate(requests, 1))
    batch: list[_Sequence | None] = [None] * slots
    past: list[list[Moment]] = [[] for _ in batch]
    done, now = list[_Sequence](), 0.0
    while waiting or any(batch):
        if batching != "batch by batch" or not any(batch):
            batch = [one or (waiting.popleft() if waiting else None) for one in batch]
        left = [one.prompt if one else 0 for one in batch]
        room = chunk if batching == "in chunks" else sum(left)
        read = [0] * slots
        for _, slot in sorted((one.request, slot) for slot, one in enumerate(batch) if one):
            read[slot] = min(room, left[slot])
            room -= read[slot]
        alone = batching != "in chunks" and any(read)
        writes = [one is not None and not one.prompt and not alone for one in batch]
        took = pass_seconds(sum(read), sum(writes))
        now += took
        for slot, one in enumerate(batch):
            if one is None:
                past[slot].append(Moment(IDLE, 0, took))
                continue
            state = READS if read[slot] else WRITES if writes[slot] else WAITS
            past[slot].append(Moment(state, one.request, took))
            one.prompt -= read[slot]
            if state == WRITES or (state == READS and not one.prompt):
                one.tokens.append(now)
                if len(one.tokens) == one.answer:
                    done.append(one)
                    batch[slot] = None
    gaps = [b - a for one in done for a, b in pairwise(one.tokens)]
    first = sum(one.tokens[0] for one in done) / len(done)
    return Served(batching, tuple(map(tuple, past)), now, first, max(gaps, default=0.0))


def plot_batches(served: Sequence[Served]) -> "Figure":
    """Draw the slots of one way to form batches above those of the next, to the same scale.

    Parameters
    ----------
    served : sequence of Served
        As `serve` returns them.

    Returns
    -------
    plotly.graph_objects.Figure
        A row for every slot; a number is that of a request.
    """
    rows = []
    for one in served:
        for number, slot in enumerate(one.slots, 1):
            blocks = []
            for (state, request), moments in groupby(slot, key=lambda moment: moment[:2]):
                seconds = sum(moment.seconds for moment in moments)
                wide = state == WRITES and seconds > 0.03 * max(each.seconds for each in served)
                blocks.append(Block(seconds, _COLOURS[state], str(request) if wide else ""))
            rows.append(BlockRow(f"{one.batching}, slot {number}", blocks))
    ends = ", ".join(f"{one.batching} {one.seconds:.1f} s" for one in served)
    figure = plot_rows(rows, f"The same requests: {ends}", "seconds", "a number is a request's")
    add_legend(figure, {state: colour for state, colour in _COLOURS.items() if state})
    return figure


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
