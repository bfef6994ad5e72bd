"""Splits: where the published programs go wrong, every limit of the bandwidth-aware rule, and refusals.

Against trying everything all rules stand in tests/equal; the published programs in the ledger.
"""

from itertools import combinations, pairwise

import numpy as np
import pytest

import pipelab as pl
from pipelab.splits import (
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


@pytest.mark.parametrize(
    ("split", "arguments", "held"),
    [
        # a test of the published programs for each rule
        (split_proportional, (32, [48_000, 16_000]), [24, 8]),
        (split_bandwidth_aware, (30, [16_000, 16_000], [200_000, 100_000]), [20, 10]),
        (split_even, (10, 3), [4, 3, 3]),
        (split_by_flops, ([100, 100, 100, 100, 400], 2), [4, 1]),
        # where those programs stop or go wrong
        (split_by_flops, ([1, 2], 2), [1, 1]),
        (split_by_flops, ([1] * 4, 3), [2, 1, 1]),
        (split_by_flops, ([2**63, 2**63], 2), [1, 1]),
        (split_bandwidth_aware, (8, [2**60] * 4, [2**60] * 4), [2, 2, 2, 2]),
        # links below a megabyte per second; twice its share by memory is 11
        (split_bandwidth_aware, (22, [16_000] * 4, [800_000, *[100_000] * 3]), [11, 4, 4, 3]),
        (split_proportional, (14, [1] * 10), [2, 2, 2, 2, 1, 1, 1, 1, 1, 1]),
        # quotients that leave the floats
        (split_bandwidth_aware, (9, [1, 10, 10], [1e300, 1e-30, 3e-30]), [1, 2, 6]),
        (split_bandwidth_aware, (4, [1e308, 1e308], [1, 1]), [2, 2]),
        # sums of fractions that rounding puts above their share
        *((split_by_flops, ([c] * 60, 12), [5] * 12) for c in (0.1, 0.7, 1 / 3)),
    ],
)
def test_a_rule_splits_as_it_should(split, arguments, held):
    assert sizes(split(*arguments)) == held


def test_bandwidth_aware_is_the_best_within_its_limits_by_trying_every_split_in_every_unit():
    """Twice a node's share is its limit, and one layer always fits."""
    rng = np.random.default_rng(5)
    for _ in range(600):
        nodes, unit = int(rng.integers(1, 5)), 10.0 ** rng.integers(-6, 16)
        layers = int(rng.integers(nodes, 11))
        memory, bandwidth = rng.integers(1, 9, nodes).tolist(), rng.integers(1, 9, nodes).tolist()
        most = [max(1, 2 * layers * m // sum(memory)) for m in memory]
        every = combinations(range(1, layers), nodes - 1)
        every = [[b - a for a, b in pairwise([0, *cuts, layers])] for cuts in every]
        kept = [s for s in every if all(n <= top for n, top in zip(s, most, strict=True))]
        arguments = layers, [m * unit for m in memory], [b * 1e12 / unit for b in bandwidth]
        found = sizes(split_bandwidth_aware(*arguments))
        assert found in kept
        cost = [max(n / b for n, b in zip(s, bandwidth, strict=True)) for s in (found, *kept)]
        assert cost[0] == pytest.approx(min(cost[1:]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: split_minmax([1, 1], 3), "stages = 3: expected at most 2"),
        (lambda: split_exhaustive("12", 2), "expected a list of numbers"),
        (lambda: split_minmax([1, -1], 1), r"costs\[1\] = -1: expected at least 0"),
        (lambda: split_minmax([1, 1], 2, speeds=[1, 0]), r"speeds\[1\] = 0: expected more than 0"),
        (lambda: split_minmax([1, 1], 2, limits=[1, 1]), "memory and limits go together"),
        (lambda: split_by_flops([float("inf")], 1), r"flops\[0\] = inf"),
        (lambda: split_proportional(4, [0, 0]), r"weights\[0\] = 0: expected more than 0"),
        (lambda: split_bandwidth_aware(1, [1, 1], [1, 1]), "stages = 2: expected at most 1"),
        (lambda: split_bandwidth_aware(2, [1, 0], [1, 1]), "expected more than 0"),
    ],
)
def test_bad_input_is_one_clear_error(call, message):
    with pytest.raises(pl.errors.InvalidValue, match=message):
        call()


def test_too_many_splits_are_refused_with_their_number():
    assert count_splits(80, 8) == 2_898_753_715
    with pytest.raises(pl.errors.TooLarge, match="2,898,753,715 splits of 80 layers over 8 stages"):
        split_exhaustive([1] * 80, 8)
