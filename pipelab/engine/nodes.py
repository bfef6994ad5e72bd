"""Identical nodes can be exchanged: classes, rates and placements where nodes repeat.

A stage inside one node may cut its layers among the GPUs (tensor parallelism). Every other stage only
shares its batch, and then nodes do not matter. So two sorts of kind are enough, however many nodes there are:
*plain* kinds (type, memory, price), for all stages; and *local* kinds (a plain kind, and how
fast its node is inside), for stages of identical GPUs of one node.

The tables of `rates` have a row for every mixture of kinds, and a GPU's node is part of its
kind: 12 nodes of 8 identical GPUs make 125,969 mixtures. Here they make 8, and 8 more inside a node.

At one rate a link reaches it or it does not, and few classes are left (`views_at`):

1. A pipeline of several stages lies within one *component* of the links that reach the rate: every
   stage is joined to the next. A pipeline of one stage needs no link and may lie anywhere.
2. Where all links of a component reach the rate, only numbers count: GPUs of one plain kind are one
   class, whatever their node, rack or site. Of components with equal contents one is enough, and
   so it is for one that another contains. In a network of nodes, racks and sites the links of
   each component are of this sort at every rate.
3. Elsewhere GPUs are of one class if their links agree in whether they reach the rate, and
   `stages` tells which stage may follow which as it does without nodes.

A stage that cuts its layers must lie inside one node, so a class keeps the nodes that its GPUs are
in: its *bins* (`packing`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pipelab.cluster import GPU, Cluster
from pipelab.engine.classes import Classes, find_classes
from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.layer_runs import runs_of
from pipelab.engine.packing import Bins, LocalPattern
from pipelab.engine.rates import StageRates, number_of_mixtures, rates_of_kinds, stage_rates
from pipelab.engine.recipes import patterns_at
from pipelab.engine.stage_arrays import mixes_as_slowest, nodes_matter_alone
from pipelab.placement import Placement
from pipelab.problem import Problem


@dataclass(frozen=True, eq=False)
class NodeKinds:
    """The plain and local kinds of a cluster.

    Attributes
    ----------
    plain : tuple of GPU
        The K different GPUs when nodes are left out, in order of first appearance.
    plain_of : int array, shape (kinds of the cluster,)
        Plain kind of each of `cluster.kinds`.
    local : tuple of GPU
        One example, with its node, of each of the L local kinds.
    local_of : int array, shape (kinds of the cluster,)
        Local kind of each of `cluster.kinds`; -1 for GPUs without a node.
    """

    plain: tuple[GPU, ...]
    plain_of: np.ndarray
    local: tuple[GPU, ...]
    local_of: np.ndarray

    @cached_property
    def repeated(self) -> bool:
        """Whether some local kind is in several nodes."""
        return len(self.local) < int((self.local_of >= 0).sum())

    @cached_property
    def plain_of_local(self) -> np.ndarray:
        """Plain kind of each local kind; shape (L,)."""
        return np.array([self.plain.index(without_node(gpu)) for gpu in self.local], dtype=int)


def without_node(gpu: GPU) -> GPU:
    """The same GPU in no node."""
    return replace(gpu, node="", node_gb_per_s=None)


def node_kinds(cluster: Cluster) -> NodeKinds:
    """Separate the kinds of a cluster from their nodes.

    Examples
    --------
    >>> import pipelab as pl
    >>> found = node_kinds(pl.load_cluster("helix-single24"))
    >>> [gpu.type for gpu in found.plain]
    ['A100-SXM-40', 'L4', 'T4']
    """
    bare = [without_node(kind) for kind in cluster.kinds]
    plain = tuple(dict.fromkeys(bare))
    number = {gpu: k for k, gpu in enumerate(plain)}
    keys = [
        (gpu, kind.node_gb_per_s) if kind.node else None
        for gpu, kind in zip(bare, cluster.kinds, strict=True)
    ]
    examples = {key: kind for key, kind in zip(keys[::-1], cluster.kinds[::-1], strict=True) if key}
    distinct = [key for key in dict.fromkeys(keys) if key is not None]
    return NodeKinds(
        plain,
        np.array([number[gpu] for gpu in bare], dtype=int),
        tuple(examples[key] for key in distinct),
        np.array([-1 if key is None else distinct.index(key) for key in keys], dtype=int),
    )


def without_nodes(problem: Problem) -> Problem:
    """The same problem with GPUs that are in no node; links stay."""
    gpus = tuple(without_node(gpu) for gpu in problem.cluster.gpus)
    return replace(problem, cluster=replace(problem.cluster, gpus=gpus))


_ROWS_AT_ONCE = 200  # between two looks at the deadline


def links_repeat(classes: Classes, link: np.ndarray, deadline: Deadline = NEVER) -> bool:
    """Whether two classes have as many GPUs of one kind, and as many links of every speed to every kind.

    A quick test: identical nodes always pass it, others nearly never.

    Parameters
    ----------
    link : float array, shape (A, A)
        Of any unit, from class to class.
    """
    seen = set()
    for key in _signatures(classes, link, deadline):
        if key in seen:
            return True
        seen.add(key)
    return False


def _signatures(classes: Classes, link: np.ndarray, deadline: Deadline) -> Iterator[tuple]:
    """Equal for classes that a swap of identical nodes exchanges: sums of hashes of their links."""
    random = np.random.default_rng(0)
    kind_key = random.integers(1, 2**63, classes.kind.max() + 1, dtype=np.uint64)
    weight = kind_key[classes.kind] * (2 * classes.count.astype(np.uint64) + 1)
    own = np.diagonal(link)
    for first in range(0, len(classes), _ROWS_AT_ONCE):
        deadline.check()
        rows = slice(first, min(first + _ROWS_AT_ONCE, len(classes)))
        hashed = _hashed(link[rows]), _hashed(link[:, rows].T)
        for of_links in hashed:
            of_links[np.arange(len(of_links)), np.arange(rows.start, rows.stop)] = (
                0  # not to others
            )
        sums = [(of_links * weight).sum(axis=1, dtype=np.uint64).tolist() for of_links in hashed]
        for a, *rest in zip(range(rows.start, rows.stop), *sums, strict=True):
            yield int(classes.kind[a]), int(classes.count[a]), float(own[a]), *rest


def _hashed(values: np.ndarray) -> np.ndarray:
    """A number of 64 bits that depends on all bits of each value."""
    bits = np.ascontiguousarray(values, dtype=float).view(np.uint64).copy()
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (29, 0xC4CEB9FE1A85EC53)):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    return bits ^ (bits >> np.uint64(32))


class NodeGpus(NamedTuple):
    """The identical GPUs of one node: one of the cluster's kinds that has a node."""

    local: int  # local kind
    classes: np.ndarray  # of the whole cluster, which are of this node alone
    gpus: np.ndarray  # ids


