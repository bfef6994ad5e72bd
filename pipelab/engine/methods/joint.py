"""The joint ILP of a problem, and the original MILP, one GPU per stage: how large, whether they fit, and solved.

SCIP keeps rows to within 1e-6 of their largest entry, here the fastest rate. But a placement is as fast as one
of its stages or links, so the true optimum is a listed rate, and none but those up to SCIP's bound plus that
tolerance can be it: the largest of these is the bound.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pipelab.engine.deadline import Deadline, Ended, deadline_of, made_in_time, waited_for
from pipelab.engine.formulations import joint, single_gpu
from pipelab.engine.formulations.candidates import (
    Candidates,
    all_candidates,
    enumerate_candidates,
    stage_rates,
)
from pipelab.engine.formulations.count import count_candidates
from pipelab.engine.formulations.joint import joint_form
from pipelab.engine.infeasible import why_no_layer_fits, why_not_all_layers_fit
from pipelab.engine.methods.aggregated import unlisted
from pipelab.engine.methods.first_placements import best_of, incumbents
from pipelab.engine.objective import status_and_bound
from pipelab.engine.solvers import choice, highs
from pipelab.engine.solvers.linear_program import LinearProgram
from pipelab.engine.solvers.solver_run import Progress, SolverRun
from pipelab.engine.tolerances import NOT_SOLVED, SOLVER
from pipelab.errors import (
    InvalidPlacement,
    NotApplicable,
    PipelabError,
    TooLarge,
    UnknownName,
    nearest,
)
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.solving import Result

_LATE_SECONDS = 0.3  # for listing candidates after the end: mostly it takes a moment
# Probing fixes one link variable after the other and learns nothing from it: on small it took
# 39 of 44 s. The written form keeps SCIP's defaults, as the baseline that its author would run.
_SETTINGS = {"written": {}, "tight": {"propagating/probing/maxprerounds": 0}}
# Below a millionth of the fastest rate, SCIP's tolerance hides a rate; below 1e-9 SCIP sees zero, and from
# 1e15 on it does not compute.
_FAR_APART, _SMALL, _LARGE = 1e6, 1e-4, 1e10
SEGMENTS = ("all", "as_run")
_BEST_AS_RUN = "best among the segments of the author's run, which leave out others that fit"
_NONE_AS_RUN = (
    "no placement consists of segments of the author's run, which leave out others that fit"
)
_MISFIT_AS_RUN = "the author's run allows every GPU one layer, and SCIP's choice does not fit"

# Peak memory of building and solving, per variable and per row, by form; measured on small
# with two GPUs per stage (tests/benchmarks/joint_build.py) and rounded up.
BYTES = {"written": (2500, 2500), "tight": (15_000, 2500)}


def gigabytes(size: Mapping[str, int], form: str = "written") -> float:
    """Estimated peak memory of building and solving a model of this size."""
    per_variable, per_row = BYTES[form]
    return (size["variables"] * per_variable + size["rows"] * per_row) / 1e9


def free_gigabytes() -> float:
    """Memory that is free now."""
    import psutil

    return psutil.virtual_memory().available / 1e9


def _rounded(amount: float) -> str:
    """Gigabytes as people say them."""
    return f"{amount:,.0f}" if amount >= 10 else f"{amount:.2g}"


def _refuse(what: str, size: Mapping[str, int], need: float, have: float, advice: str) -> None:
    """Raise `TooLarge` with every count of `size`, the memory needed and there, and what would help."""
    counted = ", ".join(f"{number:,} {name}" for name, number in size.items() if name != "segments")
    raise TooLarge(
        f"{what} would have {counted}, about {_rounded(need)} GB; {_rounded(have)} GB may be used. {advice}",
        dict(size),
    )


def joint_size(problem: Problem, form: str = "written") -> dict[str, int]:
    """How large the joint ILP of a problem is, counted without building anything.

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


def joint_capacity(form: str = "written") -> int:
    """About how many variables of the joint ILP fit in the memory that is free now.

    Parameters
    ----------
    form : {"written", "tight"}
        As for `joint_size`.

    Returns
    -------
    int
        From bytes per variable and row that were measured, rounded up.

    Raises
    ------
    UnknownName
        The form is unknown.
    """
    joint_form(form)
    per_variable, per_row = BYTES[form]
    rows = {"written": 2.0, "tight": 0.0}[form]  # per variable, as the cases grow
    return int(free_gigabytes() * 1e9 / (per_variable + rows * per_row))


