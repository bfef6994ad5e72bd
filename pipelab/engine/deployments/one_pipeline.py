"""The best single pipeline as a deployment: what the others have to beat.

Column generation asks for pipelines that are cheap at its prices. Where longer pipelines use every
GPU better, or links bind, it may never see the best single one.
"""

from collections.abc import Sequence

import numpy as np

from pipelab.engine.deployments.generation import Generation
from pipelab.engine.deployments.master import Column
from pipelab.engine.deployments.offers import Offer
from pipelab.engine.in_flight_result import steady_rate
from pipelab.engine.methods.aggregated import rates_in_time
from pipelab.engine.methods.search import Search
from pipelab.engine.methods.subproblems import Subproblems
from pipelab.evaluation import evaluate

_SECONDS = 10.0


def add_best_alone(generation: Generation, offers: Sequence[Offer], steady: bool) -> None:
    """Search for the best single pipeline of each offer for a while; what is found becomes a column.

    Parameters
    ----------
    steady : bool
        Whether pipelines count with what their microbatches in flight yield.

    Raises
    ------
    Ended
        The deadline was first.
    """
    for i, offer in enumerate(offers):
        deadline = generation.deadline.within(_SECONDS / len(offers))
        rates = rates_in_time(offer.problem, generation.deadline)
        found = Search(Subproblems(rates, generation.solver, deadline)).run()
        if found.best is None or found.throughput is None:
            continue
        classes, stages = offer.rates.classes, []
        for stage in found.best.stages:
            gpus = np.bincount(classes.of[list(stage.gpus)], minlength=len(classes))
            stages.append((len(stage.layers), tuple(gpus.tolist())))
        used = tuple(np.sum([gpus for _, gpus in stages], axis=0).tolist())
        rate = found.throughput
        if steady:
            rate = steady_rate(
                evaluate(offer.problem, found.best), offer.problem.workload.in_flight
            )
        column = Column(rate, used, i, stages=tuple(stages))
        generation.columns.append(column)
        generation.keep([column])
