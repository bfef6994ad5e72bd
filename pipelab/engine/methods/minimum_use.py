"""The least use of GPUs or money among the placements of at least a given rate."""

from pipelab.engine.methods.subproblems import (
    EXACT,
    ONE_CLASS_STAGES,
    WITHOUT_LINKS,
    Subproblems,
)
from pipelab.placement import Placement


def least_use(subproblems: Subproblems, what: str, index: int) -> tuple[Placement | None, bool]:
    """The placement of at least this rate that uses least; and whether that is proven.

    Without links, and with one class per stage, programs are small. The first gives a lower bound;
    a placement that reaches the rate and uses no more is the answer, whichever variant found it.

    Parameters
    ----------
    subproblems : Subproblems
        With the limits that hold.
    what : "gpus" or "price"
        Among placements of equally many GPUs, the one with the fewest stages.
    index : int
        Of the rate to reach.

    Returns
    -------
    placement : Placement or None
        None and proven: there is no such placement.
    proven : bool
    """
    layers = subproblems.rates.problem.model.layers
    weights = {"price": 1.0} if what == "price" else {"gpus": layers + 1.0, "stages": 1.0}
    links, lower_bound = subproblems.links_at(index), 0.0

    def cost(placement: Placement) -> float:
        return sum(weight * subproblems.used(name, placement) for name, weight in weights.items())

    def reaches(placement: Placement) -> bool:
        return subproblems.index_of(placement) >= index

    kind = f"least {what}"
    if links.bind:
        relaxed = subproblems.solve(index, WITHOUT_LINKS, weights, kind)
        if relaxed.placement is None:
            return None, relaxed.verdict == "no"
        if reaches(relaxed.placement):
            return relaxed.placement, True
        lower_bound = cost(relaxed.placement)
    if links.many_sets:
        single = subproblems.solve(index, ONE_CLASS_STAGES, weights, kind)
        if single.verdict == "not answered":
            return None, False
        found = single.placement
        if found is not None and reaches(found) and cost(found) <= lower_bound:
            return found, True
    exact = subproblems.solve(index, EXACT if links.bind else ONE_CLASS_STAGES, weights, kind)
    if exact.verdict == "not answered":
        return None, False
    if exact.placement is not None:
        if not reaches(exact.placement):
            return None, False
        if cost(exact.placement) <= lower_bound:
            return exact.placement, True
    subproblems.sets_left_out |= not exact.all_sets
    return exact.placement, exact.all_sets
