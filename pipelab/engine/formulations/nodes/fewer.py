"""The same cluster with fewer of its identical nodes: for objectives that tell every GPU apart.

A placement on fewer nodes is one on all. And what holds as if there were GPUs without number holds for
all nodes once there are enough of them for every mixture of a stage.
"""

from dataclasses import replace

import numpy as np

from pipelab.cluster import Cluster
from pipelab.engine.formulations.nodes.kinds import without_node
from pipelab.problem import Problem


def fewer_nodes(problem: Problem, number: int) -> tuple[Problem, np.ndarray] | None:
    """The problem with the first `number` nodes of each content, and the GPUs' ids in the whole cluster.

    More are kept where a stage could otherwise not have as many GPUs of a type. None where that
    leaves out no node.
    """
    cluster, nodes = problem.cluster, _gpus_by_node(problem.cluster)
    largest = min(problem.max_gpus_per_stage, len(cluster))
    seen: dict[tuple, list[int]] = {}  # GPUs kept of each content, node by node
    kept = [g for g, gpu in enumerate(cluster.gpus) if not gpu.node]
    for own in nodes:
        content = tuple(
            sorted(
                (repr(without_node(cluster.gpus[g])), cluster.gpus[g].node_gb_per_s) for g in own
            )
        )
        before = seen.setdefault(content, [])
        least = min(content.count(x) for x in set(content))
        if len(before) < number or len(before) * least < largest:
            before.append(len(own))
            kept += own
    if len(kept) == len(cluster):
        return None
    ids = np.sort(kept)
    rows, group = np.unique(cluster.group[ids], return_inverse=True)
    at = np.ix_(rows, rows)
    smaller = Cluster(
        tuple(cluster.gpus[g] for g in ids),
        cluster.bandwidth_gb_per_s[at],
        group.reshape(-1),
        cluster.latency_ms[at],
    )
    return replace(problem, cluster=smaller), ids


def _gpus_by_node(cluster: Cluster) -> list[list[int]]:
    found: dict[str, list[int]] = {}
    for g, gpu in enumerate(cluster.gpus):
        if gpu.node:
            found.setdefault(gpu.node, []).append(g)
    return list(found.values())
