"""Layers that differ: spans of them add up, and are one kind where they hold the same layers."""

import math

import numpy as np
import pytest

from pipelab.spans import spans_from_factors


def test_spans_of_identical_layers_are_one_for_each_size():
    assert spans_from_factors(4, (2.0,) * 4, None).uniform
    assert spans_from_factors(4, (2.0,) * 4, None).weight.tolist() == [2, 4, 6, 8]


@pytest.mark.parametrize("spread", [1.0, 1e9])
def test_many_different_layers_add_up_as_each_set_of_them_does(spread):
    layers, rng = 150, np.random.default_rng(3)
    factors = list(rng.uniform(0.5, 1.5, layers))
    factors[10] /= spread
    factors[20:23], factors[60:63] = (0.1, 0.2, 0.3), (0.2, 0.3, 0.1)
    spans = spans_from_factors(layers, tuple(factors), None)
    for first, size in ((0, 1), (10, 1), (0, 150), (7, 100), (149, 1)):
        found = spans.weight[spans.kind[first, size - 1]]
        assert found == pytest.approx(math.fsum(factors[first : first + size]), rel=1e-14, abs=0)
    assert spans.kind[20, 2] == spans.kind[60, 2]  # the same set of layers, in another order
    assert len(np.unique(spans.kind[spans.kind >= 0])) == len(spans.weight)
    assert list(spans.layers) == sorted(spans.layers)
