"""The optimum by counting identical GPUs: how many stages of each sort, not which GPU in which.

The joint ILP tells identical GPUs apart, and pays for it with up to millions of variables. But a
stage is as fast on one pair of A100s as on another, and where all layers are identical, only their
number counts. So it is enough to choose how many stages there are of each *mix* (so many GPUs of
each kind), and how many layers each holds. GPUs of one *kind* are fully identical: those of
one type, say A100, are of several kinds where memory, price or node differ.

In a real model the first layer brings the embedding and the last one the head, and only the layers
between them are identical. Then the *place* of a stage counts, too: the pipeline has one stage that
holds the first layer and one that holds the last, and they have rates of their own.

A pipeline is as fast as its slowest stage, so its rate is one of finitely many. Whatever reaches a
rate reaches every lower one, so bisection finds the highest rate that is reachable. Each of its
steps, at most 17 for 100,000 rates, is an integer program with a variable for each sort of stage.

Domain: layers that are identical but for the first and the last, at most 100,000 rates of stages
(places × mixes × layers), and links that do not slow down the placement found. Mixed stages, either
batch split and any cost model are covered. Every node is a kind of its own here, so identical nodes
are told apart: more nodes, more mixes. Links are left out of the count, so no placement is faster
than what it counts. Where the evaluator finds the placement just as fast, it is optimal; where links
slow it down, there is no result. Links never do where each is at least as fast as the answer.

This is a definition to read. `pl.solve(problem, "aggregated")` runs `engine/methods/aggregated.py`
instead, which takes any links; `tests/equal/test_definitions_placement.py` holds both equal.
"""

from collections.abc import Sequence
from itertools import combinations_with_replacement
from math import comb
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from pipelab.cluster import GPU
from pipelab.errors import NotApplicable, PipelabError, TooLarge
from pipelab.evaluation import evaluate
from pipelab.fields import instance
from pipelab.placement import Placement
from pipelab.problem import Problem

__all__ = [
    "CountingOptimum", "Piece", "fewest_stages", "place_stages", "rates_by_place", "rates_of_mixes",
    "solve_by_counting",
]  # fmt: skip

MOST_RATES = 100_000
Mix = tuple[int, ...]  # the kind of each GPU of a stage, as indices into `cluster.kinds`, ascending
Place = Literal["anywhere", "first", "inner", "last", "whole"]  # of a stage in its pipeline
Rates = dict[Mix, list[float]]  # entry m-1: tokens/s with m layers, 0 where there is no such stage

# Whether a stage at a place holds the first layer, and whether it holds the last one.
HOLDS_ENDS: dict[Place, tuple[bool, bool]] = {
    "first": (True, False),
    "inner": (False, False),
    "last": (False, True),
    "whole": (True, True),
}


class CountingOptimum(NamedTuple):
    """What counting proves; both None where no placement fits in memory and has a rate."""

    placement: Placement | None
    throughput: float | None  # tokens/s; no link is slower, counted in the problem's link units


class Piece(NamedTuple):
    """A sort of stage that reaches some rate: a mix at a place, with `fewest` to `most` layers."""

    place: Place
    mix: Mix
    fewest: int  # layers
    most: int


def solve_by_counting(problem: Problem) -> CountingOptimum:
    """Find the placement of the highest throughput, by bisection over the rates that stages can have.

    Parameters
    ----------
    problem : Problem
        With inner layers that are identical, and links that do not bind.

    Returns
    -------
    CountingOptimum
        Placement and throughput in tokens/s, proven optimal.

    Raises
    ------
    NotApplicable
        Inner layers differ, or links slow down the placement found.
    TooLarge
        There are too many rates (places × mixes × layers).

    Examples
    --------
    >>> import pipelab as pl
    >>> optimum = solve_by_counting(pl.load_case("demo", max_gpus_per_stage=3))
    >>> round(optimum.throughput, 4), str(optimum.placement)
    (1046.5812, 'layers 1–14 on [0, 1, 2]')
    """
    rates = rates_by_place(problem)
    steps = different_rates(rates)
    best = None
    low, high = 0, len(steps)  # steps before `low` are reachable, those from `high` on are not
    while low < high:
        middle = (low + high) // 2
        stages = fewest_stages(problem, rates, steps[middle])
        if stages is None:
            high = middle
        else:
            low, best = middle + 1, stages
    if best is None:
        return CountingOptimum(placement=None, throughput=None)
    (placement,), bound = place_stages(problem, [best]), float(steps[low - 1])
    throughput = evaluate(problem, placement).rate
    if throughput < bound * (1 - 1e-9):
        links = f"the links between them {throughput:g} {problem.costs.link_units}/s"
        reached = f"the stages reach {bound:g} tokens/s, {links}"
        expected = "expected links that do not bind; 'aggregated' takes such links"
        raise NotApplicable("counting", [("problem", problem.name, f"{expected} ({reached})")])
    return CountingOptimum(placement=placement, throughput=throughput)


