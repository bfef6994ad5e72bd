"""The problem of notebook 05: one H100, two A10 and four T4, of which stages may share several.

Cuts are allowed between blocks of layers only, so that the joint ILP stays small enough to look at.
As in the problem of the course, a stage costs layers times milliseconds.
"""

from pipelab.cluster import Cluster
from pipelab.costs import LayerTimes
from pipelab.errors import InvalidValue
from pipelab.hardware.known_models import load_model
from pipelab.problem import Model, Problem, Workload

H100, A10, T4 = "H100-SXM", "A10", "T4"
# Stated round numbers, within 40% of the roofline's, as a test says: its int4 runs faster on the H100 and A10.
MEMORY_GB = {H100: 80.0, A10: 24.0, T4: 16.0}
MS_PER_LAYER = {H100: 8.0, A10: 57.0, T4: 120.0}
LAYER_GB = 0.43  # four bits per weight
PROMPT = Workload(sequence_length=2048, batch_size=1)
RESERVED_GB = 4.0  # of every GPU, for activations, the KV cache and buffers


def seven_gpus(
    layers_per_block: int = 16,
    max_gpus_per_stage: int = 4,
    *,
    t4s: int = 4,
    gbps: tuple[float, float, float] = (10, 1, 0.1),
) -> Problem:
    """Llama-3-70B in int4, prefill of 2,048-token prompts, on 1 H100, 2 A10 and 4 T4.

    Parameters
    ----------
    layers_per_block : int
        A divisor of 80. A layer of the problem is a block of so many decoder layers.
    max_gpus_per_stage : int
        As in `Problem`; GPUs of one stage are of one type.
    t4s : int
        How many T4 there are, 0 to 4.
    gbps : tuple of float
        Gb/s from the H100 to an A10, from the H100 to a T4, and from an A10 to a T4. Between GPUs
        of one type it is 10.

    Returns
    -------
    Problem
        Its `costs` are `LayerTimes`: round milliseconds per block, not the roofline's. The
        embedding and the head are left out.

    Raises
    ------
    InvalidValue
        80 layers make no such blocks.

    Examples
    --------
    >>> problem = seven_gpus()
    >>> problem.model.layers, problem.costs.ms_per_layer
    (5, {'H100-SXM': 128.0, 'A10': 912.0, 'T4': 1920.0})
    """
    llama = load_model("Llama-3-70B", precision="int4")
    if layers_per_block < 1 or llama.layers % layers_per_block:
        expected = f"expected a divisor of {llama.layers}"
        raise InvalidValue("seven_gpus", [("layers_per_block", layers_per_block, expected)])
    counts = {H100: 1, A10: 2, T4: t4s} if t4s else {H100: 1, A10: 2}
    pairs = dict(zip([(H100, A10), (H100, T4), (A10, T4)], gbps, strict=True))
    pairs |= {(kind, kind): 10 for kind in counts}
    cluster = Cluster.from_counts(
        counts,
        {name: MEMORY_GB[name] for name in counts},
        {pair: speed / 8 for pair, speed in pairs.items() if set(pair) <= set(counts)},
    )
    times = {name: layers_per_block * MS_PER_LAYER[name] for name in counts}
    model = Model(
        f"{llama.name} in int4", llama.layers // layers_per_block, llama.d_model, llama.d_hidden,
        layers_per_block * LAYER_GB,
    )  # fmt: skip
    return Problem(
        cluster, model, PROMPT, LayerTimes(times, reserved_gb=RESERVED_GB), max_gpus_per_stage,
        same_type_stages=True, name=f"Llama-3-70B in int4, blocks of {layers_per_block}",
    )  # fmt: skip