def joint_program(
    problem: Problem, form: str = "written", big_m: str = "valid"
) -> tuple[LinearProgram, Candidates]:
    """The joint ILP as arrays: a `LinearProgram` and the candidates of its columns.

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
    candidates : Candidates
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
    joint_form(form, big_m)
    _refuse_if_too_large(problem, form, joint_size(problem, form), None)
    candidates = enumerate_candidates(problem)
    return joint.build(candidates, form, big_m), candidates


def joint_lp_bound(problem: Problem, form: str = "written", big_m: str = "valid") -> float | None:
    """Optimum of the LP relaxation of the joint ILP: its bound before any branching.

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


def _refuse_if_too_large(
    problem: Problem, form: str, size: dict[str, int], limit_gb: float | None
) -> None:
    """Raise `TooLarge` with the counts, before anything is listed."""
    need = gigabytes(size, form)
    have = limit_gb if limit_gb is not None else free_gigabytes()
    if need > have:
        _refuse(
            f"the joint ILP of {problem.name}", size, need, have, _what_would_fit(problem, have)
        )


def _what_would_fit(problem: Problem, have: float) -> str:
    """Smaller settings of the same problem, with their counts; the first of each kind that fits."""
    fewer = range(min(problem.max_gpus_per_stage, len(problem.cluster)) - 1, 0, -1)
    tries = [("form='tight'", problem, "tight")]
    tries += [("same_type_stages=True", replace(problem, same_type_stages=True), "tight")]
    tries += [
        (f"max_gpus_per_stage={k}", replace(problem, max_gpus_per_stage=k), "written")
        for k in fewer
    ]
    tries += [
        (
            f"max_gpus_per_stage={k} with form='tight'",
            replace(problem, max_gpus_per_stage=k),
            "tight",
        )
        for k in fewer
    ]
    fitting = []
    for text, smaller, form in tries:
        size = joint_size(smaller, form)
        if gigabytes(size, form) <= have:
            fitting.append(f"{text} ({size['variables']:,} variables)")
    advice = "method='aggregated' proves the same optimum without listing anything"
    return f"What would fit: {' or '.join(fitting)}; {advice}" if fitting else advice


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
    return single_gpu.size(single_gpu.rules(problem, _as_run(segments)))


def _as_run(segments: str) -> bool:
    if segments not in SEGMENTS:
        raise UnknownName(f"there is no segments={segments!r}; {nearest(segments, SEGMENTS)}")
    return segments == "as_run"


def solve_joint(
    problem: Problem,
    *,
    form: str = "written",
    big_m: str = "valid",
    time_limit: float | None = None,
    gap: float = 0.0,
    memory_limit_gb: float | None = None,
    stop: threading.Event | None = None,
    on_progress: Callable | None = None,
) -> Result:
    """Solve the joint ILP with SCIP; see `pipelab.solving` for what all methods share.

    Parameters
    ----------
    form : "written" or "tight"
        The write-up's constraints, or the equivalent form with the better bound.
    big_m : "valid" or "as_written"
        "as_written" uses the M for links of the author's code, which can cut off the best
        placements; where it may, what SCIP proved about that model is set aside, and only the
        fastest stage bounds the result. Only for form="written".
    memory_limit_gb : float, optional
        Refuse to build what is estimated to need more; by default what is free now.

    Raises
    ------
    NotApplicable
        Two rates differ by a factor of more than 10^6, which SCIP's tolerance cannot carry.
    TooLarge
        It would not fit in memory.
    """
    joint_form(form, big_m)
    with deadline_of(time_limit, stop) as deadline:
        size: dict[str, int] = {}
        try:
            size = waited_for(lambda: joint_size(problem, form), deadline)
            if not size["allocations"]:
                return _infeasible(problem, "joint", why_no_layer_fits(problem), size, deadline)
            _refuse_if_too_large(problem, form, size, memory_limit_gb)
            candidates = made_in_time(
                lambda until: all_candidates(problem, until), deadline, _LATE_SECONDS
            )
        except Ended as end:
            return unlisted(
                problem, "joint", size, deadline, end, "its allocations and connections"
            )
        _refuse_far_apart(candidates, "joint")
        built, reason = deadline.spent, ""
        try:
            program = waited_for(lambda: joint.build(candidates, form, big_m), deadline)
            built = deadline.spent
            run = choice.run_program(
                program,
                "scip",
                gap=gap,
                deadline=deadline,
                on_progress=on_progress,
                settings=_SETTINGS[form],
                reading=(
                    program.columns.slices["z"],
                    lambda z: candidates.placement(np.flatnonzero(z > 0.5)),
                ),
            )
        except Ended as end:
            run, reason = SolverRun("stopped", end.reason), "the program was still being built"
        if run.status == "infeasible":  # whatever M is: t = 0 keeps every row that has one
            _, fits = stage_rates(problem, candidates.sets)
            solver = choice.solver_version("scip")
            reason = why_not_all_layers_fit(problem, candidates.sets, fits, solver)
            return _infeasible(problem, "joint", reason, size, deadline, solver)
        valid = joint.big_m_is_valid(candidates, big_m)
        placement = None if run.x is None else candidates.placement(_chosen(run, candidates))
        if run.status == "stopped" and (valid or placement is None):
            placement = _faster(problem, placement)
        throughput = None if placement is None else evaluate(problem, placement).rate
        proven = candidates.rate_at_most(run.bound if valid else None)
        status, bound = status_and_bound(throughput, _not_refuted(proven, throughput, candidates))
        if not valid and not reason:
            reason = _not_trusted(run)
        spent = deadline.spent - built
        last = Progress(spent, throughput, bound, run.nodes, placement)
        details = _details(run, built) | {"progress": (*run.progress, last)}
        return _result(
            problem, "joint", status, placement, bound, size, deadline, reason, run, details
        )


