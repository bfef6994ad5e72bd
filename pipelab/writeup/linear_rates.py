"""The write-up's cost model: linear throughput, and its memory rule.

The coefficients are synthetic: no measurement supports them, and throughput *rises* with the number
of layers, as on no real GPU. They are kept because the write-up's numbers come from them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np

from pipelab.cluster import GPU
from pipelab.costs import pass_time, whole_sequences
from pipelab.errors import InvalidValue, refuse_unknown
from pipelab.fields import Number, Positive, Share, checked, python_value
from pipelab.problem import CostModel, ModelLike, Problem, StageCost, StageTables, Workload


@checked
class Coefficients:
    """Coefficients of the rate of one type of GPU.

    θ(L, b, n) = max(1, per_token·L + per_sequence·b + per_layer·n + constant), in tokens/s, for
    sequences of L tokens, b of them on this GPU, and n layers.

    Parameters
    ----------
    per_token : float
        a, in tokens/s per token of sequence length.
    per_sequence : float
        β, in tokens/s per sequence.
    per_layer : float
        γ, in tokens/s per layer.
    constant : float
        c, in tokens/s.

    Raises
    ------
    InvalidValue
        A number is not finite.

    Notes
    -----
    The write-up prints neither this formula nor any coefficient: both come from its author's code.
    The symbols a, β, γ and c are pipelab's. The bundled values are synthetic; see `notebooks/data.md`.
    """

    per_token: Number
    per_sequence: Number
    per_layer: Number
    constant: Number


@checked
class LinearThroughput(CostModel):
    """The write-up's cost model.

    Parameters
    ----------
    coefficients : mapping of GPU type to Coefficients
        The types that this model knows.
    efficiency : float
        Factor, above 0 and at most 1, on the summed rate of a stage of two or more GPUs. The
        write-up calls its model exact, yet this 0.85 is a default in its code and in no
        configuration.
    activation_overhead : float
        Factor, above 0, on the activation memory.
    link_units : {"tokens", "transfers"}
        "tokens" counts the tokens that each transfer carries. "transfers" compares a link's
        transfers/s with a stage's tokens/s, as the write-up does by mistake; only the write-up's
        own files set it, see `load_case`.

    Raises
    ------
    InvalidValue
        A number does not fit.

    Notes
    -----
    A stage of one GPU yields θ(L, B, n). A stage of k ≥ 2 yields
    `max(1, efficiency · k · min_i θ_i(L, B/k, n))` when the batch is split evenly, and
    `max(1, efficiency · Σ_i θ_i(L, b_i, n))` when it is balanced, the b_i chosen so that
    all GPUs need the same time b_i / θ_i(b_i).

    Each GPU of a stage holds all its n layers and its own share of the batch:
    `n · layer_weight_gb + (b_i / B) · A`, with
    `A = overhead · (3·B·L·d_model + B·L·d_hidden) · bytes / 2^30` GiB. A counts one layer's
    activations, however many layers the stage has. Where layers differ, n is the work of the
    stage's layers in the first formula and their weight in the second.

    A microbatch takes tokens / throughput if all b_i are whole. Otherwise it takes longer by as
    much as the slowest GPU's turn at ⌈b_i⌉ sequences takes longer than b_i did (`pipelab.costs`):
    the write-up has no times, so this is one reading of its rates.

    It fills pipelines synchronously by definition: the slowest stage or link sets the rate.
    """

    coefficients: Mapping[str, Coefficients]
    efficiency: Share = 0.85
    activation_overhead: Positive = 1.15
    link_units: Literal["tokens", "transfers"] = "tokens"

    nodes_matter_alone = True  # rates and memory depend on types

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Names of the GPU types this model knows."""
        return tuple(self.coefficients)

    def check(self, problem: Problem) -> None:
        """Refuse what the rule has no answer for; called by `Problem` when it is made.

        Parameters
        ----------
        problem : Problem
            What this model is to serve.

        Raises
        ------
        InvalidValue
            The phase is neither "prefill" nor "training"; or the model has no `d_hidden`; or a rate is 1e15 tokens/s
            or more, beyond what solvers compute with; or the batch is split so that all finish
            together, and some GPU has no positive rate before the first sequence or a negative
            `per_sequence`: a longer batch would take less time than a shorter one.
        """
        if problem.workload.phase not in ("prefill", "training"):
            expected = "expected 'prefill': LinearThroughput has one rate, for whole sequences"
            raise InvalidValue("Problem", [("workload.phase", problem.workload.phase, expected)])
        if not problem.model.d_hidden:
            expected = "expected one with d_hidden: LinearThroughput counts its activations"
            raise InvalidValue("Problem", [("model", problem.model, expected)])
        self._check_size(problem)
        if problem.batch_split == "even":
            return
        for kind in dict.fromkeys(gpu.type for gpu in problem.cluster.kinds):
            c = self.coefficients[kind]
            ends = [self._without_batch(c, problem.workload, n) for n in _extremes(problem.model)]
            noise = 1e-9 * (abs(c.per_token) * problem.workload.sequence_length + abs(c.constant))
            if min(ends) <= noise or c.per_sequence < 0:
                expected = (
                    f"a balanced split needs per_token·L + per_layer·n + constant > 0 "
                    f"and per_sequence ≥ 0; "
                    f"for {kind} the first is {min(ends):g}; use batch_split='even'"
                )
                raise InvalidValue("Problem", [("batch_split", problem.batch_split, expected)])

    def _check_size(self, problem: Problem) -> None:
        """Refuse rates of 1e15 tokens/s and more, beyond what solvers compute with and any GPU reaches."""
        for name in dict.fromkeys(gpu.type for gpu in problem.cluster.kinds):
            for layers in _extremes(problem.model):
                load = problem.workload
                rate = float(self.gpu_throughput(name, load, load.batch_size, layers))
                if not rate < 1e15:
                    reached = f"{name} has {rate:g} with {layers} layers"
                    expected = f"expected rates below 1e15 tokens/s; {reached}"
                    raise InvalidValue("Problem", [("costs", "coefficients", expected)])

    def __hash__(self) -> int:
        numbers = self.efficiency, self.activation_overhead, self.link_units
        return hash((frozenset(self.coefficients.items()), *numbers))

    def activation_gb(self, model: ModelLike, workload: Workload) -> float:
        """Activation memory of the whole batch, A.

        Parameters
        ----------
        model : Model or Transformer
            Whose widths and bytes per element count.
        workload : Workload
            Whose batch and sequence length count.

        Returns
        -------
        float
            In GiB (2^30 bytes), of one layer; a stage needs no more, however many it has.
        """
        tokens = workload.batch_size * workload.sequence_length
        elements = tokens * (3 * model.d_model + model.d_hidden)
        return self.activation_overhead * elements * model.bytes_per_element / 2**30

    def gpu_throughput(self, gpu_type: str, workload: Workload, batch: Any, layers: Any) -> Any:
        """Rate θ of one GPU.

        Parameters
        ----------
        gpu_type : str
            One of `gpu_types`.
        workload : Workload
            Whose sequence length counts.
        batch : float or array of float
            Sequences on this GPU.
        layers : float or array of float
            In ordinary layers; broadcasts with `batch`.

        Returns
        -------
        float or numpy.ndarray
            In tokens/s, at least 1.

        Raises
        ------
        UnknownName
            The model does not know the type.
        """
        refuse_unknown("GPU type with coefficients", gpu_type, self.coefficients)
        c = self.coefficients[gpu_type]
        linear = self._without_batch(c, workload, layers) + c.per_sequence * batch
        return python_value(np.maximum(1.0, linear))

    def link_throughput(self, problem: Problem, bandwidth_gb_per_s: np.ndarray | float) -> Any:
        """Bandwidth over tensor size, GB/s over GiB (2^30 bytes), times its tokens.

        The write-up divides so, which makes its links 7% faster than those of all other cost
        models: they count GB of 10^9 bytes.

        Parameters
        ----------
        problem : Problem
            Whose tensor counts.
        bandwidth_gb_per_s : float or array of float
            In GB/s.

        Returns
        -------
        float or numpy.ndarray
            In `link_units` per second; of the shape that was given.
        """
        elements = problem.workload.tokens_passed * problem.model.d_model
        tensor_gib = elements * problem.model.bytes_per_element / 2**30
        tokens = problem.workload.tokens if self.link_units == "tokens" else 1.0
        return python_value(bandwidth_gb_per_s / tensor_gib * tokens)

    def mixes_as_slowest(self, problem: Problem) -> bool:
        """Whether a mixed stage is exactly as fast as the slowest stage of its size of one of its kinds.

        Parameters
        ----------
        problem : Problem
            Whose batch split counts.

        Returns
        -------
        bool
            True if all GPUs get the same share.
        """
        return problem.batch_split == "even"

    def memory_by_size(self, problem: Problem) -> bool:
        """Whether a stage's memory depends on its layers and its number of GPUs alone.

        Parameters
        ----------
        problem : Problem
            Whose batch split counts.

        Returns
        -------
        bool
            True if all GPUs get the same share.
        """
        return problem.batch_split == "even"

    def with_link_units(self, unit: Any) -> Self:
        return replace(self, link_units=unit)

    def memory_parts(self, problem: Problem, gpu: GPU, layers: range) -> dict[str, float]:
        """What these layers need on one GPU that works on the whole batch, by what it is for.

        Parameters
        ----------
        problem : Problem
            Whose model and workload count.
        gpu : GPU
            Not looked at: all need the same.
        layers : range
            Numbered from 0.

        Returns
        -------
        dict of str to float
            "weights" and "activations", in GB as in `GPU.memory_gb`.
        """
        activations = self.activation_gb(problem.model, problem.workload)
        return {"weights": problem.model.weight_gb(layers), "activations": activations}

    def stage(
        self,
        model: ModelLike,
        workload: Workload,
        gpus: Sequence[GPU],
        layers: range | int,
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
            Those of the stage; k of them.
        layers : range or int
            Numbered from 0; an int means that many layers from the first.
        batch_split : {"even", "balanced"}
            As in `Problem`.

        Returns
        -------
        StageCost
            `throughput` in tokens/s, `batch` in sequences and `memory_gb` in GB (both one number
            per GPU), and `pass_seconds`.
        """
        layers = range(layers) if isinstance(layers, int) else layers
        work = model.work(layers)
        batch = self._shares(workload, gpus, work, batch_split)
        rates = [
            float(self.gpu_throughput(g.type, workload, b, work))
            for g, b in zip(gpus, batch, strict=True)
        ]
        total = len(gpus) * min(rates) if batch_split == "even" else sum(rates)
        throughput = rates[0] if len(gpus) == 1 else max(1.0, self.efficiency * total)
        turns = [self._turn(g.type, workload, b, work) for g, b in zip(gpus, batch, strict=True)]
        # Alone at its own rate, in company at the stage's: `efficiency` and the least of 1 hold for
        # both.
        passes = pass_time(workload.tokens / throughput, max(turns) * total / throughput)
        activation = self.activation_gb(model, workload)
        weights = model.weight_gb(layers)
        memory = tuple(weights + activation * (b / workload.batch_size) for b in batch)
        return StageCost(throughput, tuple(batch), memory, pass_seconds=float(passes))

    def stage_tables(
        self,
        model: ModelLike,
        workload: Workload,
        kinds: Sequence[GPU],
        composition: np.ndarray,
        batch_split: str,
    ) -> StageTables:
        """`stage` for many candidates at once; see `CostModel.stage_tables`.

        Parameters
        ----------
        model : Model or Transformer
            Whose layers these are.
        workload : Workload
            What passes through them.
        kinds : sequence of GPU
            The K different GPUs.
        composition : array of int, shape (C, K)
            How many GPUs of each kind a candidate has.
        batch_split : {"even", "balanced"}
            As in `Problem`.

        Returns
        -------
        StageTables
            For each candidate and each kind of span of layers.
        """
        runs = model.spans
        work, weight = runs.work, runs.weight
        size = composition.sum(axis=1)
        present = (composition > 0)[:, :, None]
        if batch_split == "even":
            batch = np.broadcast_to((workload.batch_size / size)[:, None, None], present.shape)
        else:
            batch = self._balanced(workload, kinds, composition, work)

        def of_kinds(measure: Callable[..., Any]) -> np.ndarray:
            shares = [(kind.type, workload, batch[:, i], work) for i, kind in enumerate(kinds)]
            return np.stack([measure(*share) for share in shares], axis=1)

        rate = of_kinds(self.gpu_throughput)
        slowest = np.where(present, rate, np.inf).min(axis=1)
        if batch_split == "even":
            total = size[:, None] * slowest
        else:
            total = (rate * composition[:, :, None]).sum(axis=1)
        throughput = np.where(size[:, None] == 1, slowest, np.maximum(1.0, self.efficiency * total))
        turns = np.where(present, of_kinds(self._turn), 0.0)
        longest = turns.max(axis=1) * total / throughput
        activation = self.activation_gb(model, workload)
        memory = weight * model.layer_weight_gb + activation * (batch / workload.batch_size)
        passes = pass_time(workload.tokens / throughput, longest)
        return StageTables(throughput, np.where(present, memory, 0.0), passes)

    def _balanced(
        self, workload: Workload, kinds: Sequence[GPU], composition: np.ndarray, layers: np.ndarray
    ) -> np.ndarray:
        """Balanced batch per GPU, shape (C, K, U), by bisection on the common time."""
        coefficients = [self.coefficients[kind.type] for kind in kinds]
        base = np.stack([self._without_batch(c, workload, layers) for c in coefficients])[None]
        slope = np.array([c.per_sequence for c in coefficients])[None, :, None]
        count = composition[:, :, None]
        steepest = np.where(composition > 0, slope[:, :, 0], -np.inf).max(axis=1)[:, None, None]
        at_steepest = np.where((count > 0) & (slope == steepest), base, 0.0)
        low = at_steepest.max(axis=1, keepdims=True) / workload.batch_size
        high = (count * np.maximum(base, 1.0)).sum(axis=1, keepdims=True) / workload.batch_size
        # halves the bracket (of the logarithms) until neighbouring floats are left
        for _ in range(200):
            middle = np.sqrt(low * high)
            taken = count * finished(middle, base, slope, steepest, count)
            enough = taken.sum(axis=1, keepdims=True) >= workload.batch_size
            low, high = np.where(enough, middle, low), np.where(enough, high, middle)
            if np.all(high <= low * (1 + 4e-16)):
                break
        batch = finished(low, base, slope, steepest, count)
        return batch * (workload.batch_size / (count * batch).sum(axis=1, keepdims=True))

    def _turn(self, gpu_type: str, workload: Workload, batch: Any, layers: Any) -> Any:
        """Seconds of one GPU alone with the whole sequences of its share."""
        whole = whole_sequences(batch)
        rate = self.gpu_throughput(gpu_type, workload, whole, layers)
        return whole * workload.sequence_length / rate

    @staticmethod
    def _without_batch(c: Coefficients, workload: Workload, layers: Any) -> Any:
        return c.per_token * workload.sequence_length + c.per_layer * layers + c.constant

    def _shares(
        self, workload: Workload, gpus: Sequence[GPU], layers: float, batch_split: str
    ) -> list[float]:
        """Return how many sequences each GPU of one stage gets."""
        if batch_split == "even" or len(gpus) == 1:
            return [workload.batch_size / len(gpus)] * len(gpus)
        kinds = list(dict.fromkeys(gpus))
        composition = np.array([[list(gpus).count(kind) for kind in kinds]])
        batch = self._balanced(workload, kinds, composition, np.array([layers]))
        return [float(batch[0, kinds.index(gpu), 0]) for gpu in gpus]


def with_link_units(problem: Problem, unit: Any) -> Problem:
    """Count links in this unit: tokens, or the write-up's transfers.

    Parameters
    ----------
    problem : Problem
        Whose cost model counts them.
    unit : {"tokens", "transfers"}
        Tokens of a message, or messages.

    Returns
    -------
    Problem
        The same one but for that.

    Raises
    ------
    InvalidValue
        There is no such unit, or the problem's cost model counts tokens alone.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.writeup.with_link_units(pl.load_case("tiny"), "tokens")
    >>> tiny.costs.link_units
    'tokens'
    """
    return replace(problem, costs=problem.costs.with_link_units(unit))


def _extremes(model: ModelLike) -> tuple[float, float]:
    """Return the least and the most work that a stage can have, in ordinary layers."""
    one = (model.work(range(i, i + 1)) for i in range(1 if model.uniform else model.layers))
    return min(one), model.work(range(model.layers))


def finished(
    x: np.ndarray | float,
    base: np.ndarray,
    slope: np.ndarray,
    steepest: np.ndarray | float,
    count: Any,
) -> np.ndarray:
    """Sequences b finished in the time 1 / (x + steepest): b = time · max(1, base + slope·b).

    x, not the time, is what is searched for: 1 - time·slope would cancel where base is small.
    Absent GPUs (count 0) finish nothing.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(
            count > 0, np.maximum(base / (x + (steepest - slope)), 1 / (x + steepest)), 0.0
        )