@dataclass(frozen=True, eq=False)
class NodeRates(StageRates):
    """`StageRates` over plain kinds. `classes` are those of the cluster, `classes.kind` their plain kinds.

    Attributes
    ----------
    of_nodes : NodeKinds
    local : float array, shape (L, largest, U)
        Tokens/s of 1, 2, … GPUs of each local kind, all in one node, with every kind of span.
    node_of : int array, shape (A,)
        Index into `nodes` of each class; -1 where its GPUs are in no node.
    nodes : tuple of NodeGpus
        Of each kind of the cluster that has a node.
    """

    of_nodes: NodeKinds
    local: np.ndarray
    node_of: np.ndarray
    nodes: tuple[NodeGpus, ...]

    @property
    def kinds(self) -> tuple[GPU, ...]:
        """The K plain kinds."""
        return self.of_nodes.plain

    @cached_property
    def kind_count(self) -> np.ndarray:
        """Number of GPUs of each plain kind; shape (K,)."""
        count = self.problem.cluster.kind_count
        return np.bincount(self.of_nodes.plain_of, count, len(self.kinds)).astype(int)

    def views(
        self, threshold: float, links: bool = True, deadline: Deadline = NEVER
    ) -> Sequence[StageRates]:
        """The parts of the cluster that a pipeline of this rate may be in, with the classes left there."""
        return tuple(views_at(self, threshold, links, deadline))

    def local_of_kinds(
        self, threshold: float
    ) -> list[tuple[list[tuple[int, np.ndarray]], np.ndarray]]:
        """Stages inside one node as `recipes.patterns_at` has all others."""
        unit, most = np.eye(len(self.kinds), dtype=bool), self.most_in_node
        return [
            ([(number, unit[k])], spans)
            for local, k in enumerate(self.of_nodes.plain_of_local)
            for number, spans in self.local_spans(threshold)[local].items()
            if number <= most[local]
        ]

    @property
    def price_of(self) -> np.ndarray:
        """Plain kind of each of the cluster's kinds."""
        return self.of_nodes.plain_of

    @property
    def most_in_node(self) -> list[int]:
        """The most GPUs of each local kind in one node."""
        return [
            max(len(node.gpus) for node in self.nodes if node.local == local)
            for local in range(len(self.of_nodes.local))
        ]

    @property
    def in_nodes(self) -> tuple[tuple[GPU, int], ...]:
        """An example of each local kind, and the most of it in one node."""
        return tuple(zip(self.of_nodes.local, self.most_in_node, strict=True))

    def local_spans(self, threshold: float) -> list[dict[int, np.ndarray]]:
        """By local kind and number of GPUs: the spans that only a stage inside one node reaches, and no smaller one."""
        out = []
        for local, k in enumerate(self.of_nodes.plain_of_local):
            known = np.zeros(self.local.shape[2], dtype=bool)
            of_number: dict[int, np.ndarray] = {}
            for number in range(1, self.largest + 1):
                row = self.alone[k, number - 1]
                known |= (row > 0) & (row >= threshold)
                here = self.local[local, number - 1]
                new = (here > 0) & (here >= threshold) & ~known
                if new.any():
                    of_number[number] = np.flatnonzero(new)
                known |= new
            out.append(of_number)
        return out

    @cached_property
    def alone(self) -> np.ndarray:
        """Rates of 1, 2, … GPUs of one plain kind in no node; shape (K, largest, U)."""
        return alone_in(self)


