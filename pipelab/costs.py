"""What a cost model answers: what a stage yields, what it needs, and what counts as fitting.

It answers for one stage (`stage`, plain and slow, the definition) and for many at once
(`stage_tables`, arrays, for the formulations); tests hold the two against each other. The
models are `linear` (the write-up's), `roofline/` (physical) and `measured` (a table).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pipelab.cluster import GPU

__all__ = ["MEMORY_SLACK", "StageCost", "StageTables"]

# A stage that needs exactly the memory there is fits, whatever the last bit of the sum says.
MEMORY_SLACK = 1 + 1e-9


class StageCost(NamedTuple):
    """One stage: its rate, and per GPU its share of the batch and the memory it needs."""

    throughput: float  # tokens/s
    batch: tuple[float, ...]  # sequences on each GPU, on average
    memory_gb: tuple[float, ...]  # needed on each GPU
    # GPUs that cut each layer among them (tensor parallelism); 1: each holds its layers whole
    degree: int = 1
    # of whole sequences (`turns`); None: tokens of a pass over the throughput
    pass_seconds: float | None = None


class StageTables(NamedTuple):
    """Many candidate stages: C compositions (how many GPUs of each kind) times U kinds of span.

    Where all layers are alike, U is the number of layers and column n-1 is n of them.
    """

    throughput: np.ndarray  # (C, U) tokens/s
    memory_gb: np.ndarray  # (C, K, U) needed on a GPU of kind K; 0 where the composition has none
    pass_seconds: np.ndarray | None = None  # (C, U) as `StageCost.pass_seconds`

    def fits(self, kinds: Sequence[GPU]) -> np.ndarray:
        """Which candidates every GPU of theirs has the memory for; bool, shape (C, U)."""
        limit = np.array([kind.memory_gb for kind in kinds])[None, :, None] * MEMORY_SLACK
        return np.all(self.memory_gb <= limit, axis=1)
