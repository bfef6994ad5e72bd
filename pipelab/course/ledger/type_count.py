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

Its segments and their links are chosen by the same families of rows as those of the joint ILP.

Source: the write-up, "Failed Attempt: Heuristic Hybrid Solver", and its author's code.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np

from pipelab.costs import LayerTimes
from pipelab.engine.answers import Result, rated_result
from pipelab.engine.deadline import NEVER, Deadline, Ended, Stop, deadline_of, made_in_time
from pipelab.engine.formulations.candidates import StageCandidates
from pipelab.engine.formulations.joint_ilp_forms import FAMILIES, Incidence
from pipelab.engine.solvers import choice
from pipelab.engine.solvers.linear_program import LinearProgram, RowBlock, VariableGroups, incidence
from pipelab.engine.solvers.solver_run import SolverRun
from pipelab.errors import NotApplicable, UnknownName, nearest
from pipelab.placement import show_layers
from pipelab.problem import Problem, require_identical_layers
from pipelab.writeup.linear_rates import LinearThroughput

EFFICIENCY = 0.85  # the author's, for stages of several GPUs
ROWS = ("as_written", "counting")
# Blocks of rows: "one_option", "gpu_numbers" and "stage_rate" are its own, the others the joint ILP's.
_BLOCKS = (
    *("layer_coverage", "one_option", "gpu_numbers", "link_needs_sender", "link_needs_receiver"),
    *("link_forced", "stage_rate", "link_rate", "stage_bottleneck", "link_bottleneck"),
)


@dataclass(frozen=True, eq=False)
class Options:
    """What may be chosen: a segment, a GPU type, a number of GPUs.

    Attributes
    ----------
    start, size, type_of, number : int arrays, shape (K,)
        First layer (from 0), number of layers, index of the GPU type, number of GPUs.
    throughput : float array, shape (K,)
        Predicted tokens/s.
    passes : bool array, shape (K,)
        Whether that many GPUs of the type hold the segment by the heuristic's memory formula.
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

    @cached_property
    def _segments(self) -> tuple[np.ndarray, np.ndarray]:
        return np.unique(np.stack([self.start, self.size]), axis=1, return_inverse=True)

    @property
    def segment_of(self) -> np.ndarray:
        """For each option its segment; shape (K,)."""
        return self._segments[1].reshape(-1)

    @cached_property
    def segments(self) -> StageCandidates:
        """The different segments, in order, and their connections at the average link's rate.

        No answer beats its fastest stage, so that rate stands for all of them.
        """
        start, size = self._segments[0]
        tail, head = np.nonzero((start + size)[:, None] == start)
        theta = np.full(len(start), self.throughput.max())
        nu = np.full(len(tail), average_link(self.problem))
        none = np.zeros_like(start)
        return StageCandidates(self.problem, (), none, start, size, theta, tail, head, nu)


@dataclass(frozen=True)
class TypeCounts:
    """One stage of the heuristic's answer: it names no GPU."""

    layers: range
    gpu_type: str
    number: int
    throughput: float  # predicted, tokens/s


