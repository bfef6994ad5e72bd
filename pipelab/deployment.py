"""One pipeline or several: a deployment is a set of pipelines that share no GPU.

A pipeline is a placement at work: a copy of the model on some of the GPUs. Pipelines do not talk to
each other, so their rates add up. Which GPUs should form a pipeline, and how many pipelines should
there be? GPUs of one type are identical here, so only numbers count. A *mix* is so many GPUs of
each type, and two questions are left, one after the other:

1. How fast is the best pipeline of every mix? `solve` answers that, mix by mix.
2. How often is each mix used? With x_c pipelines of mix c, of rate r_c, on n_ca GPUs of type a::

       max Σ r_c x_c        Σ_c n_ca x_c ≤ N_a for every type a,   x_c = 0, 1, 2, …

Domain: every GPU of a type is identical and has the same links (`Cluster.from_counts` makes such
clusters), and there are at most 2,000 mixes. Any model, cost model and links otherwise.

This is a definition to read. `pl.deploy` runs `pipelab/engine/deployments` instead, which takes any
cluster and lists few of the mixes; `tests/test_deployments.py` holds both equal.
"""

import math
from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from pipelab.errors import NotApplicable, PipelabError, TooLarge
from pipelab.fields import instance
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.solving import solve

__all__ = ["solve_by_every_division"]

MOST_MIXES = 2_000


def solve_by_every_division(problem: Problem) -> list[Placement]:
    """The deployment of the greatest throughput, from the best pipeline of every mix.

    Parameters
    ----------
    problem : Problem
        With GPUs that are identical type by type, links included.

    Returns
    -------
    list of Placement
        One for each pipeline, on GPUs of its own. Empty where no pipeline fits.

    Raises
    ------
    NotApplicable
        GPUs of one type differ, in themselves or in their links.
    TooLarge
        There are more than 2,000 mixes.

    Examples
    --------
    >>> import pipelab as pl
    >>> gpus = pl.Cluster.from_counts({"A100": 1, "T4": 2}, {"A100": 40, "T4": 16}, 12.5)
    >>> tiny = replace(pl.load_case("tiny"), cluster=gpus)
    >>> [str(placement) for placement in solve_by_every_division(tiny)]
    ['layers 1–4 on [1]', 'layers 1–4 on [2]', 'layers 1–4 on [0]']
    """
    counts = _gpus_by_type(problem)
    columns = []
    for mix in product(*(range(n + 1) for n in counts.values())):
        if any(mix):
            cluster = problem.cluster.with_counts(dict(zip(counts, mix, strict=True)))
            found = solve(replace(problem, cluster=cluster))
            if found.status not in ("optimal", "infeasible"):
                raise PipelabError(f"the best pipeline of {mix} was not proven: {found.sentence}")
            if found.placement is not None:
                columns.append((mix, found.throughput, found.placement))
    if not columns:
        return []
    mixes, rates, placements = zip(*columns, strict=True)
    done = milp(
        -np.array(rates),
        constraints=LinearConstraint(np.array(mixes).T, ub=list(counts.values())),
        integrality=np.ones(len(rates)),
        bounds=Bounds(0, np.inf),
        options={"mip_rel_gap": 0},
    )
    free = {t: [g for g, gpu in enumerate(problem.cluster.gpus) if gpu.type == t] for t in counts}
    pipelines = []
    for c in np.repeat(np.arange(len(rates)), np.rint(done.x).astype(int)).tolist():
        own = [free[t].pop(0) for t, n in zip(counts, mixes[c], strict=True) for _ in range(n)]
        stages = [(len(s.layers), [own[g] for g in s.gpus]) for s in placements[c].stages]
        pipelines.append(Placement.of(stages))
    return pipelines


def _gpus_by_type(problem: Problem) -> dict[str, int]:
    instance("solve_by_every_division", "problem", problem, Problem, "a Problem")
    cluster, what = problem.cluster, "solve_by_every_division"
    groups = {
        (gpu.type, int(group)) for gpu, group in zip(cluster.gpus, cluster.group, strict=True)
    }
    types = Counter(gpu.type for gpu in cluster.gpus)
    if not len(cluster.kinds) == len(groups) == len(types):
        expected = "expected identical GPUs of each type, links included; pl.deploy takes others"
        raise NotApplicable(what, [("problem.cluster", problem.name, expected)])
    number = math.prod(n + 1 for n in types.values()) - 1
    if number > MOST_MIXES:
        text = f"{problem.name} has {number:,} mixes, more than {MOST_MIXES:,}"
        raise TooLarge(f"{text}; pl.deploy takes more", {"mixes": number})
    return dict(types)
