"""Counting by combinatorics equals listing, and equals the write-up where the write-up is right."""

import dataclasses

import pytest

import pipelab as pl
from pipelab.engine.methods.joint import joint_size

# allocations, connections, variables by case and max GPUs per stage
BY_CASE = {
    ("tiny", 1): (40, 120, 321),
    ("tiny", 2): (100, 420, 1041),
    ("tiny", 3): (140, 500, 1281),
    ("tiny", 4): (150, 500, 1301),
    ("demo", 1): (2_010, 203_190, 410_401),
    ("demo", 2): (34_485, 57_641_560, 115_352_091),
    ("demo", 3): (345_465, 4_943_458_540, 9_887_608_011),
    ("small", 2): (4_290, 592_020, 1_192_621),
    ("small", 3): (13_650, 3_715_140, 7_457_581),
    ("medium", 1): (25_740, 7_979_190, 16_009_861),
}


@pytest.mark.parametrize(("case", "k"), BY_CASE)
def test_sizes_of_the_cases(case, k):
    size = joint_size(pl.load_case(case, max_gpus_per_stage=k))
    assert (size["allocations"], size["connections"], size["variables"]) == BY_CASE[case, k]


def test_numbers_beyond_64_bits_stay_exact_and_nothing_is_listed():
    size = joint_size(pl.load_case("medium", max_gpus_per_stage=8))
    assert size["connections"] > 2**63
    assert size["variables"] == 2 * (size["allocations"] + size["connections"]) + 1
    # stages of one type are not enough for the demo
    demo = pl.load_case("demo", max_gpus_per_stage=3, same_type_stages=True)
    assert joint_size(demo)["variables"] == 166_244_611
    # segments of identical layers are counted by their sizes, not one by one
    tiny = pl.load_case("tiny", max_gpus_per_stage=2)
    model = dataclasses.replace(tiny.model, layers=100_000, layer_weight_gb=1e-6)
    with pytest.raises(pl.errors.TooLarge, match=r"50,000,500,000 allocations"):
        pl.solve(dataclasses.replace(tiny, model=model), "joint", time_limit=5)
