"""The aggregated form from problem to result: search for the best rate, one small program after the other.

Equals `pipelab.counting` on its domain; see tests/test_definitions_placement.py.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from pipelab.engine.deadline import Deadline, Ended, deadline_of, made_in_time
from pipelab.engine.infeasible import why_no_layer_fits, why_too_few
from pipelab.engine.layer_runs import runs_of
from pipelab.engine.methods.first_placements import Value, best_of, fastest, incumbents
from pipelab.engine.nodes import (
    NodeRates,
    mixtures_by_nodes,
    one_node_after_another,
    rates_by_nodes,
)
from pipelab.engine.objective import status_and_bound
from pipelab.engine.rates import StageRates, stage_rates
from pipelab.engine.search import Search, Subproblems, bound_in_one_node
from pipelab.engine.solvers.choice import solver_version
from pipelab.evaluation import Evaluation, evaluate
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.solving import Result

# More cells than these take seconds: stages of one kind of GPU, whose table is there at once, come
# first.
_MANY_CELLS = 1_000_000
_FIRST_SECONDS = 5.0
_LATE_SECONDS = 0.2  # for a table after the end


def solve_aggregated(
    problem: Problem,
    *,
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
    time_limit, gap, stop, on_progress
        As for `solve`. Ended early, the answer is the best placement so far, with the fastest
        rate that is not ruled out as its bound.

    Returns
    -------
    Result
        `details["subproblems"]` lists every small program solved; `details["fewest"]` says whether
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
    with deadline_of(time_limit, stop) as deadline:
        first, bound = first_search(problem, deadline), None
        try:
            if _many(problem):
                bound = bound_in_one_node(problem, deadline)
            subproblems = Subproblems(rates_in_time(problem, deadline), deadline)
            search = Search(subproblems, gap, on_progress)
        except Ended as end:
            known = (
                result_of(first, end.reason)
                if first is not None
                else _nothing(problem, deadline, end.reason)
            )
            return _bounded(known, bound)
        if first is not None and first.best is not None:
            search.keep(first.best)
        _keep_simple(search)
        return result_of(search.run())


def _keep_simple(search: Search) -> None:
    """Where nodes repeat: begin with the best of the incumbents and of one node after the other."""
    rates = search.subproblems.rates
    if not isinstance(rates, NodeRates):
        return
    for placement in (one_node_after_another(rates), best_of(incumbents(rates.problem))):
        if placement is None:
            continue
        if (
            search.throughput is None
            or search.subproblems.throughput(placement) > search.throughput
        ):
            search.keep(placement)


def rates_in_time(problem: Problem, deadline: Deadline, alone: bool = False) -> StageRates:
    """The tables; where the deadline is over, in spite of that if they take a moment only."""
    if not alone and _many(problem):
        return rates_by_nodes(problem, deadline)
    made = (
        (lambda until: stage_rates(problem, until, True))
        if alone
        else (lambda until: rates_by_nodes(problem, until))
    )
    return made_in_time(made, deadline, _LATE_SECONDS)


def first_search(problem: Problem, deadline: Deadline) -> Search | None:
    """Where the tables take long, a search among stages of one kind of GPU each: something to fall back on.

    There may be better placements, and if it finds none, there may be some; None where tables are
    small.
    """
    if not _many(problem):
        return None
    try:
        subproblems = Subproblems(rates_in_time(problem, deadline, alone=True))
    except Ended:
        return None
    subproblems.deadline = deadline.within(min(_FIRST_SECONDS, deadline.left / 4))
    search = Search(subproblems).run()
    subproblems.deadline = deadline
    return search


def stand_in(
    problem: Problem,
    at_least: float = 0.0,
    value: Value = fastest,
    yields: Callable[[Evaluation], float] = lambda evaluation: evaluation.rate,
) -> Placement | None:
    """Find a placement of at least this rate within 0.4 s after an early stop; None if there is none.

    Incumbents need no table: the answer is no worse than theirs.
    """
    found = incumbents(problem)
    try:
        rates = stage_rates(problem, Deadline(_LATE_SECONDS), alone=True)
        best = Search(Subproblems(rates, deadline=Deadline(0))).run().best
        if best is not None:
            found[best] = evaluate(problem, best)
    except Ended:
        pass
    return best_of(found, at_least, value, yields)


def _many(problem: Problem) -> bool:
    return mixtures_by_nodes(problem) * len(runs_of(problem.model).layers) > _MANY_CELLS


def _nothing(problem: Problem, deadline: Deadline, reason: str) -> Result:
    """Ended before there was any table of rates."""
    details = {"subproblems": (), "progress": (), "nodes": 0, "fewest": False, "rates": None}
    return replace(
        unlisted(problem, "aggregated", {}, deadline, Ended(reason), "the rates of stages"),
        details=details,
    )


def _bounded(known: Result, bound: float | None) -> Result:
    """The same with a proven bound."""
    status, bound = status_and_bound(known.throughput, bound)
    if status == "optimal":
        return replace(known, status=status, bound=bound, reason="", stopped_by=None)
    return replace(known, status=status, bound=bound)


def unlisted(
    problem: Problem,
    method: str,
    size: Mapping[str, int],
    deadline: Deadline,
    end: Ended,
    what: str,
) -> Result:
    """The result of a method that was stopped while listing: a placement at most, no bound."""
    best = stand_in(problem)
    throughput = evaluate(problem, best).rate if best else None
    return Result(
        problem,
        method,
        "feasible" if best else "unknown",
        best,
        throughput,
        None,
        deadline.spent,
        size,
        "",
        f"{what} were still being listed",
        end.reason,
    )


def result_of(search: Search, ended: str | None = None) -> Result:
    """What is known when the search has ended.

    Parameters
    ----------
    ended : str, optional
        What ended the listing of rates: the search was about some of the stages only, and proves
        nothing.
    """
    subproblems, rates = search.subproblems, search.subproblems.rates
    problem = rates.problem
    size = {
        "classes": len(rates.classes),
        "mixtures": len(rates.composition),
        "rates": len(rates.thresholds),
        **subproblems.size,
    }
    bound = subproblems.rate(search.high) if search.high >= 0 else None
    if search.low == search.high:  # one rate, computed by two paths
        bound = search.throughput
    status, bound = status_and_bound(search.throughput, bound)
    reason = ""
    if ended is not None:
        status, bound = "feasible" if search.best else "unknown", None
        reason = "the rates of stages that mix GPUs were still being listed"
    elif search.high < 0:
        status, bound, reason = "infeasible", None, _why_infeasible(subproblems)
    if search.stopped == "list limit":
        reason = f"stages that mix many of the {len(rates.classes)} classes were left out where links bind"
    details = {
        "subproblems": tuple(subproblems.log),
        "progress": tuple(search.progress),
        "nodes": subproblems.nodes,
        "fewest": search.fewest,
        "rates": rates,
    }
    stopped_by = None if status in ("optimal", "infeasible") else ended or search.stopped
    return Result(
        problem,
        "aggregated",
        status,
        search.best,
        search.throughput,
        bound,
        subproblems.deadline.spent,
        size,
        _solver_name(subproblems),
        subproblems.deadline.remark(reason),
        stopped_by,
        details,
    )


def _solver_name(subproblems: Subproblems) -> str:
    return solver_version() if subproblems.log else ""


def _why_infeasible(subproblems: Subproblems) -> str:
    rates = subproblems.rates
    if not len(rates.thresholds):
        return why_no_layer_fits(rates.problem)
    holdable = rates.holdable(rates.thresholds[:1])[0]
    return why_too_few(rates.problem, holdable, _solver_name(subproblems))
