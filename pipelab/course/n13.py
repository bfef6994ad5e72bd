"""Notebook 13, Reproducing the write-up: later results, units, a cut to repair, and orders to tell apart."""

import random
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any, cast

import numpy as np

from pipelab.cluster import GPU, Cluster
from pipelab.course.exercises import Exercise, Function, Given, drawn
from pipelab.course.ledger.published_programs import scheduler_1f1b
from pipelab.display import DataFrame, data_frame
from pipelab.engine.schedules import schedule
from pipelab.engine.schedules.columns import columns_of
from pipelab.engine.solving import solve
from pipelab.errors import shown
from pipelab.fields import given
from pipelab.files.csv_rows import bundled_frame
from pipelab.hardware.known_gpus import load_gpus
from pipelab.hardware.roofline import Roofline
from pipelab.hardware.transformer import Transformer
from pipelab.hardware.what_fits import node_mixes
from pipelab.problem import Problem, Workload
from pipelab.schedules import Schedule

# The results that the write-up's author published later, beside pipelab's for the same GPUs


# config/medium at commit 1221697, as far as these results use it: all of them are on its A100.
_TYPE, _GPUS, _LINK_GB_PER_S = "A100-SXM-80", 8, 300.0
_LENGTH, _LAYERS, _D_MODEL, _D_FF, _HEADS, _VOCAB = 4096, 32, 8192, 22016, 64, 32000


def author_results() -> DataFrame:
    """The results table of the author's repository, and what pipelab's roofline says of it.

    Returns
    -------
    pandas.DataFrame
        One row per published result: `batch`, `A100s`, `said_tokens_per_s` and
        `said_usd_per_million`. Then, if all these GPUs cut each layer among them: `needs_gb` on each
        with all keys and values; `fits`, whether a tenth of its 85.9 GB is left; and `tokens_per_s`,
        were memory no limit. Last, `least_usd_per_million` of any placement on the pool's eight A100
        at the same price, proven; NaN where none exists. GB are 10^9 bytes.

    Examples
    --------
    >>> import pipelab.course as course
    >>> course.author_results()["fits"].tolist()
    [False, True, False, True, False, True, False, False]
    """
    rows = []
    least: dict[int, float | None] = {}
    for said in bundled_frame("author_results.csv").itertuples():
        batch, gpus = int(said.batch_size), int(said.a100s)
        problem = _medium(batch, said.usd_per_hour / gpus)
        costs, gpu = cast(Roofline, problem.costs), problem.cluster.gpus[0]
        mixes = node_mixes(costs, cast(Transformer, problem.model), problem.workload, gpu, gpus)
        cut = mixes[mixes["tensor_parallel"] == gpus].iloc[0]
        free = (1 - costs.memory_share) * gpu.memory_gb
        if batch not in least:
            found = solve(problem, objective="cost")
            least[batch] = given(found.objective).value if found.placement else None
        rows.append(
            {
                "batch": batch,
                "A100s": gpus,
                "said_tokens_per_s": said.tokens_per_s,
                "said_usd_per_million": said.usd_per_million_tokens,
                "needs_gb": cut["memory_needed_gb"] - free,
                "fits": cut["fits"],
                "tokens_per_s": cut["tokens_per_s"],
                "least_usd_per_million": least[batch],
            }
        )
    return data_frame(rows)


def _medium(batch: int, usd_per_hour: float) -> Problem:
    """Its A100 alone, each to each joined, at the price of its table."""
    model = Transformer(
        "llama-8b", _LAYERS, _D_MODEL, _D_FF, _HEADS, _HEADS, _D_MODEL // _HEADS, _VOCAB
    )
    gpu = GPU(_TYPE, load_gpus()[_TYPE].memory_gb, usd_per_hour, "A100", _LINK_GB_PER_S)
    links = np.full((_GPUS, _GPUS), _LINK_GB_PER_S)
    cluster, load = Cluster((gpu,) * _GPUS, links), Workload(_LENGTH, batch)
    return Problem(cluster, model, load, Roofline(), name="medium")


# Exercises


def _rates(given: Given, per_transfer: float) -> float:
    """Tokens/s of the slowest part, if a transfer counts as so many tokens."""
    links = [gb_per_s / given.gb * per_transfer for gb_per_s in given.links]
    return min([*given.stages, *links])


def _understated(given: Given) -> float:
    return _rates(given, given.tokens) / _rates(given, 1)


def _compared(chance: random.Random) -> Given:
    """A pipeline whose links, counted in transfers/s, may or may not seem to be the slowest."""
    stages = [chance.randint(1, 40) * 10 for _ in range(chance.randint(1, 4))]
    links = [chance.choice((1, 2, 4, 25, 100, 400)) for _ in stages[1:]]
    gb, tokens = chance.choice((0.5, 1, 2, 4)), chance.choice((1, 2, 16, 512))
    return Given(stages=stages, links=links, gb=gb, tokens=tokens)


