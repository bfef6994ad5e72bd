"""Splits: what the published programs' own tests ask, where those go wrong, and minmax at the edges of numbers.

Against trying everything all rules stand in tests/equal; the published programs in the ledger.
"""

from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipelab as pl
from pipelab.course.published_programs import (
    assign_layers_bandwidth_aware as seed_bandwidth_aware,
)
from pipelab.course.published_programs import (
    seed_by_flops,
    smallest_failure,
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


def split_with_memory(layers, memory, bandwidth, layer_memory):
    return split_bandwidth_aware(layers, memory, bandwidth, layer_memory=layer_memory)


@pytest.mark.parametrize(
    ("split", "arguments", "held"),
    [
        # the tests of the published programs
        (split_proportional, (32, [16_000, 16_000]), [16, 16]),
        (split_proportional, (32, [48_000, 16_000]), [24, 8]),
        (split_proportional, (30, [10_000] * 3), [10, 10, 10]),
        (split_proportional, (4, [100] * 4), [1, 1, 1, 1]),
        (split_bandwidth_aware, (30, [16_000, 16_000], [200_000, 100_000]), [20, 10]),
        (split_bandwidth_aware, (30, [16_000] * 3, [100_000] * 3), [10, 10, 10]),
        (split_even, (12, 4), [3, 3, 3, 3]),
        (split_even, (10, 3), [4, 3, 3]),
        (split_by_flops, ([100] * 8, 4), [2, 2, 2, 2]),
        (split_by_flops, ([100, 100, 100, 100, 400], 2), [4, 1]),
        (split_by_flops, ([100, 200, 300, 400], 1), [4]),
        # where those programs stop or go wrong
        (split_by_flops, ([1, 2], 2), [1, 1]),
        (split_by_flops, ([1] * 4, 3), [2, 1, 1]),
        (split_by_flops, ([2**63, 2**63], 2), [1, 1]),
        (split_bandwidth_aware, (8, [2**60] * 4, [2**60] * 4), [2, 2, 2, 2]),
        # links below a megabyte per second; twice its share by memory is 11
        (split_bandwidth_aware, (22, [16_000] * 4, [800_000, *[100_000] * 3]), [11, 4, 4, 3]),
        (split_with_memory, (22, [16_000] * 4, [800_000, *[100_000] * 3], 1000), [16, 2, 2, 2]),
        (split_proportional, (10, [1] * 4), [3, 3, 2, 2]),
        (split_proportional, (14, [1] * 10), [2, 2, 2, 2, 1, 1, 1, 1, 1, 1]),
        # quotients that leave the floats
        (split_with_memory, (4, [1, 10], [1e300, 1e-30], 1), [1, 3]),
        (split_with_memory, (9, [1, 10, 10], [1e300, 1e-30, 3e-30], 1), [1, 2, 6]),
        (split_with_memory, (4, [1e308, 1e308], [1, 1], 1e-10), [2, 2]),
        # sums of fractions that rounding puts above their share
        *((split_by_flops, ([c] * 60, 12), [5] * 12) for c in (0.1, 0.3, 0.7, 1 / 3)),
    ],
)
def test_a_rule_splits_as_it_should(split, arguments, held):
    assert sizes(split(*arguments)) == held


def test_by_flops_seed_panics_in_348_of_840_equal_layer_cases():
    cases = [(layers, stages) for stages in range(2, 17) for layers in range(stages, 65)]
    failed = sum(smallest_failure(seed_by_flops, [([1] * m, s)]) is not None for m, s in cases)
    assert (failed, len(cases)) == (348, 840)
    for layers, stages in cases:
        assert sum(sizes(split_by_flops([1] * layers, stages))) == layers


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


@given(weights=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=12), more=st.integers(0, 40))
def test_proportional_shares_are_within_one_layer_or_the_minimum(weights, more):
    layers = len(weights) + more
    split = split_proportional(layers, weights)
    assert sum(sizes(split)) == layers
    assert min(sizes(split)) >= 1
    for size, weight in zip(sizes(split), weights, strict=True):
        assert size < weight / sum(weights) * layers + 1 + 1e-6 or size == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: split_minmax([1, 1], 3), "stages = 3: expected at most 2"),
        (lambda: split_minmax([1], 0), "stages = 0: expected at least 1"),
        (lambda: split_minmax([], 1), "layers = 0: expected at least 1"),
        (lambda: split_minmax(None, 2), "expected a list of numbers"),
        (lambda: split_exhaustive("12", 2), "expected a list of numbers"),
        (lambda: split_minmax([1, -1], 1), r"costs\[1\] = -1: expected at least 0"),
        (lambda: split_minmax([float("nan")], 1), r"costs\[0\] = nan"),
        (lambda: split_minmax([1, 1], 2, speeds=[1, 0]), r"speeds\[1\] = 0: expected more than 0"),
        (lambda: split_minmax([1, 1], 2, speeds=[1]), "speeds = '1 values': expected 2"),
        (lambda: split_minmax([1, 1], 2, limits=[1, 1]), "memory and limits go together"),
        (lambda: split_by_flops([float("inf")], 1), r"flops\[0\] = inf"),
        (lambda: split_by_flops([1], 2), "stages = 2: expected at most 1"),
        (lambda: split_even(2, 4), "stages = 4: expected at most 2, so that every stage has a"),
        (lambda: split_even(5, 0), "stages = 0: expected at least 1"),
        (lambda: split_proportional(4, [0, 0]), r"weights\[0\] = 0: expected more than 0"),
        (lambda: split_bandwidth_aware(1, [1, 1], [1, 1]), "stages = 2: expected at most 1"),
        (lambda: split_bandwidth_aware(0, [1] * 3, [1] * 3), "layers = 0: expected at least 1"),
        (
            lambda: split_bandwidth_aware(2, [1, 1], [0, 1]),
            r"bandwidth\[0\] = 0: expected more than",
        ),
        (lambda: split_bandwidth_aware(3, [1, 1], [1]), "bandwidth = '1 values': expected 2"),
        (lambda: split_with_memory(2, [1, 1], [1, 1], 0), "expected more than 0"),
        (lambda: split_with_memory(30, [10, 24], [1, 1], 1.5), "can hold 6, 16 of 30 layers"),
        (lambda: split_with_memory(3, [1, 99], [1, 1], 2), "can hold 0, 3 of 3 layers; every"),
    ],
)
def test_bad_input_is_one_clear_error(call, message):
    with pytest.raises(pl.errors.InvalidValue, match=message):
        call()


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


@pytest.mark.slow
def test_a_thousand_layers_over_64_different_stages_keep_to_the_lower_bound():
    rng = np.random.default_rng(1)
    cost, speeds = rng.uniform(0.5, 2, 1000), rng.uniform(0.3, 3, 64)
    best = bottleneck(split_minmax(cost, 64, speeds=speeds), cost, speeds)
    assert cost.sum() / speeds.sum() <= best < 1.15 * cost.sum() / speeds.sum()
    assert best <= bottleneck(split_proportional(1000, speeds), cost, speeds)
