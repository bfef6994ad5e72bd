"""Engines: how much of a GPU they use, and what they add to every layer and every step."""

from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Le

from pipelab.fields import Count, Flag, NotNegative, Positive, Share, checked, described
from pipelab.files.csv_rows import bundled_by_name, read_by_name
from pipelab.files.reading_and_writing import path_of

Overlap = Annotated[NotNegative, Le(1), described("a share from 0 to 1")]


@checked
class Engine:
    """The shares of a GPU that an engine for inference or training reaches, and what it adds to every step.

    Parameters
    ----------
    prefill_efficiency : float
        Share of the GPU's own `compute_efficiency` that prompts reach; in training, the matrix
        products alone.
    memory_efficiency, hbm_efficiency : float
        Share of the memory bandwidth that is reached: on GDDR and unified memory, and on HBM.
    decode_overlap : float
        Share of the shorter of computing and moving bytes that hides behind the longer, in decode.
        In prefill, where thousands of rows meet every weight, all of it hides.
    layer_overhead_us : float
        Launches and waits per layer in microseconds: about 20 with CUDA graphs, 100 and more
        without.
    step_overhead_us : float
        Once per traversal, on the stage with the head: sampling and scheduling.
    allreduce_us, pcie_allreduce_us : float
        Of one all-reduce among the GPUs of a node, besides its bytes, over NVLink and over PCIe.
        Engines use one-shot kernels for small messages, so it hardly grows with the number of GPUs.
    link_efficiency : float
        Share of a node's link bandwidth that an all-reduce reaches.
    score_bytes : float
        Bytes that attention moves per pair of tokens and head in prefill; 0 for fused attention.
    accumulate : {"fp32", "fp16"}
        In how many bits matrix products add up; GeForce cards are twice as fast in 16.
    kv_efficiency : float
        Share of the reached memory bandwidth at which attention reads keys and values.
    integer_efficiency : float
        Share of the reached memory bandwidth at which weights of 8-bit and 4-bit integers are read,
        as they are converted on the way.
    sequence_overhead_us : float
        Per sequence of the batch and traversal, on the stage with the head: preparing and sampling.
    tensor_parallel_us : float
        Once per traversal where GPUs cut layers: telling all processes what comes.
    allreduce_hop_us : float
        What each GPU beyond two adds to the wait of an all-reduce: next to nothing with CUDA
        graphs; without, launches hide behind less and less work.
    stage_tensors : float
        Tensors with a 16-bit number per token and model dimension that a stage sends to the next: 2
        where hidden state and residual travel apart, or one in 32 bits.
    chunk_tokens : int, optional
        Tokens that pass at once: longer prompts pass in chunks, and memory for activations is for one
        chunk. None where prompts pass whole.
    large_allreduce : float, optional
        Share of that bandwidth which all-reduces of 64 MiB and more reach among four GPUs and more;
        None: all of it.
    experts_efficiency : float
        Share of the speed of other matrix products that those of experts reach: tokens are not spread
        evenly over them.
    experts_overhead_us : float
        What a layer with experts adds to `layer_overhead_us`: choosing them, and sorting tokens by them.
    prompts_ahead : float
        Share of the other requests at a server whose prompts are read before the first token of a new
        one; half of them where all prompts that wait are read before anything is written.
    activation_moves : float
        In training: how many times every byte of activations that a layer keeps is moved in a
        forward, and again in an input gradient, by all that is not a matrix product.
    gradient_bytes : float, optional
        Bytes per parameter of the gradients that microbatches add up to: 2 in bf16, 4 in fp32.
        None: the engine does not train.
    sequence_parallel : bool
        In training: whether GPUs that cut a layer also divide the tokens of what lies between its matrices.
    shards_optimizer : bool
        In training: whether the copies of a stage divide the optimizer's state among them (ZeRO-1).
    fused_gate : bool
        In training: whether the gate's activation is computed again in the backward, and so not kept.
    bucket_parameters : int, optional
        In training, with `shards_optimizer`: parameters whose gradients copies add up together, while the backward
        before them still runs; the next forward gathers as many weights at once. None: nothing of this hides
        behind computing.
    basis : str
        Where these numbers come from.

    Raises
    ------
    InvalidValue
        A share is not above 0 and at most 1 (the overlap may be 0), or a time is negative.
    """

    prefill_efficiency: Positive = 0.9
    memory_efficiency: Share = 0.8
    hbm_efficiency: Share = 0.8
    decode_overlap: Overlap = 0.63
    layer_overhead_us: NotNegative = 20.0
    step_overhead_us: NotNegative = 500.0
    allreduce_us: NotNegative = 10.0
    pcie_allreduce_us: NotNegative = 40.0
    link_efficiency: Share = 0.35
    score_bytes: NotNegative = 0.0
    accumulate: Literal["fp32", "fp16"] = "fp32"
    kv_efficiency: Share = 0.6
    integer_efficiency: Share = 0.8
    sequence_overhead_us: NotNegative = 10.0
    tensor_parallel_us: NotNegative = 0.0
    allreduce_hop_us: NotNegative = 0.0
    stage_tensors: Positive = 1.0
    chunk_tokens: Count | None = None
    large_allreduce: Share | None = None
    experts_efficiency: Share = 0.8
    experts_overhead_us: NotNegative = 25.0
    prompts_ahead: Overlap = 0.0
    activation_moves: NotNegative = 0.0
    gradient_bytes: Positive | None = None
    sequence_parallel: Flag = False
    shards_optimizer: Flag = False
    fused_gate: Flag = False
    bucket_parameters: Count | None = None
    basis: str = ""


def load_engines(path: str | Path | None = None) -> dict[str, Engine]:
    """Return engines by name: the bundled ones, and after them those of a file of your own.

    Parameters
    ----------
    path : str or Path, optional
        A CSV with the columns of `data/engines.csv`; an empty cell stands for the default.

    Returns
    -------
    dict of str to Engine
        By name, in the order of the files.

    Raises
    ------
    InvalidData
        The file is not there or cannot be read, or a value does not fit.

    Examples
    --------
    >>> engines = load_engines()
    >>> engines["vLLM 0.2"].layer_overhead_us > 3 * engines["vLLM"].layer_overhead_us
    True
    """
    bundled = bundled_by_name("engines.csv", "engine", Engine)
    if path is None:
        return dict(bundled)
    return bundled | read_by_name(path_of("load_engines", path), "engine", Engine)
