"""From the key press to the redrawn chart, in a real JupyterLab: `python tests/benchmarks/keys.py`.

Prints the median, the 95th percentile and the worst case of each series of key presses, beside its target on two
cores, and the load of the machine, of which such times say as much as of the code.
"""

import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from lab_server import LabServer, lab_server
from lab_session import LabPage, explorer

Keys = list[tuple[str, str]]  # label of a slider, and the key that is pressed on it

_LEFT_AND_RIGHT = ("ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowRight", "ArrowRight")
_FIVE_TYPES = "dict.fromkeys(['H100-SXM', 'A100-SXM-80', 'L40S', 'L4', 'T4'], 13)"


def _each(labels: tuple[str, ...], keys: tuple[str, ...]) -> Keys:
    return [(label, key) for label in labels for key in keys]


_SCHEDULES = _each(("weight gradient W", "message", "microbatches", "how slow"), ("ArrowRight",) * 5)

# Series: the cell that makes the explorer, the target of its 95th percentile in ms, and the keys.
SERIES: dict[str, tuple[str, int, Keys]] = {
    "mix, medium, 65 GPUs": (
        "pl.explore_mix('medium', gpus_per_stage=2)",
        400,
        _each(("T4", "A40", "batch (sequences)", "L20"), _LEFT_AND_RIGHT),
    ),
    "mix, Llama-3-70B, 65 GPUs": (
        f"pl.explore_mix('Llama-3-70B', {_FIVE_TYPES})",
        400,
        _each(("T4", "H100-SXM", "batch (sequences)", "L4"), _LEFT_AND_RIGHT),
    ),
    "schedule, 8 × 64": ("pl.explore_schedules('ZBH1', ranks=8, microbatches=64)", 300, _SCHEDULES),
    "schedule, 32 × 250": ("pl.explore_schedules('ZBH1', ranks=32, microbatches=250)", 600, _SCHEDULES),
}


def times(server: LabServer, cell: str, keys: Keys) -> dict[str, float]:
    """Milliseconds of every key press, by its name."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, explorer(server, Path(folder), "import pipelab as pl", cell) as page:
        for turn, (label, key) in enumerate(keys):
            found[f"{label} {key} {turn}"] = page.time_of(_press(page, label, key))
            page.page.wait_for_timeout(250)
    return found


def _press(page: LabPage, label: str, key: str) -> Callable[[], None]:
    return lambda: page.press(label, key)


if __name__ == "__main__":
    with lab_server() as one:
        for name, (cell, target, keys) in SERIES.items():
            taken = times(one, cell, keys)
            ordered, worst = sorted(taken.values()), max(taken, key=taken.__getitem__)
            p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
            print(
                f"{name}: {len(taken)} presses, p50 {statistics.median(ordered):.0f} ms, p95 {p95:.0f} ms "
                f"(target {target}); slowest {worst}, {taken[worst]:.0f} ms; load {os.getloadavg()[0]:.1f}"
            )
