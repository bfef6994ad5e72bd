"""From columns back to pipelines: the GPU ids of every stage, no GPU in two.

Classes that are families (`workloads`) have GPUs in several nodes. Larger stages choose first, each a
node that it leaves with as few free GPUs as possible; only where no node has enough does a stage
take GPUs of several nodes.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pipelab.engine.deployments.column_generation import Column
from pipelab.engine.deployments.listing import LeastPasses, ReachableMixes
from pipelab.engine.deployments.mixes import Mixes
from pipelab.engine.deployments.pricing import StageOf
from pipelab.engine.deployments.result import Pipeline
from pipelab.engine.deployments.workloads import Offer
from pipelab.errors import InvalidPlacement, PipelabError
from pipelab.evaluation import evaluate
from pipelab.placement import Placement
from pipelab.problem import Problem


def pipelines_of(offers: Sequence[Offer], chosen: Sequence[Column]) -> tuple[Pipeline, ...]:
    """Each column as often as it is chosen; the fastest pipelines first, at the rates that they really have.

    Where stages cannot be packed into nodes, fewer of them, or slower ones.

    Raises
    ------
    PipelabError
        There are not enough GPUs.
    """
    if not chosen:
        return ()
    columns = sorted(chosen, key=lambda c: (-c.rate, c.gpus))
    stages = {c: c.stages or _stages_of(offers[c.offer], c) for c in dict.fromkeys(columns)}
    parts = [(i, s) for i, c in enumerate(columns) for s in range(len(stages[c]))]
    largest_first = sorted(parts, key=lambda at: -max(stages[columns[at[0]]][at[1]][1]))
    free = _Free(offers[0])
    ids = {}
    for i, s in largest_first:
        ids[i, s] = free.taken(stages[columns[i]][s][1])
    replicas: dict[tuple[Column, float], list[Placement]] = defaultdict(list)
    for i, column in enumerate(columns):
        placement = Placement.of(
            (layers, ids[i, s]) for s, (layers, _) in enumerate(stages[column])
        )
        try:
            rate = evaluate(offers[column.offer].problem, placement).attainable
        except InvalidPlacement:
            continue  # a stage over two nodes lacks the memory that it has within one
        replicas[column, rate].append(placement)
    found = [
        pipeline_of(offers[column.offer].problem, tuple(own))
        for (column, _), own in replicas.items()
    ]
    return tuple(sorted(found, key=lambda p: -p.throughput))


def pipeline_of(problem: Problem, replicas: tuple[Placement, ...]) -> Pipeline:
    """Replicas of one attainable rate, with the number in flight that it takes."""
    found = evaluate(problem, replicas[0])
    load = replace(problem.workload, in_flight=found.in_flight)
    return Pipeline(replicas, load, found.attainable)


class _Free:
    """The free GPUs of each class, node by node."""

    def __init__(self, offer: Offer) -> None:
        gpus = offer.problem.cluster.gpus
        self.nodes: list[dict[object, list[int]]] = []
        for members in offer.rates.classes.members:
            by_node: dict[object, list[int]] = defaultdict(list)
            for g in members.tolist()[::-1]:
                by_node[gpus[g].node or "none"].append(g)
            self.nodes.append(by_node)

    def taken(self, gpus: Sequence[int]) -> list[int]:
        """So many of each class, of one node where one has enough."""
        return [g for a, number in enumerate(gpus) if number for g in self._of_class(a, number)]

    def _of_class(self, a: int, number: int) -> list[int]:
        nodes = self.nodes[a]
        enough = [node for node, own in nodes.items() if len(own) >= number]
        if enough:
            own = nodes[min(enough, key=lambda node: len(nodes[node]))]
            return [own.pop() for _ in range(number)]
        out: list[int] = []
        while len(out) < number:
            own = max(nodes.values(), key=len)
            if not own:
                raise PipelabError("a deployment was found that uses more GPUs than there are")
            out.append(own.pop())
        return out


def _stages_of(offer: Offer, column: Column) -> Sequence[StageOf]:
    """The stages of a column that says only which rate its GPUs reach."""
    mixes = Mixes(column.gpus)
    attaining = offer.numbers is not None
    listed = LeastPasses(offer, mixes) if attaining else ReachableMixes(offer.rates, mixes)
    return listed.stages(column.index, column.gpus)
