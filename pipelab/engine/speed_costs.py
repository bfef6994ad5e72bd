"""Speeds other than predicted: a cost model whose stages take another time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipelab.costs import TrainingCost, WrappedCosts
from pipelab.problem import CostModel, Problem, StageCost, StageTables, answered


@dataclass(frozen=True, eq=False, kw_only=True)
class SpeedCosts(WrappedCosts):
    """A cost model whose stages take another time: that of a type's stages over the type's speed (`with_speeds`).

    Attributes
    ----------
    scenarios : sequence of mapping of GPU type to float
        Speeds as multiples of the predicted ones; 1 where a type is not named. The whole time of a stage changes,
        whatever it is made of; memory, batch shares and links stay as predicted.
    weights : sequence of float
        One for each scenario. Of several scenarios the least rate counts, each times its weight; the least weight
        is that of links.

    Notes
    -----
    A stage of several types takes what its slowest type takes, if the batch is split evenly. If it is split so that all
    finish together, the rate changes by the mean of the speeds, weighted by what each type's GPUs yield alone.
    """

    scenarios: Sequence[Mapping[str, float]]
    weights: Sequence[float] = (1.0,)

    def link_throughput(self, problem: Problem, bandwidth_gb_per_s: Any) -> Any:
        """Return the cost model's answer, times the least weight."""
        return self.costs.link_throughput(problem, bandwidth_gb_per_s) * min(self.weights)

    def stage(self, *asked: Any) -> StageCost:
        """Return the cost model's answer in the changed time."""
        model, workload, gpus, layers, batch_split = asked
        cost, kinds = answered(self.costs, *asked), tuple(dict.fromkeys(gpus))
        counts = np.array([[list(gpus).count(kind) for kind in kinds]])
        factors = self._factors(model, workload, kinds, counts, batch_split)
        span = model.spans.kind[layers.start, len(layers) - 1]
        rate, seconds = (float(factor[0, span]) for factor in factors)
        passes = None if cost.pass_seconds is None else cost.pass_seconds * seconds
        return cost._replace(throughput=cost.throughput * rate, pass_seconds=passes)

    def stage_tables(self, *asked: Any) -> StageTables:
        """Return `stage` for every composition and kind of span."""
        tables, (rate, seconds) = self.costs.stage_tables(*asked), self._factors(*asked)
        passes = None if tables.pass_seconds is None else tables.pass_seconds * seconds
        return tables._replace(throughput=tables.throughput * rate, pass_seconds=passes)

    def _factors(self, *asked: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the factors of rates and of seconds, shape (C, U) each, of the least of all scenarios."""
        parts = [self._in_scenario(speeds, *asked) for speeds in self.scenarios]
        rates = [rate * weight for (rate, _), weight in zip(parts, self.weights, strict=True)]
        times = [seconds / weight for (_, seconds), weight in zip(parts, self.weights, strict=True)]
        return np.minimum.reduce(rates), np.maximum.reduce(times)

    def _in_scenario(
        self, speeds: Mapping[str, float], *asked: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the factors of one scenario."""
        model, workload, kinds, composition, batch_split = asked
        speed, has = np.array([speeds.get(kind.type, 1.0) for kind in kinds]), composition > 0
        slowest = np.where(has, speed, np.inf).min(axis=1)
        rate = np.repeat(slowest[:, None], len(model.spans.layers), axis=1)
        seconds = 1 / rate
        mixed = np.flatnonzero(slowest < np.where(has, speed, 0.0).max(axis=1))
        if not len(mixed):
            return rate, seconds
        # In no node with others: so that they share the batch, as those of a mixture do.
        alone = [replace(kind, node="", node_gb_per_s=None, machine="") for kind in kinds]
        sizes, of = np.unique(composition[mixed].sum(axis=1), return_inverse=True)
        rows = (sizes[:, None, None] * np.eye(len(kinds), dtype=int)).reshape(-1, len(kinds))
        pure = self.costs.stage_tables(model, workload, alone, rows, batch_split)
        shape, factor = (len(sizes), len(kinds), -1), speed[:, None]
        count = composition[mixed, :, None]
        rates = pure.throughput.reshape(shape)[of]
        known = np.where(count, rates, 1.0).min(axis=1) > 0
        if batch_split == "even":
            passes = rates  # where there are none, nobody asks for their factor
            if pure.pass_seconds is not None:
                passes = pure.pass_seconds.reshape(shape)[of]
            before, after = np.where(count, [rates, rates * factor], np.inf).min(axis=2)
            shorter, longer = np.where(count, [passes, passes / factor], 0.0).max(axis=2)
        else:
            before, after = (count * rates).sum(axis=1), (count * rates * factor).sum(axis=1)
            shorter, longer = after, before
        rate[mixed] = np.divide(after, before, out=rate[mixed], where=known)
        seconds[mixed] = np.divide(longer, shorter, out=seconds[mixed], where=known)
        return rate, seconds

    def training_cost(self, problem: Problem, report: Any, **options: Any) -> TrainingCost:
        """Return the cost model's answer in the time of the slowest GPU."""
        slowest = self._slowest(problem, report.stage.gpus)
        seconds, rate = report.seconds * slowest[0], report.throughput / slowest[0]
        predicted = replace(report, seconds=seconds, throughput=rate)
        cost = self.costs.training_cost(problem, predicted, **options)
        return TrainingCost(*(np.array(cost) / slowest).tolist())

    def training_table(self, problem: Problem, gpus: Sequence[int], **options: Any) -> Any:
        """Return the cost model's table in the time of the slowest GPU."""
        table = self.costs.training_table(problem, gpus, **options)
        return None if table is None else table / self._slowest(problem, gpus)[:, None]

    def _slowest(self, problem: Problem, gpus: Sequence[int]) -> np.ndarray:
        """Return the least speed of some GPUs for each field of `TrainingCost` that is a time, and 1 for the others."""
        types = {problem.cluster.gpus[g].type for g in gpus}
        speed = min(speeds.get(name, 1.0) for speeds in self.scenarios for name in types)
        return np.where(np.arange(len(TrainingCost._fields)) < _TRAINING_TIMES, speed, 1.0)


_TRAINING_TIMES = TrainingCost._fields.index("state_gb")  # fields before this one are seconds


def with_speeds(costs: CostModel, speeds: Mapping[str, float]) -> CostModel:
    """Return a cost model in which types of GPU are faster or slower than predicted.

    Parameters
    ----------
    costs : CostModel
        Any.
    speeds : mapping of GPU type to float
        As multiples of the predicted speeds.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny")
    >>> slower = with_speeds(tiny.costs, {"A100": 0.8})
    >>> asked = tiny.model, tiny.workload, tiny.cluster.gpus[:1], range(2), "even"
    >>> round(slower.stage(*asked).throughput / tiny.costs.stage(*asked).throughput, 9)
    0.8
    """
    return SpeedCosts(costs=costs, scenarios=(dict(speeds),))
