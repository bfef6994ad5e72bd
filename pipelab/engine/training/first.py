"""First placements, before anything is known: stages of equal size on GPUs by speed, cut to be equally busy."""

from collections.abc import Iterator

import numpy as np

from pipelab.engine.training.bounds import REAL, Order, Shape
from pipelab.engine.training.stages import BIG, Stages


def first_plans(stages: Stages, orders: dict[int, Order]) -> Iterator[tuple]:
    """Some that fit, if these do: of every size of a stage, with the slower classes left out or not."""
    classes, size = stages.classes, stages.composition.sum(axis=1)
    of_one_class = (stages.composition > 0).sum(axis=1) == 1
    mode = stages.costs[stages.modes[0]]
    pace = mode[:3].sum(axis=0).mean(axis=1)
    seen = set()
    for most in sorted(set(size.tolist())):
        by_class = []  # the largest stages up to this size
        for a, count in enumerate(classes.count.tolist()):
            own = np.flatnonzero(of_one_class & (stages.composition[:, a] > 0) & (size <= most))
            if len(own):
                c = int(own[np.argmax(size[own])])
                by_class.append((float(pace[c]), [c] * (count // int(size[c]))))
        by_class.sort()
        for kept in range(len(by_class), 0, -1):
            for step in (1, -1):
                chosen = [c for _, own in by_class[:kept][::step] for c in own]
                while chosen and len(chosen) not in orders:
                    chosen = chosen[:-1] if step > 0 else chosen[1:]
                if chosen and tuple(chosen) not in seen:
                    seen.add(tuple(chosen))
                    sizes = best_cut(stages, orders[len(chosen)], chosen)
                    if sizes is not None:
                        yield tuple(chosen), sizes


def best_cut(stages: Stages, order: Order, compositions: list[int]) -> tuple[int, ...] | None:
    """Layers of every stage, for the least of the simplest bounds; None where none fits."""
    shape, layers, ranks = Shape.of(order), stages.layers, len(compositions)
    hops = np.array(shape.hops)
    start, size = np.indices((layers, layers))
    inside = start + size + 1 <= layers
    kind = np.where(inside, stages.runs.kind, 0)
    value = np.full((len(hops), layers + 1), BIG)
    value[:, layers] = 0.0
    cuts = np.zeros((ranks, layers), dtype=int)
    for i in reversed(range(ranks)):
        c = compositions[i]
        parts = shape.parts(stages.times(order.held[i], order.chunks)).take(c, kind)
        after = value.copy()
        if i < ranks - 1:
            after += (hops * min(BIG, float(stages.hop[c, compositions[i + 1]])))[:, None]
        end = np.minimum(start + size + 1, layers)
        beyond = np.where(inside, after[:, end], BIG)
        found = np.maximum(np.where(inside, parts.busy, BIG), parts.lead + beyond)
        best = np.argmin(found.max(axis=0), axis=1)
        cuts[i] = best + 1
        value = np.full((len(hops), layers + 1), BIG)
        value[:, :layers] = found[:, np.arange(layers), best]
    if value[:, 0].max() >= REAL:
        return None
    sizes, layer = [], 0
    for i in range(ranks):
        sizes.append(int(cuts[i, layer]))
        layer += sizes[-1]
    return tuple(sizes)
