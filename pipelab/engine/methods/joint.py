"""The joint ILP of a problem: how large it is, whether it fits, and solved.

SCIP keeps rows to within 1e-6 of their largest entry, here the fastest rate. But a placement is as fast as one
of its stages or links, so the true optimum is a listed rate, and none but those up to SCIP's bound plus that
tolerance can be it: the largest of these is the bound.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pipelab.engine.answers import Result, rated_result
from pipelab.engine.deadline import Deadline, Ended, Stop, deadline_of, made_in_time, waited_for
from pipelab.engine.formulations.candidates import StageCandidates, enumerate_candidates
from pipelab.engine.formulations.joint_ilp_forms import big_m_is_valid, build, joint_form
from pipelab.engine.formulations.program_size import count_candidates
from pipelab.engine.infeasible import infeasible_result, why_infeasible, why_no_layer_fits
from pipelab.engine.instance import instance_of
from pipelab.engine.methods.aggregated import unlisted
from pipelab.engine.methods.first_placements import best_of, incumbents
from pipelab.engine.solvers import choice, highs
from pipelab.engine.solvers.linear_program import LinearProgram
from pipelab.engine.solvers.solver_run import Progress, SolverRun
from pipelab.engine.tolerances import SOLVER
from pipelab.errors import NotApplicable, TooLarge
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.placement import Placement
from pipelab.problem import Problem

# Probing fixes one link variable after the other and learns nothing from it: on small it took
# 39 of 44 s. The written form keeps SCIP's defaults, as the baseline that its author would run.
_SETTINGS = {"written": {}, "tight": {"propagating/probing/maxprerounds": 0}}
# Below a millionth of the fastest rate, SCIP's tolerance hides a rate; below 1e-9 SCIP sees zero, and from
# 1e15 on it does not compute.
_MOST_RATE_RATIO, _LEAST_RATE, _MOST_RATE = 1e6, 1e-4, 1e10

# Peak memory of building and solving, per variable and per row, by form; measured on small
# with two GPUs per stage (tests/benchmarks/joint_build.py) and rounded up.
BYTES = {"written": (2500, 2500), "tight": (15_000, 2500)}


def gigabytes(size: Mapping[str, int], form: str = "written") -> float:
    """Estimate the peak memory of building and solving a model of this size."""
    per_variable, per_row = BYTES[form]
    return (size["variables"] * per_variable + size["rows"] * per_row) / 1e9


def free_gigabytes() -> float:
    """Return the gigabytes of memory that are free now."""
    import psutil

    return psutil.virtual_memory().available / 1e9


def _rounded(amount: float) -> str:
    """Format gigabytes with two significant digits."""
    return f"{amount:,.0f}" if amount >= 10 else f"{amount:.2g}"


def refuse_beyond_memory(what: str, size: Mapping[str, int], need: float, advice: str) -> None:
    """Raise `TooLarge` if more gigabytes are needed than are free.

    The message has every count of `size`, the memory needed and there, and what would help.
    """
    have = free_gigabytes()
    if need <= have:
        return
    counted = ", ".join(f"{number:,} {name}" for name, number in size.items() if name != "segments")
    memory = f"about {_rounded(need)} GB; {_rounded(have)} GB may be used"
    raise TooLarge(f"{what} would have {counted}, {memory}. {advice}")


def joint_size(problem: Problem, form: str = "written") -> dict[str, int]:
    """Count the variables and rows of the joint ILP of a problem, building nothing.

    Parameters
    ----------
    problem : Problem
        Any size.
    form : {"written", "tight"}
        The write-up's constraints, or the equivalent form with the better bound.

    Returns
    -------
    dict of str to int
        `segments`, `allocations`, `connections`, `variables` and `rows`; exact.

    Raises
    ------
    UnknownName
        The form is unknown.
    TooLarge
        There are too many GPU sets even to count.

    References
    ----------
    The write-up, "Problem Size Analysis".

    Examples
    --------
    >>> import pipelab as pl
    >>> joint_size(pl.load_case("demo", max_gpus_per_stage=3))["variables"]
    9887608011
    """
    counts = count_candidates(problem)
    shown = {name: counts[name] for name in ("segments", "allocations", "connections")}
    return shown | joint_form(form).size(counts)


def joint_program(
    problem: Problem, form: str = "written", big_m: str = "valid"
) -> tuple[LinearProgram, StageCandidates]:
    """Build the joint ILP as arrays: a `LinearProgram` and the candidates of its columns.

    Parameters
    ----------
    problem : Problem
        Small enough to be listed.
    form : {"written", "tight"}
        As for `joint_size`.
    big_m : {"valid", "as_written"}
        "as_written" takes the M for links of the author's code, which can cut off the best
        placements.

    Returns
    -------
    program : LinearProgram
        Bounds, whole-number columns, objective and blocks of rows, as arrays.
    candidates : StageCandidates
        What its columns represent; see `enumerate_candidates`.

    Raises
    ------
    TooLarge
        It would not fit in the memory that is free.
    UnknownName
        The form or M is unknown, or the author's M for the tight form, which has none.

    References
    ----------
    The write-up, "Correct Joint ILP Formulation", constraints 1 to 6.
    """
    chosen = joint_form(form, big_m)
    _refuse_if_too_large(problem, form, joint_size(problem, form))
    candidates = enumerate_candidates(problem)
    return build(candidates, chosen, big_m), candidates


def joint_lp_bound(problem: Problem, form: str = "written", big_m: str = "valid") -> float | None:
    """Solve the LP relaxation of the joint ILP: its bound before any branching.

    Parameters
    ----------
    problem : Problem
        Small enough to be listed.
    form : {"written", "tight"}
        As for `joint_size`.
    big_m : {"valid", "as_written"}
        As for `joint_program`.

    Returns
    -------
    float or None
        In tokens/s; None where even the relaxation is infeasible.

    Raises
    ------
    TooLarge
        It would not fit in the memory that is free.
    UnknownName
        The form or M is unknown, or the author's M for the tight form, which has none.
    """
    return highs.run(joint_program(problem, form, big_m)[0].relaxed()).objective


def _refuse_if_too_large(problem: Problem, form: str, size: dict[str, int]) -> None:
    """Raise `TooLarge` with the counts, before anything is listed."""
    what, need = f"the joint ILP of {problem.name}", gigabytes(size, form)
    advice = "A smaller max_gpus_per_stage needs less; method='aggregated' proves the same optimum without a list"
    refuse_beyond_memory(what, size, need, advice)


def solve_joint(
    problem: Problem,
    *,
    form: str = "written",
    big_m: str = "valid",
    time_limit: float | None = None,
    gap: float = 0.0,
    stop: Stop = None,
    on_progress: Callable | None = None,
) -> Result:
    """Solve the joint ILP with SCIP; see `pipelab.engine.solving` for what all methods share.

    Parameters
    ----------
    form : "written" or "tight"
        The write-up's constraints, or the equivalent form with the better bound.
    big_m : "valid" or "as_written"
        "as_written" uses the M for links of the author's code, which can cut off the best
        placements; where it may, what SCIP proved about that model is set aside, and only the
        fastest stage bounds the result. Only for form="written".

    Raises
    ------
    NotApplicable
        Two rates differ by a factor of more than 10^6, which SCIP's tolerance cannot carry.
    TooLarge
        It would not fit in memory.
    """
    chosen = joint_form(form, big_m)
    with deadline_of(time_limit, stop) as deadline:
        size: dict[str, int] = {}
        candidates, reason = None, ""
        try:
            size = waited_for(lambda: joint_size(problem, form), deadline)
            if not size["allocations"]:
                reason = why_no_layer_fits(problem)
                return infeasible_result(problem, "joint", reason, size, deadline)
            _refuse_if_too_large(problem, form, size)
            candidates = made_in_time(partial(enumerate_candidates, problem), deadline)
            refuse_far_apart(candidates, "joint")
            program = waited_for(partial(build, candidates, chosen, big_m), deadline)
            settings = _SETTINGS[form]
            run, placement = run_scip(program, candidates, deadline, gap, on_progress, settings)
        except Ended as end:
            if candidates is None:
                what = "its allocations and connections"
                return unlisted(problem, "joint", size, deadline, end, what)
            run, placement = SolverRun(status="stopped", stopped_by=end.reason), None
            reason = "the program was still being built"
        if run.status == "infeasible":  # whatever M is: t = 0 keeps every row that has one
            solver = choice.solver_version("scip")
            reason = why_infeasible(instance_of(problem), solver)
            return infeasible_result(problem, "joint", reason, size, deadline, solver)
        valid = big_m_is_valid(candidates, big_m)
        if run.status == "stopped" and (valid or placement is None):
            placement = _faster(problem, placement)
        throughput = None if placement is None else evaluate(problem, placement).rate
        proven = not_refuted(run.bound if valid else None, throughput, candidates)
        if not valid and not reason:
            reason = _not_trusted(run)
        return result_of(problem, "joint", run, placement, proven, size, deadline, reason)


def run_scip(
    program: LinearProgram,
    candidates: StageCandidates,
    deadline: Deadline,
    gap: float,
    on_progress: Callable | None,
    settings: Mapping[str, Any] | None = None,
) -> tuple[SolverRun, Placement | None]:
    """Solve a program over candidates with SCIP, and return its run and placement.

    Its progress has the placement of every incumbent.
    """

    def read(z: np.ndarray) -> Placement:
        return candidates.placement(np.flatnonzero(z > 0.5))

    z = program.columns.slices["z"]
    run = choice.run_program(
        program,
        "scip",
        gap=gap,
        deadline=deadline,
        on_progress=on_progress,
        settings=settings,
        reading=(z, read),
    )
    return run, None if run.x is None else read(run.x[z])


def _faster(problem: Problem, placement: Placement | None) -> Placement | None:
    """Return the placement, or one by rules of thumb if that is faster."""
    simple = incumbents(problem)
    if placement is not None:
        simple[placement] = evaluate(problem, placement)
    return best_of(simple)


def not_refuted(
    proven: float | None, throughput: float | None, candidates: StageCandidates
) -> float:
    """Return the bound in listed rates, or the fastest stage's rate where a placement refutes it."""
    bound = candidates.rate_at_most(proven)
    refuted = throughput is not None and bound < throughput * (1 - SOLVER)
    return candidates.rate_at_most(None) if refuted else bound


