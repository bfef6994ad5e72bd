"""What a family of constraints is for: leave it out and see what the solver claims."""

import warnings
from typing import NamedTuple

import numpy as np

from pipelab.engine.formulations.candidates import enumerate_candidates
from pipelab.engine.formulations.joint_cvxpy import state_joint
from pipelab.engine.tolerances import NOT_SOLVED
from pipelab.errors import InvalidPlacement, InvalidValue
from pipelab.evaluation import evaluate
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
        Names from the registry; none leaves nothing out.

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
    candidates = enumerate_candidates(problem)
    program, variables = state_joint(candidates, without=families)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an unbounded program is one of the answers here
        program.solve(solver="HIGHS")
    name = " and ".join(families) or "(nothing)"
    if not program.status.startswith("optimal"):
        return LeftOut(name, None, f"the program is {program.status.replace('_', ' ')}")
    chosen = np.flatnonzero(variables["z"].value > 0.5)
    try:
        true = evaluate(problem, candidates.placement(chosen)).throughput
    except (InvalidPlacement, InvalidValue) as error:
        return LeftOut(name, float(program.value), str(error))
    right = abs(true - program.value) <= NOT_SOLVED * true
    return LeftOut(
        name, float(program.value), "holds" if right else f"it yields only {true:,.6g} tokens/s"
    )
