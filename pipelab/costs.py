"""What a stage costs: its rate, and the memory it needs on each of its GPUs.

Anything with the four members of `CostModel` can say that. The simplest model is written out here:
`LayerTimes`, in which the times of layers add up. The write-up's model and models of real GPUs are
in `pipelab.hardware`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from pipelab.cluster import GPU
from pipelab.display import counted
from pipelab.errors import InvalidValue
from pipelab.fields import NotNegative, Positive, checked, is_list, is_real, python_value

if TYPE_CHECKING:
    from pipelab.problem import ModelLike, Problem, Workload

# A stage that needs exactly the available memory fits, despite rounding.
MEMORY_SLACK = 1 + 1e-9

_SAME = 1e-9  # shares and times this close to one another differ by the last bits of the arithmetic


class StageCost(NamedTuple):
    """One stage: its rate, and per GPU its share of the batch and the memory it needs."""

    throughput: float  # tokens/s
    batch: tuple[float, ...]  # sequences on each GPU, on average
    memory_gb: tuple[float, ...]  # needed on each GPU
    # GPUs that split each layer (tensor parallelism); 1: each GPU holds its layers whole.
    degree: int = 1
    # Of one microbatch, in whole sequences; None: its tokens over the throughput.
    pass_seconds: float | None = None

    def fits(self, gpus: Sequence[GPU]) -> bool:
        """Whether the stage has a rate, and the memory that it needs on each of its GPUs."""
        needs = zip(self.memory_gb, gpus, strict=True)
        return self.throughput > 0 and all(fits_in(need, gpu.memory_gb) for need, gpu in needs)


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


@runtime_checkable
class CostModel(Protocol):
    """What a cost model must offer; anything that has these four members will do.

    Layers may count through their number, `model.work(layers)` and `model.weight_gb(layers)`: the
    engine asks once for all stages that agree in these, and refuses a model that answers otherwise
    for the last layers than for the first. Optional members make it faster or its
    reasons richer: `stage_tables`, `mixes_as_slowest`, `memory_parts`, all explained in
    `pipelab.engine.stage_arrays`. For training, `training_cost(problem, report, **recipe)` gives a
    `TrainingCost`, as that of `Roofline` does; its `training_table` has them for many stages.
    """

    @property
    def gpu_types(self) -> Sequence[str]:
        """Names of the GPU types it knows."""

    def check(self, problem: "Problem") -> None:
        """Raise `InvalidValue` if the model has no answer for this problem.

        Parameters
        ----------
        problem : Problem
            Called when it is made.
        """

    def stage(
        self,
        model: "ModelLike",
        workload: "Workload",
        gpus: Sequence[GPU],
        layers: range,
        batch_split: str,
    ) -> StageCost:
        """Rate, batch shares and memory of a stage.

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

    def link_throughput(self, problem: "Problem", bandwidth_gb_per_s: Any) -> Any:
        """Rate of links.

        Parameters
        ----------
        problem : Problem
            Whose tensor counts.
        bandwidth_gb_per_s : float or array of float
            In GB/s, of 10^9 bytes.

        Returns
        -------
        float or numpy.ndarray
            In tokens/s, unless the model has another `link_unit`.
        """


def fits_in(needed_gb: Any, memory_gb: Any) -> Any:
    """Whether so much memory is enough; numbers or arrays, which broadcast.

    >>> fits_in(80.0 + 1e-12, 80.0), fits_in(80.1, 80.0)
    (True, False)
    """
    return needed_gb <= memory_gb * MEMORY_SLACK


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


def answered(
    costs: CostModel,
    model: "ModelLike",
    workload: "Workload",
    gpus: Sequence[GPU],
    layers: range,
    batch_split: str,
) -> StageCost:
    """What a cost model answers about a stage, in Python's numbers.

    Raises
    ------
    InvalidValue
        It is not a `StageCost`, a number is not valid, or there is not one for each GPU.
        A rate of 0 says that the model has no answer; infinite memory says that the stage fits
        nowhere.
    """
    cost, each = costs.stage(model, workload, gpus, layers, batch_split), []
    expected = f"expected a number of at least 0 for each of {counted(len(gpus), 'GPU')}"
    bad: list[tuple[str, object, str]] = []
    if isinstance(cost, StageCost):
        rate, passes = _number(cost.throughput), _number(cost.pass_seconds)
        if not is_real(rate):
            bad.append(("throughput", rate, "expected a finite number of tokens/s"))
        if rate and passes is not None and not (is_real(passes) and passes > 0):
            bad.append(("pass_seconds", passes, "expected seconds, more than 0, or None"))
        for name, values in (("batch", cost.batch), ("memory_gb", cost.memory_gb)):
            numbers = [_number(v) for v in values] if is_list(values) else []
            fit = [is_real(v) or v == math.inf for v in numbers]
            if len(numbers) != len(gpus) or not all(fit) or min(numbers) < 0:
                bad.append((name, values, expected))
            each.append(numbers)
    else:
        bad.append(("answer", cost, "expected a StageCost"))
    if bad:
        raise InvalidValue(f"{type(costs).__name__}.stage", bad)
    batch, memory = (tuple(map(float, numbers)) for numbers in each)
    passes = None if passes is None else float(passes)
    return StageCost(float(rate), batch, memory, int(cost.degree), passes)


