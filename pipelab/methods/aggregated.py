"""The aggregated form from problem to result: search for the best rate, one small program a question."""

import threading
import time
from collections.abc import Callable

from pipelab.formulations.aggregated.rates import stage_rates
from pipelab.infeasible import why_no_layer_fits, why_too_few
from pipelab.methods.search import Search
from pipelab.methods.solvers import check_solver, solver_version
from pipelab.problem import Problem
from pipelab.result import Result, status_and_bound

__all__ = ["solve_aggregated"]


def solve_aggregated(
    problem: Problem,
    *,
    solver: str = "scip",
    time_limit: float | None = None,
    gap: float = 0.0,
    stop: threading.Event | None = None,
    on_progress: Callable | None = None,
) -> Result:
    """The joint ILP's optimum by counting stages over classes of interchangeable GPUs.

    Among placements of equal throughput the answer is one with the fewest GPUs, then the
    fewest stages, then the lowest price per hour where every GPU has a price; and the same on
    every run.

    Parameters
    ----------
    solver : "scip" or "highs"
        Who answers the small programs.
    time_limit, gap, stop, on_progress
        As for `solve`. Ended early, the answer is the best placement so far, with the fastest
        rate that is not ruled out as its bound.

    Returns
    -------
    Result
        `details["questions"]` lists every small program asked; `details["fewest"]` says whether
        the choice among equally fast placements was finished too.

    Notes
    -----
    Exact: the throughput is one of finitely many rates (`StageRates.thresholds`). Whether a
    placement reaches a given rate is a small integer program over the recipes for stages that
    reach it; what reaches a rate reaches every lower one, so a search over the sorted rates
    ends at the best.

    Examples
    --------
    >>> import pipelab as pl
    >>> result = pl.solve(pl.load_case("demo", max_gpus_per_stage=3), "aggregated")
    >>> result.status, round(result.throughput, 4)
    ('optimal', 1046.5812)
    """
    check_solver(solver)
    began = time.perf_counter()
    return result_of(Search(stage_rates(problem), solver, began, time_limit, gap, stop, on_progress).run())


def result_of(search: Search) -> Result:
    """What is known when the search has ended."""
    problem = search.rates.problem
    size = {
        "classes": len(search.rates.classes),
        "mixtures": len(search.rates.composition),
        "rates": len(search.thresholds),
        "questions": len(search.questions),
        "variables": max((q.variables for q in search.questions), default=0),
        "rows": max((q.rows for q in search.questions), default=0),
    }
    bound = float(search.thresholds[search.high]) if search.high >= 0 else None
    if search.low == search.high:  # one rate, computed by two paths
        bound = search.throughput
    status, bound = status_and_bound(search.throughput, bound)
    reason = ""
    if search.high < 0:
        status, bound, reason = "infeasible", None, _why_infeasible(search)
    if search.stopped == "list limit":
        reason = f"stages that mix many of the {len(search.rates.classes)} classes were left out where links bind"
    details = {
        "questions": tuple(search.questions),
        "progress": tuple(search.progress),
        "nodes": search.nodes,
        "fewest": search.fewest,
        "rates": search.rates,
    }
    return Result(
        problem, "aggregated", status, search.best, search.throughput, bound, time.perf_counter() - search.began, size,
        _solver_name(search), reason, search.stopped if status != "optimal" else None, details,
    )  # fmt: skip


def _solver_name(search: Search) -> str:
    return solver_version(search.solver) if search.questions else ""


def _why_infeasible(search: Search) -> str:
    problem = search.rates.problem
    if not len(search.thresholds):
        return why_no_layer_fits(problem)
    return why_too_few(problem, search.rates.holdable(search.thresholds[:1])[0], _solver_name(search))
