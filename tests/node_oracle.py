"""Small clusters of nodes, and the best placement on each by brute force.

Nothing here calls pipelab's cost models, tables or programs: rates of stages and links come from
`oracle`, and every placement counts. The table over sets of used GPUs only avoids looking at one
set of used GPUs twice.
"""

import dataclasses

import numpy as np

import oracle
import pipelab as pl
import roofline_oracle

NETWORKS = (
    "uniform",
    "by sort",
    "racks",
    "one link differs",
    "one way slower",
    "star",
    "lopsided",
    "random",
)


def best(problem):
    """Throughput of the best placement; None if there is none."""
    total, slowest = problem.model.layers, {}
    sets = [(sum(1 << g for g in s), s) for s in oracle.gpu_sets(problem)]
    rate = {}
    for mask, s in sets:
        for a in range(total):
            for b in range(a + 1, total + 1):
                own = oracle.stage(problem, s, range(a, b))
                if own is not None:
                    rate[mask, a, b] = own
    hop = {(m, n): oracle.link(problem, s, r) for m, s in sets for n, r in sets if not m & n}
    for mask, _ in sets:
        for b in range(1, total + 1):
            if (mask, 0, b) in rate:
                slowest[b, mask, mask] = rate[mask, 0, b]
    for done in range(1, total):
        for (at, used, last), so_far in list(slowest.items()):
            if at != done:
                continue
            for mask, _ in sets:
                if mask & used:
                    continue
                through = min(so_far, hop[last, mask])
                for b in range(done + 1, total + 1):
                    own = rate.get((mask, done, b))
                    if own is not None:
                        key = b, used | mask, mask
                        slowest[key] = max(slowest.get(key, 0.0), min(through, own))
    return max((r for (at, _, _), r in slowest.items() if at == total), default=None)


def random_problem(seed, gpus=6, layers=5, costs=None, network=None, **fixed):
    """Two to four nodes of up to four GPUs, most of them identical; links inside and between them may bind."""
    rng = np.random.default_rng([21, seed])
    costs = costs or str(rng.choice(["roofline", "linear", "table"], p=[0.7, 0.2, 0.1]))
    if costs == "roofline":
        base = roofline_oracle.random_problem(seed, layers=layers, gpus=2, **fixed)
        base = dataclasses.replace(
            base, costs=dataclasses.replace(base.costs, prefer=rng.choice(["rate"] * 9 + ["time"]))
        )
    else:
        base = oracle.random_problem(
            seed, layers=layers, gpus=2, **{"link_units": "tokens"} | fixed
        )
    if costs == "table":
        base = dataclasses.replace(
            base,
            batch_split="even",
            costs=oracle.TableCosts(
                seed, bool(rng.random() < 0.5), link_units=base.costs.link_units
            ),
        )
    pool, node, sort = _nodes(rng, base, gpus, named=bool(rng.random() < 0.8))
    between = _links(rng, node, sort, network or str(rng.choice(NETWORKS)))
    cluster = pl.Cluster(tuple(pool), between * _unit(rng, base, pool))
    return dataclasses.replace(base, cluster=cluster, name=f"nodes {seed}")


def _nodes(rng, base, gpus, named):
    """GPUs, the node of each, and the sort of each node."""
    kinds = [str(rng.choice(["A", "B", "C"])) for _ in range(2)]
    room = max(g.memory_gb for g in base.cluster.gpus)
    memory = room * rng.choice([0.3, 0.6, 1.0, 3.0], 2)
    sorts = []
    for _ in range(int(rng.integers(1, 3))):
        size, inside = int(rng.integers(2, 5)), float(rng.choice([30.0, 300.0]))
        which = (
            np.sort(rng.integers(0, 2, size)) if rng.random() < 0.3 else [rng.integers(0, 2)] * size
        )
        sorts.append([(kinds[w], float(memory[w]), inside) for w in which])
    pool, node, sort = [], [], []
    for i in range(int(rng.integers(2, 5))):
        k = int(rng.integers(0, len(sorts))) if rng.random() < 0.5 else 0
        if len(pool) + len(sorts[k]) > gpus:
            k = int(np.argmin([len(s) for s in sorts]))
            if len(pool) + len(sorts[k]) > gpus:
                break
        name = f"node {i}" if named else ""
        pool += [pl.GPU(t, m, None, name, w if named else None) for t, m, w in sorts[k]]
        node += [i] * len(sorts[k])
        sort.append(k)
    order = rng.permutation(len(pool)) if rng.random() < 0.3 else np.arange(len(pool))
    return [pool[i] for i in order], [node[i] for i in order], sort


def _links(rng, node, sort, network):
    """Speeds of all links as multiples of one; inside a node mostly the fastest."""
    number, node = len(sort), np.array(node)
    levels = np.sort(10.0 ** rng.uniform(-0.6, 0.9, 4))
    slow, middle, fast = levels[0], levels[1], levels[2]
    between = np.full((number, number), slow)
    if network == "by sort":
        outside = rng.choice(levels[:3], 2)[np.array(sort)]
        between = np.minimum(outside[:, None], outside)
    elif network == "racks":
        rack = np.arange(number) // 2
        between = np.where(rack[:, None] == rack, middle, slow)
    elif network == "star":  # everything goes through the first node
        between[0, :] = between[:, 0] = fast
    elif network == "one way slower":
        between = np.where(np.arange(number)[:, None] < np.arange(number), slow, middle)
    elif network == "random":
        between = rng.choice(levels, (number, number))
    elif network == "one link differs":
        i, j = rng.choice(number, 2, replace=False) if number > 1 else (0, 0)
        between[i, j] = fast
    speed = between[np.ix_(node, node)]
    inside = [slow if rng.random() < 0.2 else levels[3] for _ in range(2)]
    for i in range(number):
        own = np.flatnonzero(node == i)
        speed[np.ix_(own, own)] = inside[sort[i]]
        if len(own) == 4 and rng.random() < 0.25:  # two pairs
            speed[np.ix_(own[:2], own[2:])] = speed[np.ix_(own[2:], own[:2])] = middle
        if network == "lopsided" and i:  # half of each node is far from the first node
            far = np.ix_(own[len(own) // 2 :], np.flatnonzero(node == 0))
            speed[far], speed.T[far] = slow / 2, slow / 2
    np.fill_diagonal(speed, 1.0)
    return speed


def _unit(rng, base, pool):
    """GB/s of a link about as fast as a stage of half the layers."""
    half = range((base.model.layers + 1) // 2)
    load, model = base.workload, base.model
    if isinstance(base.costs, pl.Roofline):
        seconds = roofline_oracle.seconds(base, pool[0], half, load.batch_size, 1)
        sent = load.tokens / roofline_oracle.link(base, 1.0) - base.costs.hop_latency_s
        return sent / seconds
    tensor = (
        load.batch_size * load.sequence_length * model.d_model * model.bytes_per_element / 2**30
    )
    tokens = 1 if base.costs.link_units == "transfers" else oracle.tokens_of(load)
    return 120.0 * tensor / tokens
