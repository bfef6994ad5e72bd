"""A training step by the cuts people use, beside the placement proven best."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipelab.engine.deadline import NEVER
from pipelab.engine.methods.step_time import solve_for_step_time
from pipelab.engine.timeline import TrainingTimeline, training_timeline
from pipelab.engine.training.bounds import REAL, Suffixes, orders_of
from pipelab.engine.training.stages import Stages, merged, stages_in_training
from pipelab.errors import InvalidPlacement
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.splits import split_by_flops, split_even

if TYPE_CHECKING:
    from pandas import DataFrame

_WORK = 1_000_000  # of one level and first layer of a table


def cuts_table(
    problem: Problem,
    schedule: str = "1F1B",
    recompute: str | None = None,
    time_limit: float | None = 10,
) -> "DataFrame":
    """Step times of rules of thumb, of the formula's best placement, and of the proven best.

    Parameters
    ----------
    problem : Problem
        With a workload of training.
    schedule : str
        Under which all of them run.
    recompute : str, optional
        As for `solve_for_step_time`.
    time_limit : float, optional
        Seconds, for the search.

    Returns
    -------
    pandas.DataFrame
        One row per cut: "even" (Megatron: as many layers on every GPU, by id), "equal parameters"
        (DeepSpeed), "in proportion to speed", "ΣT + (M − 1)·max T" (its own best placement, on any
        GPUs in any order), and "least step time", the search's. `seconds_per_step` and
        `tokens_per_s` are simulated, NaN where not even a forward fits; `bubble`; `longer`, by how
        much as a share of the least; `fits` in memory; `ranks`; and `status`, of the search.

    Examples
    --------
    >>> import dataclasses, pipelab as pl
    >>> tiny = pl.load_case("tiny", link_units="tokens")
    >>> load = dataclasses.replace(tiny.workload, phase="training", microbatches=8)
    >>> table = cuts_table(dataclasses.replace(tiny, workload=load))
    >>> table.cut.tolist()[-1], bool((table.longer >= 0).all())
    ('least step time', True)
    """
    import pandas as pd

    rows = []
    for name, placement in _cuts(problem, schedule, recompute):
        step = None if placement is None else _step(problem, placement, schedule, recompute)
        rows.append(_row(name, step))
    found = solve_for_step_time(
        problem, schedule=schedule, recompute=recompute, time_limit=time_limit
    )
    rows.append(_row("least step time", found.step) | {"status": found.status})
    frame = pd.DataFrame(rows)
    least = frame["seconds_per_step"].iloc[-1]
    frame.insert(4, "longer", frame["seconds_per_step"] / least - 1)
    frame["status"] = frame["status"].fillna("")
    return frame


def _cuts(
    problem: Problem, schedule: str, recompute: str | None
) -> Iterator[tuple[str, Placement | None]]:
    layers = problem.model.layers
    ids = range(min(len(problem.cluster), layers))
    yield "even", _by_id(split_even(layers, len(ids)))
    weight = [problem.model.weight_gb(range(i, i + 1)) for i in range(layers)]
    yield "equal parameters", _by_id(split_by_flops(weight, len(ids)))
    stages = stages_in_training(problem, recompute, None, NEVER)
    yield "in proportion to speed", _by_id(_by_speed(stages, len(ids)))
    yield "ΣT + (M − 1)·max T", formula_best(stages, schedule)


def _by_id(parts: Sequence[range]) -> Placement:
    return Placement.of([(len(part), (g,)) for g, part in enumerate(parts) if len(part)])


def _by_speed(stages: Stages, gpus: int) -> list[range]:
    """Layers in proportion to how many of them each GPU trains per second."""
    whole = stages.costs[stages.modes[0]][:3].sum(axis=0)
    one_layer = int(stages.runs.kind[min(1, stages.layers - 1), 0])
    speed = np.empty(gpus)
    for gpu in range(gpus):
        own = stages.composition[:, stages.classes.of[gpu]] == 1
        alone = np.flatnonzero(own & (stages.composition.sum(axis=1) == 1))[0]
        speed[gpu] = 1 / whole[alone, one_layer]
    ends = np.rint(np.cumsum(speed) / speed.sum() * stages.layers).astype(int)
    return [range(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def _step(
    problem: Problem, placement: Placement, schedule: str, recompute: str | None
) -> TrainingTimeline | None:
    try:
        return training_timeline(problem, placement, schedule=schedule, recompute=recompute)
    except InvalidPlacement:  # not even a forward fits
        return None


def _row(name: str, step: TrainingTimeline | None) -> dict:
    if step is None:
        return {
            "cut": name,
            "seconds_per_step": np.nan,
            "tokens_per_s": np.nan,
            "bubble": np.nan,
            "fits": False,
            "ranks": 0,
        }
    return {
        "cut": name,
        "seconds_per_step": step.timeline.iteration_time,
        "tokens_per_s": step.rate,
        "bubble": step.timeline.bubble_fraction,
        "fits": not step.shortfall,
        "ranks": len(step.placement),
    }


@dataclass(frozen=True)
class _Choice:
    """A number of ranks, a state, the first stage's kind of receiver: where a table's least value is."""

    value: float
    ranks: int
    row: int
    receiver: int


def formula_best(stages: Stages, schedule: str) -> Placement | None:
    """The placement with the least ΣT + 2Σc + (M − 1)·max T, of those that fit under a schedule.

    For each time that the slowest stage may take, a dynamic program has the least sum. None where
    nothing fits.
    """
    microbatches = stages.problem.workload.microbatches
    orders, *_ = orders_of(schedule, stages.most, microbatches)
    groups = merged(stages, _WORK)
    times = [stages.times(held, o.chunks).whole for o in orders.values() for held in o.held]
    finite = [t[np.isfinite(t)] for t in times]
    values = np.unique(np.concatenate([np.zeros(0), *finite]))
    best, found, sums = np.inf, None, 0.0
    if len(values):
        free = _least_sum(Suffixes(stages, orders, groups, np.inf, NEVER))
        sums = np.inf if free is None else free.value
    for limit in values:
        if (microbatches - 1) * limit + sums >= best:
            break
        table = Suffixes(stages, orders, groups, limit * (1 + 1e-12), NEVER)
        least = _least_sum(table)
        if least is not None and least.value + (microbatches - 1) * limit < best:
            best = least.value + (microbatches - 1) * limit
            found = _traced(table, least)
    return found


def _least_sum(table: Suffixes) -> _Choice | None:
    choices = []
    for ranks in table.orders:
        if ranks < len(table.back):
            here = table.back[ranks][:, :, 0]
            row, h = np.unravel_index(int(np.argmin(here)), here.shape)
            choices.append(_Choice(float(here[row, h]), ranks, int(row), int(h)))
    least = min(choices, key=lambda choice: choice.value, default=None)
    return least if least is not None and least.value < REAL else None


def _traced(table: Suffixes, least: _Choice) -> Placement:
    """The placement whose sum a table has: of equal stages by group the first by class that is left."""
    stages, groups = table.stages, table.groups
    k, row, receiver, layer = least.ranks, least.row, least.receiver, 0
    chosen, cuts = [], [0]
    used = np.zeros(len(stages.classes), dtype=int)
    while k:
        d, n = _first_stage(table, k, row, receiver, layer)
        fits = (groups.of == d) & (used + stages.composition <= stages.classes.count).all(axis=1)
        c = int(np.flatnonzero(fits)[0])
        used = used + stages.composition[c]
        chosen.append(c)
        layer += n
        cuts.append(layer)
        k, row = k - 1, int(table.onto[k][row, d])
        if k:
            onward = table.back[k][row, :, layer] + 2 * groups.between[d]
            receiver = int(np.argmin(onward))
    return stages.placement(chosen, cuts)


def _first_stage(table: Suffixes, k: int, row: int, receiver: int, layer: int) -> tuple[int, int]:
    """The composition and the number of layers that a table's entry is of."""
    times, _ = table._relaxed_times(k)
    both, groups = table.parts(times).both, table.groups
    found = []
    for d in np.flatnonzero((groups.receiver == receiver) & (table.onto[k][row] >= 0)).tolist():
        rest = np.array([table.onto[k][row, d]])
        whole = both[d, layer] + table.after(k, rest, groups.between[d]).beyond[0, layer]
        n = int(np.argmin(whole))
        found.append((float(whole[n]), d, n + 1))
    return min(found)[1:]