def solve_single_gpu(
    problem: Problem,
    *,
    segments: str = "all",
    time_limit: float | None = None,
    gap: float = 0.0,
    memory_limit_gb: float | None = None,
    stop: threading.Event | None = None,
    on_progress: Callable | None = None,
) -> Result:
    """Solve the original MILP, one GPU per stage, with SCIP.

    Every connection that is too fast to be the bottleneck is left out, which changes no answer.

    Parameters
    ----------
    segments : "all" or "as_run"
        "as_run" keeps the restrictions of the author's run: starts on a grid, smallest
        sizes, one layer on every GPU. Its optimum is not the problem's, and is called
        optimal only where it meets the upper bound.
    time_limit, gap, memory_limit_gb, stop, on_progress
        As for `solve_joint`.
    """
    as_run, alone = _as_run(segments), replace(problem, max_gpus_per_stage=1)
    with deadline_of(time_limit, stop) as deadline:
        try:
            chosen = made_in_time(
                lambda until: single_gpu.rules(problem, as_run, until), deadline, _LATE_SECONDS
            )
            size = single_gpu.size(chosen)
            most = made_in_time(
                lambda until: single_gpu.upper_bound(chosen, until), deadline, _LATE_SECONDS
            )
            if most is None:
                return _no_segments(problem, size, deadline)
            need = gigabytes({"variables": size["segments"], "rows": 0})
            have = memory_limit_gb if memory_limit_gb is not None else free_gigabytes()
            if need > have:
                name = f"the single-GPU MILP of {problem.name}"
                _refuse(name, size, need, have, "Fewer layers or GPUs would")
            candidates = made_in_time(
                lambda until: single_gpu.segments(chosen, until), deadline, _LATE_SECONDS
            )
            _refuse_far_apart(candidates, "single_gpu")
            # Where no link is slower than the bound, few segments reach it, and a pipeline of them is
            # proven the best: on medium SCIP finds one in a tenth of the time that all segments take.
            tries = [(candidates, 1.0)]
            if not chosen.restricted and (candidates.link_throughput >= most).all():
                tries.insert(0, (candidates.reaching(most), 0.5))
            for candidates, share in tries:
                program = waited_for(partial(single_gpu.build, candidates, most), deadline)
                built = deadline.spent
                run = choice.run_program(
                    program,
                    "scip",
                    deadline=deadline.within(deadline.left * share),
                    gap=gap,
                    on_progress=on_progress,
                )
                if run.x is not None or run.stopped_by in ("stop", "interrupt"):
                    break
        except Ended as end:
            found = unlisted(alone, "single_gpu", {}, deadline, end, "its segments and connections")
            return replace(found, problem=problem)
        if run.status == "infeasible" and not chosen.restricted:
            return _no_segments(problem, size, deadline)
        placement, throughput = None, None
        reason = _NONE_AS_RUN if run.status == "infeasible" else ""
        if run.x is not None:
            placement = candidates.placement(_chosen(run, candidates))
            try:
                throughput = evaluate(problem, placement).rate
            except InvalidPlacement as error:
                placement, reason = None, f"{_MISFIT_AS_RUN}: {'; '.join(error.defects)}"
        proven = most
        if not chosen.restricted:  # otherwise SCIP's own bound holds for the restricted model only
            proven = _not_refuted(candidates.rate_at_most(run.bound), throughput, candidates)
        status, bound = status_and_bound(throughput, min(most, proven))
        if (
            chosen.restricted
            and placement is not None
            and (status, run.status) == ("feasible", "optimal")
        ):
            reason = _BEST_AS_RUN
        among = ""
        if problem.max_gpus_per_stage > 1:  # what was proven of one GPU per stage is no bound here
            among = "one GPU per stage" if status == "optimal" else ""
            remarks = f"with one GPU per stage: {status}", reason, "more per stage may be faster"
            reason = "; ".join(filter(None, remarks))
            status, bound = "unknown" if throughput is None else "feasible", None
        details = _details(run, built) | {
            "built": program.size,
            "upper_bound": most,
            "proven_among": among,
        }
        if among:
            run = replace(run, stopped_by=None)
        return _result(
            problem, "single_gpu", status, placement, bound, size, deadline, reason, run, details
        )


