"""What a GPU is, apart from the node that it is in.

A stage inside one node may cut its layers among the GPUs (tensor parallelism). Every other stage only
shares its batch, and then nodes do not matter. So two sorts of kind are enough, however many nodes there are:
*plain* kinds (type, memory, price), for all stages; and *local* kinds (a plain kind, and how
fast its node is inside), for stages of identical GPUs of one node.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pipelab.cluster import GPU, Cluster
from pipelab.problem import Problem


@dataclass(frozen=True, eq=False)
class NodeKinds:
    """The plain and local kinds of a cluster.

    Attributes
    ----------
    plain : tuple of GPU
        The K different GPUs when nodes are left out, in order of first appearance.
    plain_of : int array, shape (kinds of the cluster,)
        Plain kind of each of `cluster.kinds`.
    local : tuple of GPU
        One example, with its node, of each of the L local kinds.
    local_of : int array, shape (kinds of the cluster,)
        Local kind of each of `cluster.kinds`; -1 for GPUs without a node.
    """

    plain: tuple[GPU, ...]
    plain_of: np.ndarray
    local: tuple[GPU, ...]
    local_of: np.ndarray

    @cached_property
    def repeated(self) -> bool:
        """Whether some local kind is in several nodes."""
        return len(self.local) < int((self.local_of >= 0).sum())

    @cached_property
    def plain_of_local(self) -> np.ndarray:
        """Plain kind of each local kind; shape (L,)."""
        return np.array([self.plain.index(without_node(gpu)) for gpu in self.local], dtype=int)


def without_node(gpu: GPU) -> GPU:
    """The same GPU in no node."""
    return replace(gpu, node="", node_gb_per_s=None)


def node_kinds(cluster: Cluster) -> NodeKinds:
    """Separate the kinds of a cluster from their nodes.

    Examples
    --------
    >>> import pipelab as pl
    >>> found = node_kinds(pl.load_cluster("helix-single24"))
    >>> [gpu.type for gpu in found.plain]
    ['A100-SXM-40', 'L4', 'T4']
    """
    bare = [without_node(kind) for kind in cluster.kinds]
    plain = tuple(dict.fromkeys(bare))
    number = {gpu: k for k, gpu in enumerate(plain)}
    keys = [
        (gpu, kind.node_gb_per_s) if kind.node else None
        for gpu, kind in zip(bare, cluster.kinds, strict=True)
    ]
    examples = {key: kind for key, kind in zip(keys[::-1], cluster.kinds[::-1], strict=True) if key}
    distinct = [key for key in dict.fromkeys(keys) if key is not None]
    return NodeKinds(
        plain,
        np.array([number[gpu] for gpu in bare], dtype=int),
        tuple(examples[key] for key in distinct),
        np.array([-1 if key is None else distinct.index(key) for key in keys], dtype=int),
    )


def without_nodes(problem: Problem) -> Problem:
    """The same problem with GPUs that are in no node; links stay."""
    gpus = tuple(without_node(gpu) for gpu in problem.cluster.gpus)
    return replace(problem, cluster=replace(problem.cluster, gpus=gpus))