def rates_by_place(problem: Problem) -> dict[Place, Rates]:
    """Compute how fast every mix of GPUs is at every place where that makes a difference.

    Parameters
    ----------
    problem : Problem
        With inner layers that are identical.

    Returns
    -------
    dict of place to dict of mix to list of float
        As `rates_of_mixes`, in tokens/s. "anywhere" alone where all layers are identical; else
        "first" and "last" for stages with the first and the last layer, "whole" for both.

    Raises
    ------
    NotApplicable
        Inner layers differ: then it matters which of them a stage holds, not only how many.
    TooLarge
        There are too many rates (places × mixes × layers).

    Examples
    --------
    >>> import pipelab as pl
    >>> gpus = pl.Cluster.from_counts({"L4": 2}, 24, 12.5)
    >>> llama = pl.Problem(gpus, pl.load_model("Llama-3-8B"), pl.Workload(2048, 1), pl.Roofline())
    >>> rates = rates_by_place(llama)
    >>> {place: round(rates[place][0,][8 - 1]) for place in rates}  # one GPU with eight layers
    {'first': 12048, 'inner': 12048, 'last': 11697, 'whole': 0}
    """
    if problem.model.uniform:
        return {"anywhere": rates_of_mixes(problem)}
    return {place: rates_of_mixes(problem, place) for place in HOLDS_ENDS}


def different_rates(rates: dict[Place, Rates]) -> np.ndarray:
    """List the different rates that stages have, ascending; no pipeline has another."""
    table = [rate for of_place in rates.values() for of_mix in of_place.values() for rate in of_mix]
    return np.unique([rate for rate in table if rate > 0])


def rates_of_mixes(problem: Problem, place: Place = "anywhere") -> Rates:
    """Compute how fast every mix of GPUs is with 1 … L layers at one place of the pipeline.

    Parameters
    ----------
    problem : Problem
        With inner layers that are identical; for "anywhere" the first and the last, too.
    place : {"anywhere", "first", "inner", "last", "whole"}
        Which layers they are.

    Returns
    -------
    dict of mix to list of float
        Entry m-1 is the rate with m layers in tokens/s; 0 where they do not fit in memory, or there
        are not as many at this place.

    Raises
    ------
    InvalidValue
        `problem` is not a Problem.
    NotApplicable
        Layers differ: then it matters which layers a stage holds, not only how many.
    TooLarge
        There are too many rates (places × mixes × layers).

    Examples
    --------
    >>> import pipelab as pl
    >>> rates = rates_of_mixes(pl.load_case("tiny", max_gpus_per_stage=2))
    >>> list(rates), round(rates[0, 0][4 - 1], 3)  # two GPUs of kind 0 with four layers
    ([(0,), (1,), (0, 0), (0, 1), (1, 1)], 301.784)
    """
    instance("rates_of_mixes", "problem", problem, Problem, "a Problem")
    model, kinds = problem.model, problem.cluster.kinds
    if not (model.uniform if place == "anywhere" else model.spans.alike_inside):
        which = "layers" if place == "anywhere" else "layers between the first and the last"
        expected = f"expected identical {which}; 'aggregated', 'joint' and 'single_gpu' take others"
        raise NotApplicable("counting", [("model", model.name, expected)])
    largest = min(problem.max_gpus_per_stage, len(problem.cluster))
    # Multisets of 1 … n GPUs of k kinds are those of n of k + 1 kinds, one being "none", less one.
    places = 1 if place == "anywhere" else len(HOLDS_ENDS)
    number = places * (comb(len(kinds) + largest, largest) - 1) * model.layers
    if number > MOST_RATES:
        text = f"{problem.name} has up to {number:,} rates of stages, more than {MOST_RATES:,}"
        raise TooLarge(f"{text}; 'aggregated' takes more")
    runs = [_run(place, size, model.layers) for size in range(1, model.layers + 1)]
    table: Rates = {}
    for size in range(1, largest + 1):
        for mix in combinations_with_replacement(range(len(kinds)), size):
            gpus = [kinds[k] for k in mix]
            if problem.same_type_stages and len({gpu.type for gpu in gpus}) > 1:
                continue
            table[mix] = [0.0 if run is None else _rate(problem, gpus, run) for run in runs]
    return table


