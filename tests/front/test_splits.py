"""Splits: the seeds' own tests restated, each seed defect on record, and minmax against trying everything."""

from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipelab as pl
from pipelab.course.published_programs import (
    Panic,
    seed_by_flops,
    seed_even,
    smallest_failure,
)
from pipelab.course.published_programs import (
    assign_layers_bandwidth_aware as seed_bandwidth_aware,
)
from pipelab.course.published_programs import (
    assign_layers_proportional as seed_proportional,
)
from pipelab.splits import (
    bottleneck,
    count_splits,
    split_bandwidth_aware,
    split_by_flops,
    split_even,
    split_exhaustive,
    split_minmax,
    split_proportional,
)


def sizes(split):
    return [len(part) for part in split]


# The seeds' own tests, for the seed's function and ours alike.


@pytest.mark.parametrize("proportional", [seed_proportional, split_proportional])
class TestSeed000Proportional:
    def test_proportional_equal(self, proportional):
        assert proportional(32, [16_000, 16_000]) == (range(16), range(16, 32))

    def test_proportional_3x1(self, proportional):
        assert proportional(32, [48_000, 16_000]) == (range(24), range(24, 32))

    def test_proportional_three_equal(self, proportional):
        assert proportional(30, [10_000] * 3) == (range(10), range(10, 20), range(20, 30))

    def test_minimum_one_layer_per_node(self, proportional):
        assert sizes(proportional(4, [100] * 4)) == [1, 1, 1, 1]


@pytest.mark.parametrize("aware", [seed_bandwidth_aware, split_bandwidth_aware])
class TestSeed000BandwidthAware:
    def test_bandwidth_two_nodes(self, aware):
        first, second = aware(30, [16_000, 16_000], [200_000, 100_000])
        assert len(first) > len(second)

    def test_bandwidth_three_nodes(self, aware):
        a, b, c = aware(30, [16_000] * 3, [100_000] * 3)
        assert (a.start, a.stop, b.stop, c.stop) == (0, b.start, c.start, 30)


@pytest.mark.parametrize("even", [seed_even, split_even])
class TestSeed001Evenly:
    def test_partition_layers_evenly_exact(self, even):
        assert sizes(even(12, 4)) == [3] * 4

    def test_partition_layers_evenly_remainder(self, even):
        assert sizes(even(10, 3)) == [4, 3, 3]

    def test_this_stage_metadata(self, even):
        assert even(8, 4)[2] == range(4, 6)


@pytest.mark.parametrize("by_flops", [seed_by_flops, split_by_flops])
class TestSeed001ByFlops:
    def test_partition_by_flops_balanced(self, by_flops):
        assert sizes(by_flops([100] * 8, 4)) == [2] * 4

    def test_partition_by_flops_uneven(self, by_flops):
        assert sizes(by_flops([100, 100, 100, 100, 400], 2)) == [4, 1]

    def test_flops_partition_single_stage(self, by_flops):
        assert by_flops([100, 200, 300, 400], 1) == (range(4),)


# The seeds' defects, each with the seed's wrong value and ours.


@pytest.mark.parametrize(
    ("flops", "stages", "ours"), [([1, 2], 2, [1, 1]), ([1] * 4, 3, [2, 1, 1])]
)
def test_by_flops_seed_panics_out_of_bounds(flops, stages, ours):
    with pytest.raises(Panic, match="index out of bounds"):
        seed_by_flops(flops, stages)
    assert sizes(split_by_flops(flops, stages)) == ours


def test_by_flops_seed_panics_on_one_layer_in_two_stages():
    with pytest.raises(Panic, match="index out of bounds"):
        seed_by_flops([1], 2)
    with pytest.raises(pl.errors.InvalidValue, match="stages = 2: expected at most 1"):
        split_by_flops([1], 2)


def test_by_flops_seed_panics_in_348_of_840_equal_layer_cases():
    cases = [(layers, stages) for stages in range(2, 17) for layers in range(stages, 65)]
    failed = sum(smallest_failure(seed_by_flops, [([1] * m, s)]) is not None for m, s in cases)
    assert (failed, len(cases)) == (348, 840)
    for layers, stages in cases:
        assert sum(sizes(split_by_flops([1] * layers, stages))) == layers


def test_by_flops_seed_gives_8_where_5_is_possible():
    assert bottleneck(seed_by_flops([4, 4, 1], 2), [4, 4, 1]) == 8
    assert bottleneck(split_minmax([4, 4, 1], 2), [4, 4, 1]) == 5


def test_by_flops_seed_overflows():
    with pytest.raises(Panic, match="overflow"):
        seed_by_flops([2**63, 2**63], 2)
    assert sizes(split_by_flops([2**63, 2**63], 2)) == [1, 1]


