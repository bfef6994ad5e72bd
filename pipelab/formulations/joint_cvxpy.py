"""The joint ILP stated in cvxpy: the registry read aloud to a modelling language.

Slow to compile and without progress or Stop, so it is for reading and for checking; the
engine is `joint.build` with `scip.run`.
"""

from collections.abc import Collection

import numpy as np

from pipelab.errors import UnknownName, nearest
from pipelab.formulations import joint, joint_tight
from pipelab.formulations.candidates import Candidates

__all__ = ["state_joint"]


def state_joint(candidates: Candidates, form: str = "written", without: Collection[str] = ()):
    """State the joint ILP in cvxpy.

    Parameters
    ----------
    candidates : Candidates
    form : "written" or "tight"
    without : collection of str
        Families to leave out, to see what each is for.

    Returns
    -------
    program : cvxpy.Problem
        Solve it with `program.solve(solver="SCIP")` or `"HIGHS"`.
    variables : dict of cvxpy.Variable
        By column group: z, e, …, t.
    """
    import cvxpy as cp

    module = {"written": joint, "tight": joint_tight}[form]
    matrices = module.incidence(candidates)
    variables = {name: _variable(name, n) for name, n in module.columns(candidates).sizes.items()}
    unknown = set(without) - {f.name for f in module.FAMILIES}
    if unknown:
        names = [f.name for f in module.FAMILIES]
        raise UnknownName(f"there is no family {min(unknown)!r}; {nearest(min(unknown), names)}")
    stated = [f.state(matrices, variables) for f in module.FAMILIES if f.name not in without]
    return cp.Problem(cp.Maximize(variables["t"][0]), [c for c in stated if c.size]), variables


def _variable(name: str, n: int):
    """Binary z and e, non-negative others; a constant where a group is empty (one stage, no links)."""
    import cvxpy as cp

    if n == 0:
        return cp.Constant(np.zeros(0))
    binary = name in ("z", "e")
    return cp.Variable(n, name=name, boolean=binary, nonneg=not binary)
