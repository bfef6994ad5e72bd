"""The write-up's joint ILP: choose the layers and the GPUs of every stage at once.

An *allocation* is a stage that a placement can have: a run of consecutive layers on a set of GPUs.
A *connection* is a pair of allocations that can follow one another. `candidates` lists both, and
each gets a 0–1 variable. Their rates are numbers known in advance, which is what makes the model
linear, and large. Twelve families of constraints say what a pipeline is and how fast it can be;
each stands below its sentence and its formula.

Domain: problems of at most 100,000 connections. On one core, 16,000 connections take 10 s, the
25,740 of the case small 20 s, and 61,200 35 s; other numbers can take far longer, and there is no
time limit. HiGHS computes t within a tolerance. But a placement is as fast as its slowest stage or
link, so the true optimum is a listed rate, and no listed rate but those up to t plus the tolerance
can be it: the largest of these is the bound.

This is a definition to read. `pl.solve(problem, "joint")` runs `engine/methods/joint.py` instead;
`tests/equal/test_definitions_placement.py` holds both equal, the families row by row.

Source: the joint-ILP write-up, "Mathematical Formulation (Correct)", constraints 1 to 6.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from pipelab.candidates import Allocation, Connection, list_allocations, list_connections
from pipelab.errors import PipelabError, TooLarge, needed_by
from pipelab.placement import Placement, Stage
from pipelab.problem import Problem

__all__ = ["JointOptimum", "solve_by_joint_ilp", "state_families"]

MOST_CONNECTIONS = 100_000

# What HiGHS may leave open: nothing of the objective, and 1e-9 on constraints and integrality.
EXACTLY = {"mip_rel_gap": 0.0, "mip_abs_gap": 0.0, "mip_feasibility_tolerance": 1e-9}


class JointOptimum(NamedTuple):
    """What the joint ILP proves; all None where no placement fits in memory and has a rate."""

    placement: Placement | None
    throughput: float | None  # of the slowest stage in tokens/s, or link in `link_units` per second
    bound: float | None  # no placement is faster, in the same unit


def solve_by_joint_ilp(problem: Problem) -> JointOptimum:
    """Find the placement of the highest throughput, by one integer linear program.

    Parameters
    ----------
    problem : Problem
        With at most 100,000 connections; above some ten thousand it takes seconds to minutes.

    Returns
    -------
    JointOptimum
        Placement, throughput and bound; proven optimal where these two are equal. They are in
        tokens/s, or transfers/s where the problem's `link_units` say so and a link is the slowest.

    Raises
    ------
    TooLarge
        There are more connections, or too many allocations or connections to list.

    Examples
    --------
    >>> import pipelab as pl
    >>> optimum = solve_by_joint_ilp(pl.load_case("tiny", max_gpus_per_stage=2))
    >>> round(optimum.throughput, 3), round(optimum.bound, 3), str(optimum.placement)
    (301.784, 301.784, 'layers 1–4 on [0, 1]')
    """
    with needed_by("pipelab.joint_ilp", "cvxpy"):
        import cvxpy as cp

    allocations = list_allocations(problem)
    connections = list_connections(problem, allocations)
    if len(connections) > MOST_CONNECTIONS:
        raise TooLarge(
            f"{problem.name} has {len(connections):,} connections, more than {MOST_CONNECTIONS:,}; "
            "pl.solve(problem, 'joint') has a time limit, and 'aggregated' lists none"
        )
    if not allocations:
        return JointOptimum(placement=None, throughput=None, bound=None)
    families, variables = state_families(problem, allocations, connections)
    program = cp.Problem(cp.Maximize(variables["t"]), list(families.values()))
    program.solve(solver=cp.HIGHS, highs_options=EXACTLY)
    if program.status == cp.INFEASIBLE:
        return JointOptimum(placement=None, throughput=None, bound=None)
    if program.status != cp.OPTIMAL:
        raise PipelabError(f"HiGHS ended with {program.status!r}")
    stages = [a for a, z in zip(allocations, variables["z"].value, strict=True) if z > 0.5]
    links = [c for c, e in zip(connections, variables["e"].value, strict=True) if e > 0.5]
    throughput = min([a.rate for a in stages] + [c.rate for c in links])
    rates = [a.rate for a in allocations] + [c.rate for c in connections]
    top = max(a.rate for a in allocations)
    # A z or e that is off by 1e-9 moves t by 1e-9·top; a thousand times that is on the safe side.
    proven = max(throughput, min(top, variables["t"].value + 1e-6 * top))
    bound = max(rate for rate in rates if rate <= proven)
    stages.sort(key=lambda stage: stage.layers.start)
    placement = Placement(tuple(Stage(stage.layers, stage.gpus) for stage in stages))
    return JointOptimum(placement=placement, throughput=throughput, bound=bound)


def state_families(
    problem: Problem, allocations: Sequence[Allocation], connections: Sequence[Connection]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """State the twelve families of constraints, and the variables they speak of.

    Parameters
    ----------
    problem : Problem
        With L layers and N GPUs.
    allocations : sequence of Allocation
        A of them, rates θ.
    connections : sequence of Connection
        E of them, rates ν.

    Returns
    -------
    families : dict of str to cvxpy constraint
        By name, in the write-up's order.
    variables : dict of str to cvxpy.Variable
        z (A,), e (E,), tau (A,), rho (E,) and t.

    Notes
    -----
    Leave one out to see what it is for. With the three different GPUs of notebook 05, a link is the
    slowest part, and `gpu_exclusivity`, `link_rate` and `link_bottleneck` matter; with its heavy
    layers, `stage_rate` and `stage_bottleneck` do. `layer_coverage` does where some stage has no
    possible neighbour: nothing else keeps the pipeline from ending there. The others follow from
    one another: start and end from coverage; and of `successor`, `predecessor` and the two families
    below them, either `successor` with `link_needs_receiver` or `predecessor` with
    `link_needs_sender` is enough.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny")
    >>> allocations = list_allocations(tiny)
    >>> connections = list_connections(tiny, allocations)
    >>> families, variables = state_families(tiny, allocations, connections)
    >>> families["layer_coverage"].shape, variables["z"].shape
    ((4,), (40,))
    """
    with needed_by("pipelab.joint_ilp", "cvxpy"):
        import cvxpy as cp

    # 0–1 matrices: allocation a has layer l, has GPU g; connection x leaves a, enters a.
    L, A, E = problem.model.layers, len(allocations), len(connections)
    covers = np.array([[layer in a.layers for a in allocations] for layer in range(L)])
    uses = np.array([[g in a.gpus for a in allocations] for g in range(len(problem.cluster))])
    senders, receivers = ([c[end] for c in connections] for end in (0, 1))
    leaves, enters = (
        sp.csr_array((np.ones(E), (end, np.arange(E))), (A, E)) for end in (senders, receivers)
    )
    followed, preceded = sorted(set(senders)), sorted(set(receivers))
    theta = np.array([a.rate for a in allocations])
    # No pipeline beats its fastest stage, so no link needs to. Rates far above the rest would cost
    # the solver its precision.
    top = theta.max()
    nu = np.minimum([c.rate for c in connections], top)

    z = cp.Variable(A, name="z", boolean=True)  # 1 when the allocation is a stage
    e = cp.Variable(E, name="e", boolean=True)  # 1 when the connection is used
    tau, rho = cp.Variable(A, name="tau"), cp.Variable(E, name="rho")  # their rates, if so
    t = cp.Variable(name="t")  # rate of the whole pipeline
    families = {
        # Layer ℓ is in exactly one chosen allocation.          Σ_{a ∋ ℓ} z_a = 1        for all ℓ
        "layer_coverage": covers @ z == 1,
        # GPU g is in at most one chosen allocation.            Σ_{a ∋ g} z_a ≤ 1        for all g
        "gpu_exclusivity": uses @ z <= 1,
        # Some chosen allocation starts at the first layer.     Σ_{first(a) = 1} z_a ≥ 1
        "pipeline_start": covers[0] @ z >= 1,
        # Some chosen allocation ends at the last layer.        Σ_{last(a) = L} z_a ≥ 1
        "pipeline_end": covers[-1] @ z >= 1,
        # Who is chosen and can be followed hands on.           Σ_b e_ab ≥ z_a           for all a
        # that a connection leaves. (Another that is not last shares a GPU with all that could
        # follow it, so coverage and exclusivity forbid it.)
        "successor": leaves[followed] @ e >= z[followed],
        # Who is chosen and can be preceded receives.           Σ_a e_ab ≥ z_b           for all b
        # that a connection enters.
        "predecessor": enters[preceded] @ e >= z[preceded],
        # A used connection has its sender chosen.              e_ab ≤ z_a               for all ab
        "link_needs_sender": e <= z[senders],
        # A used connection has its receiver chosen.            e_ab ≤ z_b               for all ab
        "link_needs_receiver": e <= z[receivers],
        # τ is the rate of a chosen allocation, otherwise 0.    τ_a = θ_a z_a            for all a
        "stage_rate": tau == cp.multiply(theta, z),
        # ρ is the rate of a used connection, otherwise 0.      ρ_ab = ν_ab e_ab         for all ab
        "link_rate": rho == cp.multiply(nu, e),
        # No chosen allocation is slower than t; a large T      t ≤ τ_a + T (1 - z_a)    for all a
        # makes the row vacuous where z = 0. T = max θ (`top`) will do: no t is larger.
        "stage_bottleneck": t <= tau + top * (1 - z),
        # No used connection is slower than t.                  t ≤ ρ_ab + T (1 - e_ab)  for all ab
        "link_bottleneck": t <= rho + top * (1 - e),
    }
    return families, {"z": z, "e": e, "tau": tau, "rho": rho, "t": t}
