"""vLLM over Ray: the GPUs of a host in ascending order, and plans that this changes."""

from dataclasses import replace

import numpy as np

from pipelab.cluster import Cluster
from pipelab.io.serving.engine_plan import EnginePlan


def in_rays_order(plan: EnginePlan) -> EnginePlan:
    """Sort the GPUs of each host, as vLLM takes them from Ray.

    Raises
    ------
    NotApplicable
        That changes the plan.
    """
    ids = np.array([g for report in plan.evaluation.stages for g in report.stage.gpus])
    hosts = []
    for number, host in enumerate(plan.hosts):
        here = np.array([where == number for where, _ in plan.places])
        swapped = ids.copy()
        swapped[here] = np.sort(ids[here])
        if not _equal(plan.problem.cluster, ids, swapped):
            expected = (
                f"expected the stages of host {host.name!r} in the order of its GPUs, which differ: over Ray, "
                "vLLM takes them in ascending order. Number the GPUs of that host in the order of the stages"
            )
            raise plan.refuse("placement", host.gpus, expected)
        hosts.append(replace(host, gpus=tuple(sorted(host.gpus))))
    left = [iter(host.gpus) for host in hosts]
    places = tuple((host, next(left[host])) for host, _ in plan.places)
    return replace(plan, hosts=tuple(hosts), places=places)


def _equal(cluster: Cluster, one: np.ndarray, other: np.ndarray) -> bool:
    """Whether a plan on GPUs `one` is the same on GPUs `other`: in types, memory, and all links among them."""
    if any(cluster.gpus[i] != cluster.gpus[j] for i, j in zip(one, other, strict=True)):
        return False
    off_diagonal = ~np.eye(len(one), dtype=bool)
    return all(
        np.array_equal(m[np.ix_(one, one)][off_diagonal], m[np.ix_(other, other)][off_diagonal])
        for m in (cluster.bandwidth_matrix(), cluster.latency_matrix())
    )
