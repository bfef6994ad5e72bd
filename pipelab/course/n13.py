"""Notebook 13, Reading a claim: the author's later results, units, and a weight to find."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pipelab.cluster import GPU, Cluster
from pipelab.course.exercises import Exercise, Function, Given, Number, drawn
from pipelab.engine.formulations.program_size import count_candidates
from pipelab.engine.solving import solve
from pipelab.fields import given
from pipelab.files.bundled_folders import data_dir
from pipelab.hardware.known_gpus import load_gpus
from pipelab.hardware.roofline import Roofline
from pipelab.hardware.transformer import Transformer
from pipelab.hardware.what_fits import node_mixes
from pipelab.problem import Model, Problem, Workload
from pipelab.writeup.cases_csv import load_case

if TYPE_CHECKING:
    from pandas import DataFrame


# The results that the write-up's author published later, beside pipelab's for the same GPUs


# config/medium at commit 1221697, as far as these results use it: all of them are on its A100.
_TYPE, _GPUS, _LINK_GB_PER_S = "A100-SXM-80", 8, 300.0
_LENGTH, _LAYERS, _D_MODEL, _D_FF, _HEADS, _VOCAB = 4096, 32, 8192, 22016, 64, 32000


def author_results() -> "DataFrame":
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
    import pandas as pd

    rows = []
    least: dict[int, float | None] = {}
    for said in pd.read_csv(data_dir() / "author_results.csv").itertuples():
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
    return pd.DataFrame(rows)


def _medium(batch: int, usd_per_hour: float) -> Problem:
    """Its A100 alone, each to each joined, at the price of its table."""
    model = Transformer(
        "llama-8b", _LAYERS, _D_MODEL, _D_FF, _HEADS, _HEADS, _D_MODEL // _HEADS, _VOCAB
    )
    gpu = GPU(_TYPE, load_gpus()[_TYPE].memory_gb, usd_per_hour, "A100", _LINK_GB_PER_S)
    links = np.full((_GPUS, _GPUS), _LINK_GB_PER_S)
    return Problem(
        Cluster((gpu,) * _GPUS, links), model, Workload(_LENGTH, batch), Roofline(), name="medium"
    )


# Exercises


@cache
def _demo(**rules: Any) -> Problem:
    return load_case("demo", **{"max_gpus_per_stage": 3, **rules})


def _where_it_turns(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The largest number for which something holds, by bisection."""
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@cache
def _heaviest_layer(more: int) -> float:
    """Of the demo: the weight at which a number of GPUs of one type holds fewer layers than with the bundled weight."""
    demo = _demo()
    model = cast(Model, demo.model)

    def allocations(weight: float) -> int:
        heavier = replace(demo, model=replace(model, layer_weight_gb=weight))
        return count_candidates(heavier)["allocations"]

    bundled = model.layer_weight_gb
    as_bundled = allocations(bundled)
    heaviest = _where_it_turns(lambda weight: allocations(weight) == as_bundled, bundled, 3.0)
    if not more:
        return heaviest
    fewer = allocations(heaviest * (1 + 1e-9))
    return _where_it_turns(lambda weight: allocations(weight) >= fewer, heaviest, 3.0)


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


EXERCISES: dict[str, Exercise] = {
    "13.1": Function(
        signature="understated(stages, links, gb, tokens)",
        inputs=drawn(3, 200, _compared, lambda given: (len(given.stages), given.tokens)),
        target=_understated,
        hint=_look_at,
        half=lambda given, _: _understated(given) == 1,
    ),
    "13.2": Number(
        target=lambda: _heaviest_layer(0),
        unit="GB",
        hint="move the slider until the count falls, then halve the interval",
        half={
            "that is where the count falls for the second time": (lambda: _heaviest_layer(1)),
            "there the count has fallen already": (lambda: 2.1),
        },
        mistakes={
            "that is the bundled weight; how much heavier may it be?": (
                lambda: cast(Model, _demo().model).layer_weight_gb
            )
        },
        rel=2e-4,  # 2.059 is right; with 2.06 the count has fallen already
    ),
}
