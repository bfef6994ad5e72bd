"""Where rows of the ledger ask for what more than one of them needs; nothing is computed twice."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pipelab as pl
from pipelab import course
from pipelab.problem import Problem
from pipelab.solving import Result

if TYPE_CHECKING:
    from pipelab.engine.timeline.timeline import Timeline
    from pipelab.schedules import Schedule


class SharedResults:
    """Answers to the ledger's questions, each computed when first asked for and then kept."""

    def __init__(self) -> None:
        self._kept: dict = {}

    def once(self, question: Callable, *arguments: Any, **options: Any) -> Any:
        """`question(*arguments, **options)`, computed the first time only."""
        key = (question, arguments, tuple(sorted(options.items())))
        if key not in self._kept:
            self._kept[key] = question(*arguments, **options)
        return self._kept[key]

    def case(self, name: str, per_stage: int = 1, **rules: Any) -> Problem:
        """A bundled case with so many GPUs per stage."""
        return self.once(pl.load_case, name, max_gpus_per_stage=per_stage, **rules)

    @property
    def tiny(self) -> Problem:
        """The write-up's own example: tiny with two GPUs per stage."""
        return self.case("tiny", 2)

    def slow_tiny(self) -> Problem:
        """tiny, two GPUs per stage, with links an eighth as fast."""
        tiny = self.tiny
        return replace(tiny, cluster=tiny.cluster.scaled_bandwidth(1 / 8), name="tiny, links ÷ 8")

    def best(self, name: str, per_stage: int = 1, **rules: Any) -> Result:
        """The proven optimum of a case."""
        return self.once(pl.solve, self.case(name, per_stage, **rules), "aggregated")

    def joint(self, problem: Problem, **options: Any) -> Result:
        """The joint ILP's answer."""
        return self.once(pl.solve, problem, "joint", **options)

    def heuristic(self, problem: Problem, **options: Any) -> Result:
        """The failed heuristic's answer."""
        return self.once(pl.solve, problem, "type_count", **options)

    def predicted(self, problem: Problem, **options: Any) -> float:
        """The rate it predicts, tokens/s."""
        return self.heuristic(problem, **options).details["predicted"]

    def predicted_gpus(self, problem: Problem) -> str:
        """How many GPUs of which type it names, stage by stage."""
        return ", ".join(
            f"{s.number}×{s.gpu_type}" for s in self.heuristic(problem).details["stages"]
        )

    def tried(self, problem: Problem) -> float:
        """The best of all placements, each tried."""
        return self.once(pl.solve, problem, "exhaustive").throughput

    def size(self, name: str, per_stage: int = 1, **rules: Any) -> dict[str, int]:
        """What the joint ILP of a case would consist of."""
        return self.once(course.joint_size, self.case(name, per_stage, **rules))

    def counts(self, name: str, per_stage: int = 1) -> dict[str, int]:
        """The same and more, from `course.count_candidates`."""
        return self.once(course.count_candidates, self.case(name, per_stage))

    def original(self, segments: str = "as_run") -> dict[str, int]:
        """What the original MILP of medium consists of, as its author ran it or as the text has it."""
        return self.once(course.single_gpu_size, self.case("medium"), segments)

    def rate(self, name: str, gpu_type: str, layers: int, gpus: int = 1) -> float:
        """tokens/s of one stage of so many GPUs of a type."""
        problem = self.case(name, gpus)
        chosen = [gpu for gpu in problem.cluster.gpus if gpu.type == gpu_type][:gpus]
        return problem.costs.stage(
            problem.model, problem.workload, chosen, layers, "even"
        ).throughput

    def run(self, order: "Schedule", costs: Any = None) -> "Timeline":
        """A schedule against the clock, F = I = W = 1."""
        costs = costs or pl.StageCosts(1, 1, 1)
        return pl.simulate(order, costs.cut_for(order))
