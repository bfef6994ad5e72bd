"""A bound that is there at once: the rates of stages as if every GPU were in one node.

By `Roofline` a node only adds execution modes: its equal GPUs may cut layers among them. A
stage takes the mode of the highest rate among those that fit. So without regard to nodes and prices
no stage is slower, and none that fitted fits no more; links stay as they are. Each placement is at
least as fast as before, and there are few kinds of GPU left.
"""

from dataclasses import replace

from pipelab.engine.deadline import Deadline
from pipelab.engine.formulations.aggregated.rates import number_of_mixtures, stage_rates
from pipelab.engine.layer_runs import runs_of
from pipelab.engine.methods.subproblems import Subproblems
from pipelab.problem import Problem

_MOST_CELLS = 1_000_000  # of a table: a tenth of a second


def bound_in_one_node(problem: Problem, deadline: Deadline) -> float | None:
    """No placement yields more tokens/s; None where nothing is known so soon.

    Raises
    ------
    Ended
        The deadline has passed.
    """
    from pipelab.hardware.roofline import Roofline

    costs = problem.costs
    # the mode with the shortest pass may be a slower one
    if type(costs) is not Roofline or costs.prefer != "rate":
        return None
    gpus = tuple(replace(g, node=g.node and "one", usd_per_hour=None) for g in problem.cluster.gpus)
    together = replace(problem, cluster=replace(problem.cluster, gpus=gpus))
    if number_of_mixtures(together) * len(runs_of(problem.model).layers) > _MOST_CELLS:
        return None
    rates = stage_rates(together, deadline)
    highest = Subproblems(rates, deadline=deadline).highest()
    return float(rates.thresholds[highest]) if highest >= 0 else None
