"""Why no placement trains: which stage lacks how much, and what would help.

A placement that fits if every GPU had a little more memory is the nearest there is; the little is
found by halving.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pipelab.costs import MEMORY_SLACK
from pipelab.display import counted
from pipelab.engine.deadline import Deadline, Ended
from pipelab.engine.training.bounds import Batch, Order, Suffixes, tables_of
from pipelab.engine.training.search import Search
from pipelab.engine.training.stages import Stages, merged, stages_in_training
from pipelab.placement import show_layers

_SECONDS = 5.0  # for the reason, and for the remedy
_CLOSE = 1.01  # times the memory there is
_WORK = 100_000  # of one level and first layer of the table


class Nearest(NamedTuple):
    """The placement that needs least more memory, or one that needs little more."""

    order: Order
    compositions: list[int]
    cuts: list[int]
    least: bool = True


def why_none_fits(
    stages: Stages,
    orders: dict[int, Order],
    deadline: Deadline,
    bytes_per_parameter: float | None,
) -> str:
    """The reason in words, found within a few seconds more."""
    within = Deadline(_SECONDS, deadline.stop, deadline.interrupted)
    name, chunks = next((o.schedule.name, o.chunks) for o in orders.values())
    if stages.layers % chunks:
        return f"under {name} every rank has {chunks} equal chunks, which {stages.layers} layers are not"
    if stages.modes == (None,):
        return f"none of the stages on up to {counted(stages.most, 'rank')} fits, as in inference"
    try:
        nearest = _nearest(stages, orders, within)
        if nearest is None:
            return "there is no link, or no rate, for any placement, whatever the memory"
    except Ended:
        return "no placement's state and activations fit in memory"
    within = Deadline(_SECONDS, deadline.stop, deadline.interrupted)
    return f"{_misfit(stages, nearest)}; {_remedy(stages, orders, bytes_per_parameter, within)}"


def _with_memory(stages: Stages, factor: float) -> Stages:
    """The same with GPUs of more memory; what `evaluate` takes is not asked."""
    has_rate = stages.costs[stages.modes[0]][0] > 0
    return replace(stages, serves=has_rate, offered=stages.offered * factor)


def _nearest(stages: Stages, orders: dict[int, Order], deadline: Deadline) -> Nearest | None:
    low, high, found = 1.0, 2.0, None
    while (found := _any(_with_memory(stages, high), orders, deadline)) is None:
        low, high = high, high * 4
        if high > 1e9:
            return None
    while high > low * _CLOSE:
        middle = (low * high) ** 0.5
        try:
            some = _any(_with_memory(stages, middle), orders, deadline)
        except Ended:
            return found._replace(least=False)
        low, high = (low, middle) if some else (middle, high)
        found = some or found
    return found


def _any(stages: Stages, orders: dict[int, Order], deadline: Deadline) -> Nearest | None:
    """Any placement that fits."""
    found: list[Nearest] = []

    def keep(compositions: np.ndarray, cuts: np.ndarray, seconds: float) -> None:
        found.append(Nearest(orders[len(compositions)], compositions.tolist(), cuts.tolist()))

    groups = merged(stages, _WORK)
    *_, tables = tables_of(orders, lambda some: Suffixes(stages, some, groups, np.inf, deadline))
    Search(tables, np.inf, keep, deadline).dive()
    return found[-1] if found else None


def _misfit(stages: Stages, nearest: Nearest) -> str:
    """The stage that lacks most of what it has, in numbers."""
    batch = Batch(np.array([nearest.compositions]), np.array([nearest.cuts]))
    kinds = stages.runs.kind[batch.cuts[:, :-1], np.diff(batch.cuts, axis=1) - 1][0].tolist()
    order, lacking = nearest.order, []
    for rank, (c, u) in enumerate(zip(nearest.compositions, kinds, strict=True)):
        modes = {m: stages.needed(m, order.held[rank], order.chunks)[c, u] for m in stages.modes}
        mode = min(modes, key=lambda m: modes[m])
        lacking.append((modes[mode] / stages.offered[c], rank, c, u, mode))
    _, rank, c, u, mode = max(lacking)
    need = float(stages.needed(mode, order.held[rank], order.chunks)[c, u])
    state, offer = float(stages.costs[mode][4, c, u]), float(stages.offered[c])
    stage = stages.placement(nearest.compositions, nearest.cuts).stages[rank]
    gpu = min((stages.problem.cluster.gpus[g] for g in stage.gpus), key=lambda g: g.memory_gb)
    several = f"{len(stage.gpus)} × " if len(stage.gpus) > 1 else ""
    which = "the placement that comes nearest" if nearest.least else "a placement that comes near"
    head = (
        f"of {which} under {order.schedule.name}, stage {rank + 1} "
        f"(layers {show_layers(stage.layers)} on {several}{gpu.type})"
    )
    if need <= offer * MEMORY_SLACK:
        return f"{head} fits in training, but not the memory that `evaluate` asks for a forward"
    most = max(1, round(order.window[rank] / order.chunks))
    held = "one microbatch" if most == 1 else f"{most} microbatches"
    return (
        f"{head} needs {need:.4g} GB, {state:.4g} of them for the state of its parameters and "
        f"{need - state:.4g} for activations of {held} in flight, and has {offer:.4g} GB: "
        f"{need - offer:.3g} GB are missing"
    )


def _remedy(
    stages: Stages,
    orders: dict[int, Order],
    bytes_per_parameter: float | None,
    deadline: Deadline,
) -> str:
    """What would help, tried where it can be."""
    if "full" not in stages.modes:
        try:
            thin = stages_in_training(stages.problem, "full", bytes_per_parameter, deadline)
            if _any(thin, orders, deadline) is not None:
                return "with recompute='auto' there are placements that fit"
        except Ended:
            return "no placement fits; recompute='auto' was not tried to the end"
    all_gpus = stages.classes.count @ np.array(
        [stages.classes.gpu(a).memory_gb for a in range(len(stages.classes))]
    )
    more = "" if "full" in stages.modes else ", even recomputed in full"
    alone = stages.costs[stages.modes[0]][4].max()
    if alone > all_gpus:
        return (
            f"no placement fits{more}: the state of all parameters takes {alone:.4g} GB and all GPUs "
            f"have {all_gpus:.4g}; take more GPUs, or fewer bytes_per_parameter"
        )
    return f"no placement fits{more}; take more GPUs, smaller microbatches, or fewer bytes_per_parameter"
