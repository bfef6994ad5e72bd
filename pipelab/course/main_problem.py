"""The problem of the course: Llama-3-70B on eleven GPUs at three sites, and a part of it for search.

Its 141 GB fit on no GPU and on no type alone, so a pipeline is needed. Links between the L4s and
the T4s are slow, so the order of the GPUs matters. A stage costs what a pencil can check: layers
times milliseconds per layer, where the last layer counts for more because of the head.
"""

from collections.abc import Mapping

from pipelab.cluster import Cluster
from pipelab.costs import LayerTimes
from pipelab.hardware.known_gpus import load_gpus
from pipelab.hardware.known_models import load_model
from pipelab.hardware.roofline.cost_model import Roofline
from pipelab.problem import Model, Problem, Workload

A100, L4, T4 = "A100-SXM-40", "L4", "T4"
GPUS = {A100: 3, L4: 4, T4: 4}
FEW = {A100: 2, L4: 2, T4: 1}
# Gb/s. Each type is one site; a company's own network joins two of them, and the third is far away.
LINKS = {
    (A100, A100): 10, (L4, L4): 10, (T4, T4): 10, (A100, L4): 10, (A100, T4): 1, (L4, T4): 0.1,
}  # fmt: skip
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
    return _on_sites("Llama-3-70B", GPUS, max_gpus_per_stage, "Llama-3-70B on three sites")


def five_gpus() -> Problem:
    """Qwen2.5-32B on 2 A100-40, 2 L4 and 1 T4 of the same three sites: small enough to try everything.

    Their 134 GB are too little for Llama-3-70B.

    Returns
    -------
    Problem
        As `three_sites`, with one GPU per stage.

    Examples
    --------
    >>> problem = five_gpus()
    >>> problem.costs.ms_per_layer
    {'A100-SXM-40': 10.0, 'L4': 46.0, 'T4': 70.0}
    >>> problem.model.layers, round(problem.model.weight_gb(range(64)))
    (64, 66)
    """
    return _on_sites("Qwen2.5-32B", FEW, 1, "Qwen2.5-32B on five GPUs")


def _on_sites(
    model_name: str, counts: Mapping[str, int], max_gpus_per_stage: int, name: str
) -> Problem:
    whole, roofline, known = load_model(model_name), Roofline(), load_gpus()
    memory = {kind: known[kind].memory_gb for kind in counts}
    gigabytes = {pair: gigabits / 8 for pair, gigabits in LINKS.items()}
    cluster = Cluster.from_counts(counts, memory, gigabytes)

    def milliseconds(gpu_type: str, layers: range) -> float:
        gpu = next(g for g in cluster.kinds if g.type == gpu_type)
        cost = roofline.stage(whole, PROMPT, [gpu], layers, "even")
        return 1000 * PROMPT.tokens / cost.throughput

    inner, last = range(1, 2), range(whole.layers - 1, whole.layers)
    times = {kind: milliseconds(kind, inner) for kind in counts}
    head = milliseconds(A100, last) / times[A100]  # about the same on every type
    one_layer = whole.weight_gb(inner)
    ends = round(whole.weight_gb(last) / one_layer, 2)
    between = whole.layers - 2
    model = Model(
        whole.name, whole.layers, whole.d_model, whole.d_hidden, round(one_layer, 2),
        weight_factors=(ends, *[1.0] * between, ends),
        work_factors=(*[1.0] * (between + 1), round(head, 1)),
    )  # fmt: skip
    costs = LayerTimes(
        {kind: float(f"{ms:.2g}") for kind, ms in times.items()}, reserved_gb=RESERVED_GB
    )
    return Problem(cluster, model, PROMPT, costs, max_gpus_per_stage, name=name)
