"""Counting by combinatorics equals listing, and equals the write-up where the write-up is right."""

import dataclasses

import pytest

import oracle
import pipelab as pl
from pipelab.engine.formulations.candidates import enumerate_candidates
from pipelab.engine.formulations.program_size import count_candidates
from pipelab.engine.methods.joint import joint_size

# allocations, connections, variables, rows of tiny by max GPUs per stage
TINY = {
    1: (40, 120, 321, 618),
    2: (100, 420, 1041, 2010),
    3: (140, 500, 1281, 2458),
    4: (150, 500, 1301, 2478),
}

BY_CASE = {
    ("demo", 1): (2_010, 203_190, 410_401),
    ("demo", 2): (34_485, 57_641_560, 115_352_091),
    ("demo", 3): (345_465, 4_943_458_540, 9_887_608_011),
    ("small", 2): (4_290, 592_020, 1_192_621),
    ("small", 3): (13_650, 3_715_140, 7_457_581),
    ("medium", 1): (25_740, 7_979_190, 16_009_861),
}


@pytest.mark.parametrize("k", TINY)
def test_tiny(k):
    size = joint_size(pl.load_case("tiny", max_gpus_per_stage=k))
    assert size["segments"] == 10
    assert (size["allocations"], size["connections"], size["variables"], size["rows"]) == TINY[k]


@pytest.mark.parametrize(("case", "k"), BY_CASE)
def test_sizes_of_the_cases(case, k):
    size = joint_size(pl.load_case(case, max_gpus_per_stage=k))
    assert (size["allocations"], size["connections"], size["variables"]) == BY_CASE[case, k]


def test_stages_of_one_type_are_not_enough_for_the_demo():
    sizes = [
        joint_size(pl.load_case("demo", max_gpus_per_stage=k, same_type_stages=True))
        for k in (2, 3)
    ]
    assert [s["allocations"] for s in sizes] == [13_485, 45_765]
    assert [s["variables"] for s in sizes] == [16_385_491, 166_244_611]


@pytest.mark.slow
def test_numbers_beyond_64_bits_stay_exact():
    size = joint_size(pl.load_case("medium", max_gpus_per_stage=8))
    assert size["connections"] > 2**63
    smaller = pl.load_case("tiny", max_gpus_per_stage=2)
    assert size["variables"] == 2 * (size["allocations"] + size["connections"]) + 1
    assert isinstance(joint_size(smaller)["connections"], int)


def test_every_case_is_counted_without_listing():
    """Nothing is listed: the demo's five thousand million connections take no memory."""
    import tracemalloc

    tracemalloc.start()
    for case in pl.writeup.cases():
        joint_size(pl.load_case(case, max_gpus_per_stage=4))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50e6


@pytest.mark.parametrize("seed", range(150))
def test_counting_equals_listing(seed):
    problem = oracle.random_problem(seed, layers=6, gpus=6, unlike=seed % 2 > 0)
    counts, listed = count_candidates(problem), enumerate_candidates(problem)
    assert counts["allocations"] == len(listed.start)
    assert counts["connections"] == len(listed.tail)
    assert counts["with_successor"] == len(set(listed.tail.tolist()))
    assert counts["with_predecessor"] == len(set(listed.head.tolist()))


def test_types_of_equal_memory_that_need_different_amounts_are_counted_apart():
    # of three types with 40 GB each, the first cannot hold the layer
    problem = oracle.wild_problem(2)
    assert len({gpu.memory_gb for gpu in problem.cluster.gpus}) == 1
    assert joint_size(problem)["allocations"] == len(enumerate_candidates(problem).start) == 2
    for seed in range(40):
        problem = oracle.wild_problem(seed)
        candidates = enumerate_candidates(problem)
        size = joint_size(problem)
        assert (size["allocations"], size["connections"]) == (
            len(candidates.start),
            len(candidates.tail),
        )


def test_what_is_far_too_large_is_counted_at_once():
    """Segments of identical layers are counted by their sizes, not one by one."""
    tiny = pl.load_case("tiny", max_gpus_per_stage=2)
    model = dataclasses.replace(tiny.model, layers=100_000, layer_weight_gb=1e-6)
    problem = dataclasses.replace(tiny, model=model)
    with pytest.raises(pl.errors.TooLarge, match=r"50,000,500,000 allocations"):
        pl.solve(problem, "joint", time_limit=5)
