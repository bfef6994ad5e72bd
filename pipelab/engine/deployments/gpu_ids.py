"""GPU ids of stages that are known by their classes: no GPU in two, each stage in one node where there is room."""

from collections import defaultdict
from collections.abc import Sequence

from pipelab.engine.classes import Classes
from pipelab.errors import PipelabError
from pipelab.problem import Problem


class FreeGPUs:
    """The free GPUs of each class, node by node."""

    def __init__(self, problem: Problem, classes: Classes) -> None:
        gpus = problem.cluster.gpus
        self.nodes: list[dict[str, list[int]]] = []
        for members in classes.members:
            by_node: dict[str, list[int]] = defaultdict(list)
            for g in members.tolist()[::-1]:
                by_node[gpus[g].node].append(g)
            self.nodes.append(by_node)

    def taken(
        self, pipelines: Sequence[Sequence[tuple[int, tuple[int, ...]]]]
    ) -> list[list[list[int]]]:
        """Ids for every stage of several pipelines, given as layers and GPUs of each class; large stages choose first.

        Raises
        ------
        PipelabError
            There are not enough GPUs.
        """
        ids = [[list[int]() for _ in stages] for stages in pipelines]
        parts = [(i, s) for i, stages in enumerate(pipelines) for s in range(len(stages))]
        for i, s in sorted(parts, key=lambda at: -max(pipelines[at[0]][at[1]][1])):
            for a, number in enumerate(pipelines[i][s][1]):
                ids[i][s] += self._of_class(a, number) if number else []
        return ids

    def _of_class(self, a: int, number: int) -> list[int]:
        """Of a node that is left with as few free GPUs as possible; of several only where none has enough."""
        nodes = self.nodes[a].values()
        enough = [own for own in nodes if len(own) >= number]
        if enough:
            own = min(enough, key=len)
            return [own.pop() for _ in range(number)]
        out: list[int] = []
        while len(out) < number:
            own = max(nodes, key=len)
            if not own:
                raise PipelabError("a deployment was found that uses more GPUs than there are")
            out.append(own.pop())
        return out
