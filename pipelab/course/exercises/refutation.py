"""An exercise with a counterexample as its answer: a placement that a claim says cannot be."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelab.placement import Placement
    from pipelab.problem import Problem


@dataclass(frozen=True)
class Refutation:
    """A placement is claimed to be the best on its own GPUs; the reader's has to be faster.

    Attributes
    ----------
    problem : callable
        On which both are evaluated.
    claimed : callable
        The placement that is claimed to be the best.
    """

    problem: Callable[[], "Problem"]
    claimed: Callable[[], "Placement"]
    none = ""  # None means not attempted, always

    def grade(self, mine: object) -> tuple[bool, str]:
        """Whether `mine` refutes the claim, recomputed here; or why it does not."""
        from pipelab.errors import InvalidPlacement, shown
        from pipelab.evaluation import evaluate
        from pipelab.placement import Placement

        if not isinstance(mine, Placement):
            made = "a placement, as pl.Placement.of([(layers, gpus), …]) makes it"
            return False, f"expected {made}; yours is {shown(mine)}"
        problem, claimed = self.problem(), self.claimed()
        if sorted(mine.gpus) != sorted(claimed.gpus):
            wanted = ", ".join(map(str, sorted(claimed.gpus)))
            return False, f"the claim is about GPUs {wanted}; use all of these and no other"
        try:
            rate = evaluate(problem, mine).throughput
        except InvalidPlacement as error:
            return False, str(error)
        best = evaluate(problem, claimed).throughput
        if rate <= best * (1 + 1e-9):
            hint = "which stage is the slowest, and may another group of GPUs hold more layers?"
            return (
                False,
                f"yours yields {rate:,.1f} tokens/s, the claimed one {best:,.1f}. Hint: {hint}",
            )
        return True, f"refuted: {rate:,.1f} tokens/s against {best:,.1f}"
