"""What every solver and the evaluator ask of a cost model: rates, memory and links, stage by stage."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from pipelab.cluster import GPU
from pipelab.costs import StageCost
from pipelab.engine.stage_arrays import StageTables
from pipelab.errors import InvalidValue
from pipelab.fields import python_value
from pipelab.hardware.roofline.arrays import Span
from pipelab.hardware.roofline.constants import RooflineConstants
from pipelab.hardware.roofline.demand import Demand
from pipelab.hardware.roofline.execution_modes import best_modes
from pipelab.hardware.roofline.pass_times import seconds_of_pass
from pipelab.hardware.roofline.single_stage import cost_of_stage
from pipelab.hardware.transformer import Transformer
from pipelab.problem import Problem, Workload


class RooflineStages(RooflineConstants):
    """The part of `Roofline` that makes it a cost model."""

    def check(self, problem: Problem) -> None:
        """Refuse what has no meaning here; called by `Problem` when it is made.

        Parameters
        ----------
        problem : Problem
            What this model is to serve.

        Raises
        ------
        InvalidValue
            The model is no `Transformer`, links are not counted in tokens, an engine for training
            is to write tokens, or a rate is not between 1e-9 and 1e15 tokens/s, beyond which
            solvers do not compute.
        """
        if not isinstance(problem.model, Transformer):
            expected = "expected a Transformer, such as load_model('Llama-3-70B'): Roofline needs its dimensions"
            raise InvalidValue("Problem", [("model", problem.model.name, expected)])
        if problem.link_units != "tokens":
            expected = (
                "expected 'tokens': Roofline's stages count tokens, and links must count the same"
            )
            raise InvalidValue("Problem", [("link_units", problem.link_units, expected)])
        load, spans = problem.workload, (range(1), range(problem.model.layers))
        if self.constants.activation_moves and load.phase in ("decode", "mixed"):
            expected = f"expected another engine for the phase {load.phase!r}: this one trains"
            raise InvalidValue("Problem", [("costs.engine", self.engine, expected)])
        for gpu in {kind.type: kind for kind in problem.cluster.kinds}.values():
            with np.errstate(all="ignore"):
                rates = load.tokens / np.array(
                    [seconds_of_pass(self, problem.model, load, gpu, x) for x in spans]
                )
            # no GPU's, and beyond what solvers compute with
            if not 1e-9 < rates.min() <= rates.max() < 1e15:
                expected = f"expected rates from 1e-9 to 1e15 tokens/s; {gpu.type} has {rates[0]:g} with one layer"
                raise InvalidValue("Problem", [("costs.gpus", gpu.type, expected)])

    def link_throughput(self, problem: Problem, bandwidth_gb_per_s: np.ndarray | float) -> Any:
        """Rate of links that carry one microbatch after the other.

        Parameters
        ----------
        problem : Problem
            Whose model and workload count.
        bandwidth_gb_per_s : float or array of float
            In GB/s.

        Returns
        -------
        float or numpy.ndarray
            In tokens/s, of the shape of `bandwidth_gb_per_s`.
        """
        load = problem.workload
        sent = Demand(_known(problem), load).residual_bytes(load.batch_size)
        sent *= self.for_phase(load.phase).constants.stage_tensors
        # A GPU's link to itself may be infinite; without latency that takes no time at all.
        with np.errstate(divide="ignore"):
            seconds = self.hop_latency_s + sent / (np.asarray(bandwidth_gb_per_s) * 1e9)
            return python_value(problem.workload.tokens / seconds)

    def mixes_as_slowest(self, problem: Problem) -> bool:
        """Whether a mixed stage is exactly as fast as the slowest pure one of its size (see `LinearThroughput`).

        Parameters
        ----------
        problem : Problem
            Whose batch split and nodes count.

        Returns
        -------
        bool
            True for an even split where no layer can be cut.
        """
        cut = self.tensor_parallel and any(kind.node for kind in problem.cluster.kinds)
        return problem.batch_split == "even" and not cut

    def memory_parts(self, problem: Problem, gpu: GPU, layers: range) -> dict[str, float]:
        """What these layers need on one GPU alone, by what it is for.

        Parameters
        ----------
        problem : Problem
            Whose model and workload count.
        gpu : GPU
            Of whose memory `memory_share` may be used.
        layers : range
            Numbered from 0.

        Returns
        -------
        dict of str to float
            "weights", "KV cache", "activations" and "reserve", in GB (10^9 bytes).
        """
        demand, load = Demand(_known(problem), problem.workload), problem.workload
        span = Span.of(demand.model, layers)
        chunk = self.for_phase(load.phase).constants.chunk_tokens
        parts = demand.kept_gb(span, load.batch_size, 1, chunk)
        reserve = (1 - self.memory_share) * gpu.memory_gb
        return {name: float(value) for name, value in parts.items()} | {"reserve": reserve}

    def stage(
        self,
        model: Transformer,
        workload: Workload,
        gpus: Sequence[GPU],
        layers: range | int,
        batch_split: str,
    ) -> StageCost:
        """Rate, batch shares and memory of one stage.

        Parameters
        ----------
        model : Transformer
            Whose layers these are.
        workload : Workload
            What passes through them.
        gpus : sequence of GPU
            Those of the stage.
        layers : range or int
            Numbered from 0; a number stands for so many layers from the first.
        batch_split : {"even", "balanced"}
            As in `Problem`.

        Returns
        -------
        StageCost
            `throughput` in tokens/s, `batch` in sequences and `memory_gb` in GB (both one number
            per GPU), `degree`, the GPUs that cut each layer among them, and `pass_seconds`.
        """
        layers = range(layers) if isinstance(layers, int) else layers
        demand, span = Demand(model, workload), Span.of(model, layers)
        return cost_of_stage(self.for_phase(workload.phase), demand, tuple(gpus), span, batch_split)

    def stage_tables(
        self,
        model: Transformer,
        workload: Workload,
        kinds: Sequence[GPU],
        composition: np.ndarray,
        batch_split: str,
    ) -> StageTables:
        """`stage` for every composition and every kind of span (`model.spans`) at once.

        Parameters
        ----------
        model : Transformer
            With U kinds of span.
        workload : Workload
            What passes through them.
        kinds : sequence of GPU
            The K different GPUs.
        composition : array of int, shape (C, K)
            How many GPUs of each kind a candidate stage has; every row has at least one.
        batch_split : {"even", "balanced"}
            As in `Problem`.

        Returns
        -------
        StageTables
            `throughput` (C, U) in tokens/s, `memory_gb` (C, K, U) in GB, and `pass_seconds` (C, U).
        """
        demand, spans = Demand(model, workload), Span.all(model)
        costs = self.for_phase(workload.phase)
        best = best_modes(costs, demand, tuple(kinds), composition, spans, batch_split)
        return StageTables(best.rate, best.memory_gb, best.seconds)


def _known(problem: Problem) -> Transformer:
    """The model, which `check` has found to have dimensions."""
    return cast(Transformer, problem.model)
