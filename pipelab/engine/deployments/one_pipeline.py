"""Single pipelines as deployments, simple ones and the best: what the others have to beat.

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
from pipelab.engine.methods.first_placements import incumbents
from pipelab.engine.methods.search import Search
from pipelab.engine.methods.subproblems import Subproblems
from pipelab.evaluation import Evaluation, evaluate
from pipelab.placement import Placement

_SECONDS = 10.0
_MOMENT = 0.5  # for simple pipelines


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
        if found.best is not None:
            _add(generation, offer, i, found.best, evaluate(offer.problem, found.best), steady)


def add_incumbents(generation: Generation, offers: Sequence[Offer], steady: bool) -> None:
    """Begin with simple pipelines, and the best deployment of these; parameters as of `add_best_alone`."""
    within = generation.deadline.within(_MOMENT)
    for i, offer in enumerate(offers):
        for placement, evaluation in incumbents(offer.problem).items():
            _add(generation, offer, i, placement, evaluation, steady)
        if within.reason is not None:
            break
    generation.round_off()


def _add(
    generation: Generation,
    offer: Offer,
    index: int,
    placement: Placement,
    evaluation: Evaluation,
    steady: bool,
) -> None:
    """A pipeline becomes a column, and the best deployment if it is better alone."""
    classes, stages = offer.rates.classes, []
    for stage in placement.stages:
        gpus = np.bincount(classes.of[list(stage.gpus)], minlength=len(classes))
        stages.append((len(stage.layers), tuple(gpus.tolist())))
    used = tuple(np.sum([gpus for _, gpus in stages], axis=0).tolist())
    in_flight = offer.problem.workload.in_flight
    rate = steady_rate(evaluation, in_flight) if steady else evaluation.throughput
    column = Column(rate, used, index, stages=tuple(stages))
    generation.columns.append(column)
    generation.keep([column])
