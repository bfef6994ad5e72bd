"""One node after the other: a placement that is there at once, however many nodes there are."""

from itertools import pairwise

import numpy as np

from pipelab.engine.formulations.nodes.rates import NodeRates
from pipelab.engine.layer_runs import runs_of
from pipelab.placement import Placement


def one_node_after_another(rates: NodeRates) -> Placement | None:
    """The fastest split of the layers over the first 1, 2, … nodes by id; None where they hold too little.

    A node is one stage of all its GPUs, or several where a stage may not have as many.
    """
    stages = _stages(rates)
    kind, layers = runs_of(rates.problem.model).kind, rates.problem.model.layers
    first, last = np.triu_indices(layers)  # the first and the last layer of every span
    slowest = np.concatenate([[np.inf], np.zeros(layers)])  # of the first so many layers
    cuts, best = [], (0.0, 0)
    hop = [np.inf, *(_link(rates, a, b) for (a, _), (b, _) in pairwise(stages))]
    for number, (_, of_span) in enumerate(stages, start=1):
        own = np.minimum(
            np.minimum(slowest[first], hop[number - 1]), of_span[kind[first, last - first]]
        )
        table = np.zeros((layers, layers))  # by last layer and first layer
        table[last, first] = own
        cuts.append(table.argmax(axis=1))
        slowest = np.concatenate([[0.0], table.max(axis=1)])
        best = max(best, (float(slowest[-1]), -number))
        if number >= layers:
            break
    if not best[0]:
        return None
    sizes, end = [], layers
    for number in range(-best[1], 0, -1):
        begin = int(cuts[number - 1][end - 1])
        sizes.append(end - begin)
        end = begin
    gpus = [tuple(ids.tolist()) for ids, _ in stages]
    return Placement.of(zip(sizes[::-1], gpus[: len(sizes)], strict=True))


def _stages(rates: NodeRates) -> list[tuple[np.ndarray, np.ndarray]]:
    """GPU ids and rates by kind of span of every stage, in the order of their lowest ids."""
    groups = [(node.gpus, rates.local[node.local]) for node in rates.nodes]
    for a in np.flatnonzero(rates.node_of < 0):
        alone = rates.alone[rates.classes.kind[a]]
        groups.append((rates.classes.members[a], alone))
    found = []
    for ids, table in groups:
        for i in range(0, len(ids), rates.largest):
            part = ids[i : i + rates.largest]
            found.append((part, table[len(part) - 1]))
    return sorted(found, key=lambda stage: int(stage[0][0]))


def _link(rates: NodeRates, one: np.ndarray, other: np.ndarray) -> float:
    """Rate of the slowest link from the GPUs of one stage to those of the next."""
    of = rates.classes.of
    return float(rates.link[np.ix_(of[one], of[other])].min())
