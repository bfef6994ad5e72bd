"""What can be evaluated besides a placement: several pipelines side by side, and stages with several ways through them.

This is data alone. What a solver adds, such as a status and a bound, stands in `engine/deployments/result.py` and
`engine/flows/result.py`.
"""

from dataclasses import dataclass
from typing import NamedTuple

from pipelab.fields import Frozen
from pipelab.placement import Placement, Stage
from pipelab.problem import Workload

__all__ = ["DeploymentPlan", "FlowPlan", "Replicas", "Way"]


@dataclass(frozen=True, kw_only=True)
class Replicas(Frozen):
    """Pipelines with the same stages on GPUs that are interchangeable.

    Attributes
    ----------
    replicas : tuple of Placement
        One for each pipeline.
    workload : Workload
        With the batch that each of them works on, and the number in flight.
    """

    replicas: tuple[Placement, ...]
    workload: Workload

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.replicas)

    @property
    def placement(self) -> Placement:
        """Of the first."""
        return self.replicas[0]


@dataclass(frozen=True, eq=False, kw_only=True)
class DeploymentPlan(Frozen):
    """Pipelines on disjoint GPUs.

    Attributes
    ----------
    pipelines : tuple of Replicas
        Each with a batch of its own.
    """

    pipelines: tuple[Replicas, ...]

    @property
    def count(self) -> int:
        """How many pipelines there are."""
        return sum(pipeline.count for pipeline in self.pipelines)


class Way(NamedTuple):
    """What goes one way: the indices of its stages, in order, and its tokens/s."""

    stages: tuple[int, ...]
    rate: float


@dataclass(frozen=True, eq=False, kw_only=True)
class FlowPlan(Frozen):
    """Stages on GPUs of their own, and what goes which way through them.

    Attributes
    ----------
    stages : tuple of Stage
        By first layer; several may hold the same layers.
    in_flight : tuple of int
        How many microbatches each needs memory for, and has.
    ways : tuple of Way
        Indices of stages in order, and tokens/s.
    memory_for : int or None
        Microbatches in flight that memory was counted for, where the rate of stages that are always busy was
        maximised (objective "rate"); None where all in flight have memory.
    """

    stages: tuple[Stage, ...]
    in_flight: tuple[int, ...]
    ways: tuple[Way, ...]
    memory_for: int | None = None
