"""The optimum by trying every placement: nothing could be simpler, and soon nothing takes longer.

A placement is an order of disjoint sets of GPUs, and a cut of the layers into as many runs. Each is evaluated;
what does not fit in memory is left out.

Domain: problems of at most 20,000 placements. 16 layers and 5 GPUs, one per stage, have ten times as many.

This is a definition to read. `pl.solve(problem, "exhaustive")` runs `engine/methods/exhaustive.py` instead, which
counts the placements before it tries them, and stops where none can be faster;
`tests/equal/test_definitions_placement.py` holds both equal.
"""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from pipelab.candidates import stage_gpus
from pipelab.errors import InvalidPlacement, TooLarge
from pipelab.evaluation import evaluate
from pipelab.placement import Placement, Stage
from pipelab.problem import Problem

__all__ = ["BestOfAll", "list_placements", "solve_by_trying_all"]

MOST_PLACEMENTS = 20_000


class BestOfAll(NamedTuple):
    """The best of all placements; both None where none fits in memory and has a rate."""

    placement: Placement | None
    throughput: float | None  # of the slowest stage in tokens/s, or link in `link_units` per second


def list_placements(problem: Problem) -> Iterator[Placement]:
    """Yield every placement, whether it fits in memory or not.

    Parameters
    ----------
    problem : Problem
        Whose layers, GPUs and limits of a stage count.

    Yields
    ------
    Placement
        With each first stage every second stage, and so on; long stages come first.

    Examples
    --------
    >>> import pipelab as pl
    >>> len(list(list_placements(pl.load_case("tiny", max_gpus_per_stage=2))))
    340
    """
    sets, layers = list(stage_gpus(problem)), problem.model.layers

    def extend(stages: tuple[Stage, ...], start: int, free: set[int]) -> Iterator[Placement]:
        if start == layers:
            yield Placement(stages)
            return
        for gpus in sets:
            if free.issuperset(gpus):
                for stop in range(layers, start, -1):
                    stage = Stage(range(start, stop), gpus)
                    yield from extend((*stages, stage), stop, free - set(gpus))

    return extend((), 0, set(range(len(problem.cluster))))


def solve_by_trying_all(problem: Problem) -> BestOfAll:
    """Evaluate every placement, and keep the first of the best.

    Parameters
    ----------
    problem : Problem
        With at most 20,000 placements.

    Returns
    -------
    BestOfAll
        Placement and throughput.

    Raises
    ------
    TooLarge
        There are more placements.

    Examples
    --------
    >>> import pipelab as pl
    >>> best = solve_by_trying_all(pl.load_case("tiny", max_gpus_per_stage=2))
    >>> round(best.throughput, 3), str(best.placement)
    (301.784, 'layers 1–4 on [0, 1]')
    """
    placements = list(islice(list_placements(problem), MOST_PLACEMENTS + 1))
    if len(placements) > MOST_PLACEMENTS:
        text = f"{problem.name} has more than {MOST_PLACEMENTS:,} placements"
        raise TooLarge(f"{text}; 'exhaustive' takes more")
    best = BestOfAll(placement=None, throughput=None)
    for placement in placements:
        try:
            rate = evaluate(problem, placement).rate
        except InvalidPlacement:
            continue
        if best.throughput is None or rate > best.throughput:
            best = BestOfAll(placement=placement, throughput=rate)
    return best
