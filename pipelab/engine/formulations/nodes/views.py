"""The classes that are left at one rate: a link reaches it or it does not.

1. A pipeline of several stages lies within one *component* of the links that reach the rate: every
   stage is joined to the next. A pipeline of one stage needs no link and may lie anywhere.
2. Where all links of a component reach the rate, only numbers count: GPUs of one plain kind are one
   class, whatever their node, rack or site. Of components with equal contents one is enough, and
   so it is for one that another contains. In a network of nodes, racks and sites the links of
   each component are of this sort at every rate.
3. Elsewhere GPUs are of one class if their links agree in whether they reach the rate, and
   `aggregated.order` puts stages in an order as it does without nodes.

A stage that cuts its layers must lie inside one node, so a class keeps the nodes that its GPUs are
in: its *bins* (`packing`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pipelab.cluster import GPU
from pipelab.engine.deadline import Deadline
from pipelab.engine.formulations.aggregated.classes import Classes
from pipelab.engine.formulations.aggregated.packing import Bins, LocalPattern
from pipelab.engine.formulations.aggregated.rates import StageRates
from pipelab.engine.formulations.aggregated.recipes import patterns_at
from pipelab.engine.layer_runs import runs_of

if TYPE_CHECKING:
    from pipelab.engine.formulations.nodes.rates import NodeRates


@dataclass(frozen=True, eq=False)
class View(StageRates):
    """The rates of a whole cluster and the classes of a part of it, for one rate.

    Attributes
    ----------
    whole : NodeRates
    groups : tuple of int arrays
        The classes of the whole cluster that each class here is made of.
    single : bool
        Only placements of one stage are meant.
    """

    whole: "NodeRates"
    groups: tuple[np.ndarray, ...]
    single: bool = False

    @property
    def kinds(self) -> tuple[GPU, ...]:
        """The plain kinds."""
        return self.whole.kinds

    @property
    def kind_count(self) -> np.ndarray:
        """Number of GPUs of each plain kind in the whole cluster; shape (K,)."""
        return self.whole.kind_count

    @property
    def one_stage(self) -> bool:
        """Whether only placements of one stage are meant."""
        return self.single

    @cached_property
    def _group_of(self) -> np.ndarray:
        """The class here of each class of the whole cluster; -1 where it is in none."""
        out = np.full(len(self.whole.classes), -1)
        for a, own in enumerate(self.groups):
            out[own] = a
        return out

    @cached_property
    def _nodes(self) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Local kind, classes here and GPU ids of what is here of every node."""
        found = []
        for own in self.whole.nodes:
            here = own.classes[self._group_of[own.classes] >= 0]
            if len(here):
                members = [self.whole.classes.members[a] for a in here]
                found.append(
                    (own.local, np.unique(self._group_of[here]), np.sort(np.concatenate(members)))
                )
        return found

    @cached_property
    def _binned(self) -> tuple[tuple[Bins, ...], tuple[int, ...]]:
        """`bins`, and the local kind of each."""
        nodes: dict[tuple[int, int], list[np.ndarray]] = defaultdict(list)
        for local, inside, gpus in self._nodes:
            if len(inside) == 1:
                nodes[int(inside[0]), local].append(gpus)
        shared = {
            key: ids
            for key, ids in nodes.items()
            if len(ids) > 1 or len(ids[0]) < self.classes.count[key[0]]
        }
        return tuple(Bins(a, tuple(ids)) for (a, _), ids in shared.items()), tuple(
            local for _, local in shared
        )

    @property
    def bins(self) -> tuple[Bins, ...]:
        """Nodes that share a class, by class and local kind."""
        return self._binned[0]

    def local_patterns(self, threshold: float) -> Iterable[LocalPattern]:
        """Stages inside one node of spans that no stage of as many GPUs or fewer reaches otherwise."""
        spans = self.whole.local_spans(threshold)
        for b, local in enumerate(self._binned[1]):
            here = self.bins[b]
            yield from self._patterns(spans[local], [here.cls], max(map(len, here.nodes)), b)
        for local, inside, gpus in self._nodes:
            if self.classes.count[inside].sum() == len(gpus):
                yield from self._patterns(spans[local], inside, len(gpus), None)

    def _patterns(
        self, spans: dict[int, np.ndarray], classes: Iterable[int], most: int, bins: int | None
    ) -> Iterator[LocalPattern]:
        mask = np.zeros(len(self.classes), dtype=bool)
        mask[list(classes)] = True
        for number, found in spans.items():
            if number <= most:
                yield LocalPattern(number, mask, found, bins)


def views_at(
    rates: "NodeRates", threshold: float, links: bool, deadline: Deadline
) -> Iterator[View]:
    """The parts of the cluster that a pipeline of this rate may be in, the largest first."""
    usable = _usable(rates, threshold, deadline)
    if not links or not len(usable):
        yield _merged(rates, usable)
        return
    reach = _reaches(rates, threshold)
    complete: dict[tuple, np.ndarray] = {}  # by what is in them
    others = []
    parts = _components(reach, usable)
    for part in parts:
        deadline.check()
        if reach[np.ix_(part, part)].all():
            complete.setdefault(tuple(sorted(_contents(rates, part).items())), part)
        else:
            others.append(part)
    for part in _largest_contents(rates, list(complete.values())):
        yield _merged(rates, part)
    for part in others:
        yield _by_links(rates, threshold, reach, part, deadline)
    if len(parts) > 1 and _one_stage_is_enough(rates, threshold):
        yield _merged(rates, usable, single=True)


