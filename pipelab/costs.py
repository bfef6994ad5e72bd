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
from pipelab.problem import CostModel, Filling, ModelLike, StageCost, Workload

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
