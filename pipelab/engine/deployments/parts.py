"""Pipelines of a deployment found one at a time: the best single pipeline on a part of the GPUs, and on what it leaves.

Which parts: what the last one left, the GPUs of a chosen pipeline with all that
are free, what pipelines near to the price of their GPUs leave, and a half, a third and a quarter of all.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pipelab.engine.answers import Result
from pipelab.engine.deadline import apart
from pipelab.engine.deployments.deployment_search import ROUNDING_SECONDS, DeploymentSearch
from pipelab.engine.deployments.master_program import PipelineColumn
from pipelab.engine.deployments.paths import StageOf
from pipelab.engine.deployments.pricing import Offer
from pipelab.engine.methods.attainable_rate import solve_for_attainable
from pipelab.engine.rate_search import seconds_to_choose
from pipelab.engine.solving import method_of
from pipelab.fields import given
from pipelab.placement import Placement

_SMALL_OPEN_SHARE = 0.02  # no parts are looked at, and pipelines on them need not be better
_LEAST_PART = 4  # a quarter of the GPUs
_Part = tuple[np.ndarray, Offer]  # GPUs of each class, and the workload


@dataclass
class PartsSearch:
    """A search of a deployment's pipelines on parts of the GPUs.

    Attributes
    ----------
    generation : DeploymentSearch
        Keeps the pipelines that are found, and the best deployment.
    seconds : float
        For every call of `add_pipelines`.
    """

    generation: DeploymentSearch
    seconds: float
    _left: list[_Part] = field(default_factory=list)
    _seen: set[tuple[int, ...]] = field(default_factory=set)

    def add_pipelines(self, most: int) -> None:
        """Add the best pipelines on up to so many parts, until little is open.

        Raises
        ------
        Ended
            The deadline was first.
        """
        generation, first = self.generation, len(self._seen)
        until = generation.deadline.within(self.seconds)
        while until.reason is None and len(self._seen) < first + most:
            generation.round_relaxation()
            generation.report_progress()
            untried = (part for part in self._parts() if tuple(part[0].tolist()) not in self._seen)
            part = next(untried, None)
            if part is None or generation.open <= max(_SMALL_OPEN_SHARE, generation.gap):
                break
            number, offer = part
            self._seen.add(tuple(number.tolist()))
            self.best_on(number, offer, gap=_SMALL_OPEN_SHARE)
        generation.solve_whole_for(ROUNDING_SECONDS)

    def best_on(self, number: np.ndarray, offer: Offer, gap: float = 0.0) -> Result | None:
        """Find the best pipeline on so many GPUs of each class, and add it; None without GPUs."""
        members, until = offer.table.classes.members, self.generation.deadline.within(self.seconds)
        gpus = sorted(g for ids, n in zip(members, number, strict=True) for g in ids[:n])
        if not gpus:
            return None
        problem = replace(offer.problem, cluster=offer.problem.cluster.only(gpus))
        ends = {"time_limit": until.left, "stop": apart(until.stop), "gap": gap}
        before = seconds_to_choose.set(0.0)
        best = solve_for_attainable(problem, "auto", method_of("auto", {}), ends)
        seconds_to_choose.reset(before)
        if best.placement is not None:
            column = column_of(offer, renumbered(best.placement, gpus), offer.attained)
            self.generation.add_column(column)
            self._left.append((number - column.gpus, offer))
        return replace(best, bound=0.0) if best.status == "infeasible" else best

    def _parts(self) -> Iterator[_Part]:
        generation = self.generation
        counts, chosen = generation.goal.counts, generation.best or []
        near = sorted(generation.pipelines, key=given(generation.prices).profit, reverse=True)
        fastest = sorted(near, key=lambda column: -column.rate)[:1]
        free = counts - np.sum([c.gpus for c in chosen], axis=0, dtype=int)
        yield from self._left[::-1]
        yield from ((free + column.gpus, column.offer) for column in chosen if self._left)
        yield from ((counts - column.gpus, column.offer) for column in near)
        yield from ((counts // n, c.offer) for n in range(2, 1 + _LEAST_PART) for c in fastest)


def column_of(
    offer: Offer, placement: Placement, rate: Callable[[tuple[StageOf, ...]], float]
) -> PipelineColumn:
    """Make a column of a placement: its layers and GPUs by class, and its rate."""
    stages = tuple(offer.table.classes.stages_of(placement))
    gpus = np.sum([stage_gpus for _, stage_gpus in stages], axis=0)
    return PipelineColumn(rate=rate(stages), gpus=tuple(gpus.tolist()), offer=offer, stages=stages)


def renumbered(placement: Placement, ids: Sequence[int]) -> Placement:
    """Move a placement on GPUs 0, 1, … to the GPUs with these ids."""
    stages = placement.stages
    return Placement.of((len(s.layers), tuple(ids[g] for g in s.gpus)) for s in stages)
