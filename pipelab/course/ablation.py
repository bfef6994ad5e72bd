"""What a family of constraints is for: leave it out and see what the solver claims."""

import warnings
from typing import NamedTuple

from pipelab.candidates import list_allocations, list_connections
from pipelab.engine.tolerances import NOT_SOLVED
from pipelab.errors import InvalidPlacement, InvalidValue, UnknownName, nearest
from pipelab.evaluation import evaluate
from pipelab.joint_ilp import state_families
from pipelab.placement import Placement, Stage
from pipelab.problem import Problem


class LeftOut(NamedTuple):
    """What came of it."""

    without: str
    predicted_tokens_per_s: float | None  # what the solver claims
    verdict: str  # what `evaluate` finds wrong with the stages it chose


def leave_out(problem: Problem, *families: str) -> LeftOut:
    """Solve the joint ILP without some families (with HiGHS) and check the answer with `evaluate`.

    Parameters
    ----------
    problem : Problem
        Small enough to be listed.
    *families : str
        Names of `pipelab.joint_ilp.state_families`; none leaves nothing out.

    Returns
    -------
    LeftOut
        `without`, the families; `predicted_tokens_per_s`, what the solver claims, None where it has
        no answer; and `verdict`, what `evaluate` finds wrong with the stages it chose.

    Raises
    ------
    UnknownName
        There is no such family.
    """
    import cvxpy as cp

    allocations = list_allocations(problem)
    connections = list_connections(problem, allocations)
    stated, variables = state_families(problem, allocations, connections)
    for family in families:
        if family not in stated:
            raise UnknownName(f"there is no family {family!r}; {nearest(family, stated)}")
    kept = [rows for name, rows in stated.items() if name not in families]
    program = cp.Problem(cp.Maximize(variables["t"]), kept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an unbounded program is one of the answers here
        program.solve(solver=cp.HIGHS)
    name = " and ".join(families) or "(nothing)"
    if not program.status.startswith("optimal"):
        return LeftOut(name, None, f"the program is {program.status.replace('_', ' ')}")
    chosen = [a for a, z in zip(allocations, variables["z"].value, strict=True) if z > 0.5]
    chosen.sort(key=lambda a: a.layers.start)
    placement = Placement(tuple(Stage(a.layers, a.gpus) for a in chosen))
    claimed = float(program.value)
    try:
        true = evaluate(problem, placement).throughput
    except (InvalidPlacement, InvalidValue) as error:
        return LeftOut(name, claimed, str(error))
    right = abs(true - claimed) <= NOT_SOLVED * true
    return LeftOut(name, claimed, "holds" if right else f"it yields only {true:,.6g} tokens/s")
