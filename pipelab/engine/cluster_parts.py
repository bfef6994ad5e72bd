"""The parts of a cluster that a pipeline may be in, and the few classes that are left there, for one set of hops.

At one rate a link reaches it or it does not, and much of what tells GPUs apart is gone:

1. A pipeline of several stages lies within one *component* of the hops that may be used: every
   stage is joined to the next. A pipeline of one stage needs no hop and may lie anywhere.
2. Where all hops of a component take the same time, only numbers count: GPUs of one type are one
   class, whatever their node, rack or site. Of components with equal contents one is enough, and
   so it is for one that another contains. In a network of nodes, racks and sites the hops of
   each component are of this sort at every rate.
3. Elsewhere GPUs are together until a hop tells them apart.

A stage that cuts its layers must lie inside one node, so a class keeps the nodes that its GPUs are
in: its *bins* (`packing`).
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pipelab.engine.classes import Classes, between, exchangeable
from pipelab.engine.deadline import Deadline
from pipelab.engine.instance import Instance, Node


class ClusterPart(NamedTuple):
    """Part of a cluster.

    Attributes
    ----------
    classes : Classes
        Of the GPUs that are there and of use.
    type_of : int array, shape (A,)
        Their types, as `Instance.type_of`.
    hop : float array, shape (A, A)
        Seconds from class to class; infinite where there is no hop.
    one_stage : bool
        Only placements of one stage are meant.
    nodes : list of Node
        What is here of each, with classes of this part.
    """

    classes: Classes
    type_of: np.ndarray
    hop: np.ndarray
    one_stage: bool
    nodes: list[Node]


def parts_of(
    instance: Instance, hop: np.ndarray, usable: np.ndarray, one_stage: bool, deadline: Deadline
) -> Iterator[ClusterPart]:
    """The parts that a pipeline may be in: components whose hops take one time, then others, then all for one stage.

    Parameters
    ----------
    hop : float array, shape (A, A)
        Seconds between the instance's classes; infinite where there is no hop.
    usable : int array
        The classes with GPUs that are of use.
    one_stage : bool
        Whether one stage may hold all layers.
    """
    if not len(usable) or _one_time(instance, hop, usable):
        yield _merged(instance, hop, usable)
        return
    alike: dict[tuple, np.ndarray] = {}  # components whose hops are of one time, by what is in them
    others = []
    components = _components(hop, usable)
    for part in components:
        deadline.check()
        if _one_time(instance, hop, part):
            key = _hop_of(instance, hop, part), *sorted(_contents(instance, part).items())
            alike.setdefault(key, part)
        else:
            others.append(part)
    for part in alike.values():
        yield _merged(instance, hop, part)
    for part in others:
        yield _by_hops(instance, hop, part, deadline)
    if len(components) > 1 and one_stage:
        yield _merged(instance, np.zeros_like(hop), usable)._replace(one_stage=True)


def whole(instance: Instance, hop: np.ndarray) -> ClusterPart:
    """All of the cluster, with its own classes."""
    return _part(instance, [np.array([a]) for a in range(len(instance.classes))], hop)


def _meant(instance: Instance, part: np.ndarray) -> np.ndarray:
    """Which hops between these classes there are: none of a single GPU to itself; bool."""
    return ~np.eye(len(part), dtype=bool) | (instance.classes.count[part] > 1)


def _one_time(instance: Instance, hop: np.ndarray, part: np.ndarray) -> bool:
    """Whether all hops between these classes take the same time."""
    seconds = hop[np.ix_(part, part)][_meant(instance, part)]
    return not len(seconds) or bool(np.isfinite(seconds[0]) and (seconds == seconds[0]).all())


def _hop_of(instance: Instance, hop: np.ndarray, part: np.ndarray) -> float:
    """The time of all hops where it is one; infinite where there are none."""
    return float(hop[np.ix_(part, part)][_meant(instance, part)].min(initial=np.inf))


def _components(hop: np.ndarray, usable: np.ndarray) -> list[np.ndarray]:
    """Classes joined by hops in either direction; those of most classes first."""
    from scipy.sparse.csgraph import connected_components

    number, part = connected_components(np.isfinite(hop[np.ix_(usable, usable)]), connection="weak")
    components = [usable[part == p] for p in range(number)]
    return sorted(components, key=len, reverse=True)


def _contents(instance: Instance, part: np.ndarray) -> Counter:
    """How many GPUs of each type, and nodes of each sort and size, are in some classes."""
    kind, count = instance.type_of[part], instance.classes.count[part]
    contents: Counter = Counter()
    for k in np.unique(kind):
        contents["GPUs", int(k), 0] = int(count[kind == k].sum())
    for node in instance.nodes:
        here = np.intersect1d(node.classes, part)
        if len(here):
            contents["nodes", node.sort, int(instance.classes.count[here].sum())] += 1
    return contents


def _merged(instance: Instance, hop: np.ndarray, part: np.ndarray) -> ClusterPart:
    """One class for every type."""
    kinds = instance.type_of[part]
    groups = [part[kinds == k] for k in np.unique(kinds)]
    seconds = _hop_of(instance, hop, part)
    free = seconds if np.isfinite(seconds) else 0.0  # a single GPU: there are no hops
    return _part(instance, groups, np.full((len(groups),) * 2, free))


def _by_hops(
    instance: Instance, hop: np.ndarray, part: np.ndarray, deadline: Deadline
) -> ClusterPart:
    """Classes whose hops agree are one; but of a node that would be in several, none is merged."""
    classes = instance.classes
    inside = hop[np.ix_(part, part)]
    merged = exchangeable((inside,), instance.type_of[part], classes.count[part] > 1, deadline)
    merged.sort(key=lambda group: part[group[0]])
    place = {int(part[i]): g for g, group in enumerate(merged) for i in group}
    apart = set()
    for node in instance.nodes:
        here = [a for a in node.classes.tolist() if a in place]
        if len({place[a] for a in here}) > 1:
            apart |= set(here)
    split = []
    for group in merged:
        together = [i for i in group if part[i] not in apart]
        split += [together] if together else []
        split += [[i] for i in group if part[i] in apart]
    return _part(instance, [part[group] for group in split], between(inside, split))


def _part(instance: Instance, groups: list[np.ndarray], hop: np.ndarray) -> ClusterPart:
    classes = instance.classes
    first = np.array([group[0] for group in groups], dtype=int)
    place = np.full(len(classes), -1)
    for g, group in enumerate(groups):
        place[group] = g
    nodes = []
    for node in instance.nodes:
        here = node.classes[place[node.classes] >= 0]
        if len(here):
            gpus = np.sort(np.concatenate([classes.members[a] for a in here]))
            nodes.append(Node(sort=node.sort, classes=np.unique(place[here]), gpus=gpus))
    unknown = np.full_like(hop, np.nan)
    return ClusterPart(
        classes=classes.merged(groups, unknown, unknown),
        type_of=instance.type_of[first],
        hop=hop,
        one_stage=False,
        nodes=nodes,
    )
