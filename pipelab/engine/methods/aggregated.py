"""The aggregated form from problem to result: search for the best rate, one small program after the other.

Equals `pipelab.counting` on its domain; see tests/equal/test_definitions_placement.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from pipelab.engine.answers import Result, rated_result
from pipelab.engine.deadline import Deadline, Ended, Stop, deadline_of, made_in_time
from pipelab.engine.infeasible import why_infeasible
from pipelab.engine.instance import instance_of, listed
from pipelab.engine.methods.first_placements import best_of, incumbents
from pipelab.engine.prices import refuse_unpriced
from pipelab.engine.rate_search import SETS, RateSearch, least, used
from pipelab.engine.reach import AtRate
from pipelab.engine.solvers.choice import solver_version
from pipelab.engine.tolerances import ATTAINED
from pipelab.errors import TooLarge
from pipelab.problem import Problem


def solve_aggregated(
    problem: Problem,
    *,
    budget: float | None = None,
    time_limit: float | None = None,
    gap: float = 0.0,
    stop: Stop = None,
    on_progress: Callable | None = None,
) -> Result:
    """Find the joint ILP's optimum by counting stages over classes of interchangeable GPUs.

    Among placements of equal throughput the answer is one with the fewest GPUs, then the
    fewest stages, then the lowest price per hour where every GPU has a price; and the same on
    every run.

    Parameters
    ----------
    budget : float, optional
        As for `solve`.
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
    Exact: the throughput is one of finitely many rates (`Instance.thresholds`). Whether a
    placement reaches a given rate is a small integer program over the stages that
    reach it; what reaches a rate reaches every lower one, so a search over the sorted rates
    ends at the best.

    Examples
    --------
    >>> import pipelab as pl
    >>> result = pl.solve(pl.load_case("demo", max_gpus_per_stage=3), "aggregated")
    >>> result.status, round(result.throughput, 4)
    ('optimal', 1046.5812)
    """
    most = {}
    if budget is not None:
        refuse_unpriced(problem, "solve")
        most = {"price": budget}
    with deadline_of(time_limit, stop) as deadline:
        try:
            instance = made_in_time(
                lambda until: listed(instance_of(problem, until), until), deadline
            )
        except Ended as end:
            return unlisted(problem, "aggregated", {}, deadline, end, "the rates of stages", budget)
        search = RateSearch(
            instance=instance, deadline=deadline, most=most, gap=gap, on_progress=on_progress
        ).run()
        if search.best is None and search.stopped is not None:
            known = best_of(incumbents(problem, budget))
            if known is not None:
                search.keep(known)
        return result_of(search)


def unlisted(
    problem: Problem,
    method: str,
    size: Mapping[str, int],
    deadline: Deadline,
    end: Ended,
    what: str,
    budget: float | None = None,
) -> Result:
    """Return the result of a method that was stopped while listing: a rule of thumb's placement at most, no bound."""
    return rated_result(
        problem,
        method,
        placement=best_of(incumbents(problem, budget)),
        bound=None,
        seconds=deadline.spent,
        size=size,
        reason=f"{what} were still being listed",
        stopped_by=end.reason,
    )


def _why_none(search: RateSearch, solver: str) -> str:
    """Say why no placement holds all layers, or that none does within the budget."""
    instance, budget = search.instance, search.most.get("price")
    if budget is not None and len(instance.thresholds):
        try:
            reach = AtRate(instance, float(instance.thresholds[0]), deadline=search.deadline)
            cheapest = least(reach, {"price": 1.0}, {})
        except (Ended, TooLarge):
            return f"none costs at most {budget:.7g} $ per hour"
        if cheapest.placement is not None:
            price = used(instance.problem, "price", cheapest.placement)
            some = "the cheapest" if cheapest.bound >= price * (1 - ATTAINED) else "one that fits"
            digits = 7 if f"{price:.7g}" != f"{budget:.7g}" else 17
            return f"{some} costs {price:.{digits}g} $ per hour, more than the budget of {budget:.{digits}g}"
    return why_infeasible(instance, solver)


def result_of(search: RateSearch) -> Result:
    """Make the result of a search that has ended."""
    instance, problem = search.instance, search.instance.problem
    size = {
        "classes": len(instance.classes),
        "mixtures": len(instance.composition),
        "rates": len(instance.thresholds),
        **search.size,
    }
    reason, solver = "", solver_version() if search.log else ""
    if search.high < 0:
        reason = _why_none(search, solver)
    if search.stopped == SETS:
        mixed = f"stages that mix many of the {len(instance.classes)} classes"
        reason = search.refusal or f"{mixed} were left out where links bind"
    details = {
        "subproblems": tuple(search.log),
        "progress": tuple(search.progress),
        "nodes": search.nodes,
        "fewest": search.fewest,
        "instance": instance,
    }
    result = rated_result(
        problem,
        "aggregated",
        search.best,
        search.bound,
        seconds=search.deadline.spent,
        size=size,
        solver=solver,
        reason=search.deadline.remark(reason),
        stopped_by=None if search.high < 0 else search.stopped,
        details=details,
    )
    return result if search.high >= 0 else replace(result, status="infeasible", bound=None)
