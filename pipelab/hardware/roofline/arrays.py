"""Arrays that the roofline works on: spans of layers, speeds of GPUs, and execution modes of stages."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from pipelab.cluster import GPU
from pipelab.engine.layer_runs import runs_of
from pipelab.hardware.transformer import Transformer


@dataclass(frozen=True)
class Span:
    """What consecutive layers hold: arrays with one number per kind of span, or plain numbers for one span."""

    layers: np.ndarray | float
    dense: np.ndarray | float  # of these, layers without experts in a model with experts
    last: np.ndarray | float  # 1 where the head is among them
    weight_gb: np.ndarray | float  # with embedding and head
    full: np.ndarray | float = 0.0  # layers without a window in a model that has one
    full_dense: np.ndarray | float = 0.0  # of these, layers without experts

    @classmethod
    def of(cls, model: Transformer, layers: range) -> "Span":
        """One span."""
        dense = sum(i < model.dense_layers for i in layers)
        full, full_dense = model.full_among(layers)
        return cls(
            float(len(layers)),
            float(dense),
            float(model.layers - 1 in layers),
            model.weight_gb(layers),
            float(full),
            float(full_dense),
        )

    @classmethod
    def all(cls, model: Transformer) -> "Span":
        """Every kind of span of the model, in the order of `model.spans`."""
        s = runs_of(model)
        weight_gb = s.weight * model.layer_weight_gb
        full = [s.others.get(name, np.zeros(len(s.layers))) for name in ("full", "full_dense")]
        return cls(s.layers.astype(float), s.others["dense"], s.others["last"], weight_gb, *full)

    def __len__(self) -> int:
        return np.size(self.layers)

    def take(self, index: Any) -> "Span":
        """The spans of these numbers."""
        return Span(*(np.atleast_1d(getattr(self, f.name))[index] for f in fields(self)))


@dataclass(frozen=True)
class Hardware:
    """What GPUs reach, one number per kind; shape (K,) or whatever broadcasts."""

    flops: np.ndarray  # per second, in the precision of the layers
    head_flops: np.ndarray  # per second, at 16 bits
    bandwidth: np.ndarray  # bytes/s of memory
    inside: np.ndarray  # bytes/s between GPUs of a node
    allreduce: np.ndarray  # seconds of an all-reduce among them, besides its bytes

    def take(self, index: Any) -> "Hardware":
        """The kinds of these numbers."""
        return Hardware(*(getattr(self, f.name)[index] for f in fields(self)))


@dataclass(frozen=True)
class Table:
    """One execution mode for each candidate stage: C compositions of K kinds of GPU times U kinds of span."""

    rate: np.ndarray  # (C, U) tokens/s
    seconds: np.ndarray  # (C, U) of one pass
    memory_gb: np.ndarray  # (C, K, U); 0 where the composition has none of that kind

    def or_better(self, other: "Table", limit: np.ndarray, prefer: str) -> "Table":
        """Of two modes the better one, for each stage by itself.

        If both fit in `limit` GB, shape (1, K, 1), the one with the greater "rate" or the shorter
        "time" of a pass. If only one fits, that one; if neither, the one that lacks less.
        """
        mine, theirs = self.shortfall(limit), other.shortfall(limit)
        both_fit = (mine <= 0) & (theirs <= 0)
        preferred = other.rate > self.rate if prefer == "rate" else other.seconds < self.seconds
        lacks_less = theirs < np.maximum(mine, 0)  # false wherever this one fits
        take_other = np.where(both_fit, preferred, lacks_less)
        return Table(
            np.where(take_other, other.rate, self.rate),
            np.where(take_other, other.seconds, self.seconds),
            np.where(take_other[:, None, :], other.memory_gb, self.memory_gb),
        )

    def take(self, rows: np.ndarray) -> "Table":
        """The stages of these compositions."""
        return Table(self.rate[rows], self.seconds[rows], self.memory_gb[rows])

    def put(self, rows: np.ndarray, other: "Table") -> None:
        """Replace the stages of these compositions by others."""
        for f in fields(self):
            getattr(self, f.name)[rows] = getattr(other, f.name)

    def shortfall(self, limit: np.ndarray) -> np.ndarray:
        """GB missing on the GPU that lacks most; 0 or less where all fits; shape (C, U)."""
        return np.where(self.memory_gb > 0, self.memory_gb - limit, -np.inf).max(axis=1)


def degrees(model: Transformer, kinds: Sequence[GPU], composition: np.ndarray) -> list[int]:
    """How many GPUs may cut a layer in some stage of one node: heads, and what is cached, must come out even."""
    alone = composition.max(axis=1) == composition.sum(axis=1)
    sizes = {
        int(n) for n in composition[alone][:, [bool(kind.node) for kind in kinds]].ravel() if n > 1
    }
    divisors = {t for n in sizes for t in range(2, n + 1) if n % t == 0}
    parts = model.kv_parts
    return sorted(
        t for t in divisors if model.heads % t == 0 and (parts % t == 0 or t % parts == 0)
    )