def solve_type_count(
    problem: Problem,
    *,
    factor: bool = True,
    rows: str = "as_written",
    time_limit: float | None = None,
    stop: Stop = None,
    on_progress: Callable | None = None,
) -> Result:
    """What the heuristic predicts.

    Parameters
    ----------
    factor : bool
        Keep its factor (2 - 1/k).
    rows : "as_written" or "counting"
        Its row per GPU number, or the one that was meant.
    time_limit, stop, on_progress
        As for `solve`.

    Returns
    -------
    Result
        Never a placement: the answer names types and numbers, not GPUs. `details` has what
        it predicts (`predicted`, tokens/s) and chose (`stages`).

    Examples
    --------
    >>> import pipelab as pl
    >>> result = pl.solve(pl.load_case("tiny", max_gpus_per_stage=2), "type_count")
    >>> round(result.details["predicted"], 3), result.placement
    (452.676, None)
    """
    if rows not in ROWS:
        raise UnknownName(f"there is no rows={rows!r}; {nearest(rows, ROWS)}")
    size: dict[str, int] = {}
    details: dict[str, Any] = {"predicted": None, "stages": (), "progress": ()}
    with deadline_of(time_limit, stop) as deadline:
        try:
            options = made_in_time(lambda until: list_options(problem, factor, until), deadline)
            program = build(options, rows)
            size = {"segments": len(options.segments.start), "options": len(options.start)}
            size |= program.size
            held = most_layers(options)
            if rows == "as_written" and held < problem.model.layers:
                # Added up, its rows forbid it. SCIP says so too, but on medium only after 20 s and more.
                run = SolverRun(status="infeasible")
                reason = (
                    f"the heuristic lets each GPU type hold one stage, and so at most {held} of "
                    f"{problem.model.layers} layers in all: it calls the problem infeasible, which proves nothing "
                    "about it"
                )
            else:
                run = choice.run_program(
                    program, "scip", deadline=deadline, on_progress=on_progress
                )
                reason = ""
        except Ended as end:
            run = SolverRun(status="stopped", stopped_by=end.reason)
            reason = "the heuristic was stopped while its options were being listed"
        else:
            stages = _stages(options, program, run)
            predicted = _predicted(problem, stages)
            details = {
                "predicted": predicted,
                "stages": stages,
                "solver_status": run.status,
                "progress": run.progress,
            }
            reason = reason or _reason(run.status, predicted, stages)
        return rated_result(
            problem,
            "type_count",
            placement=None,
            bound=None,
            seconds=deadline.spent,
            size=size,
            solver=choice.solver_version("scip") if size else "",
            reason=reason,
            stopped_by=run.stopped_by,
            details=details,
        )


def _stages(options: Options, program: LinearProgram, run: SolverRun) -> tuple[TypeCounts, ...]:
    """The chosen options, by their first layer."""
    if run.x is None:
        return ()
    chosen = np.flatnonzero(run.x[program.columns.slices["n"]] > 0.5)
    return tuple(
        TypeCounts(
            range(int(options.start[o]), int(options.start[o] + options.size[o])),
            options.types[options.type_of[o]],
            int(options.number[o]),
            float(options.throughput[o]),
        )
        for o in chosen[options.start[chosen].argsort()]
    )


def _predicted(problem: Problem, stages: tuple[TypeCounts, ...]) -> float | None:
    """The heuristic's own rate of its answer, without the solver's tolerance."""
    if not stages:
        return None
    links = [average_link(problem)] if len(stages) > 1 else []
    return min([stage.throughput for stage in stages] + links)


def _reason(status: str, predicted: float | None, stages: tuple[TypeCounts, ...]) -> str:
    if status == "infeasible":
        return "the heuristic calls the problem infeasible, which proves nothing about it"
    if not stages:
        return "the heuristic was stopped before it found anything"
    parts = [f"layers {show_layers(s.layers)} on {s.number} × {s.gpu_type}" for s in stages]
    return (
        f"the heuristic predicts {predicted:,.6g} tokens/s for {', '.join(parts)}, but names no GPU"
    )


def memory_gb(problem: Problem, layers: Any, batch: Any) -> Any:
    """The heuristic's own memory formula, in GB: attention scores count, and only two layers of activations.

    n·w + min(n, 2) / 1024 · (b·L²·d + 2·b·L·d + b·L·d_hidden) · bytes / 2^30
    """
    length = problem.workload.sequence_length
    d, hidden = problem.model.d_model, problem.model.d_hidden
    elements = batch * length * length * d + 2 * batch * length * d + batch * length * hidden
    activations = np.minimum(layers, 2) / 1024 * elements * problem.model.bytes_per_element / 2**30
    return layers * problem.model.layer_weight_gb + activations


