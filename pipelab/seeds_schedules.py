"""Earlier names of the published schedule generators; they are in `pipelab.course`."""

from pipelab.course.published_orders import (
    clock_1f1b,
    clock_interleaved,
    clock_zero_bubble,
    scheduler_1f1b,
    scheduler_bubble_fraction_1f1b,
    scheduler_gpipe,
    scheduler_interleaved,
    scheduler_memory_ratio,
    scheduler_microbatches,
    scheduler_steps,
)
from pipelab.published import published_interleaved_rate

__all__ = [
    "clock_1f1b",
    "clock_interleaved",
    "clock_zero_bubble",
    "published_interleaved_rate",
    "scheduler_1f1b",
    "scheduler_bubble_fraction_1f1b",
    "scheduler_gpipe",
    "scheduler_interleaved",
    "scheduler_memory_ratio",
    "scheduler_microbatches",
    "scheduler_steps",
]
