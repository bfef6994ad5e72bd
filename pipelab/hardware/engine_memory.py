"""What an engine keeps beside weights and cache: the table data/engine_memory.csv, one row per engine.

With a GPU's memory M as its driver counts it, T = M − `unseen_gib` as the engine does, W the weights on this GPU and
B what the engine keeps besides (its widest step, context, communication, captured graphs), and the share
s = `Roofline.memory_share`, the cache has

    s·T − W − B            where `share_of` is "all",
    s·(T − W − B)          where it is "cache",
    min(s·T, T − B) − W    where it is "static" (weights and cache).
"""

from typing import Any, Literal

import numpy as np

from pipelab.cluster import GPU
from pipelab.costs import whole_sequences
from pipelab.errors import UnknownName, nearest
from pipelab.fields import Count, Flag, NotNegative, checked
from pipelab.files.csv_rows import bundled_by_name
from pipelab.hardware.engine_rules import platform_of
from pipelab.hardware.pass_times import ACTIVATION_BYTES, PCIE_GB_PER_S, Demand, Span
from pipelab.problem import CostModel

GIB, MIB = 2.0**30, 2.0**20


@checked
class EngineMemory:
    """A row of the table: memory of an engine beside weights and cache; `notebooks/data.md` describes its columns."""

    source: str
    cache_tokens: Count = 1
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
        """Compute GB of "activations", "buffers" and "reserve" on GPUs of K kinds; `chunk` is the cost model's."""
        memory = np.array([[kind.memory_gb * 1e9] for kind in kinds])
        chunks = self._chunks(kinds, demand, chunk)
        total = np.array([[self.seen_gb(kind.type, kind.memory_gb) * 1e9] for kind in kinds])
        sequences = whole_sequences(b * demand.load.in_memory)
        widest = self._widest(chunks, demand, span, sequences, t)
        fixed = np.array([[self._context_gib(kind, t > 1)] for kind in kinds])
        fixed = GIB * (fixed + self.graph_gib + self.part_gib * t)
        fixed = fixed + MIB * self.sequence_mib * np.minimum(sequences, self.graph_sequences)
        weights, kept = 1e9 * span.weight_gb / t, widest + fixed
        left = (1 - share) * (total - (weights + kept) * (self.share_of == "cache"))
        reserve = memory - total + np.maximum(left - kept * (self.share_of == "static"), 0.0)
        named = {"activations": widest, "buffers": fixed, "reserve": reserve}
        return {name: value / 1e9 for name, value in named.items()}

    def seen_gb(self, gpu_type: str, memory_gb: float) -> float:
        """Return the GB that the engine counts of those that the driver does."""
        return memory_gb - (platform_of(gpu_type) == "CUDA") * self.unseen_gib * GIB / 1e9

    def most_share(self, kinds: Any) -> float:
        """Return the share that is free on GPUs of all kinds when an engine starts that asks for one of "all"."""
        if self.share_of != "all":
            return 1.0
        sizes = [
            (self.seen_gb(kind.type, kind.memory_gb), self._context_gib(kind, True) * GIB / 1e9)
            for kind in kinds
        ]
        # A smaller GPU than the context holds no layer.
        return 1 - max([taken / seen for seen, taken in sizes if seen > taken], default=0.0)

    def _context_gib(self, kind: Any, cut: bool) -> float:
        """Return the GiB that are taken before weights are loaded; `cut`: whether several GPUs cut layers."""
        geforce = kind.type.replace("-", "").startswith("RTX50")  # of Blackwell
        over_nvlink = cut and (kind.node_gb_per_s or 0) >= PCIE_GB_PER_S
        context = self.blackwell_gib if geforce else self.context_gib
        return context + over_nvlink * self.nvlink_gib

    def _widest(self, chunks: Any, demand: Demand, span: Span, sequences: Any, t: int) -> Any:
        """Compute the bytes of the widest step: of a chunk in a layer, or of the logits."""
        model = demand.model
        tokens: Any = np.maximum(chunks, sequences)
        block: Any = model.block_width
        buffers: Any = 0.0
        if self.expert_buffers and model.has_experts:
            routed_layers = sum(n for kind, n in demand.of_kinds(span) if kind.routed)
            dense_layers = span.layers - routed_layers
            block, width = model.d_ff * (dense_layers > 0), (model.expert_ff or model.d_ff) / t
            # Of every token and expert: what goes in, gate and up; what is multiplied, and what comes out.
            wide = np.maximum(2 * width, model.d_model) + np.maximum(width, model.d_model)
            routed = tokens * model.experts_per_token * (routed_layers > 0)
            buffers = routed * wide * ACTIVATION_BYTES
        wide = self.stream_tensors * model.d_model + self.block_tensors * block / t
        layer = tokens * (wide * ACTIVATION_BYTES + MIB * self.token_mib)
        logits = self.logit_bytes * sequences * span.last * model.vocab
        return buffers + np.maximum(layer, logits)

    def _chunks(self, kinds: Any, demand: Demand, chunk: int | None) -> Any:
        """Return the tokens of a chunk on GPUs of K kinds; where prompts pass whole, those of the batch."""
        if not self.chunks:
            return chunk or demand.load.batch_size * demand.new_tokens
        return np.array([[self.chunk_tokens(kind)] for kind in kinds])

    def chunk_tokens(self, gpu: GPU) -> float:
        """Return the tokens of a chunk on a GPU, by its type or else its memory; `chunks` is not empty."""
        *steps, last = (step.split(":") for step in self.chunks.split())
        for limit, tokens in steps:
            smaller = limit.isdigit() and gpu.memory_gb * 1e9 < float(limit) * GIB
            if smaller or (not limit.isdigit() and gpu.type.startswith(limit)):
                return float(tokens)
        return float(last[0])


def known_memory() -> dict[str, EngineMemory]:
    """Return the rows of data/engine_memory.csv by name."""
    return bundled_by_name("engine_memory.csv", "engine", EngineMemory)


def memory_of(engine: str) -> EngineMemory:
    """Return what an engine keeps; UnknownName if there is no such row."""
    known = known_memory()
    if engine not in known:
        raise UnknownName(f"engine_memory.csv has no row {engine!r}; {nearest(engine, known)}")
    return known[engine]


def engine_counted(costs: CostModel) -> str:
    """Return the engine whose own memory counts in a cost model; empty if none does."""
    counts = costs.runs_on and memory_of(costs.runs_on).share_of
    return costs.runs_on if counts else ""
