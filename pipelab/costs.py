"""What a stage costs: its rate, and the memory it needs on each of its GPUs.

Anything with the four members of `pipelab.problem.CostModel` can say that. The simplest model is written out here:
`LayerTimes`, in which the times of layers add up. The write-up's model and models of real GPUs are
in `pipelab.hardware`.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge, Le

from pipelab.cluster import GPU
from pipelab.errors import InvalidValue
from pipelab.fields import NotNegative, Real, checked, described, python_value
from pipelab.problem import ModelLike, Problem, StageCost, Workload

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


def link_rate(problem: Problem, bandwidth_gb_per_s: Any) -> Any:
    """Bandwidth over tensor size, both of GB of 10^9 bytes, times its tokens."""
    return python_value(bandwidth_gb_per_s / problem.tensor_gb() * problem.workload.tokens)


def refuse_transfers(what: str, unit: str) -> None:
    """Refuse links that are not counted in tokens, and so have no time; `what` was called."""
    if unit != "tokens":
        expected = "expected 'tokens', so that links have a time: pl.writeup.with_link_units(problem, 'tokens')"
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
        A number is not finite, too small or too large.

    Notes
    -----
    k GPUs of a stage share the batch. A share b of the batch B takes b/B of the time, so an even
    split takes (time of the slowest GPU) / k, and a balanced split 1 / Σ (1 / time). Each GPU holds
    all weights of the stage.
    """

    ms_per_layer: Mapping[str, _Milliseconds]
    reserved_gb: NotNegative = 0.0

    nodes_matter_alone = True  # rates and memory depend on types

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Names of the GPU types this model knows."""
        return tuple(self.ms_per_layer)

    def __hash__(self) -> int:
        return hash((frozenset(self.ms_per_layer.items()), self.reserved_gb))

    def check(self, problem: Problem) -> None:
        """Nothing is refused: the times hold for whatever microbatch they were given for.

        Parameters
        ----------
        problem : Problem
            What this model is to serve.
        """

    def link_throughput(self, problem: Problem, bandwidth_gb_per_s: Any) -> Any:
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
