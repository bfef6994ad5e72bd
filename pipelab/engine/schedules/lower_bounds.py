"""Lower bounds: what no order of a pipeline's actions can beat."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipelab.engine.timeline import StageCosts
from pipelab.errors import InvalidValue
from pipelab.fields import instance, is_list, true_or_false, whole_number
from pipelab.schedules import LARGEST_SIZE


def lower_bound(
    ranks: int,
    microbatches: int,
    costs: StageCosts,
    *,
    in_flight: int | Sequence[int] | None = None,
    split_backward: bool = True,
) -> float:
    """A makespan that no order of one stage per rank can beat, however messages are handed over.

    Parameters
    ----------
    ranks, microbatches : int
        At most 5 million ranks.
    costs : StageCosts
        Of one stage per rank; `comm` of the links between them.
    in_flight : int or sequence of int, one per rank, optional
        Most microbatches a rank may hold between forward and backward; without it, all of them.
    split_backward : bool
        False where the gradient is sent on only after I and W, as in GPipe and 1F1B: a higher bound
        for these, with B = I + W: max over s of Σ_{k<s}(F+B)_k + m·(F+B)_s and more.

    Returns
    -------
    float
        In the unit of the costs.

    Raises
    ------
    InvalidValue
        A number is not valid, the costs do not fit the ranks, or a rank may hold nothing.

    Notes
    -----
    Rank s cannot start before its first input arrives, must do all its work, and must wait for the
    first gradient: F_s + Σ_{k>s}(F_k + I_k) + 2Σ_{k≥s} c_k after its first forward starts, in which
    it can run no more forwards than it may hold. Nor can the last gradient reach rank 0 before rank
    s has run all its F and I. The largest of these, over the ranks, is the bound. Where overlapped
    pairs take less than their parts (`overlap` below 1), all work is counted as if it were done in
    pairs.

    Examples
    --------
    >>> import pipelab as pl
    >>> pl.lower_bound(4, 8, pl.StageCosts(1, 1, 1), in_flight=4)  # ZB-H1 takes 27 and is therefore best
    27.0
    """
    ranks = whole_number("lower_bound", "ranks", ranks, most=LARGEST_SIZE)
    microbatches = whole_number("lower_bound", "microbatches", microbatches)
    instance("lower_bound", "costs", costs, StageCosts, "StageCosts(forward, backward_input, ...)")
    split_backward = true_or_false("lower_bound", "split_backward", split_backward)
    held = _held(in_flight, ranks, microbatches)
    table = costs.arrays(ranks, "training")
    shortened = min(1.0, costs.overlap)
    forward, backward, weight = (
        shortened * table[n] for n in ("forward", "backward_input", "backward_weight")
    )
    if not split_backward:
        backward, weight = backward + weight, np.zeros(ranks)
    comm = np.append(table["comm"], 0.0)
    arrives = np.cumsum(forward + comm) - (forward + comm)
    returns = np.cumsum(backward + comm) - (backward + comm)
    # until rank s's own first backward
    below = (forward + backward + 2 * comm)[::-1].cumsum()[::-1] - backward
    waits = np.maximum(0.0, below - held * forward)
    steady = arrives + microbatches * (forward + backward + weight) + waits
    drained = arrives + microbatches * (forward + backward) + returns + weight[0]
    return float(max(steady.max(), drained.max()))


def _held(in_flight: Any, ranks: int, microbatches: int) -> np.ndarray:
    """How many microbatches each rank may hold, no more than there are."""
    if in_flight is None:
        return np.full(ranks, float(microbatches))
    if not is_list(in_flight):
        in_flight = whole_number("lower_bound", "in_flight", in_flight)
        return np.full(ranks, float(min(in_flight, microbatches)))
    most = list(in_flight)
    if len(most) != ranks:
        expected = f"expected one number, or {ranks} for {ranks} ranks; got {len(most)}"
        raise InvalidValue("lower_bound", [("in_flight", in_flight, expected)])
    checked = [
        whole_number("lower_bound", f"in_flight[{rank}]", number)
        for rank, number in enumerate(most)
    ]
    return np.minimum(np.array(checked, dtype=float), microbatches)
