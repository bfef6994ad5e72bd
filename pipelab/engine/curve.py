"""The points of a trade-off, as searches find them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pipelab.engine.answers import Result
from pipelab.engine.deployments.result import Deployment


@dataclass
class Curve:
    """Points of which none is beaten in both throughput and what it costs, in the order of the search.

    Attributes
    ----------
    on_point : function of a point, or None
        Called with each point that is told.
    points : list of Result, or of Deployment
    complete : bool
        False where points may be missing, or one is not proven.
    """

    on_point: Callable | None
    points: list[Result | Deployment] = field(default_factory=list)
    complete: bool = True

    def add(self, point: Result | Deployment, told: bool = True) -> None:
        """Take the next point, and tell it unless it was left open when the search ended."""
        self.points.append(point)
        self.complete &= point.status == "optimal"
        if told and self.on_point is not None:
            self.on_point(point)
