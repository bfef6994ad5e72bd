"""The original MILP from problem to result: one GPU per stage."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelab.engine.deadline import Deadline, Ended, deadline_of, made_in_time, waited_for
from pipelab.engine.formulations import segment_rules, single_gpu, threshold
from pipelab.engine.formulations.candidates import stage_rates
from pipelab.engine.infeasible import why_no_layer_fits, why_not_all_layers_fit
from pipelab.engine.methods.aggregated import unlisted
from pipelab.engine.methods.exact_proof import (
    bound_after,
    out_of_reach,
    refuse_out_of_reach,
    settle,
    settled_without_rates,
)
from pipelab.engine.methods.memory import refuse_if_too_large
from pipelab.engine.objective import status_and_bound
from pipelab.engine.solvers.choice import run_program
from pipelab.errors import InvalidPlacement, UnknownName, nearest
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.problem import Problem
from pipelab.solving import Result

if TYPE_CHECKING:
    from pipelab.engine.formulations.candidates import Candidates
    from pipelab.engine.formulations.segment_rules import SegmentRules

SEGMENTS = ("all", "as_run")
LINKS = ("needed", "all")
_BEST_AS_RUN = "best among the segments of the author's run, which leave out others that fit"
_NONE_AS_RUN = (
    "no placement consists of segments of the author's run, which leave out others that fit"
)
_MISFIT_AS_RUN = "the author's run allows every GPU one layer, and SCIP's choice does not fit"


def single_gpu_size(problem: Problem, segments: str = "all") -> dict[str, int]:
    """How large the original MILP is with every connection, counted without building anything.

    Parameters
    ----------
    problem : Problem
        Its `max_gpus_per_stage` is taken for 1.
    segments : {"all", "as_run"}
        "as_run" counts those of the author's run: first layers on a grid, smallest sizes, one layer
        on every GPU.

    Returns
    -------
    dict of str to int
        `segments`, `connections`, `variables` and `rows`; exact.

    Raises
    ------
    UnknownName
        The choice of segments is unknown.
    NotApplicable
        "as_run" does not apply where layers differ.

    References
    ----------
    The write-up, "Original Solver Analysis"; gangmuk/LLM_placement_solver, `solver_constrained.py`
    at commit 2efc2c6.

    Examples
    --------
    >>> import pipelab as pl
    >>> size = single_gpu_size(pl.load_case("medium"), segments="as_run")
    >>> size["segments"], size["connections"], size["rows"]
    (5740, 312210, 1568029)
    """
    return _size(
        segment_rules.rules(problem, as_run=_option("segments", segments, SEGMENTS) == "as_run")
    )


def solve_single_gpu(
    problem: Problem,
    *,
    segments: str = "all",
    links: str = "needed",
    time_limit: float | None = None,
    gap: float = 0.0,
    memory_limit_gb: float | None = None,
    stop: threading.Event | None = None,
    on_progress: Callable | None = None,
) -> Result:
    """Solve the original MILP, one GPU per stage, with SCIP.

    Parameters
    ----------
    segments : "all" or "as_run"
        "as_run" keeps the restrictions of the author's run: starts on a grid, smallest
        sizes, one layer on every GPU. Its optimum is not the problem's, and is called
        optimal only where it meets the upper bound.
    links : "needed" or "all"
        "needed" leaves out every connection that is too fast to be the bottleneck, which changes no
        answer, and where that leaves none asks first for a placement that reaches the upper bound
        (for half of the time at most); "all" builds the model as written, with its 317,950 binaries
        on medium.
    time_limit, gap, memory_limit_gb, stop, on_progress
        As for `solve_joint`.
    """
    _option("links", links, LINKS)
    as_run = _option("segments", segments, SEGMENTS) == "as_run"
    with deadline_of(time_limit, stop) as deadline:
        try:
            chosen = made_in_time(
                lambda until: segment_rules.rules(problem, as_run, until), deadline
            )
            size = _size(chosen)
            bound = made_in_time(lambda until: segment_rules.upper_bound(chosen, until), deadline)
            if bound is None:
                return _infeasible(problem, chosen, size, deadline)
            name = f"the single-GPU MILP of {problem.name}"
            refuse_if_too_large(name, size, "links='needed'", memory_limit_gb, links)
            candidates = waited_for(lambda: segment_rules.segments(chosen, deadline), deadline)
            return _solve(
                problem, chosen, candidates, size, bound, links, gap, on_progress, deadline
            )
        except Ended as end:
            alone = replace(problem, max_gpus_per_stage=1)
            return replace(
                unlisted(alone, "single_gpu", {}, deadline, end, "its segments and connections"),
                problem=problem,
            )


def _solve(
    problem: Problem,
    chosen: "SegmentRules",
    candidates: "Candidates",
    size: dict[str, int],
    bound: float,
    links: str,
    gap: float,
    on_progress: Callable | None,
    deadline: Deadline,
) -> Result:
    """The same where the segments are listed."""
    from pipelab.engine.solvers import scip

    clash = out_of_reach(candidates)
    if clash and not chosen.restricted:
        return _without_scips_tolerance(
            problem, _that_fit(candidates, chosen), chosen, size, clash, gap, deadline
        )
    refuse_out_of_reach(candidates, "single_gpu, segments='as_run'")

    def attempt(segments: Any, share: float) -> Any:
        program = waited_for(
            lambda: single_gpu.build(segments, bound, all_links=links == "all"), deadline
        )
        part, built = deadline.within(deadline.left * share), deadline.spent
        return (
            segments,
            program,
            built,
            run_program(program, solver="scip", deadline=part, gap=gap, on_progress=on_progress),
        )

    fast = _at_the_bound(candidates, bound) if links == "needed" and not chosen.restricted else None
    if fast is not None:
        tried, program, built, run = attempt(fast, 0.5)
    if fast is None or (run.x is None and run.stopped_by in (None, "time limit")):
        tried, program, built, run = attempt(candidates, 1.0)
    if run.status == "infeasible" and not chosen.restricted:
        return _infeasible(problem, chosen, size, deadline)
    placement = throughput = None
    reason, stopped_by = "", run.stopped_by
    if run.x is not None:
        placement = tried.placement(np.flatnonzero(run.x[program.columns.slices["z"]] > 0.5))
        try:
            throughput = evaluate(problem, placement).rate
        except InvalidPlacement as error:
            placement, reason = None, f"{_MISFIT_AS_RUN}: {'; '.join(error.defects)}"
    elif run.status == "infeasible":
        reason = _NONE_AS_RUN
    if chosen.restricted:  # SCIP's own bound holds for the restricted model only
        status, proven = status_and_bound(throughput, bound)
    else:
        proven = min(bound, candidates.rate_at_most(run.bound))
        status, proven = status_and_bound(throughput, proven)
        if (
            throughput is not None
            and throughput < bound
            and (status == "optimal" or run.status == "optimal")
        ):
            before = throughput
            that_fit = _that_fit(candidates, chosen)
            settled = settle(that_fit, placement, deadline, bound)
            placement, throughput, stopped_by = (
                settled.placement,
                given(settled.throughput),
                settled.stopped_by,
            )
            status, proven = status_and_bound(
                throughput, bound_after(settled, that_fit, before, given(proven))
            )
    if (
        chosen.restricted
        and placement is not None
        and status != "optimal"
        and run.status == "optimal"
    ):
        reason = _BEST_AS_RUN
    status, proven, reason, among = _for_the_problem(problem, status, throughput, proven, reason)
    details = {
        "build_seconds": built + run.build_seconds,
        "solve_seconds": run.solve_seconds,
        "nodes": run.nodes,
        "progress": run.progress,
        "solver_status": run.status,
        "solver_objective": run.objective,
        "built": program.size,
        "upper_bound": bound,
        "proven_among": among,
    }
    return Result(
        problem, "single_gpu", status, placement, throughput, proven, deadline.spent, size,
        scip.version(), deadline.remark(reason),
        None if status == "optimal" or among else stopped_by, details,
    )  # fmt: skip


def _without_scips_tolerance(
    problem: Problem, candidates: "Candidates", chosen: "SegmentRules", size: dict[str, int], clash: str, gap: float,
    deadline: Deadline,
) -> Result:  # fmt: skip
    """Solve by feasibility problems alone: SCIP's tolerance cannot carry rates so far apart."""
    from pipelab.engine.solvers import scip

    built = deadline.spent
    settled = settle(candidates, None, deadline, gap=gap)
    if settled.placement is None and settled.stopped_by is None:
        return _infeasible(problem, chosen, size, deadline)
    status, bound = status_and_bound(settled.throughput, settled.bound)
    reason = settled_without_rates(settled, clash)
    status, bound, reason, among = _for_the_problem(
        problem, status, settled.throughput, bound, reason
    )
    details = {
        "build_seconds": built, "solve_seconds": deadline.spent - built, "nodes": 0, "progress": (),
        "solver_status": status, "solver_objective": None, "built": size,
        "upper_bound": segment_rules.upper_bound(chosen),
        "proven_among": among,
    }  # fmt: skip
    return Result(
        problem, "single_gpu", status, settled.placement, settled.throughput, bound, deadline.spent, size,
        scip.version(), deadline.remark(reason),
        None if status == "optimal" or among else settled.stopped_by, details,
    )  # fmt: skip


