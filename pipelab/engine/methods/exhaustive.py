"""Try the placements one by one: exact on small problems, out of reach soon after."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import comb

import numpy as np

from pipelab.display import rate
from pipelab.engine.answers import Result, rated_result
from pipelab.engine.deadline import NEVER, Deadline, Ended, Stop, deadline_of, made_in_time
from pipelab.engine.formulations.candidates import gpu_sets, link_rates, stage_rates
from pipelab.engine.infeasible import infeasible_result, why_infeasible
from pipelab.engine.instance import instance_of
from pipelab.engine.methods.aggregated import unlisted
from pipelab.errors import TooLarge
from pipelab.placement import Placement
from pipelab.problem import Problem


def count_placements(problem: Problem, deadline: Deadline = NEVER) -> dict[int, int]:
    """Count the placements by number of stages, memory aside.

    A placement of s stages is a choice of s - 1 of the M - 1 boundaries, times s disjoint
    GPU sets in order.

    Parameters
    ----------
    problem : Problem
        Any size.
    deadline : Deadline
        Ends the count early.

    Returns
    -------
    dict of int to int
        Placements by number of stages, exact; numbers of stages without any are left out.

    Examples
    --------
    >>> import pipelab as pl
    >>> count_placements(pl.load_case("tiny", max_gpus_per_stage=2))
    {1: 10, 2: 126, 3: 180, 4: 24}
    """
    layers, largest = problem.model.layers, min(problem.max_gpus_per_stage, len(problem.cluster))
    types = [gpu.type if problem.same_type_stages else "any" for gpu in problem.cluster.gpus]
    ways = [1]  # of s stages in order on disjoint sets of GPUs
    for name in dict.fromkeys(types):
        of_type = _ways(types.count(name), largest, layers, deadline)
        # t of the s stages have this type
        most = min(layers, len(ways) + len(of_type) - 2)
        ways = [
            sum(
                comb(s, t) * ways[s - t] * of_type[t]
                for t in range(max(0, s - len(ways) + 1), min(s, len(of_type) - 1) + 1)
            )
            for s in range(most + 1)
        ]
    return {s: n * comb(layers - 1, s - 1) for s, n in enumerate(ways) if s and n}


def _ways(gpus: int, largest: int, most: int, deadline: Deadline) -> list[int]:
    """Count ordered choices of s disjoint sets of 1 … `largest` of these GPUs, for s = 0 … `most`."""
    left = [1] * (gpus + 1)  # of n GPUs, for one s after the other
    ways = [1]
    for _ in range(min(most, gpus)):
        deadline.check()
        left = [
            sum(comb(n, j) * left[n - j] for j in range(1, min(largest, n) + 1))
            for n in range(gpus + 1)
        ]
        ways.append(left[gpus])
    return ways


def solve_exhaustive(
    problem: Problem,
    *,
    limit: int = 1_000_000,
    stop_at_bound: bool = True,
    time_limit: float | None = None,
    stop: Stop = None,
) -> Result:
    """Try placements one by one and keep the best.

    Parameters
    ----------
    limit : int
        Refuse to try more placements than this; they are counted first.
    stop_at_bound : bool
        End as soon as a placement is as fast as the fastest stage there is, since none can be
        faster. False tries every placement that fits.
    time_limit, stop
        As for `solve`; the best so far is kept, bounded by the fastest stage there is. A function is asked every
        64 stages, which are its `nodes`.

    Returns
    -------
    Result
        `size["placements"]` counts all placements, memory aside; `details["tried"]` those that were
        tried. The others do not fit in memory, or come after the end of the search. `reason` says
        which, with both numbers.

    Raises
    ------
    TooLarge
        There are more than `limit` placements; the message says how many.
    """
    with deadline_of(time_limit, stop) as deadline:
        try:
            number = sum(made_in_time(partial(count_placements, problem), deadline).values())
            if number > limit:
                beyond = f"{number:,} placements, more than limit={float(limit):,.12g}"
                remedy = "method='aggregated' proves its answer without trying them"
                raise TooLarge(f"{problem.name} has {beyond}; {remedy}")
            sets, rate, fits, links = made_in_time(partial(_listed, problem), deadline)
        except Ended as end:
            return unlisted(problem, "exhaustive", {}, deadline, end, "its GPU sets")
        size = {"placements": number}
        search = _Enumeration(problem, sets, np.where(fits, rate, -1.0), links, deadline)
        search.enough = search.top if stop_at_bound else np.inf
        if fits.any():
            search.run()
        if search.best is None and not search.stopped:
            reason = why_infeasible(instance_of(problem), "trying them all")
            return infeasible_result(problem, "exhaustive", reason, size, deadline)
        result = rated_result(
            problem,
            "exhaustive",
            search.best,
            # no placement beats its fastest stage
            bound=search.top if search.stopped else search.best_rate,
            seconds=deadline.spent,
            size=size,
            stopped_by=search.stopped,
            details={"tried": search.tried},
        )
        return replace(result, reason=_how_many(search, number, result.status == "optimal"))


def _listed(problem: Problem, deadline: Deadline) -> tuple:
    sets = gpu_sets(problem, deadline)
    return sets, *stage_rates(problem, sets, deadline), link_rates(problem, sets, deadline)


def _how_many(search: "_Enumeration", number: int, proven: bool) -> str:
    """Say how many placements were tried, of how many, and why not the others."""
    if search.stopped is None:
        if search.tried == number:
            return f"all {number:,} placements were tried"
        return f"all {search.tried:,} placements that fit were tried, of {number:,}"
    tried = f"{search.tried:,} of {number:,} placements were tried"
    if proven:
        return f"{tried}: none can be faster than the fastest stage, {rate(search.top)}"
    return tried


class _Enumeration:
    """Depth first over stages: which GPU set comes next, and how many layers it takes."""

    def __init__(
        self,
        problem: Problem,
        sets: Sequence[tuple[int, ...]],
        rate: np.ndarray,
        links: np.ndarray,
        deadline: Deadline,
    ) -> None:
        self.layers = problem.model.layers
        self.sets = sets
        self.rate = rate.tolist()  # [set][kind of span], negative where it does not fit
        self.span = problem.model.spans.kind.tolist()  # [first layer][layers - 1]
        self.link = links.tolist()
        self.top = self.enough = float(rate.max())
        self.mask = [sum(1 << g for g in s) for s in sets]
        self.deadline = deadline
        self.best: Placement | None = None
        self.stopped: str | None = None
        self.best_rate, self.steps, self.tried = -1.0, 0, 0

    def run(self) -> None:
        """Try all placements, those of few stages first: there are fewest of them."""
        for stages in range(1, self.layers + 1):
            self.extend(0, 0, -1, np.inf, (), stages)

    def extend(
        self, done: int, used: int, last: int, slowest: float, parts: tuple, stages: int
    ) -> None:
        """Place all after the first `done` layers on every combination of `stages` sets without the GPUs in `used`."""
        left, kinds = self.layers - done, self.span[done]
        shortest = left if stages == 1 else 1  # the last stage takes all that is left
        for s, mask in enumerate(self.mask):
            if mask & used:
                continue
            if self._must_stop():
                return
            rates = self.rate[s]
            # Comparisons, not min(): most of the time would go into calls.
            so_far = slowest if last < 0 or self.link[last][s] > slowest else self.link[last][s]
            for n in range(shortest, left - stages + 2):
                rate = rates[kinds[n - 1]]
                if rate > 0:
                    slower = rate if rate < so_far else so_far
                    if stages > 1:
                        rest = (*parts, (n, self.sets[s]))
                        self.extend(done + n, used | mask, s, slower, rest, stages - 1)
                    else:
                        self.tried += 1
                        if slower > self.best_rate:
                            self._keep(slower, (*parts, (n, self.sets[s])))

    def _keep(self, rate: float, parts: tuple) -> None:
        self.best_rate, self.best = rate, Placement.of(parts)
        if rate >= self.enough:  # as fast as the fastest stage: nothing can be better
            self.stopped = "bound"

    def _must_stop(self) -> bool:
        self.steps += 1
        if self.stopped is None and self.steps % 64 == 1:
            known = self.best_rate if self.best else None
            self.deadline.tell(
                incumbent=known, bound=self.top, nodes=self.steps, placement=self.best
            )
            self.stopped = self.deadline.reason
        return self.stopped is not None
