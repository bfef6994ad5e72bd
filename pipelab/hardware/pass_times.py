"""What one pass of a microbatch demands of a layer: FLOPs, bytes to read and write, and bytes to keep.

With d, f the widths of model and feed-forward block, H query heads of width h, V the vocabulary,
β bytes per weight, κ bytes of keys and values per token and layer, b sequences with s tokens each,
of which q are new in this pass (s in prefill, 1 in decode):

- FLOPs of a layer: 2·b·q·P_a for its matrices (P_a parameters that a token meets), and for
  attention 4·H·h for every pair of a new token and one that it looks back at: b·s pairs in decode,
  b·s²/2 in (causal) prefill. Head: 2·b·V·d, for one token of every sequence. The embedding is
  looked up: it takes memory and next to no time.
- bytes of a layer: the weights once, of E experts those that some token visits,
  E·(1 − (1 − E_a/E)^(b·q)); keys and values once, b·s·κ (with FlashAttention no s² of bytes);
  activations in and out of eight operators, 8·b·q·d·2. Head: V·d·β₁₆, as embedding, head, norms,
  biases and routers keep 16 bits where the layers' matrices have fewer.
- bytes that experts move between their products, where nothing is computed: every token has a row for each of the
  E_a experts that it visits. Rows of width d are gathered and come out (4 times read or written), which no
  tensor parallelism divides; rows of the expert's width f_e pass the gate (6 times): b·q·E_a·(4·d + 6·f_e/t)·2.
- bytes to keep on a GPU: weights, keys and values of every microbatch in flight, and the
  activations of the widest operator, n·(2d + 2f/t)·2 for n = b·q tokens, or for those of one chunk
  of prompts.

With a window of w tokens, a token looks back at min(w, position) of them: b·min(s, w) pairs in decode,
b·(s·w − w²/2) in prefill where s > w; as many keys and values are read, and no more than w are kept.
Layers of different kinds are counted by their own (`layer_kinds`): with a window or without, with experts or without,
with what they select among the keys that they keep, or with a state, which is read and written once per token.

In a mixed load every sequence writes o tokens after a prompt of s: each new token looks back at s +
o/2 others on average, and brings s/o prompt tokens of other sequences with it. So it does in decode where a
token of the answer is named (`Workload.timed_at`); the last looks back at s + o. Prompts come whole: with fewer
sequences than tokens in an answer, only b of o passes have one, and the others visit few experts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from pipelab.cluster import GPU
from pipelab.costs import whole_sequences
from pipelab.files.bundled_folders import data_dir
from pipelab.files.csv_rows import frame_of
from pipelab.hardware.known_gpus import GPUFacts
from pipelab.hardware.layer_kinds import LayerKind
from pipelab.hardware.serving_engines import Engine
from pipelab.hardware.training_memory import activation_bytes
from pipelab.hardware.training_memory import head_bytes as kept_by_head
from pipelab.hardware.transformer import Transformer
from pipelab.problem import Workload

ACTIVATION_BYTES = 2.0
ACTIVATION_PASSES = 8  # times that an activation of width d is read or written in one layer
# Times that a row of an expert is read or written besides: of the model's width, and of the expert's.
EXPERT_MODEL_PASSES, EXPERT_WIDTH_PASSES = 4, 6

# PCIe 5.0 with 16 lanes has 63 GB/s; NVLink, Infinity Fabric and their kind begin above it.
PCIE_GB_PER_S = 64.0

# From so many bytes and GPUs on, all-reduces of an engine with `large_allreduce` are slower. In
# Splitwise's rows prompts of 33.6 MB (Llama-2-70B, 2,048 tokens) and 58.7 MB (BLOOM-176B) are not, those
# of 67.1 MB and 117 MB are; and none among two GPUs.
LARGE_BYTES = 64 * 2**20
LARGE_GPUS = 4


@dataclass(frozen=True)
class Span:
    """What consecutive layers hold: arrays with one number per kind of span, or plain numbers for one span."""

    numbers: tuple[np.ndarray | float, ...]  # of layers of each of the model's kinds
    last: np.ndarray | float  # 1 where the head is among them
    weight_gb: np.ndarray | float  # with embedding and head

    @property
    def layers(self) -> np.ndarray | float:
        """Number of layers, of all kinds."""
        return sum(self.numbers)

    @classmethod
    @lru_cache(maxsize=10_000)  # the evaluator asks for the same ones again and again
    def of(cls, model: Transformer, layers: range) -> "Span":
        """One span."""
        numbers = tuple(map(float, model.numbers_of_kinds(layers)))
        return cls(numbers, float(model.layers - 1 in layers), model.weight_gb(layers))

    @classmethod
    def all(cls, model: Transformer) -> "Span":
        """Every kind of span of the model, in the order of `model.spans`."""
        s = model.spans
        others = [s.others[f"kind {i}"] for i in range(1, len(model.layer_kinds))]
        numbers = ((s.layers - sum(others)).astype(float), *others)
        return cls(numbers, s.others["last"], s.weight * model.layer_weight_gb)

    def __len__(self) -> int:
        return np.size(self.last)

    def take(self, index: Any) -> "Span":
        """The spans of these numbers."""
        numbers = tuple(np.atleast_1d(number)[index] for number in self.numbers)
        last, weight_gb = (np.atleast_1d(x)[index] for x in (self.last, self.weight_gb))
        return Span(numbers, last, weight_gb)


@dataclass(frozen=True)
class Demand:
    """The demands of one model under one load; methods take arrays that broadcast.

    `b` counts sequences and may be a fraction; t is the tensor-parallel degree; `kind` is one of the model's.
    """

    model: Transformer
    load: Workload

    @property
    def new_tokens(self) -> float:
        """q: tokens per sequence that pass in one pass."""
        return self.load.tokens_passed / self.load.batch_size

    @property
    def answers(self) -> float:
        """Tokens per sequence that the head is asked for: the last of a prompt, each new one, or all."""
        if self.load.phase == "training":
            return self.new_tokens
        return 1 + 1 / self.load.written if self.load.phase == "mixed" else 1.0

    def kept_tokens(self, window: int | None, block: int | None) -> int:
        """Tokens per sequence that the KV cache must have room for, in blocks if there are; training has none."""
        start, written = self.load.sequence_length, self.load.written
        if self.load.phase == "training":
            return 0
        if block is None:
            return _seen(start + written, window)
        return -(-_seen(start + max(1, written), window) // block) * block

    def of_kinds(self, span: Span) -> "zip[tuple[LayerKind, np.ndarray | float]]":
        """Pair every kind of layer with the number of layers of a span that are of it."""
        return zip(self.model.layer_kinds, span.numbers, strict=True)

    def _prompt_pairs(self, most: int | None) -> float:
        """Pairs of one prompt, per pass: in a mixed load, of the share of it that a new token brings."""
        pairs = _pairs(0, self.load.sequence_length, most)
        if self.load.phase == "mixed":
            return pairs / self.load.written
        return 0.0 if self.load.phase == "decode" else pairs

    def _answer_pairs(self, most: int | None) -> float:
        """Pairs of the token that each sequence writes in one pass: on average, or of its last."""
        s, o = self.load.sequence_length, self.load.written
        if self.load.phase not in ("decode", "mixed"):
            return 0.0
        if o and self.load.timed_at != "last":
            return _pairs(s, s + o, most) / o
        return float(_seen(s + o, most))

    def attention_flops(self, kind: LayerKind | None = None) -> float:
        """Return the FLOPs of one sequence's attention in one layer, by default an ordinary one."""
        return sum(
            one.writing * self._answer_pairs(one.most_read)
            + one.reading * self._prompt_pairs(one.most_read)
            for one in (kind or self.model.layer_kinds[0]).lookbacks
        )

    def layer_flops(self, kind: LayerKind, b: Any) -> Any:
        """FLOPs of the matrices of one layer for b sequences."""
        return b * 2 * self.new_tokens * self.model.layer_parameters(kind, active=True)

    def layer_weight_bytes(self, kind: LayerKind, b: Any) -> Any:
        """Weights of one layer that a pass with b sequences reads."""
        m = self.model
        everything = m.layer_bytes(kind)
        if not kind.routed:
            return everything + 0 * b
        not_visited = 1 - m.experts_per_token / m.experts  # by one token
        missed = not_visited ** (b * self.new_tokens)
        if self.load.phase == "mixed":
            prompts = np.maximum(b / self.load.written, 1.0)  # of a pass that has any
            often = b / self.load.written / prompts
            with_prompts = not_visited ** (b + prompts * self.load.sequence_length)
            missed = often * with_prompts + (1 - often) * not_visited**b
        return everything - missed * m.layer_bytes(kind, only_routed=True)

    def expert_flops(self, kind: LayerKind, b: Any) -> Any:
        """FLOPs of the routed experts among those of `layer_flops`."""
        m = self.model
        return b * 2 * self.new_tokens * (kind.routed // m.experts * m.experts_per_token)

    def expert_bytes(self, kind: LayerKind, b: Any, t: int) -> Any:
        """Bytes that one of t GPUs moves between the products of a layer's experts; 0 in training, see there."""
        m = self.model
        if not kind.routed or self.load.phase == "training":
            return 0.0 * b
        width = EXPERT_MODEL_PASSES * m.d_model + EXPERT_WIDTH_PASSES * (m.expert_ff or m.d_ff) / t
        return b * self.new_tokens * m.experts_per_token * width * ACTIVATION_BYTES

    def kv_bytes(self, kind: LayerKind, b: Any, t: int = 1) -> Any:
        """Keys and values of one layer, and states, that one of t GPUs reads or writes for b sequences."""
        s, decoding = self.load.sequence_length, self.load.phase in ("decode", "mixed")
        if self.load.phase == "mixed":
            prompt = s / self.load.written
        else:
            prompt = 0.0 if self.load.phase == "decode" else float(s)
        moved = kind.state_bytes * (1 + decoding) / t  # a token of an answer reads it, too
        for one in kind.lookbacks:
            tokens = prompt + self._answer_pairs(one.most_read)
            moved = moved + tokens * self.model.kept_of_token(one) / min(t, one.parts)
        return b * moved

    def activation_bytes(self, b: Any) -> Any:
        """Activations that one layer reads and writes for b sequences."""
        return b * self.new_tokens * ACTIVATION_PASSES * self.model.d_model * ACTIVATION_BYTES

    def score_bytes(self, kind: LayerKind, per_pair: float, b: Any) -> Any:
        """Attention scores of prompts that one layer moves, where attention is not fused."""
        pairs = sum(self._prompt_pairs(one.most_read) for one in kind.lookbacks)
        return b * per_pair * self.model.heads * pairs

    def residual_bytes(self, b: Any) -> Any:
        """Return the bytes of b sequences' residual stream, which tensor parallelism adds up and stages send on."""
        return b * self.new_tokens * self.model.d_model * ACTIVATION_BYTES

    def stored_bytes(self, span: Span, b: Any, t: int, sequence_parallel: bool) -> Any:
        """Activations that training keeps of b sequences in these layers, on one of t GPUs; 0 in serving."""
        if self.load.phase != "training":
            return 0.0
        of: Any = (self.model, b * self.new_tokens)
        cut: Any = {"degree": t, "sequence_parallel": sequence_parallel}
        layer = activation_bytes(*of, sequence=self.load.sequence_length, **cut)
        return span.layers * layer + span.last * kept_by_head(*of, **cut)

    def head_flops(self, b: Any) -> Any:
        """Return the FLOPs of the head for b sequences."""
        return 2 * b * self.answers * self.model.vocab * self.model.d_model

    @property
    def head_bytes(self) -> float:
        """Weights of the head."""
        return self.model.head_bytes

    def kept_gb(
        self, span: Span, b: Any, t: int, chunk: int | None, block: int | None
    ) -> dict[str, np.ndarray]:
        """Memory on one GPU, in 10^9 bytes, by what it is for.

        Parameters
        ----------
        span
            The layers of the stage, and their weights with embedding and head.
        b, t
            Sequences that this GPU works on (a share may be a fraction; memory is for whole ones),
            and with how many others it cuts each layer.
        chunk, block
            Tokens that pass at once, None for all; and in what blocks keys and values are kept, None for as they are.
        """
        m = self.model
        # Half a sequence has no cache of its own: its keys and values lie on one GPU or another.
        cached = whole_sequences(b * self.load.in_memory)
        cache: Any = 0.0
        for kind, number in self.of_kinds(span):
            kept = kind.state_bytes / t if self.load.phase != "training" else 0.0
            for one in kind.lookbacks:
                tokens = self.kept_tokens(one.window, block)
                kept += tokens * m.kept_of_token(one) / min(t, one.parts)
            cache = cache + number * kept
        at_once = whole_sequences(b) * self.new_tokens
        if chunk is not None:
            at_once = np.minimum(at_once, chunk)
        # Every GPU has the whole residual stream, and its own part of the feed-forward block.
        widest = at_once * (2 * m.d_model + 2 * m.block_width / t) * ACTIVATION_BYTES
        return {
            "weights": span.weight_gb / t,
            "KV cache": cache * cached / 1e9,
            "activations": widest / 1e9,
        }


def _seen(position: int, most: int | None) -> int:
    """Tokens that one at this position looks back at."""
    return min(position, most or position)


def _pairs(start: int, end: int, most: int | None) -> float:
    """Count the pairs of a token from start to end and one that it looks back at.

    Twice their number is whole, and counted exactly: what is left of a long context is short.
    """

    def twice(x: int) -> int:
        inside = _seen(x, most)
        return inside * (2 * x - inside)

    return (twice(end) - twice(start)) / 2


@dataclass(frozen=True)
class Hardware:
    """What GPUs reach with an engine under a demand: one number per kind, shape (K,) or whatever broadcasts."""

    engine: Engine
    demand: Demand
    flops: np.ndarray  # per second, in the precision of the layers
    head_flops: np.ndarray  # per second, at 16 bits
    bandwidth: np.ndarray  # bytes/s of memory
    inside: np.ndarray  # bytes/s between GPUs of a node
    over_pcie: np.ndarray  # whether these pass PCIe
    allreduce: np.ndarray  # seconds of an all-reduce among them, besides its bytes

    @classmethod
    def of(
        cls, engine: Engine, gpus: Mapping[str, GPUFacts], demand: Demand, kinds: Sequence[GPU]
    ) -> "Hardware":
        """Return what GPUs reach with this engine under a demand."""
        facts = [gpus[kind.type] for kind in kinds]
        inside = np.array([kind.node_gb_per_s or np.inf for kind in kinds])
        over_pcie = inside < PCIE_GB_PER_S
        waits = np.where(over_pcie, engine.pcie_allreduce_us, engine.allreduce_us)
        return cls(
            engine,
            demand,
            np.array([_flop_per_s(engine, f, demand, demand.model.precision) for f in facts]),
            np.array([_flop_per_s(engine, f, demand, "bf16") for f in facts]),
            np.array([_bytes_per_s(engine, f) for f in facts]),
            inside * engine.link_efficiency * 1e9,
            over_pcie,
            waits * 1e-6,
        )

    def take(self, index: Any) -> "Hardware":
        """The kinds of these numbers."""
        names = [f.name for f in fields(self)][2:]
        return replace(self, **{name: getattr(self, name)[index] for name in names})

    def stage_seconds(self, span: Span, b: np.ndarray | float, t: int) -> np.ndarray:
        """T_stage for b sequences; all arrays broadcast. In training, of a forward."""
        stored = self.demand.stored_bytes(span, b, t, self.engine.sequence_parallel)
        moved = self.moving_seconds(stored)
        return self.layers_seconds(span, b, t) + moved

    def moving_seconds(self, stored: Any) -> Any:
        """Seconds that training moves activations between its matrix products, where so many bytes are kept."""
        return self.engine.activation_moves * stored / self.bandwidth

    def layers_seconds(self, span: Span, b: np.ndarray | float, t: int) -> np.ndarray:
        """T_stage without what training moves besides."""
        engine, demand = self.engine, self.demand
        wait = engine.layer_overhead_us * 1e-6
        step = engine.step_overhead_us + engine.sequence_overhead_us * b
        if t > 1:
            wait = wait + self.layer_collectives(b, t)
            step = step + engine.tensor_parallel_us
        compute = demand.head_flops(b) / (t * self.head_flops)
        head = self.slower(compute, demand.head_bytes / (t * self.bandwidth))
        total = span.last * (head + step * 1e-6)
        for kind, number in demand.of_kinds(span):
            if np.any(number):
                move = sum(moved_bytes(engine, demand, kind, b, t)) / self.bandwidth
                compute = self.computing_seconds(kind, b) / t
                besides = wait + self.besides_seconds(kind, b, t)
                total = total + number * (self.slower(compute, move) + besides)
        return total

    def computing_seconds(self, kind: LayerKind, b: Any) -> Any:
        """Seconds that one GPU computes for one layer."""
        # Attention computes in 16 bits, whatever the weights are stored in.
        demand, slower_experts = self.demand, 1 / self.engine.experts_efficiency - 1
        flops = demand.layer_flops(kind, b) + slower_experts * demand.expert_flops(kind, b)
        return flops / self.flops + b * demand.attention_flops(kind) / self.head_flops

    def besides_seconds(self, kind: LayerKind, b: Any, t: int) -> Any:
        """Seconds of one layer in which nothing is computed: attention scores and rows of experts are moved."""
        moved = self.demand.expert_bytes(kind, b, t)
        if self.engine.score_bytes:
            moved = moved + self.demand.score_bytes(kind, self.engine.score_bytes, b) / t
        return moved / self.bandwidth + bool(kind.routed) * self.engine.experts_overhead_us * 1e-6

    def slower(self, compute: Any, move: Any) -> Any:
        """Time of computing and moving bytes together: the longer, and what of the shorter does not hide."""
        shown = 1 - self.engine.decode_overlap
        return np.maximum(compute, move) + shown * np.minimum(compute, move)

    def layer_collectives(self, b: Any, t: int) -> Any:
        """Seconds of a layer's two all-reduces among t GPUs: after attention, after the feed-forward block."""
        engine, demand = self.engine, self.demand
        wait = self.allreduce + (t - 2) * engine.allreduce_hop_us * 1e-6
        size, bandwidth = demand.residual_bytes(b), self.inside
        if t > 2:
            slowest = np.minimum(bandwidth, pcie_allreduce_gb_per_s(t) * 1e9)
            bandwidth = np.where(self.over_pcie, slowest, bandwidth)
        if engine.large_allreduce is not None and t >= LARGE_GPUS:
            chunk = (engine.chunk_tokens or np.inf) * demand.model.d_model * ACTIVATION_BYTES
            large = np.minimum(size, chunk) >= LARGE_BYTES
            share = np.where(large, engine.large_allreduce, 1.0)
            bandwidth = bandwidth * share
        return 2 * (2 * (t - 1) / t * size / bandwidth + wait)


def _flop_per_s(engine: Engine, gpu: GPUFacts, demand: Demand, precision: str) -> float:
    peak = gpu.fp16_tflop_per_s
    if engine.accumulate == "fp16":
        peak = gpu.fp16_accumulate_tflop_per_s or peak
    if precision == "fp8" and gpu.fp8_tflop_per_s:
        peak = max(peak, gpu.fp8_tflop_per_s * gpu.fp8_share)
    # Unified memory has one engine only, whose efficiency the GPU's is.
    at_whole_efficiency = demand.load.phase == "decode" or gpu.memory_kind == "unified"
    share = 1.0 if at_whole_efficiency else engine.prefill_efficiency
    return peak * gpu.compute_efficiency * share * 1e12


@cache
def pcie_allreduce_gb_per_s(gpus: int) -> float:
    """Return how fast all-reduces over PCIe are at most: of `data/pcie_allreduce.csv`, or between two of its rows."""
    measured = frame_of(data_dir() / "pcie_allreduce.csv", "gpus")["gb_per_s"]
    return float(np.interp(gpus, measured.index, measured))


def _bytes_per_s(engine: Engine, gpu: GPUFacts) -> float:
    share = engine.hbm_efficiency if gpu.memory_kind == "HBM" else engine.memory_efficiency
    return gpu.memory_bandwidth_gb_per_s * share * gpu.memory_factor * 1e9


def moved_bytes(
    engine: Engine, demand: Demand, kind: LayerKind, b: Any, t: int
) -> tuple[Any, Any, Any]:
    """Weights, keys and values, and activations of a layer on one of t GPUs, as if all were read at one speed.

    Integers and 4-bit floats, and keys and values, are read more slowly, and so count for more.
    """
    read_slowly = demand.model.precision in ("int8", "int4", "nvfp4", "mxfp4")
    share = engine.integer_efficiency if read_slowly else 1.0
    return (
        demand.layer_weight_bytes(kind, b) / (t * share),
        demand.kv_bytes(kind, b, t) / engine.kv_efficiency,
        demand.activation_bytes(b) / t,
    )
