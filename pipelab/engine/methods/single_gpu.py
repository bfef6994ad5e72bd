"""The original MILP, one GPU per stage: which segments there are, how large it was, and solved.

A segment is an allocation of one GPU. With k = 1 four families more hold for every placement, and most
links can be left out: those at least as fast as a bound on all placements are never the bottleneck.

As its author ran it, the model has other segments than all that fit; it is then a restriction of the problem,
and its optimum no bound on it. `SegmentRules` lists both.

Source: the write-up, "Original Solver Analysis", and the rows counted in its author's code.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pipelab.engine.answers import Result
from pipelab.engine.deadline import (
    NEVER,
    Deadline,
    Ended,
    Stop,
    deadline_of,
    made_in_time,
    waited_for,
)
from pipelab.engine.formulations.candidates import StageCandidates, list_candidates, stage_rates
from pipelab.engine.formulations.joint_ilp_forms import ONE_GPU, build, twins
from pipelab.engine.formulations.program_size import starts_and_ends
from pipelab.engine.infeasible import infeasible_result, why_infeasible
from pipelab.engine.instance import instance_of
from pipelab.engine.methods import joint
from pipelab.engine.methods.aggregated import unlisted
from pipelab.engine.tolerances import LAST_BITS
from pipelab.errors import InvalidPlacement, refuse_unknown
from pipelab.evaluation import evaluate
from pipelab.problem import Problem
from pipelab.reproductions import reproduction

SEGMENTS = ("all", "as_run")
_BEST_AS_RUN = "best among the segments of the author's run, which leave out others that fit"
_NONE_AS_RUN = "no placement has segments of the author's run, which leave out others that fit"
_MISFIT_AS_RUN = "the author's run allows every GPU one layer, and SCIP's choice does not fit"


@dataclass(frozen=True, eq=False)
class SegmentRules:
    """Which segments exist: kinds of span per GPU (identical layers: numbers of them), and first layers."""

    problem: Problem  # with one GPU per stage
    rate: np.ndarray  # (N, U) tokens/s
    fits: np.ndarray  # (N, U) whether memory holds each kind of span
    allowed: np.ndarray  # (N, U) whether the model has such segments
    starts: np.ndarray  # first layers, from 0

    @property
    def restricted(self) -> bool:
        """Whether segments that fit are left out of the model."""
        left_out = bool((self.fits & ~self.allowed).any())
        return left_out or len(self.starts) < self.problem.model.layers


def rules(problem: Problem, segments: str = "all", deadline: Deadline = NEVER) -> SegmentRules:
    """List the segments: all that fit, or those of the author's run.

    Raises
    ------
    UnknownName
        There is no such choice of segments.
    """
    refuse_unknown("choice of segments", segments, SEGMENTS)
    if segments == "as_run":
        return reproduction("segments='as_run'")(problem, deadline)
    alone = replace(problem, max_gpus_per_stage=1)
    rate, fits = stage_rates(alone, _alone(alone), deadline)
    layers = np.arange(problem.model.layers)
    return SegmentRules(problem=alone, rate=rate, fits=fits, allowed=fits, starts=layers)


def _alone(problem: Problem) -> tuple[tuple[int, ...], ...]:
    return tuple((g,) for g in range(len(problem.cluster)))


def segment_candidates(chosen: SegmentRules, deadline: Deadline = NEVER) -> StageCandidates:
    """Return the segments as candidates over single GPUs, with every connection."""
    gpus, problem = _alone(chosen.problem), chosen.problem
    return list_candidates(problem, gpus, chosen.rate, chosen.allowed, chosen.starts, deadline)


def size(chosen: SegmentRules) -> dict[str, int]:
    """Count segments and connections, and variables and rows of the model as written.

    As written, z and e stand beside u (a GPU is used), τ of every GPU, ρ of every connection, and t. Rows per
    GPU: at most one segment, u, τ, and t ≤ τ; per connection: needs its sender, needs its receiver, is used
    between chosen neighbours, ρ, and t ≤ ρ; per segment with a neighbour: has a successor, a predecessor;
    and the coverage of layers, a start, a bound on t, the order of identical GPUs, and for every first layer
    as many segments that end before it as start there.
    """
    layers, gpus = chosen.problem.model.layers, len(chosen.problem.cluster)
    starts, ends = starts_and_ends(chosen.problem, chosen.allowed, chosen.starts.tolist())
    # At a boundary every segment that ends meets every one that starts, but for its own GPU's.
    met, new = ends[:, :-1], starts[:, 1:]
    followed = (new.sum(axis=0) - new) > 0
    preceded = (met.sum(axis=0) - met) > 0
    number = int(starts.sum())
    links = int((met.sum(axis=0) * new.sum(axis=0) - (met * new).sum(axis=0)).sum())
    neighbours = int((met * followed).sum()) + int((new * preceded).sum())
    inner_starts = int((new.sum(axis=0) > 0).sum())
    ordered = len(twins(chosen.problem))
    return {
        "segments": number,
        "connections": links,
        "variables": number + 2 * links + 2 * gpus + 1,
        "rows": layers + 4 * gpus + 5 * links + neighbours + 2 + ordered + inner_starts,
    }


def upper_bound(problem: Problem, deadline: Deadline = NEVER) -> float | None:
    """Bound the rate of every placement, whatever the links; None if no placement exists."""
    instance = instance_of(problem, deadline)
    highest = instance.highest() if len(instance.thresholds) else -1
    return float(instance.thresholds[highest]) if highest >= 0 else None


def single_gpu_size(problem: Problem, segments: str = "all") -> dict[str, int]:
    """Count the variables and rows of the original MILP with every connection, building nothing.

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
    return size(rules(problem, segments))


