"""The exact split against size, as ratios in one run: `python tests/benchmarks/splits.py`.

The smallest size is 1; a cost that grows like layers² / stages shows as such.
"""

import time

import numpy as np

from pipelab.splits import split_minmax


def seconds(layers: int, stages: int, repeats: int = 7) -> float:
    """Median time of one split of random layers over different stages."""
    rng = np.random.default_rng(layers + stages)
    taken = []
    for _ in range(repeats):
        costs, speeds = rng.uniform(0.5, 2, layers), rng.uniform(0.5, 2, stages)
        began = time.perf_counter()
        split_minmax(costs, stages, speeds=speeds)
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))


if __name__ == "__main__":
    base = None
    for layers, stages in ((125, 8), (250, 16), (500, 32), (1000, 64), (1000, 8), (2000, 64)):
        now = seconds(layers, stages)
        base = base or now
        print(
            f"{layers:>5} layers, {stages:>3} stages: {now * 1000:7.1f} ms, {now / base:6.1f} times the first"
        )
