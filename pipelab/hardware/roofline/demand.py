"""What one pass of a microbatch asks of a layer: FLOPs, bytes to read and write, and bytes to keep.

With d, f the widths of model and feed-forward block, H query heads of width h, V the vocabulary,
β bytes per weight, κ bytes of keys and values per token and layer, b sequences with s tokens each,
of which q are new in this pass (s in prefill, 1 in decode):

- FLOPs of a layer: 2·b·q·P_a for its matrices (P_a parameters that a token meets), and for
attention
  4·H·h for every pair of a new token and one that it looks back at: b·s pairs in decode, b·s²/2 in
  (causal) prefill. Head: 2·b·V·d, for one token of every sequence. The embedding is looked
  up: it takes memory and next to no time.
- bytes of a layer: the weights once, of E experts those that some token visits, E·(1 − (1 −
E_a/E)^(b·q));
  keys and values once, b·s·κ (with FlashAttention no s² of bytes); activations in and out of eight
  operators, 8·b·q·d·2. Head: V·d·β₁₆, as embedding, head, norms, biases
  and routers keep 16 bits where the layers' matrices have fewer.
- bytes to keep on a GPU: weights, keys and values of every microbatch in flight, and the
activations
  of the widest operator, n·(2d + 2f/t)·2 for n = b·q tokens, or for those of one chunk of prompts.

With a window of w tokens, a token looks back at min(w, position) of them: b·min(s, w) pairs in decode,
b·(s·w − w²/2) in prefill where s > w; as many keys and values are read, and no more than w are kept.
Where only some layers have a window, this is counted for them alone (`Demand.groups`).

In a mixed load every sequence writes o tokens after a prompt of s: each new token looks back at s +
o/2 others on average, and brings s/o prompt tokens of other sequences with it.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pipelab.costs import whole_sequences
from pipelab.hardware.training_memory import activation_bytes
from pipelab.hardware.training_memory import head_bytes as kept_by_head
from pipelab.hardware.transformer import Transformer
from pipelab.problem import Workload

if TYPE_CHECKING:
    from pipelab.hardware.roofline.arrays import Span

Kind = Literal[
    "ordinary", "dense"
]  # of a layer: as most are, or without experts where most have them
Numbers = dict[Kind, "np.ndarray | float"]  # of layers of each kind

ACTIVATION_BYTES = 2.0
ACTIVATION_PASSES = 8  # times that an activation of width d is read or written in one layer


@dataclass(frozen=True)
class Demand:
    """The demands of one model under one load; methods take arrays that broadcast.

    `b` counts sequences and may be a fraction; t is the tensor-parallel degree. What one layer
    demands is that of one with the model's window; `groups` has the others.
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

    @property
    def kept_tokens(self) -> float:
        """Tokens per sequence that the KV cache must have room for; training has none."""
        if self.load.phase == "training":
            return 0.0
        return self._seen(self.load.sequence_length + self.load.written)

    @cached_property
    def _without_window(self) -> "Demand":
        return replace(self, model=self.model.without_window)

    def groups(self, span: "Span") -> list[tuple["Demand", Numbers]]:
        """The layers of a span by how far they look back: what one of them demands, and how many there are."""
        if not self.model.full_layers:
            return [(self, {"ordinary": span.layers - span.dense, "dense": span.dense})]
        ordinary, dense = span.full - span.full_dense, span.full_dense
        windows: Numbers = {
            "ordinary": span.layers - span.dense - ordinary,
            "dense": span.dense - dense,
        }
        return [(self, windows), (self._without_window, {"ordinary": ordinary, "dense": dense})]

    def _seen(self, position: int) -> int:
        """Tokens that one at this position looks back at."""
        return min(position, self.model.window or position)

    def _pairs(self, start: int, end: int) -> float:
        """Of a sequence's tokens from start to end, how many pairs of one and another that it looks back at.

        Twice their number is whole, and counted exactly: what is left of a long context is short.
        """

        def twice(x: int) -> int:
            inside = self._seen(x)
            return inside * (2 * x - inside)

        return (twice(end) - twice(start)) / 2

    @property
    def _prompt_pairs(self) -> float:
        """Pairs of one prompt, per pass: in a mixed load, of the share of it that a new token brings."""
        pairs = self._pairs(0, self.load.sequence_length)
        if self.load.phase == "mixed":
            return pairs / self.load.written
        return 0.0 if self.load.phase == "decode" else pairs

    @property
    def _answer_pairs(self) -> float:
        """Pairs of the token that each sequence writes in one pass, on average."""
        s, o = self.load.sequence_length, self.load.written
        if self.load.phase == "mixed":
            return self._pairs(s, s + o) / o
        return float(self._seen(s)) if self.load.phase == "decode" else 0.0

    def attention_flops(self) -> float:
        """Of one sequence in one layer."""
        m = self.model
        wide = 4 * m.heads * m.head_dim
        reading = writing = wide  # per pair of tokens
        if m.latent:
            # Prefill expands the latent vector into heads; decode works on the vector itself
            # (DeepSeek-V2, 2.1.2).
            kv, rope, value = m.latent.kv_rank, m.latent.rope_dim, m.latent.value_dim
            reading, writing = (
                2 * m.heads * (m.head_dim + rope + value),
                2 * m.heads * (2 * kv + rope),
            )
        return writing * self._answer_pairs + reading * self._prompt_pairs

    def layer_flops(self, kind: Kind, b: Any) -> Any:
        """FLOPs of the matrices of one layer, "ordinary" or "dense", for b sequences."""
        return b * 2 * self.new_tokens * self.model.layer_parameters(kind, active=True)

    def layer_weight_bytes(self, kind: Kind, b: Any) -> Any:
        """Weights of one layer that a pass with b sequences reads."""
        m = self.model
        everything = m.layer_bytes(kind)
        if kind == "dense" or not m.has_experts:
            return everything + 0 * b
        missed = m.experts * (1 - m.experts_per_token / m.experts) ** (b * self.new_tokens)
        return everything - missed * m.expert_parameters * m.weight_bytes

    def kv_bytes(self, b: Any) -> Any:
        """Keys and values of one layer that a pass with b sequences reads or writes."""
        s = self.load.sequence_length
        if self.load.phase == "mixed":
            prompt = s / self.load.written
        else:
            prompt = 0.0 if self.load.phase == "decode" else float(s)
        return b * (prompt + self._answer_pairs) * self.model.kv_bytes

    def activation_bytes(self, b: Any) -> Any:
        """Activations that one layer reads and writes for b sequences."""
        return b * self.new_tokens * ACTIVATION_PASSES * self.model.d_model * ACTIVATION_BYTES

    def score_bytes(self, per_pair: float, b: Any) -> Any:
        """Attention scores of prompts that one layer moves, where attention is not fused."""
        return b * per_pair * self.model.heads * self._prompt_pairs

    def residual_bytes(self, b: Any) -> Any:
        """The residual stream of b sequences: what tensor parallelism adds up, and stages send to each other."""
        return b * self.new_tokens * self.model.d_model * ACTIVATION_BYTES

    def at_most(self, tokens: int, size: Any) -> Any:
        """Of a residual stream of so many bytes, what one chunk of tokens has."""
        return np.minimum(size, tokens * self.model.d_model * ACTIVATION_BYTES)

    def stored_bytes(self, span: "Span", b: Any, t: int) -> Any:
        """Activations that training keeps of b sequences in these layers, on one of t GPUs; 0 in serving."""
        if self.load.phase != "training":
            return 0.0
        tokens = b * self.new_tokens
        layer = activation_bytes(self.model, tokens, sequence=self.load.sequence_length, degree=t)
        return span.layers * layer + span.last * kept_by_head(self.model, tokens, t)

    def head_flops(self, b: Any) -> Any:
        """Of the head for b sequences."""
        return 2 * b * self.answers * self.model.vocab * self.model.d_model

    @property
    def head_bytes(self) -> float:
        """Weights of the head, which is not quantised."""
        return self.model.vocab * self.model.d_model * self.model.kept_bytes

    def kept_gb(self, span: "Span", b: Any, t: int, chunk: int | None) -> dict[str, np.ndarray]:
        """Memory on one GPU, in 10^9 bytes, by what it is for.

        Parameters
        ----------
        span
            The layers of the stage, and their weights with embedding and head.
        b, t
            Sequences that this GPU works on (a share may be a fraction; memory is for whole ones),
            and with how many others it cuts each layer.
        chunk
            Tokens that pass at once, None for all.
        """
        m = self.model
        # Half a sequence has no cache of its own: its keys and values lie on one GPU or another.
        cached = whole_sequences(b * self.load.in_memory)
        tokens = span.layers * self.kept_tokens
        if m.full_layers:
            tokens = tokens + span.full * (self._without_window.kept_tokens - self.kept_tokens)
        cache = tokens * cached * m.kv_bytes
        width = (
            m.d_ff
            if not m.has_experts
            else (m.expert_ff or m.d_ff) * (m.experts_per_token + m.shared_experts)
        )
        at_once = whole_sequences(b) * self.new_tokens
        if chunk is not None:
            at_once = np.minimum(at_once, chunk)
        # Every GPU has the whole residual stream, and its own part of the feed-forward block.
        widest = at_once * (2 * m.d_model + 2 * width / t) * ACTIVATION_BYTES
        return {
            "weights": span.weight_gb / t,
            "KV cache": cache / np.minimum(t, m.kv_parts) / 1e9,
            "activations": widest / 1e9,
        }
