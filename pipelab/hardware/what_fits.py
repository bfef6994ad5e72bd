"""What memory allows: of a placement the longest context and most sequences, of a node every mix of its GPUs."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import numpy as np

from pipelab.cluster import GPU
from pipelab.errors import InvalidPlacement, InvalidValue
from pipelab.evaluation import broken_rules, evaluate, tally
from pipelab.fields import Count, checked_arguments, described, given, instance
from pipelab.hardware.pass_times import Demand, Span
from pipelab.hardware.roofline import Roofline, WithDimensions, can_cut, needed_gb
from pipelab.hardware.transformer import Transformer
from pipelab.placement import Placement, Stage, show_layers
from pipelab.problem import Problem, Workload, answered, fits_in
from pipelab.splits import split_minmax

if TYPE_CHECKING:
    from pandas import DataFrame


MOST_COUNTED = 10**9  # by a Workload; what fits this often has no limit


def capacity(problem: Problem, placement: Placement) -> "DataFrame":
    """Find what every stage of a placement holds: the longest context, and the most sequences.

    Parameters
    ----------
    problem : Problem
        Whose memory counts; its workload says how many sequences have the longest context, and how long
        the most sequences are, where it leaves the number in flight open, with that of the placement's
        attainable rate, or 1 where the placement does not fit. What an engine itself keeps in memory counts
        only if the cost model names it, `Roofline(runs_on="vLLM")`, as that of a result found with `runs_on` does.
    placement : Placement
        Valid but for memory.

    Returns
    -------
    pandas.DataFrame
        One row per stage: `stage`, `layers`, `gpu_types`; `longest_context_tokens` per sequence and
        `most_sequences` at once, of all microbatches in flight: infinite where memory sets no limit, 0 where
        not even one fits. The placement holds the least of each.

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
    >>> int(held["longest_context_tokens"].min()), int(held["most_sequences"].min())
    (42262, 5)
    """
    # A longer context, and one more sequence, never need less memory; so halving finds the last that fits.
    import pandas as pd

    instance("capacity", "problem", problem, Problem, "a Problem")
    instance("capacity", "placement", placement, Placement, "a Placement")
    defects = broken_rules(problem, placement)
    if defects:
        raise InvalidPlacement(defects)
    if problem.workload.in_flight is None:
        problem = problem.with_in_flight(_attained_with(problem, placement))
    stages = enumerate(placement.stages, start=1)
    return pd.DataFrame([_of_stage(problem, number, stage) for number, stage in stages])


def _attained_with(problem: Problem, placement: Placement) -> int:
    try:
        return evaluate(problem, placement).in_flight or 1
    except InvalidPlacement:
        return 1


def _of_stage(problem: Problem, number: int, stage: Stage) -> dict:
    gpus, load = [problem.cluster.gpus[g] for g in stage.gpus], problem.workload

    def fits(load: Workload) -> bool:
        cost = answered(problem.costs, problem.model, load, gpus, stage.layers, problem.batch_split)
        return cost.fits(gpus)

    return {
        "stage": number,
        "layers": show_layers(stage.layers),
        "gpu_types": tally(tuple(gpu.type for gpu in gpus)),
        "longest_context_tokens": _last(lambda n: fits(replace(load, sequence_length=n))),
        "most_sequences": _last(lambda n: fits(replace(load, batch_size=n))) * load.in_memory,
    }


def _last(fits: Callable[[int], bool]) -> float:
    """Find the last whole number that fits; 0 if 1 does not, infinity if all do."""
    last = bisect_left(range(1, MOST_COUNTED + 1), True, key=lambda n: not fits(n))
    return np.inf if last == MOST_COUNTED else float(last)


@checked_arguments
def node_mixes(
    costs: Annotated[Roofline, described("a Roofline, such as Roofline()")],
    model: WithDimensions,
    workload: Annotated[Workload, described("a Workload")],
    gpu: Annotated[GPU, described("a GPU")],
    gpus: Count,
) -> "DataFrame":
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
    import pandas as pd

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
    table, order = pd.DataFrame(rows), ["fits", "tokens_per_s"]
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