def alone_in(rates: StageRates) -> np.ndarray:
    """The rows of a table that are about GPUs of one kind; shape (K, largest, U), 0 where there is no such row."""
    out = np.zeros((rates.composition.shape[1], rates.largest, rates.rate.shape[1]))
    size = rates.size
    for k in range(len(out)):
        rows = np.flatnonzero(rates.composition[:, k] == size)
        out[k, size[rows] - 1] = rates.rate[rows]
    return out


def rates_by_nodes(problem: Problem, deadline: Deadline = NEVER) -> StageRates:
    """`stage_rates`, by plain and local kinds where nodes or their links repeat.

    Parameters
    ----------
    problem : Problem
    deadline : Deadline
        Checked during the work; `Ended` is raised.

    Raises
    ------
    TooLarge
        Too many mixtures of too many kinds, where mixtures must be listed.
    """
    kinds = node_kinds(problem.cluster)
    pure = bool(mixes_as_slowest(problem))
    if kinds.local and not pure and not nodes_matter_alone(problem.costs):
        return stage_rates(problem, deadline)
    repeated = kinds.repeated and not pure
    if kinds.local and not pure and not repeated:
        return stage_rates(problem, deadline)
    base = stage_rates(without_nodes(problem) if kinds.local else problem, deadline)
    if not repeated and not links_repeat(base.classes, base.link, deadline):
        return stage_rates(problem, deadline) if kinds.local else base
    found = _with_nodes(problem, base, kinds, pure, deadline)
    return stage_rates(problem, deadline) if found is None else found


def mixtures_by_nodes(problem: Problem) -> int:
    """`number_of_mixtures` in the tables of `rates_by_nodes`."""
    kinds = node_kinds(problem.cluster)
    by_plain = kinds.repeated and nodes_matter_alone(problem.costs)
    return number_of_mixtures(without_nodes(problem) if by_plain else problem)


