"""The heuristic that failed: choose how many GPUs of which type, but not which.

Maximise t such that chosen segments cover every layer once, each gets one (type, number of
GPUs), and t exceeds neither its rate nor the average link's. Three of its parts are the
author's own and wrong or unfounded; each can be switched to what it should be:

- `factor`: stages of k ≥ 2 GPUs yield (2 - 1/k) times what the joint ILP gives them, and
  with 0.85 · (2 - 1/2) > 1 two GPUs are more than twice as fast as one.
- `rows="as_written"`: for each GPU number g of a type, Σ n[·, k > g] ≤ 1. For g = 0 this lets
  each type hold one stage only. `"counting"` says what was meant: Σ k · n ≤ GPUs of the type.
- Memory is checked with a formula of its own (`memory_gb`), and a type that does not fit is
  still allowed one GPU. Segments are at most as long as some single GPU can really hold.

The formulas are stated for the write-up's rates. With `LayerTimes`, k GPUs of a stage are k times as
fast as one, and the heuristic predicts 0.85 · (2 - 1/k) · k.

Source: the write-up, "Failed Attempt: Heuristic Hybrid Solver", and its author's code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

from pipelab.costs import MEMORY_SLACK, LayerTimes
from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.solvers.linear_program import Columns, LinearProgram, incidence
from pipelab.errors import NotApplicable
from pipelab.hardware.linear_rates import LinearThroughput
from pipelab.problem import Problem, require_identical_layers

EFFICIENCY = 0.85  # the author's, for stages of several GPUs


@dataclass(frozen=True, eq=False)
class Options:
    """What may be chosen: a segment, a GPU type, a number of GPUs.

    Attributes
    ----------
    start, size, type_of, number : int arrays, shape (K,)
        First layer (from 0), number of layers, index of the GPU type, number of GPUs.
    throughput : float array, shape (K,)
        Predicted tokens/s.
    passes, fits : bool array, shape (K,)
        Whether that many GPUs of the type hold the segment by the heuristic's memory formula,
        and by the problem's own.
    """

    problem: Problem
    types: tuple[str, ...]
    counts: tuple[int, ...]
    start: np.ndarray
    size: np.ndarray
    type_of: np.ndarray
    number: np.ndarray
    throughput: np.ndarray
    passes: np.ndarray
    fits: np.ndarray

    @cached_property
    def segments(self) -> np.ndarray:
        """The different (start, size), in order; shape (S, 2)."""
        return np.unique(np.stack([self.start, self.size], axis=1), axis=0)

    @cached_property
    def segment_of(self) -> np.ndarray:
        """For each option its segment; shape (K,)."""
        index = {tuple(row): i for i, row in enumerate(self.segments.tolist())}
        return np.array(
            [index[s, n] for s, n in zip(self.start.tolist(), self.size.tolist(), strict=True)]
        )


@dataclass(frozen=True)
class TypeCounts:
    """One stage of the heuristic's answer: it names no GPU."""

    layers: range
    gpu_type: str
    number: int
    throughput: float  # predicted, tokens/s


def memory_gb(problem: Problem, layers: Any, batch: Any) -> Any:
    """The heuristic's own memory formula, in GB: attention scores count, and only two layers of activations.

    n·w + min(n, 2) / 1024 · (b·L²·d + 2·b·L·d + b·L·d_hidden) · bytes / 2^30
    """
    length, d, hidden = (
        problem.workload.sequence_length,
        problem.model.d_model,
        problem.model.d_hidden,
    )
    elements = batch * length * length * d + 2 * batch * length * d + batch * length * hidden
    activations = np.minimum(layers, 2) / 1024 * elements * problem.model.bytes_per_element / 2**30
    return layers * problem.model.layer_weight_gb + activations


def list_options(problem: Problem, factor: bool = True, deadline: Deadline = NEVER) -> Options:
    """Every segment with every type and number of GPUs that the heuristic allows."""
    require_identical_layers(problem, "type_count")
    if not isinstance(problem.costs, LinearThroughput | LayerTimes):
        expected = "expected LinearThroughput or LayerTimes: other models give no rate for a share of the batch"
        raise NotApplicable("type_count", [("costs", type(problem.costs).__name__, expected)])
    types = tuple(dict.fromkeys(gpu.type for gpu in problem.cluster.gpus))
    counts = tuple(sum(gpu.type == t for gpu in problem.cluster.gpus) for t in types)
    memory = {gpu.type: gpu.memory_gb for gpu in problem.cluster.gpus}
    most_layers = max(
        1,
        int(
            (max(memory.values()) - _beside_weights_gb(problem, 1)) / problem.model.layer_weight_gb
        ),
    )
    rows = []
    for start in range(problem.model.layers):
        for size in range(1, min(most_layers, problem.model.layers - start) + 1):
            deadline.check()
            for index, (name, count) in enumerate(zip(types, counts, strict=True)):
                rows += _numbers(
                    problem,
                    start,
                    size,
                    index,
                    name,
                    min(count, problem.max_gpus_per_stage),
                    memory,
                    factor,
                )
    columns = [np.array(c) for c in zip(*rows, strict=True)]
    return Options(problem, types, counts, *columns)


