"""Schedules against size: `python tests/benchmarks/schedules.py`.

Generates, checks and times ZB-H1 with communication, times it again with new costs, and draws it;
prints the median of several runs in milliseconds and what an action costs, which stays level where
time grows linearly.
"""

import statistics
import time

import pipelab as pl

SIZES = ((8, 64), (16, 128), (32, 256), (64, 1024))


def milliseconds(function, repeats: int = 7) -> float:
    """Median time of a call."""
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        taken.append(time.perf_counter() - began)
    return 1000 * statistics.median(taken)


def main() -> None:
    """A line per size."""
    one, other = pl.StageCosts(10, 11, 8, 0.5), pl.StageCosts(10, 12, 7, 0.4)
    print(" ranks × microbatches  actions  make, check, time    again     draw  µs/action")
    for ranks, microbatches in SIZES:
        schedule = pl.schedule("ZBH1", ranks, microbatches)
        timeline = pl.simulate(schedule, one)
        actions = len(timeline.columns)
        whole = milliseconds(
            lambda r=ranks, m=microbatches: pl.simulate(pl.schedule("ZBH1", r, m), one)
        )
        again = milliseconds(lambda s=schedule: pl.simulate(s, other))
        draw = milliseconds(lambda t=timeline: pl.gantt(t))
        size = f"{ranks} × {microbatches}"
        per_action = 1000 * whole / actions
        print(
            f"{size:>22} {actions:>8} {whole:>15.1f} ms {again:>5.1f} ms {draw:>5.1f} ms {per_action:>10.2f}"
        )


if __name__ == "__main__":
    main()
