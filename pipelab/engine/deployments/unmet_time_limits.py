"""Why no pipeline keeps a limit on time: which stage, link or number of passes it is, and what would help."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipelab.display import counted
from pipelab.engine.deadline import Deadline, apart
from pipelab.engine.solving import solve
from pipelab.evaluation import evaluate, tally
from pipelab.problem import Problem
from pipelab.requests import Limits, seconds_back, times

_EXPLAINING_SECONDS = 5.0  # for all workloads together


def why_unkept(problems: Sequence[Problem], limits: Limits, deadline: Deadline) -> str:
    """Say which part takes longest of the pipeline that comes closest to the limits, or that pools do not fit together.

    Empty if neither is what prevents it.

    Parameters
    ----------
    problems : sequence of Problem
        Of one phase each, with the batches that a pipeline may have.
    """
    phases, fits = dict.fromkeys(problem.workload.phase for problem in problems), 0
    for phase in phases:
        of_phase = [problem for problem in problems if problem.workload.phase == phase]
        closest: tuple[float, str] | None = None
        for problem in of_phase:
            reason = _nearest(problem, limits, deadline.within(_EXPLAINING_SECONDS / len(of_phase)))
            if reason is not None and (closest is None or reason < closest):
                closest = reason
        if closest is not None and closest[0] > 1:
            return closest[1]
        fits += closest is not None
    if fits == len(phases) > 1:
        return (
            "a pool for prompts and a pool for answers each find their GPUs if they are alone, but not both at once; "
            "what may help: more GPUs, or pools=False"
        )
    return ""


def _nearest(problem: Problem, limits: Limits, deadline: Deadline) -> tuple[float, str] | None:
    """Return how many times the limit the shortest traversal takes, and the reason; None if no pipeline fits."""
    alone = problem.with_in_flight(1)
    if problem.workload.phase != "prefill":
        alone = replace(alone, workload=replace(alone.workload, timed_at="last"))
    ends: dict[str, Any] = {"time_limit": deadline.left, "stop": apart(deadline.stop)}
    placement = solve(alone, objective="latency", **ends).placement
    if placement is None:
        return None
    served = times(problem, placement, 1).service(problem, 1)
    tpot, ttft = 1000 * max(served.tpot_s, served.last_tpot_s), 1000 * served.ttft_s
    over = {"TPOT": tpot / limits.tpot_ms, "TTFT": ttft / limits.ttft_ms}
    what = max(over, key=over.__getitem__)
    ms, limit = (tpot, limits.tpot_ms) if what == "TPOT" else (ttft, limits.ttft_ms)
    load, parts = problem.workload, evaluate(alone, placement)
    took = {
        f"stage {i} ({counted(len(s.stage.layers), 'layer')} on {tally(s.gpu_types)})": s.seconds
        for i, s in enumerate(parts.stages, start=1)
    }
    help_ = dict.fromkeys(
        took, "faster GPUs there, more of them in one node, or weights of fewer bits"
    )
    links = {f"the link from stage {i} to {i + 1}": x.seconds for i, x in enumerate(parts.links, 1)}
    links["the hop back to the first stage"] = seconds_back(problem, placement)
    took |= links
    help_ |= dict.fromkeys(links, "a link that is faster or has less latency")
    if load.phase == "prefill":
        links = {"the way of the KV cache": served.ttft_s - parts.seconds_per_pass}
        took |= links
        help_ |= dict.fromkeys(links, "faster links, or a KV cache of fewer bits")
    longest = max(took, key=took.__getitem__)
    remedy = help_[longest]
    said = f"{longest} takes {1000 * took[longest]:.4g} ms of each pass"
    if what == "TTFT" and load.phase == "mixed":
        passes = math.ceil(load.written / load.batch_size)
        if passes > 1:
            said = f"a prompt takes {passes} passes, and {said}"
            remedy += ", larger batches, or pools=True"
    text = (
        f"the pipeline of the shortest traversal has a {what} of {ms:.4g} ms (batch "
        f"{load.batch_size}, {load.phase}), above the limit of {limit:.4g}: {said}; what helps: "
        f"{remedy}, or a limit of {ms:.4g} ms"
    )
    return over[what], text
