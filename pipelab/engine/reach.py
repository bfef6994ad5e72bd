"""What of an instance counts at one rate: the stages and hops that reach it, and which of these are of use."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pipelab.engine.cluster_parts import ClusterPart, parts_of
from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.instance import Instance
from pipelab.engine.packing import Packing
from pipelab.engine.stages import Links, Mixed, StageRecipes, links_of
from pipelab.engine.tolerances import LAST_BITS


class StageOption(NamedTuple):
    """What a stage may take: so many GPUs of these types, and so many of those; and its seconds with each span."""

    takes: list[tuple[int, np.ndarray]]  # types as bool arrays, shape (K,)
    seconds: np.ndarray  # shape (U,); infinite where it is not to have a span


class NodeStage(NamedTuple):
    """A stage of identical GPUs of one node: their number, their classes, its seconds with each span.

    `bins` is the number of a packing where GPUs of several nodes share the class.
    """

    number: int
    classes: np.ndarray  # bool, shape (A,)
    seconds: np.ndarray  # shape (U,)
    bins: int | None


@dataclass(frozen=True, eq=False)
class AtRate:
    """The stages and hops of an instance that reach a rate.

    Attributes
    ----------
    instance : Instance
    rate : float
        Tokens/s.
    timed : bool
        Whether seconds count; otherwise every stage and hop takes none.
    links : bool
        False: as if every link reached the rate. What cannot be done then cannot be done at all.
    deadline : Deadline
        For listing them.
    """

    instance: Instance
    rate: float
    timed: bool = False
    links: bool = True
    deadline: Deadline = NEVER

    @cached_property
    def seconds(self) -> np.ndarray:
        """Of every composition with every span; infinite where it does not reach the rate; shape (C, U)."""
        return self._reaching(self.instance.rate, self.instance.seconds)

    @cached_property
    def inside(self) -> np.ndarray:
        """Of stages inside one node with every span, as `seconds`; shape (L, largest, U)."""
        return self._reaching(self.instance.inside.rate, self.instance.inside.seconds)

    @cached_property
    def hop(self) -> np.ndarray:
        """Seconds between classes; infinite where the link does not reach the rate; shape (A, A)."""
        reached = (self.instance.link >= self.rate) | (not self.links)
        return np.where(reached, self.instance.hop if self.timed else 0.0, np.inf)

    def _reaching(self, rate: np.ndarray, seconds: np.ndarray) -> np.ndarray:
        return np.where((rate > 0) & (rate >= self.rate), seconds if self.timed else 0.0, np.inf)

    @cached_property
    def choices(self) -> list[StageOption]:
        """The stages that are of use, by type; those inside one node aside."""
        return list(self._freely_mixed() if self.instance.pure else self._listed())

    def _listed(self) -> Iterator[StageOption]:
        instance, unit = self.instance, np.eye(len(self.instance.types), dtype=bool)
        useful = instance.useful(self.seconds, self.deadline)
        for c in np.flatnonzero(useful.any(axis=1)):
            self.deadline.check()
            row = instance.composition[c]
            takes = [(int(row[k]), unit[k]) for k in np.flatnonzero(row)]
            yield StageOption(takes, np.where(useful[c], self.seconds[c], np.inf))

    def _freely_mixed(self) -> Iterator[StageOption]:
        """Stages of several types, of which the slowest counts.

        For each size, span and type: any of the types that are no slower than that one, in its time.
        """
        instance = self.instance
        names = np.array([gpu.type for gpu in instance.types])
        groups = [np.ones(len(names), dtype=bool)]
        if instance.problem.same_type_stages:
            groups = [names == name for name in dict.fromkeys(names.tolist())]
        for group in groups:
            for size in range(1, instance.largest + 1):
                self.deadline.check()
                table = np.where(group[:, None], self._by_size[size - 1], np.inf)
                rows = [(table <= slowest).T[np.isfinite(slowest)] for slowest in table[group]]
                for types in _different(np.concatenate(rows)):
                    seconds = self._mixed(size, types)
                    if np.isfinite(seconds).any() and instance.count[types].sum() >= size:
                        yield StageOption([(size, types)], seconds)

    @cached_property
    def _by_size(self) -> np.ndarray:
        """Where only stages of one type are listed: by size and type; shape (largest, K, U)."""
        return self.seconds.reshape(self.instance.largest, len(self.instance.types), -1)

    def _mixed(self, size: int, types: np.ndarray) -> np.ndarray:
        """Seconds of `size` GPUs of any of these types; infinite where fewer of them take no longer."""
        slowest = self._by_size[:size, types].max(axis=1)
        before = slowest[:-1].min(axis=0, initial=np.inf)
        return np.where(slowest[-1] < before * (1 - LAST_BITS), slowest[-1], np.inf)

    @cached_property
    def in_nodes(self) -> list[dict[int, np.ndarray]]:
        """Stages inside one node that no others of as many GPUs, or fewer, replace: seconds by sort and number."""
        inside, by_sort = self.instance.inside, list[dict[int, np.ndarray]]()
        for sort, table in enumerate(self.inside):
            rows = self.instance.alone(inside.type_of[sort])
            best = np.full(table.shape[1], np.inf)
            of_number: dict[int, np.ndarray] = {}
            for number, seconds in enumerate(table[: inside.most[sort]], start=1):
                if number <= len(rows):
                    best = np.minimum(best, self.seconds[rows[number - 1]])
                new = seconds < best * (1 - LAST_BITS)
                if new.any():
                    of_number[number] = np.where(new, seconds, np.inf)
                best = np.minimum(best, seconds)
            by_sort.append(of_number)
        return by_sort

    @cached_property
    def in_nodes_by_type(self) -> list[StageOption]:
        """`in_nodes` in the form of `choices`."""
        unit, inside = np.eye(len(self.instance.types), dtype=bool), self.instance.inside
        return [
            StageOption([(number, unit[inside.type_of[sort]])], seconds)
            for sort, of_number in enumerate(self.in_nodes)
            for number, seconds in of_number.items()
        ]

    @cached_property
    def usable(self) -> np.ndarray:
        """The classes with a GPU that some stage can use."""
        instance, types = self.instance, np.zeros(len(self.instance.types), dtype=bool)
        for choice in self.choices:
            for _, may_have in choice.takes:
                types |= may_have
        usable = types[instance.type_of]
        for node in instance.nodes:
            if any(number <= len(node.gpus) for number in self.in_nodes[node.sort]):
                usable[node.classes] = True
        return np.flatnonzero(usable)

    def components(self) -> Iterator[tuple[ClusterPart, StageRecipes]]:
        """Where a pipeline may be, and the stages that it may have there.

        Raises
        ------
        Ended, TooLarge
        """
        for part in parts_of(
            self.instance, self.hop, self.usable, self.one_stage_may_do, self.deadline
        ):
            yield part, self.stages(part)

    @property
    def one_stage_may_do(self) -> bool:
        """Whether one stage may hold all layers."""
        whole = self.instance.spans.layers == self.instance.problem.model.layers
        tables = self.seconds, self.inside
        return any(np.isfinite(t[..., whole]).any() for t in tables if t.size)

    def stages(self, part: ClusterPart) -> StageRecipes:
        """The stages of a part of the cluster."""
        kind, (local, bins) = part.type_of, self._local(part)
        takes = [np.any([types for _, types in choice.takes], axis=0) for choice in self.choices]
        groups = [_different(np.array(takes))[:, kind]] if takes else []
        groups = [row for rows in groups for row in rows] + [stage.classes for stage in local]
        groups = [group for group in _different(np.array(groups)) if group.any()] if groups else []
        links = links_of(part.hop, groups, self.instance.largest, self.deadline)
        made: dict[tuple, np.ndarray] = {}  # seconds by draws and link kind
        for choice in self.choices:
            self.deadline.check()
            by_class = [(number, types[kind]) for number, types in choice.takes]
            for draws, link_kind, classes in _drawn(links, by_class):
                seconds = choice.seconds
                if self.instance.pure:  # fewer types than there may be could be quicker
                    types = np.zeros(len(self.instance.types), dtype=bool)
                    types[kind[classes]] = True
                    seconds = self._mixed(choice.takes[0][0], types)
                key = draws, link_kind
                made[key] = np.minimum(made.get(key, seconds), seconds)
        entries: list[tuple[tuple, int, np.ndarray, int | None]] = [
            (*key, seconds, None) for key, seconds in made.items()
        ]
        for stage in local:
            self.deadline.check()
            for draws, link_kind, _ in _drawn(links, [(stage.number, stage.classes)]):
                entries.append((draws, link_kind, stage.seconds, stage.bins))
        return _as_stages(self.instance, part, links, entries, bins)

    def _local(self, part: ClusterPart) -> tuple[list[NodeStage], list[tuple[np.ndarray, ...]]]:
        """The stages inside the nodes of a part, and the GPU ids by node of each packing."""
        count, node_stages = part.classes.count, list[NodeStage]()
        shared: dict[tuple[int, int], list[np.ndarray]] = {}  # GPU ids by class and sort
        for node in part.nodes:
            if len(node.classes) == 1:
                shared.setdefault((int(node.classes[0]), node.sort), []).append(node.gpus)
        bins: list[tuple[np.ndarray, ...]] = []
        for (a, sort), nodes in shared.items():
            if len(nodes) > 1 or len(nodes[0]) < count[a]:
                mask = np.arange(len(count)) == a
                node_stages += self._in_nodes(sort, mask, max(map(len, nodes)), len(bins))
                bins.append(tuple(nodes))
        for node in part.nodes:  # those with classes of their own
            if count[node.classes].sum() == len(node.gpus):
                mask = np.isin(np.arange(len(count)), node.classes)
                node_stages += self._in_nodes(node.sort, mask, len(node.gpus), None)
        return node_stages, bins

    def _in_nodes(
        self, sort: int, classes: np.ndarray, most: int, bins: int | None
    ) -> Iterator[NodeStage]:
        for number, seconds in self.in_nodes[sort].items():
            if number <= most:
                yield NodeStage(number=number, classes=classes, seconds=seconds, bins=bins)


def _drawn(
    links: Links, by_class: list[tuple[int, np.ndarray]]
) -> Iterator[tuple[tuple, int, np.ndarray]]:
    """From what a stage may take to classes: the largest sets of classes for every link kind."""
    everything = np.any([classes for _, classes in by_class], axis=0)
    if not everything.any():
        return
    for classes, link_kind in links.closed_supports(everything, by_class):
        draws = tuple(
            (n, tuple(np.flatnonzero(may_have & classes).tolist())) for n, may_have in by_class
        )
        yield draws, link_kind, classes


def _as_stages(
    instance: Instance,
    part: ClusterPart,
    links: Links,
    entries: list[tuple[tuple, int, np.ndarray, int | None]],
    bins: list[tuple[np.ndarray, ...]],
) -> StageRecipes:
    """Put the stages for which there are GPUs into arrays."""
    count = part.classes.count
    kept = [
        entry
        for entry in entries
        if all(count[list(classes)].sum() >= number for number, classes in entry[0])
    ]
    gpus, mixed = np.zeros((len(kept), len(count)), dtype=int), []
    packed: list[list[int]] = [[] for _ in bins]
    for r, (draws, _, _, packing) in enumerate(kept):
        if packing is not None:
            packed[packing].append(r)
        for number, classes in draws:
            if len(classes) == 1:
                gpus[r, classes[0]] += number
            else:
                mixed.append(Mixed(recipe=r, gpus=number, classes=classes))
    return StageRecipes(
        problem=instance.problem,
        classes=part.classes,
        gpus=gpus,
        mixed=tuple(mixed),
        seconds=np.reshape([entry[2] for entry in kept], (len(kept), instance.rate.shape[1])),
        link_kind=np.array([entry[1] for entry in kept], dtype=int),
        links=links,
        packings=tuple(
            Packing(recipe=np.array(recipes), size=gpus[recipes].sum(axis=1), nodes=nodes)
            for recipes, nodes in zip(packed, bins, strict=True)
            if recipes
        ),
    )


def _different(rows: np.ndarray) -> np.ndarray:
    """The different rows of flags, as `np.unique` has them; few flags are told apart by the number they write."""
    flags = rows.shape[1]
    if flags > 62:
        return np.unique(rows, axis=0)
    written = rows @ (1 << np.arange(flags)[::-1])
    return rows[np.unique(written, return_index=True)[1]]
