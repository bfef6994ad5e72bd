"""The problem of the course: Llama-3-70B on eleven GPUs at three sites.

Its 141 GB fit on no GPU and on no type alone, so a pipeline is needed. Links between the L4s and
the T4s are slow, so the order of the GPUs matters. A stage costs what a pencil can check: layers
times milliseconds per layer, where the last layer counts for more because of the head.
"""

from pipelab.cluster import Cluster
from pipelab.costs import LayerTimes
from pipelab.hardware.known_models import load_model
from pipelab.problem import Model, Problem, Workload

A100, L4, T4 = "A100-SXM-40", "L4", "T4"
GPUS = {A100: 3, L4: 4, T4: 4}
# Gb/s. Each type is one site; a company's own network joins two of them, and the third is far away.
LINKS = {
    (A100, A100): 10, (L4, L4): 10, (T4, T4): 10, (A100, L4): 10, (A100, T4): 1, (L4, T4): 0.1,
}  # fmt: skip
PROMPT = Workload(sequence_length=2048, batch_size=1)
# Stated, so that the course's numbers stay when the roofline learns; a test holds both together.
MEMORY_GB = {A100: 40.0, L4: 24.0, T4: 16.0}
MS_PER_LAYER = {A100: 18.0, L4: 80.0, T4: 120.0}
HEAD = 1.1  # the last layer's work, with the head
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
        Its `costs` are `LayerTimes`: milliseconds per layer, near those of the roofline. First and
        last layer also weigh the embedding and the head; the head takes time, too.

    Examples
    --------
    >>> problem = three_sites()
    >>> problem.costs.ms_per_layer
    {'A100-SXM-40': 18.0, 'L4': 80.0, 'T4': 120.0}
    >>> round(problem.model.weight_gb(range(80)))
    141
    """
    llama = load_model("Llama-3-70B")
    gigabytes = {pair: gigabits / 8 for pair, gigabits in LINKS.items()}
    cluster = Cluster.from_counts(GPUS, MEMORY_GB, gigabytes)
    inner, last = range(1, 2), range(llama.layers - 1, llama.layers)
    one_layer = llama.weight_gb(inner)
    ends = round(llama.weight_gb(last) / one_layer, 2)
    between = llama.layers - 2
    model = Model(
        llama.name, llama.layers, llama.d_model, llama.d_hidden, round(one_layer, 2),
        weight_factors=(ends, *[1.0] * between, ends),
        work_factors=(*[1.0] * (between + 1), HEAD),
    )  # fmt: skip
    costs = LayerTimes(MS_PER_LAYER, reserved_gb=RESERVED_GB)
    return Problem(
        cluster, model, PROMPT, costs, max_gpus_per_stage, name="Llama-3-70B on three sites"
    )
