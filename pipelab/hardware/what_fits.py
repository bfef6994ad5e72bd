"""What memory allows: of a placement the longest context and most sequences, of a node every mix of its GPUs."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from pipelab.cluster import GPU
from pipelab.display import DataFrame, data_frame, table
from pipelab.errors import InvalidPlacement, InvalidValue
from pipelab.evaluation import broken_rules, evaluate, tally
from pipelab.fields import Count, Frozen, checked_arguments, described, given, instance
from pipelab.hardware.engine_memory import engine_counted
from pipelab.hardware.pass_times import Demand, Span
from pipelab.hardware.roofline import Roofline, WithDimensions, can_cut, needed_gb
from pipelab.hardware.transformer import Transformer
from pipelab.placement import Placement, Stage, show_layers
from pipelab.problem import Problem, Workload, answered, fits_in
from pipelab.splits import split_minmax

MOST_COUNTED = 10**9  # by a Workload; what fits this often has no limit


@dataclass(frozen=True, kw_only=True)
class StageCapacity(Frozen):
    """The most that one stage holds; None where memory sets no limit, 0 where not even one fits."""

    stage: Stage
    gpu_types: tuple[str, ...]
    context: int | None  # tokens per sequence, of as many sequences as the workload has
    sequences: int | None  # of as many tokens as the workload has


@dataclass(frozen=True, kw_only=True)
class Capacity(Frozen):
    """The most that a placement holds.

    Attributes
    ----------
    stages : tuple of StageCapacity
        Of every stage the longest context and the most sequences.
    workload : Workload
        Whose sequences and tokens the other of both is; where it leaves the number in flight open,
        with that of the placement's attainable rate, or 1 where the placement does not fit.
    runs_on : str
        The engine whose own memory is counted (`Roofline.runs_on`); empty: none is.
    """

    stages: tuple[StageCapacity, ...]
    workload: Workload
    runs_on: str

    @property
    def context(self) -> int | None:
        """Longest context in tokens, with the workload's sequences; None for any."""
        return _least([s.context for s in self.stages])

    @property
    def sequences(self) -> int | None:
        """Most sequences at once (of all microbatches in flight) of the workload's length; None for any."""
        return _least([s.sequences for s in self.stages])

    def to_frame(self) -> DataFrame:
        """Tabulate the stages.

        Returns
        -------
        pandas.DataFrame
            One row per stage: `stage`, `layers`, `gpu_types`, `longest_context_tokens`,
            `most_sequences` (infinite where memory sets no limit), and what this stage `limits`.
        """
        rows = []
        for i, stage in enumerate(self.stages, start=1):
            most_of = {name: getattr(stage, name) for name in ("context", "sequences")}
            limits = [
                n for n, most in most_of.items() if most is not None and most == getattr(self, n)
            ]
            context, sequences = (np.inf if n is None else n for n in most_of.values())
            rows.append(
                {
                    "stage": i,
                    "layers": show_layers(stage.stage.layers),
                    "gpu_types": tally(stage.gpu_types),
                    "longest_context_tokens": context,
                    "most_sequences": sequences,
                    "limits": ", ".join(limits),
                }
            )
        return data_frame(rows)

    def _repr_html_(self) -> str:
        counted = f"With what {self.runs_on}" if self.runs_on else "Without what an engine"
        return table(self.to_frame()) + f"<p>{counted} itself keeps in memory.</p>"


def capacity(problem: Problem, placement: Placement) -> Capacity:
    """Find what a placement holds: the longest context, the most sequences, and which stage limits them.

    Parameters
    ----------
    problem : Problem
        Whose memory counts; its workload says how many sequences have the longest context, and
        how long the most sequences are. It need not fit itself. What an engine itself keeps in memory counts
        only if the cost model names it, `Roofline(runs_on="vLLM")`, as that of a result found with `runs_on` does.
    placement : Placement
        Valid but for memory.

    Returns
    -------
    Capacity
        `context` (tokens), `sequences` (at once), and `to_frame()` with both of every stage.

    Raises
    ------
    InvalidPlacement
        A rule besides memory is broken.
    InvalidValue
        An argument is of another kind.

    Examples
    --------
    >>> import pipelab as pl
    >>> cluster, load = pl.Cluster.from_counts({"L4": 1}, 24, 1), pl.Workload(8192, 1, "decode")
    >>> problem = pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, pl.Roofline())
    >>> held = pl.hardware.capacity(problem, pl.Placement.of([(32, (0,))]))
    >>> held.context > 40_000, held.sequences
    (True, 5)
    """
    # A longer context, and one more sequence, never need less memory; so halving finds the last that fits.
    instance("capacity", "problem", problem, Problem, "a Problem")
    instance("capacity", "placement", placement, Placement, "a Placement")
    defects = broken_rules(problem, placement)
    if defects:
        raise InvalidPlacement(defects)
    if problem.workload.in_flight is None:
        problem = problem.with_in_flight(_attained_with(problem, placement))
    stages = tuple(_of_stage(problem, stage) for stage in placement.stages)
    runs_on = engine_counted(problem.costs)
    return Capacity(stages=stages, workload=problem.workload, runs_on=runs_on)


def _attained_with(problem: Problem, placement: Placement) -> int:
    try:
        return evaluate(problem, placement).in_flight or 1
    except InvalidPlacement:
        return 1


