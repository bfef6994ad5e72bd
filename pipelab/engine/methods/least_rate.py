"""A floor of throughput: where it lies among the possible rates, and what to say where nothing reaches it."""

import numpy as np

from pipelab.engine.deadline import Deadline, Ended
from pipelab.engine.formulations.aggregated.rates import StageRates
from pipelab.engine.methods.aggregated import result_of
from pipelab.engine.methods.search import Search
from pipelab.engine.methods.subproblems import Subproblems
from pipelab.engine.objective import Objective
from pipelab.engine.tolerances import REACHED
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.solving import Result


def floor_index(rates: StageRates, at_least: float) -> int:
    """Index of the lowest possible rate that reaches the floor; the number of rates where none does."""
    return int(np.searchsorted(rates.thresholds, at_least * (1 - REACHED)))


def unfinished(
    problem: Problem,
    method: str,
    deadline: Deadline,
    end: Ended,
    objective: Objective,
    best: Placement | None,
) -> Result:
    """What is known where the tables of stages and links were not finished: a placement at most."""
    reason = "the rates of stages were still being listed"
    throughput = evaluate(problem, best).rate if best else None
    return Result(
        problem, method, "feasible" if best else "unknown", best, throughput, None, deadline.spent, {}, "", reason,
        end.reason, {}, objective,
    )  # fmt: skip


def why_out_of_reach(
    rates: StageRates,
    at_least: float,
    deadline: Deadline,
) -> str:
    """The reason where no placement reaches the floor: the greatest throughput there is, by a search of its own.

    Without a floor, or where nothing fits at all, why nothing fits. Ended early, the search still
    knows what nothing exceeds.
    """
    search = Search(Subproblems(rates, deadline))
    search.find_best_rate()
    best = result_of(search)
    if best.status == "infeasible":
        return best.reason
    floor = f"none reaches {at_least:,.7g} tokens/s"
    if best.status == "optimal":
        return f"{floor}, the greatest throughput there is being {best.throughput:,.7g} tokens/s"
    found = (
        f"the fastest found has {best.throughput:,.7g} tokens/s, and " if best.throughput else ""
    )
    return f"{floor}; {found}the greatest throughput is at most {min(given(best.bound), at_least):,.7g} tokens/s"
