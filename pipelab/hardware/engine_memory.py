"""What an engine keeps beside weights and cache: the table data/engine_memory.csv, one row per engine.

With a GPU's memory M as its driver counts it, T = M − `unseen_gib` as the engine does, W the weights on this GPU and
B what the engine keeps besides (its widest step, context, communication, captured graphs), and the share
s = `Roofline.memory_share`, the cache has

    s·T − W − B            where `share_of` is "all",
    s·(T − W − B)          where it is "cache",
    min(s·T, T − B) − W    where it is "static" (weights and cache).
"""

from functools import cache
from typing import Any, Literal

import numpy as np

from pipelab.errors import UnknownName, nearest
from pipelab.fields import Flag, NotNegative, checked
from pipelab.files.bundled_folders import data_dir
from pipelab.files.csv_rows import read_by_name
from pipelab.hardware.engine_rules import platform_of
from pipelab.hardware.pass_times import ACTIVATION_BYTES, PCIE_GB_PER_S, Demand, Span

GIB, MIB = 2.0**30, 2.0**20


@checked
class EngineMemory:
    """What an engine keeps beside weights and cache; a row of data/engine_memory.csv.

    Parameters
    ----------
    share_of : {"all", "cache", "static", ""}
        What the share of memory is of (see the module); empty: it is not known what the engine keeps, and
        nothing counts.
    unseen_gib : float
        Of the driver's figure, what CUDA does not offer: the engine's total lacks it.
    context_gib, blackwell_gib : float
        Context, loaded kernels and small buffers, on GPUs in general and on GeForce and RTX PRO of the Blackwell
        generation.
    nvlink_gib, part_gib : float
        Buffers for communication where GPUs cut layers over NVLink; and for each GPU that cuts them.
    graph_gib, sequence_mib, graph_sequences : float
        Captured graphs: of any number of sequences, and for each sequence up to so many.
    stream_tensors, block_tensors : float
        In the widest step of a chunk of prompts, tensors as wide as the model, and as its feed-forward block, that are
        there at once.
    expert_buffers : bool
        Whether a chunk's inputs and outputs of all its experts stay.
    token_mib : float
        Reserved for each token of a chunk, whatever the model.
    chunks : str
        Tokens of a chunk by the GPU's GiB, as "20:2048 60:4096 8192": below 20, below 60, else. Empty: those of the
        cost model's engine, `Engine.chunk_tokens`.
    logit_bytes, token_logit_bytes : float
        Of each entry of the vocabulary on the stage with the head, for each sequence, and for each token of a chunk.
    source : str
        Where the engine's code says so, or who measured it.
    """

    source: str
    share_of: Literal["all", "cache", "static", ""] = ""
    unseen_gib: NotNegative = 0.0
    context_gib: NotNegative = 0.0
    blackwell_gib: NotNegative = 0.0
    nvlink_gib: NotNegative = 0.0
    part_gib: NotNegative = 0.0
    graph_gib: NotNegative = 0.0
    sequence_mib: NotNegative = 0.0
    graph_sequences: NotNegative = 0.0
    stream_tensors: NotNegative = 2.0
    block_tensors: NotNegative = 2.0
    expert_buffers: Flag = False
    token_mib: NotNegative = 0.0
    chunks: str = ""
    logit_bytes: NotNegative = 0.0
    token_logit_bytes: NotNegative = 0.0

    def parts_gb(
        self,
        kinds: Any,
        demand: Demand,
        span: Span,
        b: Any,
        t: int,
        chunk: int | None,
        share: float,
    ) -> dict[str, Any]:
        """GB of "activations", "buffers" and "reserve" on a GPU of each kind; shapes as of `Demand.kept_gb`, (K, 1).

        Parameters
        ----------
        kinds : sequence of GPU
            Along the axis of `b` before its last.
        chunk : int, optional
            Tokens that pass at once with the cost model's engine.
        share : float
            Of memory.
        """
        memory = np.array([[kind.memory_gb * 1e9] for kind in kinds])
        total = memory - np.array([[GIB * self.unseen_gib * _cuda(kind)] for kind in kinds])
        sequences = np.ceil(b * demand.load.in_memory - 1e-9)
        widest = self._widest(memory, demand, span, sequences, t, chunk)
        over_nvlink = [t > 1 and (kind.node_gb_per_s or 0) >= PCIE_GB_PER_S for kind in kinds]
        context = [self.blackwell_gib if _blackwell(kind) else self.context_gib for kind in kinds]
        fixed = np.array(context)[:, None] + np.array(over_nvlink)[:, None] * self.nvlink_gib
        fixed = (fixed + self.graph_gib + self.part_gib * t) * GIB
        fixed = fixed + MIB * self.sequence_mib * np.minimum(sequences, self.graph_sequences)
        weights, own = 1e9 * span.weight_gb / t, widest + fixed
        left = (1 - share) * (total - (weights + own) * (self.share_of == "cache"))
        reserve = memory - total + np.maximum(left - own * (self.share_of == "static"), 0.0)
        named = {"activations": widest, "buffers": fixed, "reserve": reserve}
        return {name: value / 1e9 for name, value in named.items()}

    def _widest(
        self, memory: Any, demand: Demand, span: Span, sequences: Any, t: int, chunk: int | None
    ) -> Any:
        """Bytes of the widest step: of a chunk in a layer, or of the logits."""
        model = demand.model
        tokens = np.maximum(self._chunk(memory, demand, chunk), sequences)
        block, buffers = model.block_width, 0.0
        if self.expert_buffers and model.has_experts:
            block, width = model.d_ff * (span.dense > 0), (model.expert_ff or model.d_ff) / t
            # Of every token and expert: what goes in, gate and up; what is multiplied, and what comes out.
            wide = np.maximum(2 * width, model.d_model) + np.maximum(width, model.d_model)
            buffers = (
                tokens
                * model.experts_per_token
                * wide
                * ACTIVATION_BYTES
                * (span.layers > span.dense)
            )
        wide = self.stream_tensors * model.d_model + self.block_tensors * block / t
        layer = tokens * (wide * ACTIVATION_BYTES + MIB * self.token_mib)
        logits = self.logit_bytes * sequences + self.token_logit_bytes * tokens
        return buffers + np.maximum(layer, span.last * model.vocab * logits)

    def _chunk(self, memory: Any, demand: Demand, chunk: int | None) -> Any:
        """Tokens of a chunk; where prompts pass whole, those of the batch."""
        if not self.chunks:
            return chunk or demand.load.batch_size * demand.new_tokens
        *steps, last = (step.split(":") for step in self.chunks.split())
        found = np.full(memory.shape, float(last[0]))
        for below, tokens in reversed(steps):
            found[memory < float(below) * GIB] = float(tokens)
        return found


def _cuda(kind: Any) -> bool:
    return platform_of(kind.type) == "CUDA"


def _blackwell(kind: Any) -> bool:
    """Whether a GPU is a GeForce or RTX PRO of compute capability 12."""
    return kind.type.replace("-", "").startswith(("RTX50", "RTXPRO"))


@cache
def known_memory() -> dict[str, EngineMemory]:
    """Return the rows of data/engine_memory.csv by name."""
    return read_by_name(data_dir() / "engine_memory.csv", "engine", EngineMemory)


def memory_of(engine: str) -> EngineMemory:
    """Return what an engine keeps.

    Raises
    ------
    UnknownName
        There is no such row.
    """
    known = known_memory()
    if engine not in known:
        raise UnknownName(
            f"there is no engine {engine!r} in data/engine_memory.csv; {nearest(engine, known)}"
        )
    return known[engine]


def engine_counted(costs: Any) -> str:
    """Return the engine whose own memory counts in a cost model; empty if none does.

    Parameters
    ----------
    costs : cost model
        A `Roofline`, `Measured` with one, or another, which counts none.
    """
    engine = getattr(getattr(costs, "needs", costs), "runs_on", "")
    return engine if engine and memory_of(engine).share_of else ""
