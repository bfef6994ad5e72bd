"""Single pipelines as deployments, simple ones and the best: what the others have to beat.

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
from pipelab.engine.methods.first_placements import incumbents
from pipelab.engine.methods.search import Search
from pipelab.engine.methods.subproblems import Subproblems
from pipelab.evaluation import Evaluation, evaluate
from pipelab.fields import given
from pipelab.placement import Placement
from pipelab.problem import Workload

_SECONDS = 10.0
_MOMENT = 0.5  # for simple pipelines


def add_best_alone(generation: Generation, offers: Sequence[Offer]) -> None:
    """Search for the best single pipeline of each workload for a while; what is found becomes a column.

    Raises
    ------
    Ended
        The deadline was first.
    """
    workloads = _by_workload(offers)
    for i in workloads.values():
        offer = offers[i]
        deadline = generation.deadline.within(_SECONDS / len(workloads))
        rates = rates_in_time(offer.problem, generation.deadline)
        found = Search(Subproblems(rates, deadline)).run()
        if found.best is None:
            continue
        best = found.best
        if offer.numbers is not None:
            pairs = Pairs(offer.problem, deadline)
            pairs.keep(best)
            pairs.greatest()
            best = given(pairs.best)
        _add(generation, offer, i, best, evaluate(offer.problem, best))


def add_incumbents(generation: Generation, offers: Sequence[Offer]) -> None:
    """Begin with simple pipelines, and the best deployment of these."""
    within = generation.deadline.within(_MOMENT)
    for i in _by_workload(offers).values():
        for placement, evaluation in incumbents(offers[i].problem).items():
            _add(generation, offers[i], i, placement, evaluation)
        if within.reason is not None:
            break
    generation.round_off()


def _by_workload(offers: Sequence[Offer]) -> dict[Workload, int]:
    """An offer of each workload, whatever its numbers in flight."""
    return {offer.problem.workload: i for i, offer in enumerate(offers)}


def _add(
    generation: Generation, offer: Offer, index: int, placement: Placement, evaluation: Evaluation
) -> None:
    """A pipeline becomes a column, and the best deployment if it is better alone."""
    classes, stages = offer.rates.classes, []
    for stage in placement.stages:
        gpus = np.bincount(classes.of[list(stage.gpus)], minlength=len(classes))
        stages.append((len(stage.layers), tuple(gpus.tolist())))
    used = tuple(np.sum([gpus for _, gpus in stages], axis=0).tolist())
    rate = evaluation.rate if offer.numbers is None else evaluation.attainable
    column = Column(rate, used, index, stages=tuple(stages))
    generation.columns.append(column)
    generation.keep([column])