def list_options(problem: Problem, factor: bool = True, deadline: Deadline = NEVER) -> Options:
    """Every segment with every type and number of GPUs that the heuristic allows."""
    require_identical_layers(problem, "type_count")
    if not isinstance(problem.costs, LinearThroughput | LayerTimes):
        expected = "expected LinearThroughput or LayerTimes: other models give no rate for a share of the batch"
        raise NotApplicable("type_count", [("costs", type(problem.costs).__name__, expected)])
    layers, gpus = problem.model.layers, problem.cluster.gpus
    memory = {gpu.type: gpu.memory_gb for gpu in gpus}
    types = tuple(memory)
    counts = tuple(sum(gpu.type == t for gpu in gpus) for t in types)
    room = max(memory.values()) - _beside_weights_gb(problem)
    longest = min(layers, max(1, int(room / problem.model.layer_weight_gb)))
    of_size: dict[int, list[tuple]] = {}
    for size in range(1, longest + 1):
        deadline.check()
        of_size[size] = [
            (size, index, *numbered)
            for index, (name, count) in enumerate(zip(types, counts, strict=True))
            for numbered in _numbers(problem, size, name, memory[name], count, factor)
        ]
    rows = []
    for start in range(layers):
        deadline.check()
        for size in range(1, min(longest, layers - start) + 1):
            rows += [(start, *numbered) for numbered in of_size[size]]
    return Options(problem, types, counts, *map(np.array, zip(*rows, strict=True)))


def _numbers(
    problem: Problem, size: int, name: str, memory: float, count: int, factor: bool
) -> list[tuple]:
    """The numbers of GPUs allowed for so many layers and a type, each with its rate and whether it passes.

    They are 1, 2, … until one does not fit; 1 in any case.
    """
    batch, costs = problem.workload.batch_size, problem.costs
    # LayerTimes loses nothing where GPUs share a stage, so it has no efficiency of its own.
    efficiency = costs.efficiency if isinstance(costs, LinearThroughput) else EFFICIENCY
    rows = []
    for k in range(1, min(count, problem.max_gpus_per_stage) + 1):
        passes = bool(memory_gb(problem, size, batch / k) <= memory)
        if k > 1 and not passes:
            break
        rate = _gpu_rate(problem, name, batch / k, size)
        if k > 1:
            rate *= efficiency * k * ((2 - 1 / k) if factor else 1.0)
        rows.append((k, rate, passes))
        if not passes:
            break
    return rows


def _gpu_rate(problem: Problem, name: str, batch: float, size: int) -> float:
    """Tokens/s of one GPU with so many sequences of the batch and so many layers."""
    if isinstance(problem.costs, LinearThroughput):
        return float(problem.costs.gpu_throughput(name, problem.workload, batch, size))
    gpu = next(gpu for gpu in problem.cluster.gpus if gpu.type == name)
    # A share of the batch takes that share of the time, so it does not change the rate.
    return problem.stage_cost([gpu], range(size)).throughput


def _beside_weights_gb(problem: Problem) -> float:
    """What a GPU alone needs besides weights, by the problem's own costs."""
    if isinstance(problem.costs, LayerTimes):
        return problem.costs.reserved_gb
    costs = cast(LinearThroughput, problem.costs)
    return costs.activation_gb(problem.model, problem.workload)


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
    """The heuristic's program: n (an option is chosen), z (a segment is), e (two segments meet), τ, ρ and t."""
    segments = options.segments
    number, links = len(segments.start), len(segments.tail)
    sizes = {"z": number, "e": links, "tau": number, "rho": links, "t": 1}
    c = VariableGroups({"n": len(options.start), **sizes})
    big_m = float(options.throughput.max())  # valid: no answer beats its fastest stage
    i = Incidence(segments, big_m, big_m)
    of_segment, one = incidence(options.segment_of, number), i.each_allocation
    its_rows = {
        "one_option": c.rows({"n": of_segment, "z": -one}, lower=0, upper=0),
        "gpu_numbers": _gpu_rows(options, c, rows),
        "stage_rate": c.rows(
            {"tau": one, "n": -(of_segment * options.throughput)}, lower=0, upper=0
        ),
    }
    blocks = {
        name: its_rows[name] if name in its_rows else FAMILIES[name].rows(i, c) for name in _BLOCKS
    }
    whole = dict.fromkeys(("n", "z", "e"), 1)
    return c.program({"t": 1}, blocks, upper=whole, integer=whole)


def _gpu_rows(options: Options, c: VariableGroups, rows: str) -> RowBlock:
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
    return c.rows({"n": np.array(coefficients, dtype=float)}, upper=np.array(limits))
