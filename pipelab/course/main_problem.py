"""The problem of the course: Llama-3-70B on eleven GPUs at three sites.

Its 141 GB fit on no GPU and on no type alone, so a pipeline is needed. Links between the L4s and
the T4s are slow, so the order of the GPUs matters. A stage costs what a pencil can check: layers
times milliseconds per layer, where the last layer counts for more because of the head.
"""

from collections.abc import Sequence
from dataclasses import replace

from pipelab.cluster import Cluster
from pipelab.costs import LayerTimes
from pipelab.hardware.known_gpus import load_gpus
from pipelab.hardware.known_models import load_model
from pipelab.hardware.roofline.cost_model import Roofline
from pipelab.problem import Model, Problem, Workload

A100, L4, T4 = "A100-SXM-40", "L4", "T4"
GPUS = {A100: 3, L4: 4, T4: 4}
# Gb/s. Each type is one site; a company's own network joins two of them, and the third is far away.
LINKS = {
    (A100, A100): 10, (L4, L4): 10, (T4, T4): 10, (A100, L4): 10, (A100, T4): 1, (L4, T4): 0.1,
}  # fmt: skip
ONE_NETWORK = 10 / 8  # GB/s
PROMPT = Workload(sequence_length=2048, batch_size=1)
RESERVED_GB = 2.0  # of every GPU, for activations, the KV cache and buffers


def three_sites(max_gpus_per_stage: int = 1) -> Problem:
    """Llama-3-70B, prefill of 2,048-token prompts, on 3 A100-40, 4 L4 and 4 T4.

    Parameters
    ----------
    max_gpus_per_stage : int
        As in `Problem`.

    Returns
    -------
    Problem
        Its `costs` are `LayerTimes`: milliseconds per layer by the roofline, to two digits. First
        and last layer also weigh the embedding and the head; the head takes time, too.

    Examples
    --------
    >>> problem = three_sites()
    >>> problem.costs.ms_per_layer
    {'A100-SXM-40': 18.0, 'L4': 80.0, 'T4': 120.0}
    >>> round(problem.model.weight_gb(range(80)))
    141
    """
    llama, roofline, known = load_model("Llama-3-70B"), Roofline(), load_gpus()
    memory = {name: known[name].memory_gb for name in GPUS}
    gigabytes = {pair: gigabits / 8 for pair, gigabits in LINKS.items()}
    cluster = Cluster.from_counts(GPUS, memory, gigabytes)

    def milliseconds(gpu_type: str, layers: range) -> float:
        gpu = next(g for g in cluster.kinds if g.type == gpu_type)
        cost = roofline.stage(llama, PROMPT, [gpu], layers, "even")
        return 1000 * PROMPT.tokens / cost.throughput

    inner, last = range(1, 2), range(llama.layers - 1, llama.layers)
    times = {name: milliseconds(name, inner) for name in GPUS}
    head = milliseconds(A100, last) / times[A100]  # about the same on every type
    one_layer = llama.weight_gb(inner)
    ends = round(llama.weight_gb(last) / one_layer, 2)
    between = llama.layers - 2
    model = Model(
        llama.name, llama.layers, llama.d_model, llama.d_hidden, round(one_layer, 2),
        weight_factors=(ends, *[1.0] * between, ends),
        work_factors=(*[1.0] * (between + 1), round(head, 1)),
    )  # fmt: skip
    costs = LayerTimes(
        {name: float(f"{ms:.2g}") for name, ms in times.items()}, reserved_gb=RESERVED_GB
    )
    return Problem(
        cluster, model, PROMPT, costs, max_gpus_per_stage, name="Llama-3-70B on three sites"
    )


def one_network(max_gpus_per_stage: int = 1, counts: Sequence[int] = (3, 4, 4)) -> Problem:
    """The same model and GPU types without all that gives a stage its place in the pipeline.

    Parameters
    ----------
    max_gpus_per_stage : int
        As in `Problem`.
    counts : sequence of int
        How many A100-40, L4 and T4.

    Returns
    -------
    Problem
        With neither embedding nor head, so all layers are identical, and with 10 Gb/s between all
        GPUs, which is never the bottleneck.

    Examples
    --------
    >>> problem = one_network(2)
    >>> problem.model.uniform, len(problem.cluster)
    (True, 11)
    """
    problem = three_sites(max_gpus_per_stage)
    memory = {gpu.type: gpu.memory_gb for gpu in problem.cluster.kinds}
    cluster = Cluster.from_counts(dict(zip(GPUS, counts, strict=True)), memory, ONE_NETWORK)
    return replace(
        problem,
        cluster=cluster,
        model=replace(problem.model, weight_factors=None, work_factors=None),
        name=f"Llama-3-70B on {len(cluster)} GPUs",
    )