def _look_at(given: Given) -> str:
    if not given.links:
        return "no link here, so nothing is compared in wrong units"
    if _understated(given) == 1:
        return "here a stage is the slowest part in either unit; what is the quotient then?"
    if _rates(given, given.tokens) < min(given.stages):
        return (
            "here a link is the slowest part in either unit; how many tokens does a transfer carry?"
        )
    return "here a link only seems to be the slowest; which part is it in tokens/s?"


Row = tuple[str, ...]  # of one rank, such as ("F0", "B0")


class Order(tuple[Row, ...]):
    """One row per rank; shows itself as a reader would write it."""

    def __repr__(self) -> str:
        return "; ".join(f"rank {rank}: {' '.join(row)}" for rank, row in enumerate(self))

    def schedule(self) -> Schedule:
        """Stage s on rank s."""
        rows = [[f"{rank}{step}" for step in row] for rank, row in enumerate(self)]
        return Schedule.of("to check", rows)


def _runs(order: Order) -> bool:
    """Whether every rank gets to its end."""
    return not columns_of(order.schedule()).defects


def _held(row: Row) -> int:
    return max(accumulate(1 if step[0] == "F" else -1 for step in row))


def _frugal(order: Order) -> bool:
    return all(_held(row) <= len(order) - rank for rank, row in enumerate(order))


def _fits(order: Order) -> bool:
    return _runs(order) and _frugal(order)


def _order(chance: random.Random) -> Order:
    """Right or faulty; every rank runs all forwards and all backwards once."""
    ranks, microbatches = chance.randint(1, 4), chance.randint(1, 5)
    right = partial(schedule, "1F1B")
    order = chance.choice((right, right, scheduler_1f1b))(ranks, microbatches)
    rows = [[f"{step.kind}{step.microbatch}" for step in row] for row in order.actions]
    for _ in range(chance.choice((0, 1, 1, 2))):  # two neighbours that change places
        row = chance.choice(rows)
        i = chance.randrange(1, len(row))
        row[i - 1 : i + 1] = row[i], row[i - 1]
    return Order(map(tuple, rows))


def _look_at_order(order: Order) -> str:
    if not _runs(order):
        return "here some step waits for ever; what does each one need before it can begin?"
    if not _frugal(order):
        return "here a rank holds more than it may; count the forwards whose backward is still due"
    return "this one is right: it runs to its end, and rank r of p never holds more than p - r"


def _layers(chance: random.Random) -> Given:
    """Costs of layers, and a number of stages that there are layers for."""
    costs = [chance.randint(1, 9) for _ in range(chance.randint(1, 8))]
    return Given(costs=costs, stages=chance.randint(1, len(costs)))


def _off_cut(given: Given, answer: Any) -> str:
    broken = _broken_cut(answer, given.costs, given.stages)
    return broken and f"yours gives {shown(answer)}: {broken}"


def _broken_cut(answer: Sequence[int], costs: list[int], stages: int) -> str:
    sizes = [int(layers) for layers in answer]
    if len(sizes) != stages:
        return f"that is {len(sizes)} of {stages} stages"
    if min(sizes) < 1:
        return f"stage {sizes.index(min(sizes)) + 1} has no layer"
    if sum(sizes) != len(costs):
        return f"that is {sum(sizes)} of {len(costs)} layers"
    ends = list(accumulate(sizes))
    loads = [sum(costs[end - n : end]) for n, end in zip(sizes, ends, strict=True)]
    share, largest = sum(costs) / stages, max(costs)
    if max(loads) > share + largest:
        return f"a stage costs {max(loads)}, a fair share and the largest layer {share + largest:g}"
    return ""


EXERCISES: dict[str, Exercise] = {
    "13.1": Function(
        signature="understated(stages, links, gb, tokens)",
        inputs=drawn(3, 200, _compared, lambda given: (len(given.stages), given.tokens)),
        target=_understated,
        hint=_look_at,
        half=lambda given, _: _understated(given) == 1,
    ),
    "13.2": Function(
        signature="cut(costs, stages)",
        inputs=drawn(3, 300, _layers, lambda given: (len(given.costs), sum(given.costs))),
        off=_off_cut,
        half=lambda given, answer: "fair share" in _off_cut(given, answer),
        advice=(
            "when does the rule start a new stage, and what if too few layers are left for the others?",
            "try as many stages as layers, and equal layers: is any stage missing or empty?",
        ),
    ),
    "13.3": Function(
        signature="fits(order)",
        inputs=drawn(2, 300, _order, lambda order: (sum(map(len, order)), len(order))),
        target=_fits,
        hint=_look_at_order,
        call=lambda mine, order: mine(order.schedule()),
        half=lambda order, _: _runs(order) != _frugal(order),
    ),
}