def _chosen(run: SolverRun, candidates: Candidates) -> np.ndarray:
    """Numbers of the chosen allocations.

    Raises
    ------
    PipelabError
        Some value is not whole.
    """
    z = given(run.x)[: len(candidates.start)]
    if np.abs(z - z.round()).max(initial=0.0) > NOT_SOLVED:
        raise PipelabError("SCIP returned a z that is not whole")
    return np.flatnonzero(z > 0.5)


def _faster(problem: Problem, placement: Placement | None) -> Placement | None:
    """The placement, or one by rules of thumb if that is faster."""
    simple = incumbents(problem)
    if placement is not None:
        simple[placement] = evaluate(problem, placement)
    return best_of(simple)


def _not_refuted(bound: float, throughput: float | None, candidates: Candidates) -> float:
    """The bound, or the fastest stage's rate where a placement refutes it."""
    refuted = throughput is not None and bound < throughput * (1 - SOLVER)
    return candidates.rate_at_most(None) if refuted else bound


def _refuse_far_apart(candidates: Candidates, method: str) -> None:
    """Raise `NotApplicable` where two rates are too far apart for SCIP; links faster than every stage do not count."""
    fastest = given(candidates.throughput.max())
    links = candidates.link_throughput
    slowest = min(candidates.throughput.min(), links[links < fastest].min(initial=np.inf))
    if fastest <= slowest * _FAR_APART and slowest >= _SMALL and fastest <= _LARGE:
        return
    expected = (
        f"expected rates within a factor of 10^6, from {_SMALL:g} to {_LARGE:g}: the fastest stage has "
        f"{fastest:.3g} tokens/s and the slowest stage or link {slowest:.3g}. method='aggregated' takes any"
    )
    raise NotApplicable(method, [("problem", candidates.problem.name, expected)])


def _details(run: SolverRun, built: float) -> dict[str, Any]:
    return {
        "build_seconds": built + run.build_seconds,
        "solve_seconds": run.solve_seconds,
        "nodes": run.nodes,
        "root_bound": run.root_bound,
        "progress": run.progress,
        "solver_status": run.status,
        "solver_objective": run.objective,
    }


def _result(
    problem: Problem,
    method: str,
    status: str,
    placement: Placement | None,
    bound: float | None,
    size: dict[str, int],
    deadline: Deadline,
    reason: str,
    run: SolverRun,
    details: dict[str, Any],
) -> Result:
    return Result(
        problem,
        method,
        status,
        placement,
        None if placement is None else evaluate(problem, placement).rate,
        bound,
        deadline.spent,
        size,
        choice.solver_version("scip"),
        deadline.remark(reason),
        None if status == "optimal" else run.stopped_by,
        details,
    )


def _infeasible(
    problem: Problem,
    method: str,
    reason: str,
    size: dict[str, int],
    deadline: Deadline,
    solver: str = "",
) -> Result:
    return Result(
        problem, method, "infeasible", None, None, None, deadline.spent, size, solver, reason
    )


def _no_segments(problem: Problem, size: dict[str, int], deadline: Deadline) -> Result:
    """Nothing fits with one GPU per stage; where a stage may have more, nothing is claimed for them."""
    alone = replace(problem, max_gpus_per_stage=1)
    sets = tuple((g,) for g in range(len(problem.cluster)))
    fits = stage_rates(alone, sets)[1]
    if fits.any():
        reason = why_not_all_layers_fit(alone, sets, fits, "SCIP")
    else:
        reason = why_no_layer_fits(alone)
    found = _infeasible(problem, "single_gpu", reason, size, deadline)
    if problem.max_gpus_per_stage == 1:
        return found
    return replace(found, status="unknown", reason=f"with one GPU per stage, {reason}")


def _not_trusted(run: SolverRun) -> str:
    claim = (
        f"SCIP calls {run.objective:,.7g} {run.status} for this model"
        if run.objective
        else "SCIP finds nothing"
    )
    source = "The M for links, taken from the code of the write-up's author, is too small here"
    return f"{source}: {claim}. That is set aside; the fastest stage is the bound"
