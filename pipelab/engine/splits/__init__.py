"""Contiguous splits of layers over stages, without asking which GPU: rules of thumb and the exact one.

All return ranges that cover every layer once, at least one layer per stage.
"""

from pipelab.engine.splits.exact import count_splits, split_exhaustive, split_minmax
from pipelab.engine.splits.rules import (
    split_bandwidth_aware,
    split_by_flops,
    split_even,
    split_proportional,
)
from pipelab.engine.splits.split import bottleneck

__all__ = [
    "bottleneck",
    "count_splits",
    "split_bandwidth_aware",
    "split_by_flops",
    "split_even",
    "split_exhaustive",
    "split_minmax",
    "split_proportional",
]