def _numbers(
    problem: Problem,
    start: int,
    size: int,
    index: int,
    name: str,
    most: int,
    memory: Mapping[str, float],
    factor: bool,
) -> list[tuple]:
    """The numbers of GPUs allowed for one segment and type: 1, 2, … until one does not fit; 1 in any case."""
    batch = problem.workload.batch_size
    passes = [bool(memory_gb(problem, size, batch / k) <= memory[name]) for k in range(1, most + 1)]
    allowed = max(1, [*passes, False].index(False))
    weights = size * problem.model.layer_weight_gb
    # LayerTimes loses nothing where GPUs share a stage, so it has no efficiency of its own.
    costs = problem.costs
    efficiency = costs.efficiency if isinstance(costs, LinearThroughput) else EFFICIENCY
    rows = []
    for k in range(1, allowed + 1):
        rate = _gpu_rate(problem, name, batch / k, range(start, start + size))
        if k > 1:
            rate *= efficiency * k * ((2 - 1 / k) if factor else 1.0)
        fits = weights + _beside_weights_gb(problem, k) <= memory[name] * MEMORY_SLACK
        rows.append((start, size, index, k, rate, passes[k - 1], fits))
    return rows


def _gpu_rate(problem: Problem, name: str, batch: float, layers: range) -> float:
    """Tokens/s of one GPU with so many sequences of the batch."""
    if isinstance(problem.costs, LinearThroughput):
        return float(problem.costs.gpu_throughput(name, problem.workload, batch, len(layers)))
    gpu = next(gpu for gpu in problem.cluster.gpus if gpu.type == name)
    # A share of the batch takes that share of the time, so it does not change the rate.
    return problem.costs.stage(problem.model, problem.workload, [gpu], layers, "even").throughput


def _beside_weights_gb(problem: Problem, number: int) -> float:
    """What each of k GPUs needs besides weights, by the problem's own costs."""
    if isinstance(problem.costs, LayerTimes):
        return problem.costs.reserved_gb
    costs = cast(LinearThroughput, problem.costs)
    return costs.activation_gb(problem.model, problem.workload) / number


def average_link(problem: Problem) -> float:
    """The one rate that the heuristic gives every link; infinite where there is a single GPU."""
    matrix = problem.cluster.bandwidth_matrix()
    others = ~np.eye(len(matrix), dtype=bool)
    average = matrix[others].mean() if others.any() else np.inf
    return float(problem.link_throughput(average))


def most_layers(options: Options) -> int:
    """The most layers that the written rows let all types hold together: one stage of each.

    Examples
    --------
    >>> import pipelab as pl
    >>> most_layers(list_options(pl.load_case("medium"))), pl.load_case("medium").model.layers
    (63, 80)
    """
    longest = np.zeros(len(options.types), dtype=int)
    np.maximum.at(longest, options.type_of, options.size)
    return int(longest.sum())


def build(options: Options, rows: str = "as_written") -> LinearProgram:
    """The heuristic's program: n (an option is chosen), y (a segment is), e (two segments meet), τ, ρ and t."""
    problem, segments = options.problem, options.segments
    ends = segments[:, 0] + segments[:, 1]
    tail, head = np.nonzero(ends[:, None] == segments[None, :, 0])
    big_m = float(options.throughput.max())  # valid: no answer beats its fastest stage
    rate = min(average_link(problem), big_m)  # nor is a link ever compared with more
    c = Columns(
        {
            "n": len(options.start),
            "y": len(segments),
            "e": len(tail),
            "tau": len(segments),
            "rho": len(tail),
            "t": 1,
        }
    )
    one_y, one_e = sp.eye_array(len(segments)), sp.eye_array(len(tail))
    of_segment = incidence(options.segment_of, len(segments))
    leaves, enters = incidence(tail, len(segments)), incidence(head, len(segments))
    layer = np.arange(problem.model.layers)[:, None]
    covers = sp.csr_array((segments[:, 0] <= layer) & (layer < ends), dtype=float)
    blocks = {
        "layer_coverage": c.rows({"y": covers}, lower=1, upper=1),
        "one_option": c.rows({"n": of_segment, "y": -one_y}, lower=0, upper=0),
        "gpu_numbers": _gpu_rows(options, c, rows),
        "link_needs_sender": c.rows({"e": one_e, "y": -leaves.T}, upper=0),
        "link_needs_receiver": c.rows({"e": one_e, "y": -enters.T}, upper=0),
        "link_forced": c.rows({"e": one_e, "y": -leaves.T - enters.T}, lower=-1),
        "stage_rate": c.rows(
            {"tau": one_y, "n": -(of_segment * options.throughput)}, lower=0, upper=0
        ),
        "link_rate": c.rows({"rho": one_e, "e": -rate * one_e}, lower=0, upper=0),
        "stage_bottleneck": c.rows(
            {"t": np.ones((len(segments), 1)), "tau": -one_y, "y": big_m * one_y}, upper=big_m
        ),
        "link_bottleneck": c.rows(
            {"t": np.ones((len(tail), 1)), "rho": -one_e, "e": big_m * one_e}, upper=big_m
        ),
    }
    upper, integer, objective = (
        np.full(c.total, np.inf),
        np.zeros(c.total, dtype=bool),
        np.zeros(c.total),
    )
    for group in ("n", "y", "e"):
        upper[c.slices[group]], integer[c.slices[group]] = 1, True
    objective[c.slices["t"]] = 1
    return LinearProgram(c, np.zeros(c.total), upper, integer, objective, blocks)


def _gpu_rows(options: Options, c: Columns, rows: str) -> Any:
    """As written: per type and GPU number g, at most one option with more than g GPUs. Or counting them."""
    coefficients, limits = [], []
    for index, count in enumerate(options.counts):
        mine = options.type_of == index
        if rows == "counting":
            coefficients.append(mine * options.number)
            limits.append(count)
        else:
            coefficients += [mine & (options.number > g) for g in range(count)]
            limits += [1] * count
    block = c.rows({"n": sp.csr_array(np.array(coefficients, dtype=float))})
    block.upper[:] = limits
    return block
