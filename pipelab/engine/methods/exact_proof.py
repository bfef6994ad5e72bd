"""What a solver's tolerance leaves open is settled by yes-or-no programs without any rate in them.

Every placement is as fast as one of its stages or links, so there are finitely many rates. "Is
there a placement of at least this rate?" is a program of zeros and ones
(`formulations/threshold.py`), in which no tolerance can hide anything, however far apart the rates
are. Halving the rates that are left proves the best one.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from pipelab.display import counted
from pipelab.engine.deadline import Deadline, Ended, waited_for
from pipelab.engine.formulations import threshold
from pipelab.engine.formulations.candidates import Candidates
from pipelab.engine.solvers.choice import run_program
from pipelab.engine.tolerances import LAST_BITS, NOT_SOLVED
from pipelab.errors import NotApplicable, PipelabError
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.placement import Placement

# SCIP keeps rows to within 1e-6 of their largest entry, here the fastest rate: a rate smaller than
# that share of it disappears. Below 1e-9 it sees zero, and from 1e15 on it does not compute. Within
# these limits its bound is believed as long as it is not yet settled.
_FAR_APART, _SMALL, _LARGE = 1e6, 1e-4, 1e10
_BEYOND_DOUBLES = 1e12


@dataclass(frozen=True)
class Settled:
    """What is known when the proof has ended.

    Attributes
    ----------
    placement : Placement or None
        The best that was found; None: none was, and with `bound` None too, there is none.
    throughput, bound : float or None
        Of the placement as `evaluate` has it, and what nothing exceeds; tokens/s.
    stopped_by : str or None
        What ended it early.
    programs : int
        Number of feasibility problems solved.
    """

    placement: Placement | None
    throughput: float | None
    bound: float | None
    stopped_by: str | None
    programs: int


def out_of_reach(candidates: Candidates) -> str:
    """The two rates that SCIP's tolerance cannot carry in one model, in words; empty where it can.

    Links faster than every stage do not count.
    """
    slowest, fastest = _extremes(candidates)
    fine = fastest <= slowest * _FAR_APART and slowest >= _SMALL and fastest <= _LARGE
    return "" if fine else _clash(slowest, fastest)


def refuse_out_of_reach(candidates: Candidates, what: str) -> None:
    """For models that cannot be settled without rates: refuse those that doubles cannot carry.

    Raises
    ------
    NotApplicable
        Two rates differ by a factor of more than 10^12; the message names both.
    """
    slowest, fastest = _extremes(candidates)
    if fastest > slowest * _BEYOND_DOUBLES:
        clash = _clash(slowest, fastest)
        expected = f"expected rates that differ by a factor of 10^12 at most: {clash}. method='aggregated' takes any"
        raise NotApplicable(what, [("problem", candidates.problem.name, expected)])


def settled_without_rates(settled: "Settled", clash: str) -> str:
    """The remark on an answer for which SCIP has seen no rates."""
    programs = counted(settled.programs, "feasibility problem")
    return f"{clash}, beyond SCIP's tolerance: proven by {programs} without rates as coefficients"


def _clash(slowest: float, fastest: float) -> str:
    return (
        f"the fastest stage has {fastest:.3g} tokens/s and the slowest stage or link {slowest:.3g}"
    )


def _extremes(candidates: Candidates) -> tuple[float, float]:
    rates = _rates(candidates)
    return float(rates.min()), float(rates.max())


def settle(
    candidates: Candidates,
    placement: Placement | None,
    deadline: Deadline,
    bound: float | None = None,
    gap: float = 0,
) -> Settled:
    """Prove a placement the best, or find a better one and prove that.

    Parameters
    ----------
    placement : Placement or None
        The best so far. The first program looks for anything faster: mostly nothing is.
    bound : float, optional
        Nothing is faster than this, tokens/s; by default the fastest stage.
    gap : float
        Stop once the bound exceeds the best by this share at most.

    Raises
    ------
    PipelabError
        A solver returned something that is not a placement.
    """
    problem, programs = candidates.problem, 0
    throughput = None if placement is None else evaluate(problem, placement).rate
    rates = _rates(candidates)
    open_above = 0.0 if throughput is None else throughput * (1 + LAST_BITS)
    left = np.unique(
        rates[
            (rates > open_above) & (rates <= (np.inf if bound is None else bound * (1 + LAST_BITS)))
        ]
    )
    low, high = 0, len(left)  # left[:low] are reached, left[high:] are not
    index = 0
    while low < high:
        if gap and throughput is not None and left[high - 1] <= throughput * (1 + gap):
            return Settled(placement, throughput, float(left[high - 1]), "gap limit", programs)
        reached = threshold.faster_than(candidates, np.nextafter(left[index], 0))
        try:
            program = waited_for(partial(threshold.build, reached), deadline)
        except Ended as end:
            return Settled(placement, throughput, float(left[high - 1]), end.reason, programs)
        run = run_program(program, solver="scip", deadline=deadline)
        programs += 1
        if run.status == "infeasible":
            high = index
        elif run.x is None:
            return Settled(placement, throughput, float(left[high - 1]), run.stopped_by, programs)
        else:
            found = reached.placement(chosen_rows(run.x[threshold.columns(reached).slices["z"]]))
            rate = evaluate(problem, found).rate
            if throughput is None or rate > throughput:
                placement, throughput = found, rate
            reached_to = int(np.searchsorted(left, rate * (1 + LAST_BITS), side="right"))
            if reached_to <= index:
                raise PipelabError(
                    f"a solver returned {rate} tokens/s where {left[index]} are demanded"
                )
            low = reached_to
        index = (low + high) // 2
    return Settled(placement, throughput, throughput, None, programs)


def bound_after(settled: Settled, candidates: Candidates, before: float, claimed: float) -> float:
    """The bound to report: of what was settled and what SCIP claimed, the lower, unless the claim was refuted.

    Parameters
    ----------
    before, claimed : float
        The throughput that went into `settle`, and SCIP's bound; where they are equal, SCIP called
        it optimal, and what its tolerance leaves open ends at the next rate.
    """
    # something faster was found, so SCIP is not to be believed
    if given(settled.throughput) > before * (1 + LAST_BITS):
        return given(settled.bound)
    return min(given(settled.bound), claimed if claimed != before else candidates.next_rate(before))


def chosen_rows(z: np.ndarray) -> np.ndarray:
    """Numbers of the chosen allocations.

    Raises
    ------
    PipelabError
        Some value is not whole.
    """
    if np.abs(z - z.round()).max(initial=0.0) > NOT_SOLVED:
        raise PipelabError("SCIP returned a z that is not whole")
    return np.flatnonzero(z > 0.5)


def _rates(candidates: Candidates) -> np.ndarray:
    """Every rate that a placement of these candidates can have, in any order."""
    fastest = given(candidates.throughput.max())
    links = candidates.link_throughput
    return np.concatenate([candidates.throughput, links[links < fastest]])
