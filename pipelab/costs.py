"""What a stage costs: its rate, and the memory it needs on each of its GPUs.

A subclass of `pipelab.problem.CostModel` says that. The simplest one is written out here: `LayerTimes`, in which the
times of layers add up. The write-up's is in `pipelab.writeup`, those of real GPUs are in `pipelab.hardware`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from operator import attrgetter, methodcaller
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge, Le

from pipelab.cluster import GPU
from pipelab.errors import InvalidValue, NotApplicable
from pipelab.fields import Natural, NotNegative, Real, checked, described
from pipelab.problem import (
    CostModel,
    Filling,
    ModelLike,
    Problem,
    StageCost,
    StageTables,
    Workload,
    answered,
)

# beyond, sums and ratios leave the range of floats
_Milliseconds = Annotated[
    Annotated[Real, Ge(1e-30), Le(1e30)], described("a number from 1e-30 to 1e30")
]
_SAME = 1e-9  # shares and times this close to one another differ by the last bits of the arithmetic


class TrainingCost(NamedTuple):
    """One stage in training: seconds of one microbatch, and gigabytes on its fullest GPU."""

    forward: float
    backward_input: float  # gradient of the stage's input
    backward_weight: float  # gradients of its weights
    step: float  # once per step: gradients of its replicas added up, weights updated
    state_gb: float  # weights, gradients and the optimizer's state
    activation_gb: float  # of one microbatch, from forward to input gradient
    weight_activation_gb: float  # from there to the weight gradient: what it needs
    working_gb: float = 0.0  # once, whatever is in flight: of a layer that is recomputed


def whole_sequences(batch: Any) -> Any:
    """Sequences that a GPU works on at a time, given its average share b of the batch: ⌈b⌉.

    Two GPUs and one sequence make a share of ½ each. As a rate this is exact: the GPUs take turns
    with whole sequences, and twice as many microbatches start. But no sequence is split, so one
    microbatch takes as long as one GPU needs for ⌈b⌉ sequences: see `pass_time`.

    >>> whole_sequences(np.array([0.0, 0.5, 2.0, 2.5])).tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    return np.ceil(np.maximum(0.0, batch - _SAME * np.maximum(1.0, batch)))


def pass_time(interval: Any, longest: Any) -> Any:
    """Seconds that one microbatch spends in a stage: the slowest GPU's, at least the interval.

    The interval is tokens over rate: every so often the stage starts another microbatch. Numbers
    or arrays, which broadcast. Only rounding and synthetic rates put `longest` below it.

    >>> pass_time(0.5, 0.75).item(), pass_time(0.5, 0.5 + 1e-16).item()
    (0.75, 0.5)
    """
    return np.where(longest > interval * (1 + _SAME), longest, interval)


def refuse_transfers(what: str, unit: str) -> None:
    """Refuse links that are not counted in tokens, and so have no time; `what` was called."""
    if unit != "tokens":
        expected = "expected 'tokens', so that links have a time: pl.writeup.with_link_units(problem, 'tokens')"
        raise InvalidValue(what, [("costs.link_units", unit, expected)])


def refuse_filling(what: str, costs: CostModel) -> None:
    """Refuse engines that fill a pipeline otherwise than with microbatches that never wait; `what` was called."""
    if costs.filling != "synchronous":
        expected = f"expected 'synchronous': {what} knows no other"
        raise NotApplicable(what, [("problem.costs.filling", costs.filling, expected)])


