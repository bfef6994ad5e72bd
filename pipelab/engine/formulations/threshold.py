"""Is there a placement in which everything is faster than a given rate? No big-M, so no tolerance.

Stages and links that are not faster are simply left out; what remains is a matter of
logic alone (coverage, exclusivity, flow), with coefficients of 0 and 1. If the answer is
no, no placement is faster: a proof that does not depend on how finely a solver computes.
"""

import numpy as np

from pipelab.engine.formulations.candidates import Candidates
from pipelab.engine.formulations.families import maximise_t
from pipelab.engine.formulations.joint_tight import FAMILIES, columns, domains, incidence
from pipelab.engine.solvers.linear_program import LinearProgram

_LOGIC = tuple(family for family in FAMILIES if family.group == "logic")


def faster_than(candidates: Candidates, rate: float) -> Candidates:
    """The candidates whose own rate, and whose links' rates, are above `rate`."""
    kept = candidates.throughput > rate
    number = np.cumsum(kept) - 1  # new number of each allocation that is kept
    links = (candidates.link_throughput > rate) & kept[candidates.tail] & kept[candidates.head]
    return Candidates(
        candidates.problem, candidates.sets, candidates.set_of[kept], candidates.start[kept], candidates.size[kept],
        candidates.throughput[kept], number[candidates.tail[links]], number[candidates.head[links]],
        candidates.link_throughput[links],
    )  # fmt: skip


def build(candidates: Candidates) -> LinearProgram:
    """Any placement of these candidates; t occurs in no row and is held at 0."""
    values = domains(candidates)
    values["t"] = type(values["t"])(0.0, whole=False)
    return maximise_t(columns(candidates), values, _LOGIC, incidence(candidates))
