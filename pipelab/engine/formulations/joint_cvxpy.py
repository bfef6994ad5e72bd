"""The joint ILP stated in cvxpy: the registry read aloud to a modelling language.

Slow to compile and without progress or Stop, so it is for reading and for checking; the
engine is `joint.build` with `scip.run`.
"""

from collections.abc import Collection
from typing import Any

import numpy as np

from pipelab.engine.formulations.candidates import Candidates
from pipelab.engine.formulations.families import Domain
from pipelab.engine.formulations.forms import joint_form
from pipelab.errors import UnknownName, nearest, needed_by


def state_joint(
    candidates: Candidates, form: str = "written", without: Collection[str] = ()
) -> Any:
    """State the joint ILP in cvxpy.

    Parameters
    ----------
    candidates : Candidates
        Of `enumerate_candidates` or `joint_program`.
    form : {"written", "tight"}
        The write-up's constraints, or the equivalent form with the better bound.
    without : collection of str
        Families to leave out, to see what each is for.

    Returns
    -------
    program : cvxpy.Problem
        Solve it with `program.solve(solver="SCIP")` or `"HIGHS"`.
    variables : dict of cvxpy.Variable
        By column group: z, e, …, t.

    Raises
    ------
    UnknownName
        There is no such form or family.

    References
    ----------
    The write-up, "Correct Joint ILP Formulation", constraints 1 to 6.
    """
    with needed_by("the program in cvxpy", "cvxpy"):
        import cvxpy as cp

    module = joint_form(form)
    unknown = set(without) - {f.name for f in module.FAMILIES}
    if unknown:
        names = [f.name for f in module.FAMILIES]
        raise UnknownName(f"there is no family {min(unknown)!r}; {nearest(min(unknown), names)}")
    matrices, domains = module.incidence(candidates), module.domains(candidates)
    variables = {
        name: _variable(name, n, domains[name])
        for name, n in module.columns(candidates).sizes.items()
    }
    stated = [f.state(matrices, variables) for f in module.FAMILIES if f.name not in without]
    stated += [
        v <= domains[name].upper
        for name, v in variables.items()
        if np.isfinite(domains[name].upper).all()
    ]
    return cp.Problem(cp.Maximize(variables["t"][0]), [c for c in stated if c.size]), variables


def _variable(name: str, n: int, domain: Domain) -> Any:
    """Binary or non-negative; a constant where a group is empty (one stage has no links)."""
    with needed_by("the program in cvxpy", "cvxpy"):
        import cvxpy as cp

    if n == 0:
        return cp.Constant(np.zeros(0))
    return cp.Variable(n, name=name, boolean=domain.whole, nonneg=not domain.whole)