def _of_stage(problem: Problem, stage: Stage) -> StageCapacity:
    gpus, load = [problem.cluster.gpus[g] for g in stage.gpus], problem.workload

    def fits(load: Workload) -> bool:
        cost = answered(problem.costs, problem.model, load, gpus, stage.layers, problem.batch_split)
        return cost.fits(gpus)

    context = _last(lambda n: fits(replace(load, sequence_length=n)))
    batch = _last(lambda n: fits(replace(load, batch_size=n)))
    sequences = None if batch is None else batch * load.in_memory
    gpu_types = tuple(gpu.type for gpu in gpus)
    return StageCapacity(stage=stage, gpu_types=gpu_types, context=context, sequences=sequences)


def _last(fits: Callable[[int], bool]) -> int | None:
    """Find the last whole number that fits; 0 if 1 does not, None if all do."""
    last = bisect_left(range(1, MOST_COUNTED + 1), True, key=lambda n: not fits(n))
    return None if last == MOST_COUNTED else last


def _least(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return min(known) if known else None


@checked_arguments
def node_mixes(
    costs: Annotated[Roofline, described("a Roofline, such as Roofline()")],
    model: WithDimensions,
    workload: Annotated[Workload, described("a Workload")],
    gpu: Annotated[GPU, described("a GPU")],
    gpus: Count,
) -> DataFrame:
    """List every mix of tensor parallelism, pipeline stages and replicas on one node.

    The sequences of the workload (`batch_size` · `in_flight`) are shared among the replicas; a
    replica has as many microbatches in flight as stages, each of an equal share, rounded up.
    Layers are cut so that the slowest stage is as fast as can be.

    Parameters
    ----------
    costs : Roofline
        Whose rates and memory count.
    model : Transformer
        What the node serves.
    workload : Workload
        All that it serves at once.
    gpu : GPU
        One of the node's, all of which are equal, with `node` and `node_gb_per_s`.
    gpus : int
        How many the node has; every mix uses all of them.

    Returns
    -------
    pandas.DataFrame
        One row per mix, what fits first, then by rate: `tensor_parallel`, `stages`, `replicas`,
        `sequences` (after rounding), `tokens_per_s`, `seconds_per_turn` (in decode the time per
        token of every stream), `memory_needed_gb` on the fullest GPU, with what must stay free,
        `memory_offered_gb` and `fits`.

    Raises
    ------
    InvalidValue
        An argument is of another kind, the type is not known, the GPU has no node, or the phase
        is training.

    Examples
    --------
    >>> import pipelab as pl
    >>> gpu = pl.GPU("H100-SXM", 80, node="dgx", node_gb_per_s=450)
    >>> llama, load = pl.load_model("Llama-3-70B"), pl.Workload(4096, 32, "decode")
    >>> table = pl.hardware.node_mixes(pl.Roofline(), llama, load, gpu, 8)
    >>> table.loc[0, ["tensor_parallel", "stages", "replicas"]].tolist()
    [8, 1, 1]
    """
    if not gpu.node:
        expected = "expected a GPU with a node and node_gb_per_s, the bandwidth inside it"
        raise InvalidValue("node_mixes", [("gpu.node", gpu.node, expected)])
    if workload.phase == "training":
        expected = "expected prefill, decode or mixed; pl.solve plans a step of training"
        raise InvalidValue("node_mixes", [("workload.phase", workload.phase, expected)])
    parts = range(1, gpus + 1)
    cuts = [n for n in parts if gpus % n == 0 and can_cut(model, n)]
    mixes = [(n, k, gpus // n // k) for n in cuts for k in parts if gpus // n % k == 0]
    rows = [_row(costs, model, workload, gpu, *mix) for mix in mixes if mix[1] <= model.layers]
    table, order = data_frame(rows), ["fits", "tokens_per_s"]
    return table.sort_values(order, ascending=False, kind="stable").reset_index(drop=True)


def _row(
    costs: Roofline,
    model: Transformer,
    load: Workload,
    gpu: GPU,
    cut: int,
    stages: int,
    replicas: int,
) -> dict:
    """Compute one mix: every replica gets an equal share of the sequences, in as many microbatches as it has stages."""
    whole = load.batch_size * load.in_memory
    batch = -(-whole // (replicas * stages))
    load = replace(load, batch_size=batch, in_flight=stages)
    demand = Demand(model, load)
    hardware = costs.for_phase(load.phase).hardware(demand, [gpu]).take(0)
    alone = (Span.of(model, range(i, i + 1)) for i in range(model.layers))
    layer_seconds = [float(hardware.stage_seconds(span, batch, cut)) for span in alone]
    split = given(split_minmax(layer_seconds, stages))  # there are no limits
    seconds = [sum(layer_seconds[i] for i in layers) for layers in split]
    sent = demand.residual_bytes(batch) * costs.constants.stage_tensors
    link = costs.hop_latency_s + sent / ((gpu.node_gb_per_s or np.inf) * 1e9)
    # A microbatch is back when it has been everywhere, and not before the slowest part has served all.
    slowest = max(*seconds, link) if stages > 1 else seconds[0]
    turn = max(sum(seconds) + (stages - 1) * link, stages * slowest)
    spans = [Span.of(model, layers) for layers in split]
    parts = [needed_gb(costs, demand, [gpu], span, batch, cut) for span in spans]
    needed = max(float(np.squeeze(sum(part.values()))) for part in parts)
    return {
        "tensor_parallel": cut,
        "stages": stages,
        "replicas": replicas,
        "sequences": batch * stages * replicas,
        "tokens_per_s": replicas * stages * load.tokens / turn,
        "seconds_per_turn": turn,
        "memory_needed_gb": needed,
        "memory_offered_gb": gpu.memory_gb,
        "fits": fits_in(needed, gpu.memory_gb),
    }
