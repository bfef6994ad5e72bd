"""Rates of stages where nodes repeat: one table for stages inside a node, one for all others.

The tables of `aggregated.rates` have a row for every mixture of kinds, and a GPU's node is part of its
kind: 12 nodes of 8 identical GPUs make 125,969 mixtures. Here they make 8, and 8 more inside a node.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pipelab.cluster import GPU
from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.formulations.aggregated.classes import find_classes
from pipelab.engine.formulations.aggregated.rates import (
    StageRates,
    number_of_mixtures,
    rates_of_kinds,
    stage_rates,
)
from pipelab.engine.formulations.nodes.identical import links_repeat
from pipelab.engine.formulations.nodes.kinds import NodeKinds, node_kinds, without_nodes
from pipelab.engine.formulations.nodes.views import views_at
from pipelab.engine.stage_arrays import mixes_as_slowest, nodes_matter_alone
from pipelab.problem import Problem


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
