"""Kernels of deployments against their definitions: labels that are kept, the best rate of every mix, dollars."""

import numpy as np
import pytest
from test_deployments import dollars, every_division
from test_objectives import small

import oracle
import pipelab as pl
from pipelab.costs import LayerTimes
from pipelab.engine.deadline import NEVER
from pipelab.engine.deployments.listing import _Labels, _undominated
from pipelab.engine.deployments.mix_tables import MixTables
from pipelab.engine.deployments.offers import first_offers


def random_labels(rng, number, late):
    """Few numbers, so that there are ties of every kind."""
    rate, seconds = rng.integers(1, 5, (2, number)).astype(float)
    none = np.zeros(number, dtype=int)
    return _Labels(
        gpus=rng.integers(0, 2, (number, 2)),
        price=0.0 * rate,
        rate=rate,
        seconds=seconds,
        late=rng.integers(0, 3, number).astype(float) if late else 0.0 * rate,
        reached=none,
        entered=rng.integers(0, 2, number),
        left=none,
        row=none,
        rest=none,
    )


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_a_label_is_dropped_where_one_that_is_kept_is_no_worse(seed, late):
    """No worse: of the same GPUs and ways, at least as fast, and as soon in both its times."""
    rng = np.random.default_rng(seed)
    labels = random_labels(rng, int(rng.integers(1, 40)), late)
    kept = _undominated(labels).tolist()

    def no_worse(a, b):
        same = (labels.gpus[a] == labels.gpus[b]).all() and labels.entered[a] == labels.entered[b]
        times = (getattr(labels, name) for name in ("seconds", "late"))
        return same and labels.rate[a] >= labels.rate[b] and all(t[a] <= t[b] for t in times)

    assert len(set(kept)) == len(kept)
    for label in range(len(labels.rate)):
        others = [one for one in kept if one != label and no_worse(one, label)]
        assert bool(others) == (label not in kept)


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(40))
def test_the_table_of_mixes_has_the_best_rate_of_each(seed):
    problem = small(seed, link_units="tokens")
    offers = first_offers([problem], NEVER, apart=True)
    if not offers or not len(offers[0].stage_rates):
        return
    tables, classes = MixTables(offers[0], NEVER), offers[0].table.classes
    best = np.zeros(tables.shape)
    for rate, gpus, _ in oracle.placements(problem):
        mix = np.bincount(classes.of[list(gpus)], minlength=len(classes))
        enough = tuple(slice(n, None) for n in mix)  # with more GPUs it is possible, too
        best[enough] = np.maximum(best[enough], rate)
    nothing = np.zeros(tables.shape)
    assert tables.best(nothing, nothing).rate == pytest.approx(best, rel=1e-9)


def test_a_load_is_served_for_the_fewest_dollars_where_as_few_gpus_cost_more():
    gpus = (*[pl.GPU("fast", 4, 1.0)] * 3, *[pl.GPU("slow", 3, 0.5)] * 2)
    links = pl.Cluster(gpus, np.full((5, 5), 10.0), latency_ms=5 * (1 - np.eye(5)))
    model, costs = pl.Model("m", 3, 1000, 4000, 1.0), LayerTimes({"fast": 8.0, "slow": 13.0}, 0.5)
    problem = pl.Problem(links, model, pl.Workload(1000, 4), costs, 2, same_type_stages=False)
    rates = every_division(problem)
    load = 0.6 * rates[-1]
    truth = min(dollars(problem, mask) for mask, rate in enumerate(rates) if rate >= load)
    found = pl.deploy(problem, at_least=load)
    assert (found.status, found.usd_per_hour) == ("optimal", pytest.approx(truth))