def test_even_seed_gives_2_empty_stages_of_4():
    assert sizes(seed_even(2, 4)) == [1, 1, 0, 0]
    with pytest.raises(
        pl.errors.InvalidValue,
        match="stages = 4: expected at most 2, so that every stage has a layer",
    ):
        split_even(2, 4)


def test_even_seed_answers_0_stages_with_an_empty_list():
    assert seed_even(5, 0) == ()
    with pytest.raises(pl.errors.InvalidValue, match="stages = 0: expected at least 1"):
        split_even(5, 0)


def test_bandwidth_aware_seed_leaves_a_node_empty():
    assert sizes(seed_bandwidth_aware(1, [1, 1], [1, 1])) == [1, 0]
    assert sizes(seed_bandwidth_aware(2, [1] * 3, [1] * 3)) == [1, 1, 0]
    with pytest.raises(pl.errors.InvalidValue, match="stages = 2: expected at most 1"):
        split_bandwidth_aware(1, [1, 1], [1, 1])


def test_bandwidth_aware_seed_panics_on_zero_layers():
    with pytest.raises(Panic, match="subtract with overflow"):
        seed_bandwidth_aware(0, [1] * 3, [1] * 3)
    with pytest.raises(pl.errors.InvalidValue, match="layers = 0: expected at least 1"):
        split_bandwidth_aware(0, [1] * 3, [1] * 3)


def test_bandwidth_aware_seed_overflows_on_four_large_nodes():
    with pytest.raises(Panic, match="multiply with overflow"):
        seed_bandwidth_aware(8, [2**60] * 4, [2**60] * 4)
    assert sizes(split_bandwidth_aware(8, [2**60] * 4, [2**60] * 4)) == [2] * 4


def test_bandwidth_aware_seed_cannot_tell_links_below_a_megabyte_apart():
    """Its own tests use 100 and 200 kB/s; from four nodes on both become 1."""
    memory, bandwidth = [16_000] * 4, [800_000, 100_000, 100_000, 100_000]
    assert sizes(seed_bandwidth_aware(22, memory, bandwidth)) == [6, 6, 6, 4]
    # twice its share by memory is 11
    assert sizes(split_bandwidth_aware(22, memory, bandwidth)) == [11, 4, 4, 3]
    assert sizes(split_bandwidth_aware(22, memory, bandwidth, layer_memory=1000)) == [16, 2, 2, 2]