def refuse_far_apart(candidates: StageCandidates, method: str) -> None:
    """Raise `NotApplicable` where two rates are too far apart for SCIP; links faster than every stage do not count."""
    fastest = given(candidates.throughput.max())
    links = candidates.link_throughput
    slowest = min(candidates.throughput.min(), links[links < fastest].min(initial=np.inf))
    if fastest <= slowest * _MOST_RATE_RATIO and slowest >= _LEAST_RATE and fastest <= _MOST_RATE:
        return
    expected = (
        f"expected rates within a factor of 10^6, from {_LEAST_RATE:g} to {_MOST_RATE:g}: the fastest stage has "
        f"{fastest:.3g} tokens/s and the slowest stage or link {slowest:.3g}. method='aggregated' takes any"
    )
    raise NotApplicable(method, [("problem", candidates.problem.name, expected)])


def result_of(
    problem: Problem,
    method: str,
    run: SolverRun,
    placement: Placement | None,
    proven: float,
    size: Mapping[str, int],
    deadline: Deadline,
    reason: str,
) -> Result:
    """Return the result of a run of SCIP; no placement is faster than `proven`."""
    result = rated_result(
        problem,
        method,
        placement,
        proven,
        seconds=deadline.spent,
        size=size,
        solver=choice.solver_version("scip"),
        reason=reason,
        stopped_by=run.stopped_by,
    )
    last = Progress(
        seconds=run.solve_seconds,
        incumbent=result.throughput,
        bound=result.bound,
        nodes=run.nodes,
        placement=placement,
    )
    details = {
        "build_seconds": result.seconds - run.solve_seconds,
        "solve_seconds": run.solve_seconds,
        "nodes": run.nodes,
        "progress": (*run.progress, last),
        "solver_status": run.status,
        "solver_objective": run.objective,
    }
    return replace(result, details=details)


def _not_trusted(run: SolverRun) -> str:
    claim = "SCIP finds nothing"
    if run.objective:
        claim = f"SCIP calls {run.objective:,.7g} {run.status} for this model"
    source = "The M for links, taken from the code of the write-up's author, is too small here"
    return f"{source}: {claim}. That is set aside; the fastest stage is the bound"
