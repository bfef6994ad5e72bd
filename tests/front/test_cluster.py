"""Clusters: a machine is apart from an island of fast links, and knows what its driver calls each GPU."""

import dataclasses

import node_oracle
import numpy as np
import pytest

import pipelab as pl

PAIR = np.ones((2, 2))


def random_machines(cluster, rng):
    """The same cluster, whose nodes and single GPUs are spread over machines, with numbers of their own."""
    number = {}
    gpus = [
        dataclasses.replace(gpu, machine=f"m{number.setdefault(gpu.node or i, rng.integers(3))}")
        for i, gpu in enumerate(cluster.gpus)
    ]
    index = tuple(rng.permutation(20)[: len(gpus)].tolist())
    return dataclasses.replace(cluster, gpus=tuple(gpus), index=index)


@pytest.mark.parametrize("seed", range(60))
def test_machines_change_no_answer_without_an_engine(seed):
    problem = node_oracle.random_problem(seed, gpus=5, layers=4)
    rng = np.random.default_rng(seed)
    placed = dataclasses.replace(problem, cluster=random_machines(problem.cluster, rng))
    for objective in ("throughput", "rate"):
        plain, other = (pl.solve(p, objective=objective) for p in (problem, placed))
        assert (other.status, other.throughput) == (plain.status, pytest.approx(plain.throughput))


@pytest.mark.parametrize("seed", range(20))
def test_a_case_that_is_saved_keeps_nodes_machines_and_numbers(seed, tmp_path):
    rng = np.random.default_rng(seed)
    case = pl.load_case("small")
    node = [str(name) for name in rng.choice(["", "a", "b"], len(case.cluster))]
    gpus = [
        dataclasses.replace(gpu, node=name, node_gb_per_s=100.0 if name else None)
        for gpu, name in zip(case.cluster.gpus, node, strict=True)
    ]
    cluster = random_machines(dataclasses.replace(case.cluster, gpus=tuple(gpus)), rng)
    folder = pl.writeup.save_case(dataclasses.replace(case, cluster=cluster), tmp_path / "case")
    assert pl.load_case(folder).cluster == cluster
    pool = folder / "gpu_pool.csv"
    pool.write_text(pool.read_text().replace(f"{cluster.index[-1]}\n", "\n"))
    with pytest.raises(pl.errors.InvalidData, match=r"column 'index'.*no index in any row"):
        pl.load_case(folder)


@pytest.mark.parametrize(
    ("node", "machine"), [(2, 8), (1, 4), (4, 4), (4, None), (2, 6), (1, None)]
)
def test_counts_fill_nodes_and_machines(node, machine):
    counts = {"L4": 11, "A100-SXM-80": 9}
    known = pl.hardware.cluster_of_counts(counts, node, 10, gpus_per_machine=machine)
    plain = pl.Cluster.from_counts(
        counts, 80, 2, per_node=node, node_gb_per_s=9, per_machine=machine
    )
    slot = {
        kind: facts.pcie_gb_per_s or facts.link_gb_per_s
        for kind, facts in pl.hardware.load_gpus().items()
    }
    place = [
        (kind, k // (machine or node), k // node) for kind, n in counts.items() for k in range(n)
    ]
    for i, (kind, host, island) in enumerate(place):
        for j, other in enumerate(place):
            same = (kind, host) == other[:2]
            for cluster in (known, plain):
                assert (cluster.machine_of[i] == cluster.machine_of[j]) == same
                islands = [cluster.gpus[k].node or k for k in (i, j)]
                assert (islands[0] == islands[1]) == (same and island == other[2])
            if same and island != other[2]:
                assert known.bandwidth_between(i, j) == slot[kind]
            elif not same:
                assert known.bandwidth_between(i, j) == pytest.approx(10 / 8)


@pytest.mark.parametrize("seed", range(20))
def test_a_part_of_a_cluster_keeps_links_and_numbers(seed):
    rng = np.random.default_rng(seed)
    cluster = random_machines(node_oracle.random_problem(seed, gpus=5).cluster, rng)
    ids = rng.permutation(len(cluster))[: rng.integers(1, 6)].tolist()
    part = cluster.only(ids)
    assert part.gpus == tuple(cluster.gpus[i] for i in ids)
    assert part.index == tuple(cluster.index[i] for i in ids)
    for a, i in enumerate(ids):
        for b, j in enumerate(ids):
            if a != b:
                assert part.bandwidth_between(a, b) == cluster.bandwidth_between(i, j)
                assert part.latency_between(a, b) == cluster.latency_between(i, j)
    assert cluster.only([0, 0]).index == ()


GPU = pl.GPU("A", 1, machine="h")


@pytest.mark.parametrize(
    ("gpus", "index", "message"),
    [
        ((GPU, GPU), (2, 2), r"index\[1\] = 2: expected another: GPU 0 of this machine has it"),
        ((GPU, GPU), (2,), "'1 values': expected 2, one per GPU"),
        (
            (GPU, GPU),
            (0, "MIG-5f2c"),
            "'MIG-5f2c': expected a whole number of at least 0, or a UUID",
        ),
        ((GPU, GPU), (0, -1), "expected a whole number of at least 0, or a UUID"),
        ((GPU, GPU), (0, True), "expected a whole number of at least 0, or a UUID"),
        (
            [pl.GPU("A", 1, None, "n", 9, machine) for machine in "gh"],
            (),
            r"gpus\[1\].node = 'n': expected a name of its own: machines 'g' and 'h' have",
        ),
    ],
)
def test_machines_that_cannot_be_are_refused(gpus, index, message):
    with pytest.raises(pl.errors.InvalidValue, match=message):
        pl.Cluster(tuple(gpus), PAIR, index=index)
