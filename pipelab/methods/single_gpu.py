"""The original MILP from problem to result: one GPU per stage."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelab.checked import given
from pipelab.errors import InvalidPlacement, UnknownName, nearest
from pipelab.evaluate import evaluate
from pipelab.formulations import single_gpu, threshold
from pipelab.formulations.candidates import stage_rates
from pipelab.infeasible import why_no_layer_fits, why_not_all_layers_fit
from pipelab.methods.memory import refuse_if_too_large
from pipelab.problem import Problem
from pipelab.result import Result, status_and_bound

if TYPE_CHECKING:
    from pipelab.formulations.candidates import Candidates
    from pipelab.formulations.single_gpu import SegmentRules
    from pipelab.solver_run import SolverRun

__all__ = ["single_gpu_size", "solve_single_gpu"]

SEGMENTS = ("all", "as_run")
LINKS = ("needed", "all")


def single_gpu_size(problem: Problem, segments: str = "all") -> dict[str, int]:
    """How large the original MILP is with every connection, counted without building anything.

    Parameters
    ----------
    problem : Problem
        Its `max_gpus_per_stage` is taken for 1.
    segments : {"all", "as_run"}
        "as_run" counts those of the author's run: first layers on a grid, smallest sizes, one layer on every GPU.

    Returns
    -------
    dict of str to int
        `segments`, `connections`, `variables` and `rows`; exact.

    Raises
    ------
    UnknownName
        There is no such choice of segments.
    NotApplicable
        "as_run" is asked where layers differ.

    References
    ----------
    The write-up, "Original Solver Analysis"; gangmuk/LLM_placement_solver, `solver_constrained.py` at commit 2efc2c6.

    Examples
    --------
    >>> import pipelab as pl
    >>> size = pl.single_gpu_size(pl.load_case("medium"), segments="as_run")
    >>> size["segments"], size["connections"], size["rows"]
    (5740, 312210, 1568029)
    """
    return _size(single_gpu.rules(problem, as_run=_option("segments", segments, SEGMENTS) == "as_run"))


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
        "needed" leaves out every connection that is too fast to be the bottleneck, which
        changes no answer, and where that leaves none asks first for a placement that reaches
        the upper bound (for half of the time at most); "all" builds the model as written, with its 317,950 binaries on
        medium.
    time_limit, gap, memory_limit_gb, stop, on_progress
        As for `solve_joint`.
    """
    from pipelab import scip

    began = time.perf_counter()
    _option("links", links, LINKS)
    chosen = single_gpu.rules(problem, as_run=_option("segments", segments, SEGMENTS) == "as_run")
    size = _size(chosen)
    bound = single_gpu.upper_bound(chosen)
    if bound is None:
        return _infeasible(problem, chosen, size, began)
    refuse_if_too_large(f"the single-GPU MILP of {problem.name}", size, "links='needed'", memory_limit_gb, links)
    candidates = single_gpu.segments(chosen)

    def ask(segments: Any, share: float) -> Any:
        program = single_gpu.build(segments, bound, all_links=links == "all")
        left = None if time_limit is None else max(0.0, time_limit - (time.perf_counter() - began)) * share
        built = time.perf_counter()
        return segments, program, built, scip.run(program, time_limit=left, gap=gap, stop=stop, on_progress=on_progress)

    fast = _at_the_bound(candidates, bound) if links == "needed" and not chosen.restricted else None
    if fast is not None:
        asked, program, built, run = ask(fast, 0.5)
    if fast is None or (run.x is None and run.stopped_by in (None, "time limit")):
        asked, program, built, run = ask(candidates, 1.0)
    if run.status == "infeasible" and not chosen.restricted:
        return _infeasible(problem, chosen, size, began)
    placement = throughput = None
    if run.x is not None:
        placement = asked.placement(np.flatnonzero(run.x[program.columns.slices["z"]] > 0.5))
        try:
            throughput = evaluate(problem, placement).throughput
        except InvalidPlacement:  # as run, a GPU may be given a layer that it cannot hold
            placement = None
    status, proven, reason, among = _what_is_proven(problem, chosen, candidates, run, throughput, bound)
    details = {
        "build_seconds": built - began + run.build_seconds,
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
        problem, "single_gpu", status, placement, throughput, proven, time.perf_counter() - began, size,
        scip.version(), reason, run.stopped_by if status != "optimal" else None, details,
    )  # fmt: skip


def _at_the_bound(candidates: "Candidates", bound: float) -> "Candidates | None":
    """The segments that reach the bound, where no link is slower than it; None otherwise.

    They are few, and a pipeline made of them needs no further proof: on medium SCIP finds one
    in a tenth of the time that all segments take. If there is none, nothing is lost but that.
    """
    if (candidates.link_throughput < bound).any():
        return None
    fast = threshold.faster_than(candidates, np.nextafter(bound, 0))  # at least as fast as the bound
    return fast if len(fast.start) else None


def _option(name: str, value: str, known: Iterable[str]) -> str:
    if value not in known:
        raise UnknownName(f"there is no {name}={value!r}; {nearest(value, known)}")
    return value


def _size(chosen: "SegmentRules") -> dict[str, int]:
    counts = single_gpu.count_segments(chosen)
    return {name: counts[name] for name in ("segments", "connections")} | single_gpu.size(counts)


def _infeasible(problem: Problem, chosen: "SegmentRules", size: dict[str, int], began: float) -> Result:
    """With one GPU per stage; where a stage may have more, that is said and nothing is claimed for them."""
    alone = replace(problem, max_gpus_per_stage=1)
    sets = tuple((g,) for g in range(len(problem.cluster)))
    fits = stage_rates(alone, sets)[1]
    reason = why_not_all_layers_fit(alone, sets, fits, "SCIP") if fits.any() else why_no_layer_fits(alone)
    status = "infeasible" if problem.max_gpus_per_stage == 1 else "unknown"
    return Result(
        problem, "single_gpu", status, None, None, None, time.perf_counter() - began, size, "",
        reason if status == "infeasible" else f"with one GPU per stage, {reason}",
    )  # fmt: skip


def _what_is_proven(
    problem: Problem,
    chosen: "SegmentRules",
    candidates: "Candidates",
    run: "SolverRun",
    throughput: float | None,
    bound: float | None,
) -> tuple[str, float | None, str, str]:
    """Status, bound for the problem, a remark, and among which placements it is proven if not among all."""
    single = problem.max_gpus_per_stage == 1
    if chosen.restricted:
        proven = bound  # SCIP's own bound holds for the restricted model only
    else:
        proven = min(given(bound), given(candidates.rate_at_most(run.bound)))
    status, proven = status_and_bound(throughput, proven)
    if not single:
        remark = f"with one GPU per stage: {status}; more per stage may be faster"
        among = "one GPU per stage" if status == "optimal" else ""
        return ("unknown" if throughput is None else "feasible"), None, remark, among
    if chosen.restricted and status != "optimal" and run.status == "optimal":
        remark = "best among the segments of the author's run, which leave out others that fit"
        return status, proven, remark, "the segments of the author's run" if throughput is not None else ""
    return status, proven, "", ""
