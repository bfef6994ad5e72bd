"""From the key press to the redrawn chart, in a real JupyterLab: `python tests/benchmarks/keys.py`.

Prints the median, the 95th percentile and the worst case of each series of key presses, beside its
target on two cores; and how much of the machine's time other machines of its host took meanwhile
("steal"), of which such times say as much as of the code: with 20 % taken, one and the same loop
took between 22 and 319 ms.

Of the mix explorer, the chart of the best single pipeline counts, which answers every change. The
best deployment is looked for only after 0.6 s without a change: its own series says how long after
the key its first answer is drawn.
"""

import statistics
import sys
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from lab_server import LabServer, lab_server
from lab_session import LabPage, explorer, one_page

Keys = list[tuple[str, str]]  # label of a slider, and the key that is pressed on it

_LEFT, _RIGHT = "ArrowLeft", "ArrowRight"
_BLOCKS, _ROUNDS = 4, 3
_FIVE_TYPES = "dict.fromkeys(['H100-SXM', 'A100-SXM-80', 'L40S', 'L4', 'T4'], 13)"


def _walk(first: Keys, between: tuple[str, str]) -> Keys:
    """Keys that never come back to values that were there before: answers that are kept would flatter the times.

    Every slider of `first` one step, three times round, and then back; before each turn a step of
    `between`.
    """
    other = {_LEFT: _RIGHT, _RIGHT: _LEFT}
    back = [(label, other[key]) for label, key in first]
    return [
        press
        for block in range(_BLOCKS)
        for press in ([between, *(first, back)[block % 2] * _ROUNDS])
    ]


_TIMES = "weight gradient W", "message", "slowdown (×)", "input gradient I"
_SCHEDULES = _walk([(label, _RIGHT) for label in _TIMES], ("microbatches", _LEFT))


class Series(NamedTuple):
    """The cell that makes the explorer, and the keys.

    `target` is for the 95th percentile, in ms. `chart` is the index on the page of the chart that is
    timed; a drawing whose title says `waiting` does not count.
    """

    cell: str
    target: int
    keys: Keys
    chart: int = 0
    waiting: str = ""


def _in_turn(*types: str) -> Keys:
    """Press left and right in turn on the sliders of these types."""
    return list(zip(types, cycle((_LEFT, _RIGHT)), strict=False))


_FIVE = _in_turn("T4", "H100-SXM", "L4", "L40S", "A100-SXM-80")
_SIX = _in_turn("T4", "A40", "L20", "V100", "A10", "RTX4090")
_MEDIUM = _walk(_SIX, ("batch (sequences)", _LEFT))
_LLAMA = _walk(_FIVE, ("batch (sequences)", _RIGHT))
_LLAMA_CELL = f"pl.explore_mix('Llama-3-70B', {_FIVE_TYPES}, batch=16)"
_DEFAULT = _walk(_in_turn("T4", "A100-SXM-40", "L4"), ("context (tokens)", _LEFT))
_CHOSEN_CELL = f"pl.explore_mix('Llama-3-70B', {_FIVE_TYPES}, phase='decode')"

SERIES = {
    "mix, default, batch chosen": Series("pl.explore_mix()", 150, _DEFAULT, chart=1),
    "mix, medium, 65 GPUs": Series(
        "pl.explore_mix('medium', gpus_per_stage=2)", 400, _MEDIUM, chart=1
    ),
    "mix, Llama-3-70B, 65 GPUs": Series(_LLAMA_CELL, 400, _LLAMA, chart=1),
    "mix, Llama-3-70B, 65 GPUs, batch chosen": Series(
        _CHOSEN_CELL, 400, _walk(_FIVE, ("context (tokens)", _LEFT)), chart=1
    ),
    "deployment, Llama-3-70B, 65 GPUs": Series(
        _LLAMA_CELL, 2000, _LLAMA[:16], chart=0, waiting="being solved"
    ),
    "schedule, 8 × 64": Series(
        "pl.explore_schedules('ZBH1', ranks=8, microbatches=64)", 300, _SCHEDULES
    ),
    "schedule, 32 × 250": Series(
        "pl.explore_schedules('ZBH1', ranks=32, microbatches=250)", 600, _SCHEDULES
    ),
}


def times(server: LabServer, series: Series) -> dict[str, float]:
    """Milliseconds of every key press, by its name."""
    found = {}
    with one_page(server) as page, explorer(page, "import pipelab as pl", series.cell):
        for turn, (label, key) in enumerate(series.keys):
            press = _press(page, label, key)
            found[f"{label} {key} {turn}"] = page.time_of(press, series.chart, series.waiting)
            page.page.wait_for_timeout(250)
    return found


def _press(page: LabPage, label: str, key: str) -> Callable[[], None]:
    return lambda: page.press(label, key)


def _stolen_since(before: Any) -> float:
    """Share of all cores' time that the host gave to others; 0 where the system does not say."""
    now = psutil.cpu_times()
    if not hasattr(now, "steal"):
        return 0.0
    # counted as user time, too
    guests = now.guest + now.guest_nice - before.guest - before.guest_nice
    return (now.steal - before.steal) / (sum(now) - sum(before) - guests)


if __name__ == "__main__":
    with lab_server() as one:
        for name, series in SERIES.items():
            before = psutil.cpu_times()
            taken = times(one, series)
            ordered, worst = sorted(taken.values()), max(taken, key=taken.__getitem__)
            p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
            print(
                f"{name}: {len(taken)} presses, p50 {statistics.median(ordered):.0f} ms, p95 {p95:.0f} ms "
                f"(target {series.target}); slowest {worst}, {taken[worst]:.0f} ms; {_stolen_since(before):.0%} stolen",
                flush=True,
            )