def _usable(rates: "NodeRates", threshold: float, deadline: Deadline) -> np.ndarray:
    """Classes with a GPU that some stage of this rate can use."""
    kinds = np.zeros(len(rates.kinds), dtype=bool)
    for parts, _ in patterns_at(rates, threshold, deadline):
        for _, drawn in parts:
            kinds |= drawn
    usable = kinds[rates.classes.kind]
    spans = rates.local_spans(threshold)
    for own in rates.nodes:
        if any(number <= len(own.gpus) for number in spans[own.local]):
            usable[own.classes] = True
    return np.flatnonzero(usable)


def _reaches(rates: "NodeRates", threshold: float) -> np.ndarray:
    """Whether the link from class to class reaches the rate; on the diagonal True for a class of one GPU."""
    return rates.link >= threshold


def _components(reach: np.ndarray, usable: np.ndarray) -> list[np.ndarray]:
    """Classes joined by links that reach the rate, in either direction; the largest first."""
    from scipy.sparse.csgraph import connected_components

    number, part = connected_components(reach[np.ix_(usable, usable)], connection="weak")
    found = [usable[part == p] for p in range(number)]
    return sorted(found, key=len, reverse=True)


def _contents(rates: "NodeRates", part: np.ndarray) -> Counter:
    """How many GPUs of each plain kind, and nodes of each local kind and size, are in some classes."""
    found: Counter = Counter()
    for k in np.unique(rates.classes.kind[part]):
        own = part[rates.classes.kind[part] == k]
        found["GPUs", int(k), 0] = int(rates.classes.count[own].sum())
    size = np.bincount(rates.node_of[part] + 1, rates.classes.count[part])[1:].astype(int)
    for n in np.flatnonzero(size):
        found["nodes", rates.nodes[n].local, int(size[n])] += 1
    return found


def _largest_contents(rates: "NodeRates", parts: list[np.ndarray]) -> list[np.ndarray]:
    """Those whose contents no other part has, and more."""
    contents = [_contents(rates, part) for part in parts]
    return [
        part
        for part, own in zip(parts, contents, strict=True)
        if not any(own is not other and own <= other for other in contents)
    ]


def _one_stage_is_enough(rates: "NodeRates", threshold: float) -> bool:
    """Whether some stage may hold all layers at this rate."""
    whole = runs_of(rates.problem.model).layers == rates.problem.model.layers
    return bool((rates.fastest[:, :, whole] >= threshold).any())


def _merged(rates: "NodeRates", part: np.ndarray, single: bool = False) -> View:
    """One class for every plain kind: every link reaches the rate, or none is needed."""
    kinds = rates.classes.kind[part]
    groups = [part[kinds == k] for k in np.unique(kinds)]
    return _view(rates, groups, np.full((len(groups),) * 2, np.inf), single)


def _by_links(
    rates: "NodeRates", threshold: float, reach: np.ndarray, part: np.ndarray, deadline: Deadline
) -> View:
    """Classes whose links agree at this rate are one; but of a node that would be in several, none is merged."""
    groups = _alike(rates.classes, reach, part, deadline)
    if any(rates.local_spans(threshold)):
        group_of = {int(a): i for i, own in enumerate(groups) for a in own}
        apart = set()
        for node in rates.nodes:
            inside = [int(a) for a in node.classes if int(a) in group_of]
            if len({group_of[a] for a in inside}) > 1:
                apart |= set(inside)
        groups = [
            np.array(kept)
            for own in groups
            for kept in (
                [a for a in own.tolist() if a not in apart],
                *([a] for a in own.tolist() if a in apart),
            )
            if kept
        ]
    leaders = np.array([own[0] for own in groups])
    joined = reach[np.ix_(leaders, leaders)]
    for i, own in enumerate(groups):
        if len(own) > 1:
            joined[i, i] = reach[own[0], own[1]]
    return _view(rates, groups, np.where(joined, np.inf, 0.0), False)


def _alike(
    classes: Classes, reach: np.ndarray, part: np.ndarray, deadline: Deadline
) -> list[np.ndarray]:
    """Classes of one plain kind whose links agree, those among themselves included.

    GPUs that reach each other have equal rows and columns if each reaches itself, and GPUs
    that do not, if none does. A class of several GPUs says which; one of a single GPU may be either.
    """
    inside = reach[np.ix_(part, part)]
    single = classes.count[part] == 1
    left, found = np.ones(len(part), dtype=bool), []
    for own in (True, False):
        deadline.check()
        with_own = inside.copy()
        diagonal = np.arange(len(part))[single]
        with_own[diagonal, diagonal] = own
        keys: dict[tuple, list[int]] = defaultdict(list)
        for i in np.flatnonzero(left):
            row, column = np.packbits(with_own[i]), np.packbits(with_own[:, i])
            keys[int(classes.kind[part[i]]), row.tobytes(), column.tobytes()].append(int(i))
        for members in keys.values():
            if len(members) > 1 or not own:
                found.append(part[members])
                left[members] = False
    return sorted(found, key=lambda own: int(own[0]))


def _view(rates: "NodeRates", groups: list[np.ndarray], link: np.ndarray, single: bool) -> View:
    members = tuple(
        np.sort(np.concatenate([rates.classes.members[a] for a in own])) for own in groups
    )
    kind = rates.classes.kind[[own[0] for own in groups]] if groups else np.zeros(0, dtype=int)
    classes = Classes(rates.classes.cluster, members, kind, link, np.zeros_like(link))
    same = {f.name: getattr(rates, f.name) for f in fields(StageRates)}
    return View(
        **(same | {"classes": classes, "link": link}),
        whole=rates,
        groups=tuple(groups),
        single=single,
    )
