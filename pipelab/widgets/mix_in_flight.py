"""How many batches in flight a placement needs, and whether the mix explorer's proof holds for that many."""

from dataclasses import dataclass, replace

from pipelab.engine.in_flight_result import enough_in_flight
from pipelab.errors import InvalidPlacement
from pipelab.evaluation import Evaluation, evaluate
from pipelab.placement import Placement
from pipelab.problem import Problem


@dataclass(frozen=True)
class InFlight:
    """For how many batches in flight memory was checked, and how many fill the pipeline.

    Attributes
    ----------
    checked : int
        The problem's `Workload.in_flight`.
    needed : int
        The fewest with which the pipeline reaches the placement's throughput.
    fits : bool
        Whether the placement also fits, and is as fast, with `needed` of them in memory. More in
        flight make no placement faster, so one that is optimal for `checked` is then optimal for
        `needed`, too.
    """

    checked: int
    needed: int
    fits: bool

    @property
    def proof(self) -> str:
        """What is proven, as the end of a title."""
        if self.fits:
            return "proven optimal"
        return f"proven for {self.checked} in flight, but needs {self.needed}"

    @property
    def sentence(self) -> str:
        """What the title does not say of it."""
        if self.fits:
            more = ", which fit in memory" if self.needed > self.checked else ""
            return f"Batches in flight needed to fill the pipeline: {self.needed}{more}."
        return (
            f"At this rate, this placement cannot hold {self.needed} batches in flight in memory. "
            f"Set “batches in flight” to {self.needed} for a proof that includes them."
        )


def in_flight_of(problem: Problem, placement: Placement, evaluation: Evaluation) -> InFlight:
    """Compare what memory was checked for with what the placement needs.

    Examples
    --------
    >>> import pipelab as pl
    >>> medium = pl.load_case("medium", link_units="tokens")
    >>> found = pl.solve(medium, "aggregated")
    >>> in_flight_of(medium, found.placement, found.evaluation)  # these memory rules count one batch
    InFlight(checked=1, needed=9, fits=True)
    """
    checked, needed = problem.workload.in_flight, enough_in_flight(evaluation)
    if needed <= checked:
        return InFlight(checked, needed, True)
    try:
        more = evaluate(
            replace(problem, workload=replace(problem.workload, in_flight=needed)), placement
        )
    except InvalidPlacement:
        return InFlight(checked, needed, False)
    return InFlight(checked, needed, more.throughput >= evaluation.throughput * (1 - 1e-9))
