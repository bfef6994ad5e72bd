"""The problem of the course: Llama-3-70B on eleven GPUs at three sites, and a part of it for search.

Its 141 GB fit on no GPU and on no type alone, so a pipeline is needed. Links between the L4s and
the T4s are slow, so the order of the GPUs matters. A stage costs what a pencil can check: layers
times milliseconds per layer, where the last layer counts for more because of the head. Both are the
roofline's, rounded to two digits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from statistics import mean

from pipelab.cluster import GPU, Cluster
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
        Its `costs` are `LayerTimes`: milliseconds per layer, two digits of the roofline's. First and
        last layer also weigh the embedding and the head; the head takes time, too.

    Examples
    --------
    >>> problem = three_sites()
    >>> problem.costs.ms_per_layer
    {'A100-SXM-40': 17.0, 'L4': 81.0, 'T4': 150.0}
    >>> round(problem.model.weight_gb(range(80)))
    141
    """
    return _on_sites("Llama-3-70B", GPUS, max_gpus_per_stage, "Llama-3-70B on three sites")


def five_gpus() -> Problem:
    """Qwen2.5-32B on 2 A100-40, 2 L4 and 1 T4 of the same three sites: small enough to try everything.

    Their 150 GB, less what is reserved, are too little for Llama-3-70B.

    Returns
    -------
    Problem
        As `three_sites`, with one GPU per stage.

    Examples
    --------
    >>> problem = five_gpus()
    >>> problem.costs.ms_per_layer
    {'A100-SXM-40': 9.6, 'L4': 47.0, 'T4': 85.0}
    >>> problem.model.layers, round(problem.model.weight_gb(range(64)))
    (64, 66)
    """
    return _on_sites("Qwen2.5-32B", FEW, 1, "Qwen2.5-32B on five GPUs")


def _two_digits(number: float) -> float:
    """Round to two significant digits, with which a pencil can count."""
    return float(f"{number:.2g}")


@cache
def _roofline_times(model_name: str) -> tuple[dict[str, float], float]:
    """Milliseconds per layer of each type, and the last layer's work with the head, to two digits."""
    model, roof = load_model(model_name), Roofline()

    def ms(kind: str, layer: int) -> float:
        gpu = GPU(kind, load_gpus()[kind].memory_gb)
        return 1000 * roof.pass_seconds(model, PROMPT, gpu, range(layer, layer + 1))

    head = mean(ms(kind, model.layers - 1) / ms(kind, 1) for kind in GPUS)
    return {kind: _two_digits(ms(kind, 1)) for kind in GPUS}, _two_digits(head)


def _on_sites(
    model_name: str, counts: Mapping[str, int], max_gpus_per_stage: int, name: str
) -> Problem:
    whole = load_model(model_name)
    gigabytes = {pair: gigabits / 8 for pair, gigabits in LINKS.items()}
    memory = {kind: load_gpus()[kind].memory_gb for kind in counts}
    cluster = Cluster.from_counts(counts, memory, gigabytes)
    one_layer = whole.weight_gb(range(1, 2))
    ends = round(whole.weight_gb(range(whole.layers - 1, whole.layers)) / one_layer, 2)
    between = whole.layers - 2
    ms_per_layer, head = _roofline_times(model_name)
    model = Model(
        whole.name, whole.layers, whole.d_model, whole.d_hidden, round(one_layer, 2),
        weight_factors=(ends, *[1.0] * between, ends),
        work_factors=(*[1.0] * (between + 1), head),
    )  # fmt: skip
    costs = LayerTimes(ms_per_layer, reserved_gb=RESERVED_GB)
    return Problem(
        cluster, model, PROMPT, costs, max_gpus_per_stage, same_type_stages=False, name=name
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