def solve_single_gpu(
    problem: Problem,
    *,
    segments: str = "all",
    time_limit: float | None = None,
    gap: float = 0.0,
    stop: Stop = None,
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
    time_limit, gap, stop, on_progress
        As for `solve_joint`.
    """
    alone = replace(problem, max_gpus_per_stage=1)
    with deadline_of(time_limit, stop) as deadline:
        result = _solved(alone, segments, gap, on_progress, deadline)
    if problem.max_gpus_per_stage == 1:
        return result
    # What was proven of one GPU per stage is no bound on more.
    if result.status == "infeasible":
        reason = f"with one GPU per stage, {result.reason}"
    else:
        remarks = f"with one GPU per stage: {result.status}", result.reason
        reason = "; ".join(filter(None, (*remarks, "more per stage may be faster")))
    among = {"proven_among": "one GPU per stage"} if result.status == "optimal" else {}
    return replace(
        result,
        problem=problem,
        status="unknown" if result.placement is None else "feasible",
        bound=None,
        reason=reason,
        details={**result.details, **among},
    )


def _solved(
    problem: Problem, segments: str, gap: float, on_progress: Callable | None, deadline: Deadline
) -> Result:
    try:
        chosen = made_in_time(partial(rules, problem, segments), deadline)
        sizes = size(chosen)
        most = made_in_time(partial(upper_bound, problem), deadline)
        if most is None:
            return _no_segments(chosen, sizes, deadline)
        what, advice = f"the single-GPU MILP of {problem.name}", "Fewer layers or GPUs take less"
        need = joint.gigabytes({"variables": sizes["segments"], "rows": 0})
        joint.refuse_beyond_memory(what, sizes, need, advice)
        every = made_in_time(partial(segment_candidates, chosen), deadline)
        joint.refuse_far_apart(every, "single_gpu")
        # Where no link is slower than the bound, few segments reach it, and a pipeline of them is
        # proven the best: on medium SCIP finds one in a tenth of the time that all segments take.
        tries = [(every, 1.0)]
        if not chosen.restricted and (every.link_throughput >= most).all():
            tries.insert(0, (every.reaching(most * (1 - LAST_BITS)), 0.5))
        for candidates, share in tries:
            program = waited_for(partial(build, candidates, ONE_GPU, most=most), deadline)
            until = deadline.within(deadline.left * share)
            run, placement = joint.run_scip(program, candidates, until, gap, on_progress)
            if run.x is not None or run.stopped_by in ("stop", "interrupt"):
                break
    except Ended as end:
        what = "its segments and connections"
        return unlisted(problem, "single_gpu", {}, deadline, end, what)
    if run.status == "infeasible" and not chosen.restricted:
        return _no_segments(chosen, sizes, deadline)
    throughput, reason = None, _NONE_AS_RUN if run.status == "infeasible" else ""
    if placement is not None:
        try:
            throughput = evaluate(problem, placement).rate
        except InvalidPlacement as error:
            placement, reason = None, f"{_MISFIT_AS_RUN}: {'; '.join(error.defects)}"
    proven = most
    if not chosen.restricted:  # otherwise SCIP's own bound holds for the restricted model only
        proven = min(most, joint.not_refuted(run.bound, throughput, candidates))
    elif run.status == "optimal" and throughput is not None and throughput < most * (1 - LAST_BITS):
        reason = _BEST_AS_RUN
    return joint.result_of(problem, "single_gpu", run, placement, proven, sizes, deadline, reason)


def _no_segments(chosen: SegmentRules, sizes: dict[str, int], deadline: Deadline) -> Result:
    """Answer that nothing fits with one GPU per stage."""
    reason = why_infeasible(instance_of(chosen.problem), "SCIP")
    return infeasible_result(chosen.problem, "single_gpu", reason, sizes, deadline)