def link_answered(problem: "Problem", bandwidth_gb_per_s: Any) -> Any:
    """What the problem's cost model answers about links: `Problem.link_throughput`.

    Raises
    ------
    InvalidValue
        It is not a number, or not above 0 where the bandwidth is.
    """
    rate = python_value(problem.costs.link_throughput(problem, bandwidth_gb_per_s))
    if isinstance(bandwidth_gb_per_s, float) and isinstance(rate, float) and rate > 0:
        return rate  # one link of very many
    given = np.asarray(bandwidth_gb_per_s)
    try:
        # A model may take all links for equally fast, and answer with one number.
        rates = np.broadcast_to(np.asarray(rate, float), given.shape)
        bad = given[(given > 0) & ~(rates > 0)]
        expected = (
            f"expected more than 0 {link_unit(problem.costs)}/s where the bandwidth is above 0"
        )
        found = rate if not bad.size else f"{rates[given == bad[0]][0]} at {bad[0]:g} GB/s"
    except (TypeError, ValueError):
        bad, found = given, rate
        expected = "expected a number, or an array of the shape of bandwidth_gb_per_s"
    if bad.size:
        raise InvalidValue(
            f"{type(problem.costs).__name__}.link_throughput", [("rate", found, expected)]
        )
    return rates.copy() if given.ndim else rates.item()


def _number(value: Any) -> Any:
    """Python's own of what numpy counted."""
    return value.item() if isinstance(value, np.ndarray) and not value.ndim else python_value(value)


def link_rate(problem: "Problem", bandwidth_gb_per_s: Any) -> Any:
    """Bandwidth over tensor size, both of GB of 10^9 bytes, times its tokens."""
    return python_value(bandwidth_gb_per_s / problem.tensor_gb() * problem.workload.tokens)


def link_unit(costs: CostModel) -> str:
    """Return what a cost model counts on links: tokens, or what its attribute `link_units` says.

    Only the write-up's model has one: "transfers", compared with a stage's tokens by mistake.
    """
    return getattr(costs, "link_units", "tokens")


def refuse_transfers(what: str, unit: str) -> None:
    """Refuse links that are not counted in tokens, and so have no time; `what` was called."""
    if unit != "tokens":
        remedy = "costs=dataclasses.replace(problem.costs, link_units='tokens')"
        expected = (
            f"expected 'tokens', so that links have a time: dataclasses.replace(problem, {remedy})"
        )
        raise InvalidValue(what, [("costs.link_units", unit, expected)])


@checked
class LayerTimes:
    """Times that add up: a stage takes the sum of its layers' times.

    Parameters
    ----------
    ms_per_layer : mapping of GPU type to float
        Milliseconds of one ordinary layer for one microbatch (the whole batch). The model's
        `work_factors` say where a layer takes longer, such as the last one with the head.
    reserved_gb : float
        Memory of every GPU that weights cannot use: KV cache, activations, buffers.

    Raises
    ------
    InvalidValue
        A number is not finite, or too small.

    Notes
    -----
    k GPUs of a stage share the batch. A share b of the batch B takes b/B of the time, so an even
    split takes (time of the slowest GPU) / k, and a balanced split 1 / Σ (1 / time). Each GPU holds
    all weights of the stage.
    """

    ms_per_layer: Mapping[str, Positive]
    reserved_gb: NotNegative = 0.0

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Names of the GPU types this model knows."""
        return tuple(self.ms_per_layer)

    def __hash__(self) -> int:
        return hash((frozenset(self.ms_per_layer.items()), self.reserved_gb))

    def check(self, problem: "Problem") -> None:
        """Nothing is refused: the times hold for whatever microbatch they were given for.

        Parameters
        ----------
        problem : Problem
            What this model is to serve.
        """

    def link_throughput(self, problem: "Problem", bandwidth_gb_per_s: Any) -> Any:
        """Rate of links of these bandwidths.

        Parameters
        ----------
        problem : Problem
            Whose tensor counts.
        bandwidth_gb_per_s : float or array of float
            In GB/s.

        Returns
        -------
        float or numpy.ndarray
            In tokens/s.
        """
        return link_rate(problem, bandwidth_gb_per_s)

    def stage(
        self,
        model: "ModelLike",
        workload: "Workload",
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