def _rate(problem: Problem, gpus: Sequence[GPU], layers: range) -> float:
    """Tokens/s of a stage; 0 where it does not fit in memory."""
    cost = problem.stage_cost(gpus, layers)
    return cost.throughput if cost.fits(gpus) else 0.0


def _run(place: Place, size: int, layers: int) -> range | None:
    """Choose a run of so many layers at this place; None where there is none."""
    if place == "anywhere":
        return range(size)
    start = {"first": 0, "inner": 1, "last": layers - size, "whole": 0}[place]
    holds_ends = start == 0, start + size >= layers
    return range(start, start + size) if holds_ends == HOLDS_ENDS[place] else None


def fewest_stages(
    problem: Problem, rates: dict[Place, Rates], least: float, prices: Sequence[float] | None = None
) -> list[Piece] | None:
    """Choose the fewest stages that hold all layers, none slower than some rate; few stages, few links.

    With prices the cheapest stages instead.
    With z_p stages of piece p, which holds from fewest_p to most_p layers::

        Σ fewest_p z_p ≤ L ≤ Σ most_p z_p             all L layers find a place
        Σ (GPUs of kind k in p) z_p ≤ N_k             for each kind k of GPU
        Σ_{p with the first layer} z_p = 1            where places differ;
        Σ_{p with the last layer} z_p = 1             both are the same stage in a "whole" one

    Parameters
    ----------
    problem : Problem
        Whose layers and GPUs are to be shared out.
    rates : dict of place to dict of mix to list of float
        Of `rates_by_place`.
    least : float
        In tokens/s.
    prices : sequence of float, optional
        Of a GPU of each kind.

    Returns
    -------
    list of Piece, or None
        One per stage, in the order of a pipeline; None where no placement is that fast, whatever the links.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", max_gpus_per_stage=2)
    >>> fewest_stages(tiny, rates_by_place(tiny), 300)
    [Piece(place='anywhere', mix=(0, 0), fewest=4, most=4)]
    """
    pieces = []
    for place, of_place in rates.items():
        for mix, of_mix in of_place.items():
            enough = [m for m, rate in enumerate(of_mix, start=1) if rate >= least]
            runs = np.split(enough, np.flatnonzero(np.diff(enough) > 1) + 1) if enough else []
            pieces += [Piece(place, mix, int(run[0]), int(run[-1])) for run in runs]
    if not pieces:
        return None
    L, kinds = problem.model.layers, range(len(problem.cluster.kinds))
    rows = [
        LinearConstraint([piece.fewest for piece in pieces], ub=L),
        LinearConstraint([piece.most for piece in pieces], lb=L),
        LinearConstraint(
            [[piece.mix.count(k) for piece in pieces] for k in kinds], ub=problem.cluster.kind_count
        ),
    ]
    if "anywhere" not in rates:
        holders = [[HOLDS_ENDS[piece.place][end] for piece in pieces] for end in (0, 1)]
        rows.append(LinearConstraint(np.array(holders, float), lb=1, ub=1))
    ones = np.ones(len(pieces))
    cost = ones if prices is None else [sum(prices[k] for k in piece.mix) for piece in pieces]
    exact = {"mip_rel_gap": 0}
    done = milp(cost, constraints=rows, integrality=ones, bounds=Bounds(0, np.inf), options=exact)
    if done.status not in (0, 2):  # neither solved nor infeasible
        raise PipelabError(f"HiGHS ended with: {done.message}")
    if done.x is None:
        return None
    counts = np.rint(done.x).astype(int)
    return [piece for piece, count in zip(pieces, counts, strict=True) for _ in range(count)]


def place_stages(problem: Problem, pipelines: Sequence[Sequence[Piece]]) -> list[Placement]:
    """Place the stages of one pipeline or several on any GPUs of the right kinds, no GPU in two of them.

    Every stage gets its fewest layers, then what is left over.
    """
    kind_of = problem.cluster.kind_of
    free = [np.flatnonzero(kind_of == k).tolist() for k in range(len(problem.cluster.kinds))]
    placements = []
    for stages in pipelines:
        left, parts = problem.model.layers - sum(stage.fewest for stage in stages), []
        for stage in stages:
            more = min(left, stage.most - stage.fewest)
            left -= more
            parts.append((stage.fewest + more, [free[k].pop(0) for k in stage.mix]))
        placements.append(Placement.of(parts))
    return placements