@checked
class LayerTimes(CostModel):
    """Times that add up: a stage takes the sum of its layers' times.

    Parameters
    ----------
    ms_per_layer : mapping of GPU type to float
        Milliseconds of one ordinary layer for one microbatch (the whole batch). The model's
        `work_factors` say where a layer takes longer, such as the last one with the head.
    reserved_gb : float
        Memory of every GPU that weights cannot use: KV cache, activations, buffers.
    filling : {"synchronous", "by_stages", "dynamic", "micro_batches", "one"}
        How a pipeline is filled, as of `CostModel`.
    filling_number : int
        Likewise.

    Raises
    ------
    InvalidValue
        A number is not finite, too small or too large.

    Notes
    -----
    k GPUs of a stage share the batch. A share b of the batch B takes b/B of the time, so an even
    split takes (time of the slowest GPU) / k, and a balanced split 1 / Σ (1 / time). Each GPU holds
    all weights of the stage.
    """

    ms_per_layer: Mapping[str, _Milliseconds]
    reserved_gb: NotNegative = 0.0
    filling: Filling = "synchronous"
    filling_number: Natural = 0

    nodes_matter_alone = True  # rates and memory depend on types

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Names of the GPU types this model knows."""
        return tuple(self.ms_per_layer)

    def __hash__(self) -> int:
        others = self.reserved_gb, self.filling, self.filling_number
        return hash((frozenset(self.ms_per_layer.items()), *others))

    def stage(
        self,
        model: ModelLike,
        workload: Workload,
        gpus: Sequence[GPU],
        layers: range,
        batch_split: str,
    ) -> StageCost:
        """Rate, batch shares and memory of one stage.

        Parameters
        ----------
        model : Model or Transformer
            Whose layers these are.
        workload : Workload
            What passes through them.
        gpus : sequence of GPU
            Those of the stage.
        layers : range
            Numbered from 0.
        batch_split : {"even", "balanced"}
            As in `Problem`.

        Returns
        -------
        StageCost
            In tokens/s, sequences and GB.
        """
        # Of the whole batch on one GPU.
        seconds = [self.ms_per_layer[g.type] * model.work(layers) / 1000 for g in gpus]
        if batch_split == "even":
            share = [1 / len(gpus)] * len(gpus)
        else:
            share = [1 / s / sum(1 / t for t in seconds) for s in seconds]
        interval = max(b * s for b, s in zip(share, seconds, strict=True))
        batch = tuple(b * workload.batch_size for b in share)
        whole = whole_sequences(np.array(batch)) / workload.batch_size
        memory = model.weight_gb(layers) + self.reserved_gb
        passes, rate = pass_time(interval, max(whole * seconds)), workload.tokens / interval
        return StageCost(rate, batch, (memory,) * len(gpus), pass_seconds=float(passes))


_RETURN_COSTS = (
    "preferring_rate", "for_training", "counting_memory_of", "cutting_every_layer", "cutting_no_layer",
    "with_link_units",
)  # fmt: skip


def of_wrapped(name: str, field: str = "costs") -> Any:
    """Make a member of a cost model that is the member of this name of another one in a field of it.

    Where that returns a cost model again, it takes the place of the other one.
    """

    def changed(self: Any, *args: Any) -> Any:
        before = attrgetter(field)(self)
        after = methodcaller(name, *args)(before)
        return self if after is before else replace(self, **{field: after})

    if name in _RETURN_COSTS:
        return changed
    return property(attrgetter(f"{field}.{name}"), doc=f"As `{field}` has it.")


@dataclass(frozen=True, eq=False, kw_only=True)
class WrappedCosts(CostModel):
    """A cost model that answers as another one; a subclass says where it differs.

    Attributes
    ----------
    costs : CostModel
        Which answers.
    """

    costs: CostModel

    gpu_types = of_wrapped("gpu_types")
    stage = of_wrapped("stage")
    for _name in vars(CostModel):
        if not _name.startswith("_"):
            vars()[_name] = of_wrapped(_name)
    del _name


@dataclass(frozen=True, kw_only=True)
class FilledCosts(WrappedCosts):
    """A cost model for an engine that fills a pipeline otherwise than the cost model says (`filled`)."""

    filling: Filling = "synchronous"
    filling_number: int = 0


def filled(costs: CostModel, filling: Filling, filling_number: int = 0) -> CostModel:
    """Return a cost model for an engine that fills a pipeline in another way.

    Parameters
    ----------
    costs : CostModel
        Such as `Roofline`, which has the filling as a field; others are wrapped, so that what changes them keeps it.
    filling, filling_number
        As of `CostModel`.
    """
    changed: dict[str, Any] = {"filling": filling, "filling_number": filling_number}
    if is_dataclass(costs) and "filling" in (field.name for field in fields(costs)):
        return replace(costs, **changed)
    return FilledCosts(costs=costs, **changed)


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
        self,
        speeds: Mapping[str, float],
        model: ModelLike,
        workload: Workload,
        kinds: Sequence[GPU],
        composition: np.ndarray,
        batch_split: str,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the factors of one scenario."""
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
