"""The best single pipeline as a deployment: what the others have to beat.

Column generation asks for pipelines that are cheap at its prices. Where longer pipelines use every
GPU better, or links bind, it may never see the best single one.
"""

from collections.abc import Sequence

import numpy as np

from pipelab.engine.attainable import Pairs
from pipelab.engine.deployments.generation import Generation
from pipelab.engine.deployments.master import Column
from pipelab.engine.deployments.offers import Offer
from pipelab.engine.methods.aggregated import rates_in_time
from pipelab.engine.methods.search import Search
from pipelab.engine.methods.subproblems import Subproblems
from pipelab.fields import given

_SECONDS = 10.0


def add_best_alone(generation: Generation, offers: Sequence[Offer]) -> None:
    """Search for the best single pipeline of each workload for a while; what is found becomes a column.

    Raises
    ------
    Ended
        The deadline was first.
    """
    workloads = {offer.problem.workload: i for i, offer in enumerate(offers)}
    for i in workloads.values():
        offer = offers[i]
        deadline = generation.deadline.within(_SECONDS / len(workloads))
        rates = rates_in_time(offer.problem, generation.deadline)
        found = Search(Subproblems(rates, generation.solver, deadline)).run()
        if found.best is None or found.throughput is None:
            continue
        best, rate = found.best, found.throughput
        if offer.numbers is not None:
            pairs = Pairs(offer.problem, generation.solver, deadline)
            pairs.keep(best)
            pairs.greatest()
            best, rate = given(pairs.best), pairs.attained
        classes, stages = offer.rates.classes, []
        for stage in best.stages:
            gpus = np.bincount(classes.of[list(stage.gpus)], minlength=len(classes))
            stages.append((len(stage.layers), tuple(gpus.tolist())))
        used = tuple(np.sum([gpus for _, gpus in stages], axis=0).tolist())
        column = Column(rate, used, i, stages=tuple(stages))
        generation.columns.append(column)
        generation.keep([column])