def _with_nodes(
    problem: Problem, base: StageRates, kinds: NodeKinds, pure: bool, deadline: Deadline
) -> NodeRates | None:
    """The tables of both sorts; None where a stage in one node is slower than one that is not.

    Where a mixed stage counts as its slowest kind (`pure`), no node may matter at all.
    """
    alone = alone_in(base)
    local = np.zeros((len(kinds.local), *alone.shape[1:]))
    examples = problem.cluster.kinds if pure else kinds.local
    for i, kind in enumerate(examples):
        deadline.check()
        table = rates_of_kinds(problem, (kind,), base.largest)[0]
        own = kinds.local_of[i] if pure else i
        if own < 0:
            continue
        known = alone[kinds.plain_of_local[own]]
        there = base.kind_count[kinds.plain_of_local[own]]
        here = np.arange(1, base.largest + 1) <= there
        if (table[here] < known[here]).any() or (pure and (table != known)[here].any()):
            return None
        local[own] = table
    return _joined(problem, base, kinds, local, deadline)


def _joined(
    problem: Problem, base: StageRates, kinds: NodeKinds, local: np.ndarray, deadline: Deadline
) -> NodeRates:
    classes = find_classes(problem.cluster, deadline) if kinds.local else base.classes
    own_kind = classes.kind if kinds.local else base.classes.kind
    node_of = np.full(len(classes), -1)
    nodes: list[NodeGpus] = []
    for kappa in np.flatnonzero(kinds.local_of >= 0):
        own = np.flatnonzero(own_kind == kappa)
        gpus = np.sort(np.concatenate([classes.members[a] for a in own]))
        node_of[own] = len(nodes)
        nodes.append(NodeGpus(int(kinds.local_of[kappa]), own, gpus))
    plain = replace(classes, cluster=base.classes.cluster, kind=kinds.plain_of[own_kind])
    most = np.zeros(len(kinds.local), dtype=int)
    for node in nodes:
        most[node.local] = max(most[node.local], len(node.gpus))
    rates, fastest = [base.stages], base.fastest.copy()
    for table, k, number in zip(local, kinds.plain_of_local, most.tolist(), strict=True):
        here = table[:number]  # no stage inside a node has more GPUs
        rates.append(here.ravel())
        fastest[k, : len(here)] = np.maximum(fastest[k, : len(here)], here)
    stages = np.unique(np.concatenate(rates))
    same = {f.name: getattr(base, f.name) for f in fields(StageRates)}
    same |= {
        "problem": problem,
        "classes": plain,
        "link": problem.link_throughput(plain.bandwidth_gb_per_s),
        "stages": stages[stages > 0],
        "fastest": fastest,
    }
    return NodeRates(**same, of_nodes=kinds, local=local, node_of=node_of, nodes=tuple(nodes))


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


def fewer_nodes(problem: Problem, number: int) -> tuple[Problem, np.ndarray] | None:
    """The problem with the first `number` nodes of each content, and the GPUs' ids in the whole cluster.

    More are kept where a stage could otherwise not have as many GPUs of a type. None where that
    leaves out no node.
    """
    cluster, nodes = problem.cluster, _gpus_by_node(problem.cluster)
    largest = min(problem.max_gpus_per_stage, len(cluster))
    seen: dict[tuple, list[int]] = {}  # GPUs kept of each content, node by node
    kept = [g for g, gpu in enumerate(cluster.gpus) if not gpu.node]
    for own in nodes:
        content = tuple(
            sorted(
                (repr(without_node(cluster.gpus[g])), cluster.gpus[g].node_gb_per_s) for g in own
            )
        )
        before = seen.setdefault(content, [])
        least = min(content.count(x) for x in set(content))
        if len(before) < number or len(before) * least < largest:
            before.append(len(own))
            kept += own
    if len(kept) == len(cluster):
        return None
    ids = np.sort(kept)
    rows, group = np.unique(cluster.group[ids], return_inverse=True)
    at = np.ix_(rows, rows)
    smaller = Cluster(
        tuple(cluster.gpus[g] for g in ids),
        cluster.bandwidth_gb_per_s[at],
        group.reshape(-1),
        cluster.latency_ms[at],
    )
    return replace(problem, cluster=smaller), ids


def _gpus_by_node(cluster: Cluster) -> list[list[int]]:
    found: dict[str, list[int]] = {}
    for g, gpu in enumerate(cluster.gpus):
        if gpu.node:
            found.setdefault(gpu.node, []).append(g)
    return list(found.values())
