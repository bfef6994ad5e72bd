"""Stages in an order: arcs between states that make one walk from the start.

Every state is left at most as often as it is reached (once more for the start). That leaves
one thing open: arcs may also form a circuit of their own, apart from the pipeline. A flow
forbids it: the start sends out one unit for every stage, each stage keeps one, and flow runs on
used arcs only, so that every stage is reached from the start.
"""

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from pipelab.engine.formulations.aggregated.ends import Ended
from pipelab.engine.formulations.aggregated.order import Order
from pipelab.engine.solvers.linear_program import Columns, LinearProgram, RowBlock, incidence


def walk_rows(columns: Columns, order: Order | Ended, most: int | None) -> dict[str, RowBlock]:
    """Rows over `y` (how often each of `order.arcs` is used) and, with `most`, over `f` (flow on it).

    Parameters
    ----------
    most : int or None
        A number that no pipeline's stages exceed; None leaves circuits allowed.
    """
    left, reached, kind = order.arcs
    arcs, states = np.arange(len(left)), order.states
    leave, arrive = incidence(left, states), incidence(reached, states)
    blocks = {"leave_where_arrived": columns.rows({"y": leave - arrive}, upper=0)}
    blocks["leave_where_arrived"].upper[0] = 1  # the walk begins at the start
    if most is not None:
        each, passing = sp.eye_array(len(arcs)), arcs[kind >= 0]
        stages = incidence(reached[passing], states, passing, len(arcs))
        blocks["flow_on_used_arcs"] = columns.rows({"f": each, "y": -most * each}, upper=0)
        blocks["flow_reaches_stages"] = columns.rows(
            {"f": (arrive - leave)[1:], "y": -stages[1:]}, lower=0
        )
    return blocks


def stages_by_kind(order: Order | Ended) -> sp.csr_array:
    """Which arcs pass a stage of which link kind; shape (J, Y)."""
    kind = order.arcs[2]
    passing = np.flatnonzero(kind >= 0)
    return incidence(kind[passing], order.link_kinds, passing, len(kind))


def arrange(order: Order | Ended, number: np.ndarray, run: Callable) -> list[int] | None:
    """An order for given stages, as link kinds; None if there is none.

    Parameters
    ----------
    number : int array, shape (J,)
        Stages of each link kind.
    run : function of a LinearProgram
        Solves it; returns a `SolverRun`.
    """
    used = np.flatnonzero(number)
    order = order.only(used)
    arcs = len(order.arcs[0])
    c = Columns({"y": arcs, "f": arcs})
    blocks = {"stages": c.rows({"y": stages_by_kind(order)})} | walk_rows(
        c, order, int(number.sum())
    )
    blocks["stages"].lower[:] = blocks["stages"].upper[:] = number[used]
    integer = np.zeros(c.total, dtype=bool)
    integer[c.slices["y"]] = True
    answer = run(
        LinearProgram(
            c, np.zeros(c.total), np.full(c.total, np.inf), integer, np.zeros(c.total), blocks
        )
    )
    if answer.x is None:
        return None
    walk = sequence(order.arcs, np.rint(answer.x[c.slices["y"]]).astype(int))
    return [int(used[k]) for k in walk]


def sequence(arcs: tuple[np.ndarray, np.ndarray, np.ndarray], number: np.ndarray) -> list[int]:
    """Link kinds in the order of one walk from state 0 over every arc as often as it is used (Hierholzer)."""
    left, reached, kind = arcs
    leaving: dict[int, list[int]] = {}
    for arc in np.flatnonzero(number)[::-1]:
        leaving.setdefault(int(left[arc]), []).extend([int(arc)] * int(number[arc]))
    path, walked = [(0, -1)], []
    while path:
        here = path[-1][0]
        if leaving.get(here):
            arc = leaving[here].pop()
            path.append((int(reached[arc]), int(kind[arc])))
        else:
            walked.append(path.pop()[1])
    return [k for k in walked[::-1] if k >= 0]