def _that_fit(candidates: "Candidates", chosen: "SegmentRules") -> "Candidates":
    """The segments without those of the author's run that no memory holds."""
    if (chosen.allowed <= chosen.fits).all():
        return candidates
    return segment_rules.segments(replace(chosen, allowed=chosen.allowed & chosen.fits))


def _at_the_bound(candidates: "Candidates", bound: float) -> "Candidates | None":
    """The segments that reach the bound, where no link is slower than it; None otherwise.

    They are few, and a pipeline made of them needs no further proof: on medium SCIP finds one
    in a tenth of the time that all segments take. If there is none, nothing is lost but that.
    """
    if (candidates.link_throughput < bound).any():
        return None
    # at least as fast as the bound
    fast = threshold.faster_than(candidates, np.nextafter(bound, 0))
    return fast if len(fast.start) else None


def _option(name: str, value: str, known: Iterable[str]) -> str:
    if value not in known:
        raise UnknownName(f"there is no {name}={value!r}; {nearest(value, known)}")
    return value


def _size(chosen: "SegmentRules") -> dict[str, int]:
    counts = segment_rules.count_segments(chosen)
    return {name: counts[name] for name in ("segments", "connections")} | single_gpu.size(counts)


def _infeasible(
    problem: Problem, chosen: "SegmentRules", size: dict[str, int], deadline: Deadline
) -> Result:
    """With one GPU per stage; where a stage may have more, that is said and nothing is claimed for them."""
    alone = replace(problem, max_gpus_per_stage=1)
    sets = tuple((g,) for g in range(len(problem.cluster)))
    fits = stage_rates(alone, sets)[1]
    reason = (
        why_not_all_layers_fit(alone, sets, fits, "SCIP")
        if fits.any()
        else why_no_layer_fits(alone)
    )
    status = "infeasible" if problem.max_gpus_per_stage == 1 else "unknown"
    return Result(
        problem, "single_gpu", status, None, None, None, deadline.spent, size, "",
        reason if status == "infeasible" else f"with one GPU per stage, {reason}",
    )  # fmt: skip


def _for_the_problem(
    problem: Problem, status: str, throughput: float | None, bound: float | None, reason: str
) -> tuple[str, float | None, str, str]:
    """What was proven of one GPU per stage is no bound where more are allowed; the last says among what it is."""
    if problem.max_gpus_per_stage == 1:
        return status, bound, reason, ""
    remark = "; ".join(
        filter(None, (f"with one GPU per stage: {status}", reason, "more per stage may be faster"))
    )
    among = "one GPU per stage" if status == "optimal" else ""
    return ("unknown" if throughput is None else "feasible"), None, remark, among
