"""The mix explorer's best deployment: it follows the single pipeline, first with a bound, then proven."""

import asyncio
import dataclasses
import threading

import pytest

import pipelab as pl
from pipelab.widgets import mix_answers, mix_explorer
from pipelab.widgets.background import at_rest
from pipelab.widgets.mix_answers import answer, deployments
from pipelab.widgets.mix_sentences import deployment_title
from pipelab.widgets.mix_values import beginning


@pytest.mark.slow
def test_the_deployment_follows_the_single_pipeline(monkeypatch):
    mix_answers._kept.clear()

    async def moved():
        shown = pl.explore_mix("Llama-3-8B", {"A100-SXM-40": 2, "L4": 2, "T4": 2}, batch=16)
        before = shown.deployed.layout.title.text, shown.found.result.throughput, shown.best
        await at_rest()
        return before, shown

    (title, one, best), shown = asyncio.run(moved())
    assert (title, best) == ("Best deployment: being solved …", None)
    assert shown.best.status == "optimal"
    more = shown.best.throughput / one - 1
    assert more > 0.01
    said = shown.deployed.layout.title.text
    assert f"{more:+.1%} against one" in said
    assert said.endswith("proven")
    assert "single pipeline" in shown.children[3].value
    bands = {y for trace in shown.deployed.data for y in trace.y}
    assert bands == set(range(len(shown.best.pipelines)))


def test_until_it_is_proven_the_chart_says_how_much_more_there_may_be(monkeypatch):
    mix_answers._kept.clear()
    found = answer(beginning("Llama-3-8B", batch=16))
    exact = pl.deploy(found.problem)
    far = pl.deploy(found.problem, gap=0.5)
    titles = []
    for best in (far, exact):
        monkeypatch.setattr(mix_answers, "deploy", lambda *_, best=best, **__: best)
        (shown, *_) = deployments(found, threading.Event(), 1.0)
        assert shown is best
        titles.append(deployment_title(shown, found))
    if far.status != "optimal":
        assert "being proven" in titles[0]
        assert f"{far.gap:.1%} more" in titles[0]
    assert titles[1].endswith(", proven")


def test_a_stop_yields_nothing_more():
    mix_answers._kept.clear()
    found, stop = answer(beginning("Llama-3-8B", batch=16)), threading.Event()
    stop.set()
    assert list(deployments(found, stop, 1.0)) == []


@pytest.mark.parametrize("word", ["not known yet", "being solved"])
def test_a_chart_without_a_deployment_says_so(word):
    found = None if word == "not known yet" else answer(beginning("tiny"))
    assert word in deployment_title(None, found)


def test_a_deployment_of_one_pipeline_is_the_placement_drawn_below():
    """Two optimal placements side by side would look as if one of them were wrong."""
    found = answer(beginning("tiny", {"A100": 1, "V100": 0}))
    best = pl.deploy(found.problem)
    assert (best.count, best.throughput) == (1, found.result.throughput)
    halves = pl.Placement.of([(2, (0,)), (2, (1,))])
    (pipeline,) = best.pipelines
    other = dataclasses.replace(
        best, pipelines=(dataclasses.replace(pipeline, replicas=(halves,)),)
    )
    for shown in (best, other):
        bars = mix_explorer._deployed(shown, found)["data"][0]
        assert list(zip(bars["base"], bars["x"], strict=True)) == [(0.5, 4)]
