"""Questions to a table of stages, on random tables: ways to enter and leave, layers that are held, GPU ids."""

import numpy as np
import pytest

from pipelab.engine import stage_table
from pipelab.engine.stage_table import FreeGPUs, holdable, slowest_between, ways_through
from pipelab.errors import PipelabError


def random_sets(rng):
    """Sets of classes, each with one at least."""
    sets, classes = rng.integers(1, 9, 2)
    chosen = rng.random((sets, classes)) < 0.4
    chosen[~chosen.any(axis=1), 0] = True
    return chosen


@pytest.mark.parametrize("seed", range(30))
def test_a_hop_between_two_ways_is_the_slowest_of_all_pairs(seed, monkeypatch):
    """Also infinite ones, and where sets are looked at in parts; no two ways have all hops in common."""
    monkeypatch.setattr(stage_table, "_CELLS_AT_ONCE", 1 + 40 * (seed % 2))
    rng = np.random.default_rng(seed)
    sets, rates = random_sets(rng), seed % 3
    shape = 1 + rates, sets.shape[1], sets.shape[1]
    hops = rng.choice([0.0, 1.0, 2.5, np.inf], shape, p=(0.1, 0.4, 0.4, 0.1))
    of, through, measures = ways_through(sets, rates=hops[:rates], seconds=hops[rates:])
    enter, leave = through[of].T
    slowness = [-1] * rates + [1]
    for sign, hop, slowest in zip(slowness, hops, measures, strict=True):
        pairs = [[(sign * hop[np.ix_(one, other)]).max() for other in sets] for one in sets]
        assert slowest_between(sets, sign * hop).tolist() == pairs
        assert (sign * slowest[np.ix_(leave, enter)]).tolist() == pairs
    used = sets.any(axis=0)
    slow = (np.array(slowness)[:, None, None] * hops)[:, used][..., used]
    different = {
        (slow[:, row].max(axis=1).tobytes(), slow[..., row].max(axis=2).tobytes())
        for row in sets[:, used]
    }
    assert len(through) == len(different)


@pytest.mark.parametrize("seed", range(30))
def test_gpus_are_taken_once_and_of_one_node_where_it_has_room(seed):
    rng = np.random.default_rng(seed)
    ids = rng.permutation(40).tolist()
    nodes = [[sorted(ids.pop() for _ in range(rng.integers(1, 6))) for _ in range(rng.integers(1, 4))]
             for _ in range(2)]  # fmt: skip
    free, left = FreeGPUs(nodes), [[set(node) for node in of_class] for of_class in nodes]
    while any(any(of_class) for of_class in left):
        counts = [int(rng.integers(sum(map(len, of_class)) + 1)) for of_class in left]
        taken = free.take(counts)
        assert len(taken) == len(set(taken)) == sum(counts)
        for of_class, number in zip(left, counts, strict=True):
            here = [node & set(taken) for node in of_class]
            assert sum(map(len, here)) == number
            if number and max(map(len, of_class)) >= number:
                (used,) = (i for i, gpus in enumerate(here) if gpus)
                room = [len(node) for node in of_class if len(node) >= number]
                assert len(of_class[used]) == min(room)
                assert sorted(of_class[used])[:number] == sorted(here[used])
        for of_class in left:
            for node in of_class:
                node -= set(taken)
    with pytest.raises(PipelabError, match="more GPUs than there are"):
        free.take([1, 0])


@pytest.mark.parametrize("seed", range(30))
def test_no_stages_of_a_table_hold_more_layers_than_it_says(seed):
    rng = np.random.default_rng(seed)
    sets, count = random_sets(rng), rng.integers(0, 6, 8)
    gpus = sets * rng.integers(1, 4, sets.shape)
    held, count = rng.integers(0, 9, len(sets)), count[: sets.shape[1]]
    most = holdable(held, gpus.sum(axis=1), sets, count)
    left, layers = count.copy(), 0
    for row in rng.permutation(np.repeat(np.arange(len(sets)), 20)):
        if (gpus[row] <= left).all():
            left, layers = left - gpus[row], layers + held[row]
    assert layers <= most * (1 + 1e-9)
