"""The joint ILP of a problem: how large it is, whether it fits in memory, and the program itself."""

from typing import TYPE_CHECKING

from pipelab.engine.formulations import joint
from pipelab.engine.formulations.candidates import Candidates, enumerate_candidates
from pipelab.engine.formulations.count import count_candidates
from pipelab.engine.formulations.forms import joint_form
from pipelab.engine.methods.memory import BYTES, free_gigabytes, gigabytes, refuse
from pipelab.problem import Problem

if TYPE_CHECKING:
    from pipelab.engine.solvers.linear_program import LinearProgram


def joint_size(problem: Problem, form: str = "written") -> dict[str, int]:
    """How large the joint ILP of a problem is, counted without building anything.

    Parameters
    ----------
    problem : Problem
        Any size.
    form : {"written", "tight"}
        The write-up's constraints, or the equivalent form with the better bound.

    Returns
    -------
    dict of str to int
        `segments`, `allocations`, `connections`, `variables` and `rows`; exact.

    Raises
    ------
    UnknownName
        The form is unknown.

    References
    ----------
    The write-up, "Problem Size Analysis".

    Examples
    --------
    >>> import pipelab as pl
    >>> joint_size(pl.load_case("demo", max_gpus_per_stage=3))["variables"]
    9887608011
    """
    counts = count_candidates(problem)
    shown = {name: counts[name] for name in ("segments", "allocations", "connections")}
    return shown | joint_form(form).size(counts)


def joint_capacity(form: str = "written") -> int:
    """About how many variables of the joint ILP fit in the memory that is free now.

    Parameters
    ----------
    form : {"written", "tight"}
        As for `joint_size`.

    Returns
    -------
    int
        From bytes per variable and row that were measured, rounded up
        (`pipelab.engine.methods.memory`).

    Raises
    ------
    UnknownName
        The form is unknown.
    """
    joint_form(form)
    per_variable, per_row = BYTES[form]
    rows = {"written": 2.0, "tight": 0.0}[form]  # per variable, as the cases grow
    return int(free_gigabytes() * 1e9 / (per_variable + rows * per_row))


def joint_program(
    problem: Problem, form: str = "written", big_m: str = "valid"
) -> "tuple[LinearProgram, Candidates]":
    """The joint ILP as arrays: a `LinearProgram` and the candidates of its columns.

    Parameters
    ----------
    problem : Problem
        Small enough to be listed.
    form : {"written", "tight"}
        As for `joint_size`.
    big_m : {"valid", "as_written"}
        "as_written" takes the M for links of the author's code, which can cut off the best
        placements.

    Returns
    -------
    program : LinearProgram
        Bounds, whole-number columns, objective and blocks of rows, as arrays.
    candidates : Candidates
        What its columns represent; see `enumerate_candidates`.

    Raises
    ------
    TooLarge
        It would not fit in the memory that is free.
    UnknownName
        The form or M is unknown, or the author's M for the tight form, which has none.

    References
    ----------
    The write-up, "Correct Joint ILP Formulation", constraints 1 to 6.
    """
    joint_form(form, big_m)
    refuse_if_joint_too_large(problem, form, joint_size(problem, form), None)
    candidates = enumerate_candidates(problem)
    return build_joint(candidates, form, big_m), candidates


def joint_lp_bound(problem: Problem, form: str = "written", big_m: str = "valid") -> float | None:
    """Optimum of the LP relaxation of the joint ILP: its bound before any branching.

    Parameters
    ----------
    problem : Problem
        Small enough to be listed.
    form : {"written", "tight"}
        As for `joint_size`.
    big_m : {"valid", "as_written"}
        As for `joint_program`.

    Returns
    -------
    float or None
        In tokens/s; None where even the relaxation is infeasible.

    Raises
    ------
    TooLarge
        It would not fit in the memory that is free.
    UnknownName
        The form or M is unknown, or the author's M for the tight form, which has none.
    """
    from pipelab.engine.solvers import scip

    return scip.lp_bound(joint_program(problem, form, big_m)[0])


def build_joint(candidates: Candidates, form: str, big_m: str) -> "LinearProgram":
    """The program of one form."""
    module = joint_form(form, big_m)
    return module.build(candidates, big_m) if module is joint else module.build(candidates)


def refuse_if_joint_too_large(
    problem: Problem, form: str, size: dict[str, int], limit_gb: float | None
) -> None:
    """Raise `TooLarge` with the counts, before anything is listed."""
    need = gigabytes(size, form)
    have = limit_gb if limit_gb is not None else free_gigabytes()
    if need > have:
        refuse(f"the joint ILP of {problem.name}", size, need, have, _what_would_fit(problem, have))


def _what_would_fit(problem: Problem, have: float) -> str:
    """Smaller settings of the same problem, with their counts; the first of each kind that fits."""
    from dataclasses import replace

    fewer = range(min(problem.max_gpus_per_stage, len(problem.cluster)) - 1, 0, -1)
    tries = [("form='tight'", problem, "tight")]
    tries += [("same_type_stages=True", replace(problem, same_type_stages=True), "tight")]
    tries += [
        (f"max_gpus_per_stage={k}", replace(problem, max_gpus_per_stage=k), "written")
        for k in fewer
    ]
    tries += [
        (
            f"max_gpus_per_stage={k} with form='tight'",
            replace(problem, max_gpus_per_stage=k),
            "tight",
        )
        for k in fewer
    ]
    fitting = []
    for text, smaller, form in tries:
        size = joint_size(smaller, form)
        if gigabytes(size, form) <= have:
            fitting.append(f"{text} ({size['variables']:,} variables)")
    advice = "method='aggregated' proves the same optimum without listing anything"
    return f"What would fit: {' or '.join(fitting)}; {advice}" if fitting else advice
