"""Helix's instances: the files are what its programs say, and one pipeline is a deployment, too."""

import itertools

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow

from pipelab import course


@pytest.mark.parametrize("name", ["single24", "geo24", "hetero42"])
def test_what_helix_ships_yields_what_it_reports(name):
    """By scipy's maximum flow in whole thousandths of a token/s; notebook 11 has a linear program."""
    of = course.helix_cluster(name)
    n, most = len(of.machines), 2**31 - 1
    into, out, source, sink = range(n), range(n, 2 * n), 2 * n, 2 * n + 1
    capacity = np.zeros((2 * n + 2, 2 * n + 2))
    for v, (machine, (first, last)) in enumerate(zip(of.machines, of.shipped, strict=True)):
        capacity[into[v], out[v]] = 1000 * of.rates[machine][last - first + 1]
        capacity[source, into[v]] = most * (first == 1)
        capacity[out[v], sink] = most * (last == of.layers)
    for v, w in itertools.permutations(range(n), 2):
        if of.shipped[v][1] + 1 == of.shipped[w][0]:
            capacity[out[v], into[w]] = min(1000 * of.links[v, w], most)
    whole = csr_matrix(np.floor(capacity).astype(np.int32))
    flow = maximum_flow(whole, source, sink).flow_value / 1000
    assert flow == pytest.approx(of.reported, abs=0.1)
    assert flow <= of.reported_bound
