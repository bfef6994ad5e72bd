"""The best flow of a small problem: one integer program over all stages and all ways.

x_s says whether stage s is held, f_p is what way p carries. Stages that share a GPU exclude one another, and a stage
that is not held carries nothing::

    max Σ f_p      Σ_{s on g} x_s ≤ 1      Σ_{p through s} f_p ≤ q_s x_s      Σ_{p through s} f_p T_p ≤ n_s w x_s

and Σ f_p ≤ l over the ways that use the link between two sets of GPUs. This is `pipelab.flows` in one program.
"""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import scipy.sparse as sp

from pipelab import flows
from pipelab.candidates import list_allocations
from pipelab.engine.deadline import Deadline
from pipelab.engine.solvers.choice import run_program
from pipelab.engine.solvers.linear_program import VariableGroups, incidence
from pipelab.engine.solvers.solver_run import SolverRun
from pipelab.placement import Stage
from pipelab.problem import Problem

_MOST_GPUS, _MOST_LAYERS = 6, 10  # more are not tried
_MOST_WAYS = 20_000


def every_option(problem: Problem, full: bool, deadline: Deadline) -> list[flows.Held]:
    """Every stage with every number in flight to have memory for; empty where these are too many.

    Raises
    ------
    Ended
        The deadline was first.
    """
    if len(problem.cluster) > _MOST_GPUS or problem.model.layers > _MOST_LAYERS:
        return []
    allocations = list_allocations(problem.with_in_flight(problem.workload.in_memory))
    stages = [Stage(allocation.layers, allocation.gpus) for allocation in allocations]
    if full:
        return [flows.Held(stage, problem.workload.in_memory) for stage in stages]
    most = flows.most_in_flight(problem, stages)
    options = []
    for stage in stages:
        for number in flows.numbers(problem, stage, most):
            deadline.check()
            options.append(flows.Held(stage, number))
    return options


def exact_flow(
    problem: Problem, options: list[flows.Held], most: float, full: bool, deadline: Deadline
) -> tuple[list[flows.Held], SolverRun] | None:
    """The stages of the best flow, and how the program ended, in tokens/s; None where there are too many ways.

    Parameters
    ----------
    most : float
        No flow has more tokens/s.
    """
    stages = [held.stage for held in options]
    ways = []
    for way in flows.begun_ways(stages, problem.model.layers):
        deadline.check()
        if stages[way[-1]].layers.stop == problem.model.layers:
            ways.append(way)
        if len(ways) > _MOST_WAYS:
            return None
    if not ways:
        return None
    times = [flows.stage_times(problem, held) for held in options]
    hops = sorted({hop for way in ways for hop in pairwise(way)})
    links = {}
    for v, w in hops:
        deadline.check()
        links[v, w] = flows.link_between(problem, stages[v], stages[w])
    columns = VariableGroups({"held": len(options), "ways": len(ways)})
    pairs = np.array([(v, p) for p, way in enumerate(ways) for v in way])
    through = incidence(pairs[:, 0], len(options), pairs[:, 1], len(ways))
    on_stages = np.array([sum(times[v][1] for v in way) for way in ways])
    seconds = on_stages + [sum(links[hop][1] for hop in pairwise(way)) for way in ways]
    busy = -np.minimum([rate for rate, _ in times], most) / most
    on = [[float(g in stage.gpus) for stage in stages] for g in range(len(problem.cluster))]
    rows = {"one stage": columns.rows({"held": np.array(on)}, upper=1.0)}
    rows["busy"] = columns.rows({"ways": through, "held": sp.diags_array(busy)}, upper=0.0)
    if not full:
        places = np.array([held.in_flight for held in options]) * problem.workload.tokens / most
        kept = sp.csr_array(through.multiply(seconds[None]).multiply(1 / places[:, None]))
        minus = -sp.eye_array(len(options))
        rows["places"] = columns.rows({"ways": kept, "held": minus}, upper=0.0)
    across = defaultdict(list)
    for p, way in enumerate(ways):
        for v, w in pairwise(way):
            across[stages[v].gpus, stages[w].gpus, links[v, w][0]].append(p)
    tight = [(crossing, rate) for (_, _, rate), crossing in across.items() if rate < most]
    if tight:
        entries = np.array([(i, p) for i, (crossing, _) in enumerate(tight) for p in crossing])
        matrix = incidence(entries[:, 0], len(tight), entries[:, 1], len(ways))
        limits = np.array([rate for _, rate in tight]) / most
        rows["links"] = columns.rows({"ways": matrix}, upper=limits)
    program = columns.program({"ways": 1.0}, rows, upper={"held": 1.0}, integer=["held"])
    run = run_program(program, "scip", deadline=deadline.apart())
    chosen = np.zeros(0) if run.x is None else run.x[: len(options)]
    return [options[i] for i in np.flatnonzero(chosen > 0.5)], run
