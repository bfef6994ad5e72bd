"""Deployments against GPUs and dollars, and what one more GPU brings, against every division of small clusters."""

import dataclasses
from collections import Counter

import pytest
from small_problems import (
    every_division,
    hourly,
    of_mask,
    priced,
    small,
    three_types,
)

import pipelab as pl
from pipelab.engine.deadline import Ended
from pipelab.engine.deployments import trade_off


@pytest.mark.slow
@pytest.mark.daily(2)
@pytest.mark.parametrize("seed", [1, 2, 0])
@pytest.mark.parametrize("too_many", [True, False])
def test_in_steps_every_point_is_the_cheapest_for_its_load(seed, too_many, monkeypatch):
    """What is done where there are too many mixes for the whole curve, or no time to list them."""
    listed = trade_off.ClosingSearch.list_columns

    def end(self, *asked, wide=False, **options):
        if wide:  # of a curve
            raise Ended("time limit")
        return listed(self, *asked, **options)

    monkeypatch.setattr(trade_off.ClosingSearch, "list_columns", end)
    if too_many:
        monkeypatch.setattr(trade_off, "_MOST_MIXES", 0)
    problem = priced(small(seed), seed)
    found, total = pl.trade_off(problem, "usd_per_hour", deployments=True), every_division(problem)
    assert not found.complete
    assert bool(found.points) == bool(total[-1])
    for point in found.points:
        enough = [hourly(problem, of_mask(m)) for m, t in enumerate(total) if t >= point.at_least]
        assert point.status == "optimal"
        assert point.usd_per_hour == pytest.approx(min(enough), rel=1e-9)
    costs = [point.usd_per_hour for point in found.points]
    assert costs == sorted(set(costs), reverse=True)


@pytest.mark.parametrize("seed", range(4))
def test_a_list_that_ends_early_gives_the_points_of_what_it_found(seed, monkeypatch):
    problem, listed = priced(small(seed), seed), trade_off.ClosingSearch.list_columns

    def end(self, *asked, **options):
        listed(self, *asked, **options)
        raise Ended("time limit")

    whole = pl.trade_off(problem, "gpus", deployments=True)
    monkeypatch.setattr(trade_off.ClosingSearch, "list_columns", end)
    found = pl.trade_off(problem, "gpus", deployments=True)
    assert not found.complete
    assert [p.throughput for p in found.points] == [p.throughput for p in whole.points]


@pytest.mark.parametrize(
    ("counts", "against", "options", "message"),
    [
        ((40, 40, 40), "gpus", {}, r"68,921 mixes.*against='usd_per_hour'"),
        ((1, 1, 1), "gpus", {"tpot_ms": 50}, "for requests"),
        ((1, 1, 1), "usd_per_million_tokens", {}, "'gpus' or 'usd_per_hour' where points are"),
    ],
)
def test_what_deployments_are_not_compared_by_is_refused(counts, against, options, message):
    with pytest.raises(pl.PipelabError, match=message):
        pl.trade_off(three_types(counts), against, deployments=True, **options)


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(6))
def test_one_more_gpu_brings_what_every_division_says(seed):
    problem = priced(small(seed, gpus=3), seed)
    found = pl.deploy(problem)
    counts = Counter(gpu.type for gpu in problem.cluster.gpus)
    frame = found.one_more().set_index("type")
    assert list(frame.index) == list(counts)
    for kind, number in counts.items():
        cluster = problem.cluster.with_counts(counts | {kind: number + 1})
        truth = every_division(dataclasses.replace(problem, cluster=cluster))[-1]
        row = frame.loc[kind]
        assert (row["throughput_after_tokens_per_s"] or 0.0) == pytest.approx(truth, rel=1e-9)
        assert row["gain_tokens_per_s"] == pytest.approx(
            truth - (found.throughput or 0.0), abs=1e-6
        )
        per_dollar = row["gain_tokens_per_s"] / row["usd_per_hour"]
        assert row["gain_per_usd_per_hour"] == pytest.approx(per_dollar)
        assert row["proven"]


@pytest.mark.slow
def test_one_more_gpu_with_a_load_saves_dollars_and_keeps_the_batches():
    problem = three_types((1, 0, 2), phase="decode")
    found = pl.deploy(problem, 500.0, batches=[4, 16])
    frame = found.one_more().set_index("type")
    cheaper = problem.cluster.with_counts({"A100-SXM-40": 1, "T4": 3})
    after = pl.deploy(dataclasses.replace(problem, cluster=cheaper), 500.0, batches=[4, 16])
    assert frame.loc["T4", "usd_per_hour_after"] == pytest.approx(after.usd_per_hour)
    saved = found.usd_per_hour - after.usd_per_hour
    assert frame.loc["T4", "saves_usd_per_hour"] == pytest.approx(saved)
    assert saved > 0
    by_hand = dataclasses.replace(found, again=None)
    with pytest.raises(pl.errors.InvalidValue, match=r"that `pl\.deploy` returned"):
        by_hand.one_more()