@pytest.mark.parametrize("nodes", [2, 3, 4])
@pytest.mark.parametrize("unit", [1e-6, 1e-3, 1, 1e3, 1e6, 1e9, 1e12, 1e15])
def test_bandwidth_aware_gives_a_small_node_little_in_every_unit_however_fast_its_link(nodes, unit):
    """A thousandth of the memory holds no second layer; a half holds no more than its double share."""
    for small, most in ((1, 1), (500, 30 * 2 * 500 // (500 + 1000 * (nodes - 1)))):
        memory = [small * unit, *[1000 * unit] * (nodes - 1)]
        for fast in (200, 10**6):
            bandwidth = [fast, *[100] * (nodes - 1)]
            found = sizes(split_bandwidth_aware(30, memory, bandwidth))
            assert found[0] <= most
            assert found == sizes(split_bandwidth_aware(30, memory, [b * 1e12 for b in bandwidth]))
    assert sizes(seed_bandwidth_aware(30, [1, 1000], [200, 100])) == [20, 10]


def _every_split(layers, nodes):
    return [
        [b - a for a, b in pairwise([0, *cuts, layers])]
        for cuts in combinations(range(1, layers), nodes - 1)
    ]


def test_bandwidth_aware_is_the_best_within_its_limits_by_trying_every_split():
    """With the memory of a layer, and without: then twice a node's share is its limit, and one layer always fits."""
    rng = np.random.default_rng(5)
    refused = 0
    for _ in range(600):
        nodes = int(rng.integers(1, 5))
        layers = int(rng.integers(nodes, 11))
        memory, bandwidth = rng.integers(1, 9, nodes).tolist(), rng.integers(1, 9, nodes).tolist()
        need = None if rng.random() < 0.5 else int(rng.integers(1, 4))
        most = [
            max(1, 2 * layers * m // sum(memory)) if need is None else m // need for m in memory
        ]
        kept = [
            s
            for s in _every_split(layers, nodes)
            if all(n <= top for n, top in zip(s, most, strict=True))
        ]
        if not kept:
            refused += 1
            with pytest.raises(pl.errors.InvalidValue, match="layer_memory = "):
                split_bandwidth_aware(layers, memory, bandwidth, layer_memory=need)
            continue
        found = sizes(split_bandwidth_aware(layers, memory, bandwidth, layer_memory=need))
        assert found in kept
        cost = [max(n / b for n, b in zip(s, bandwidth, strict=True)) for s in (found, *kept)]
        assert cost[0] == pytest.approx(min(cost[1:]))
    assert refused > 50


def test_bandwidth_aware_keeps_to_memory_where_quotients_leave_the_floats():
    assert sizes(split_bandwidth_aware(4, [1, 10], [1e300, 1e-30], layer_memory=1)) == [1, 3]
    assert sizes(split_bandwidth_aware(9, [1, 10, 10], [1e300, 1e-30, 3e-30], layer_memory=1)) == [
        1,
        2,
        6,
    ]
    assert sizes(split_bandwidth_aware(4, [1e308, 1e308], [1, 1], layer_memory=1e-10)) == [2, 2]


def test_bandwidth_aware_can_lose_where_layers_need_less_than_is_assumed():
    """As its docstring says; searched for, smallest first."""
    pairs = list(product((1, 2, 3), repeat=2))
    inputs = product(range(3, 9), pairs, pairs)
    for layers, memory, bandwidth in sorted(
        inputs, key=lambda each: each[0] + sum(each[1]) + sum(each[2])
    ):
        ones = [1] * layers
        found, best = (
            bottleneck(split, ones, bandwidth)
            for split in (
                split_bandwidth_aware(layers, memory, bandwidth),
                split_minmax(ones, 2, speeds=bandwidth),
            )
        )
        if found > best:
            roomy = split_bandwidth_aware(
                layers, memory, bandwidth, layer_memory=min(memory) / layers
            )
            assert bottleneck(roomy, ones, bandwidth) == best
            return
    pytest.fail("nothing found")


def test_proportional_seed_rounds_10_layers_over_4_twins_to_3_3_3_1():
    assert sizes(seed_proportional(10, [1] * 4)) == [3, 3, 3, 1]
    assert sizes(split_proportional(10, [1] * 4)) == sizes(split_even(10, 4)) == [3, 3, 2, 2]
    assert sizes(split_proportional(14, [1] * 10)) == [2, 2, 2, 2, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("cost", [0.1, 0.3, 0.7, 1 / 3])
def test_equal_layers_are_split_equally_whatever_they_cost(cost):
    for layers, stages in ((6, 2), (8, 2), (9, 3), (60, 12)):
        assert sizes(split_by_flops([cost] * layers, stages)) == [layers // stages] * stages


@given(weights=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=12), more=st.integers(0, 40))
def test_proportional_shares_are_within_one_layer_or_the_minimum(weights, more):
    layers = len(weights) + more
    split = split_proportional(layers, weights)
    assert sum(sizes(split)) == layers
    assert min(sizes(split)) >= 1
    for size, weight in zip(sizes(split), weights, strict=True):
        assert size < weight / sum(weights) * layers + 1 + 1e-6 or size == 1


def test_proportional_seed_ignores_that_memory_is_all_zero():
    assert sizes(seed_proportional(4, [0, 0])) == [1, 3]
    with pytest.raises(pl.errors.InvalidValue, match=r"weights\[0\] = 0: expected more than 0"):
        split_proportional(4, [0, 0])


BAD = {
    "more stages than layers": (lambda: split_minmax([1, 1], 3), "stages = 3: expected at most 2"),
    "no stage": (lambda: split_minmax([1], 0), "stages = 0: expected at least 1"),
    "no layer": (lambda: split_minmax([], 1), "layers = 0: expected at least 1"),
    "negative cost": (
        lambda: split_minmax([1, -1], 1),
        r"costs\[1\] = -1: expected at least 0",
    ),
    "NaN cost": (lambda: split_minmax([float("nan")], 1), r"costs\[0\] = nan"),
    "infinite FLOPs": (lambda: split_by_flops([float("inf")], 1), r"flops\[0\] = inf"),
    "speed 0": (
        lambda: split_minmax([1, 1], 2, speeds=[1, 0]),
        r"speeds\[1\] = 0: expected more than 0",
    ),
    "too few speeds": (
        lambda: split_minmax([1, 1], 2, speeds=[1]),
        "speeds = '1 values': expected 2",
    ),
    "bandwidth 0": (
        lambda: split_bandwidth_aware(2, [1, 1], [0, 1]),
        r"bandwidth\[0\] = 0: expected more than 0",
    ),
    "one bandwidth short": (
        lambda: split_bandwidth_aware(3, [1, 1], [1]),
        "bandwidth = '1 values': expected 2",
    ),
    "layer without memory": (
        lambda: split_bandwidth_aware(2, [1, 1], [1, 1], layer_memory=0),
        "expected more than 0",
    ),
    "layers too large": (
        lambda: split_bandwidth_aware(30, [10, 24], [1, 1], layer_memory=1.5),
        "layer_memory = 1.5: expected less: the nodes can hold 6, 16 of 30 layers",
    ),
    "a node without room": (
        lambda: split_bandwidth_aware(3, [1, 99], [1, 1], layer_memory=2),
        "the nodes can hold 0, 3 of 3 layers; every node needs at least one",
    ),
    "limits alone": (
        lambda: split_minmax([1, 1], 2, limits=[1, 1]),
        "memory and limits go together",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_error(name):
    make, message = BAD[name]
    with pytest.raises(pl.errors.InvalidValue, match=message):
        make()


def test_a_node_too_small_for_one_layer_leaves_no_split():
    assert split_minmax([1, 1], 2, memory=[5, 5], limits=[10, 4]) is None


def test_too_many_splits_are_refused_with_their_number():
    assert count_splits(80, 8) == 2_898_753_715
    with pytest.raises(pl.errors.TooLarge, match="2,898,753,715 splits of 80 layers over 8 stages"):
        split_exhaustive([1] * 80, 8)


def as_good_as_any(cost, stages, speeds):
    """Whether minmax's bottleneck is the least of all splits."""
    exact = bottleneck(split_minmax(cost, stages, speeds=speeds), cost, speeds)
    tried = bottleneck(split_exhaustive(cost, stages, speeds=speeds), cost, speeds)
    return exact == pytest.approx(tried, rel=1e-9, abs=1e-300)


@pytest.mark.slow
def test_minmax_equals_trying_everything():
    """Costs are fractions or, so that there are ties and zeros, whole; speeds differ or are not given."""
    rng = np.random.default_rng(0)
    for _ in range(3000):
        layers = int(rng.integers(1, 10))
        stages = int(rng.integers(1, layers + 1))
        cost = (
            rng.integers(0, 6, layers).astype(float)
            if rng.random() < 0.5
            else rng.uniform(0, 10, layers)
        )
        speeds = None if rng.random() < 0.5 else rng.uniform(0.1, 8, stages)
        assert as_good_as_any(cost, stages, speeds), (cost, stages, speeds)


@pytest.mark.slow
@given(data=st.data())
def test_minmax_equals_trying_everything_at_the_edges_of_numbers(data):
    layers = data.draw(st.integers(1, 9))
    stages = data.draw(st.integers(1, layers))
    whole = st.integers(0, 5).map(float)
    cost = data.draw(st.lists(st.one_of(whole, st.floats(0, 10)), min_size=layers, max_size=layers))
    speeds = data.draw(
        st.one_of(st.none(), st.lists(st.floats(0.1, 8), min_size=stages, max_size=stages))
    )
    assert as_good_as_any(cost, stages, speeds)


@pytest.mark.quick(1)
@pytest.mark.parametrize("first", range(0, 1500, 500))
def test_minmax_under_memory_limits_equals_trying_everything(first):
    for seed in range(first, first + 500):
        check_under_limits(np.random.default_rng(seed))


def check_under_limits(rng):
    layers = int(rng.integers(1, 9))
    stages = int(rng.integers(1, layers + 1))
    cost, speeds = rng.uniform(0, 5, layers), rng.uniform(0.2, 3, stages)
    memory, limits = rng.integers(0, 4, layers), rng.integers(0, 10, stages)
    values = []
    for cuts in combinations(range(1, layers), stages - 1):
        parts = list(pairwise([0, *cuts, layers]))
        if all(memory[a:b].sum() <= top for (a, b), top in zip(parts, limits, strict=True)):
            values.append(max(cost[a:b].sum() / s for (a, b), s in zip(parts, speeds, strict=True)))
    split = split_minmax(cost, stages, speeds=speeds, memory=memory, limits=limits)
    if not values:
        assert split is None
        return
    assert bottleneck(split, cost, speeds) == pytest.approx(min(values), rel=1e-9)
    for part, top in zip(split, limits, strict=True):
        assert memory[part.start : part.stop].sum() <= top


@pytest.mark.slow
def test_a_thousand_layers_over_64_different_stages_keep_to_the_lower_bound():
    rng = np.random.default_rng(1)
    cost, speeds = rng.uniform(0.5, 2, 1000), rng.uniform(0.3, 3, 64)
    best = bottleneck(split_minmax(cost, 64, speeds=speeds), cost, speeds)
    assert cost.sum() / speeds.sum() <= best < 1.15 * cost.sum() / speeds.sum()
    assert best <= bottleneck(split_proportional(1000, speeds), cost, speeds)


@pytest.mark.parametrize("odd", [None, 3, "12"])
@pytest.mark.parametrize("split", [split_minmax, split_exhaustive])
def test_costs_that_are_no_list_are_refused(split, odd):
    with pytest.raises(pl.errors.InvalidValue, match="expected a list of numbers"):
        split(odd, 2)
