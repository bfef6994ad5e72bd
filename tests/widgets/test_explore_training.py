"""The pipeline explorer in training: the best placement for a step, first what there was, then the proof."""

import asyncio
import itertools
from dataclasses import replace

import numpy as np
import pytest

import pipelab as pl
from pipelab.display import duration, rate
from pipelab.figures.training_step import training_memory_parts
from pipelab.widgets import training_half
from pipelab.widgets.background import at_rest
from pipelab.widgets.mix_values import beginning
from pipelab.widgets.training_answers import (
    TrainingValues,
    carried_on,
    code_of_training,
    passing_headline,
    trained,
    training_problem,
)

TWO = {"A100-SXM-80": 2}


def _title(chart):
    return chart.layout.title.text.split("<br>")[0]


@pytest.fixture(scope="module")
def shown():
    return pl.explore_pipeline("Llama-3-8B", TWO, training=True, microbatches=6)


def test_the_step_is_that_of_solve_and_of_the_code(shown):
    found = shown.training.found
    load = pl.Workload(2048, 1, "training", microbatches=6)
    assert found.problem.workload == load
    again = pl.solve(found.problem, objective="step_time", schedule="1F1B")
    assert (found.status, found.objective.value) == ("optimal", again.objective.value)
    space = {}
    exec(shown.training.code.code, space)
    assert space["step"].timeline.iteration_time == found.objective.value
    assert space["problem"].workload == load
    assert f"a step takes {duration(found.objective.value)} on" in _title(shown.training.gantt)
    assert _title(shown.training.gantt).endswith("proven least")
    said = shown.training.words.value
    assert rate(found.throughput) in said
    assert f"{found.bubble:.1%}" in said
    ticks = shown.training.gantt.layout.yaxis.ticktext
    assert ticks == found.step.labels


@pytest.mark.slow
def test_it_follows_its_controls_and_those_of_the_mix(shown):
    half = shown.training
    before = half.found.objective.value
    half.schedule.value = "ZBH1"
    assert half.found.schedule == "ZBH1"
    assert half.found.objective.value < before
    half.recompute.value = "full"
    assert set(half.found.recompute) == {"full"}
    assert "recompute='full'" in half.code.code
    shown.mix.controls.counts["A100-SXM-80"].value = 0
    assert half.found is None
    assert "expected at least one" in half.words.value
    assert "contradict each other" in _title(half.gantt)
    assert not half.memory.data[0].y
    shown.mix.controls.counts["A100-SXM-80"].value = 1
    assert half.found.status == "infeasible"
    assert "no placement can be trained" in _title(half.gantt)
    assert half.words.value
    half.recompute.value, half.schedule.value = "none", "1F1B"
    shown.mix.controls.counts["A100-SXM-80"].value = 2
    assert half.found.objective.value == before


def test_serving_comes_back_with_what_was_set_meanwhile(shown):
    controls = shown.mix.controls
    assert controls.batch.layout.display == controls.phase.layout.display == "none"
    assert shown.training in shown.children
    controls.context.value = 1024
    assert shown.mix.found is None  # it rests
    assert shown.training.found.problem.workload.sequence_length == 1024
    shown.view.value = "serve"
    assert shown.mix.found.problem.workload.sequence_length == 1024
    assert shown.mix.found.problem.workload.phase == "prefill"
    assert controls.batch.layout.display is None
    assert shown.training not in shown.children
    assert shown.gantt in shown.children
    shown.view.value = "place"
    assert shown.mix.chart in shown.children
    assert shown.gantt not in shown.children
    last = shown.training.found
    controls.context.value = 2048
    assert shown.training.found is last
    shown.view.value = "train"
    assert shown.training.found.problem.workload.sequence_length == 2048


@pytest.mark.slow
def test_what_was_there_is_drawn_first_and_the_newest_answer_last(monkeypatch):
    limits, seen = [], []

    def slowly(mix, values, stop, limit):
        limits.append(limit)
        found = trained(mix, values, stop, None)
        return replace(found, status="feasible") if limit < 1 else found

    monkeypatch.setattr(training_half, "trained", slowly)

    async def moved():
        shown = pl.explore_pipeline("Llama-3-8B", TWO, training=True)
        half = shown.training
        seen.append(_title(half.gantt))
        await at_rest()
        seen.append(_title(half.gantt))
        half.microbatches.value = 8
        half.microbatches.value = 4
        seen.append(_title(half.gantt))
        await at_rest()
        seen.append((_title(half.gantt), half.found.problem.workload.microbatches))
        half.microbatches.value = 12
        shown.view.value = "serve"
        await at_rest()
        assert half.found.problem.workload.microbatches == 4

    asyncio.run(moved())
    assert "being solved" in seen[0]
    assert "proven least" in seen[1]
    assert "with this placement; the best is being solved" in seen[2]
    assert seen[3][1] == 4
    assert "proven least" in seen[3][0]
    assert training_half._FIRST_S in limits
    assert training_half._LIMIT_S in limits


def test_a_placement_is_carried_on_only_where_its_gpus_are_the_same():
    mix, values = beginning("Llama-3-8B", TWO), TrainingValues(microbatches=4)
    found = trained(mix, values)
    more = replace(values, microbatches=8, schedule="GPipe")
    step = carried_on(found, mix, more)
    alone = pl.timeline_of(training_problem(mix, more), found.placement, schedule="GPipe")
    assert step.timeline.iteration_time == alone.timeline.iteration_time
    assert "with this placement, which does not fit; the best" in passing_headline(step)
    same = carried_on(found, mix, values)
    assert same.timeline.iteration_time == found.objective.value
    assert "with this placement; the best" in passing_headline(same)
    best = carried_on(found, mix, replace(more, schedule="best"))
    assert best.timeline.schedule.name == found.schedule
    assert carried_on(found, beginning("Llama-3-8B", {"A100-SXM-80": 3}), values) is None
    assert carried_on(None, mix, values) is None
    assert carried_on(found, mix, replace(values, schedule="ZBV", microbatches=1)) is not None


def test_a_case_without_memory_of_training_is_trained_too():
    shown = pl.explore_pipeline("tiny", training=True)
    assert shown.training.found.status == "optimal"
    assert "does not say what training keeps" in _title(shown.training.memory)
    space = {}
    exec(shown.training.code.code, space)
    assert space["result"].objective.value == shown.training.found.objective.value


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"schedule": "1F2B"}, "no schedule '1F2B'; did you mean '1F1B'"),
        ({"recompute": "half"}, "no recompute 'half'"),
        ({"microbatches": 0}, "microbatches"),
        ({"sequences": 10**6}, "sequences"),
        ({"microbatch": 4}, "no control 'microbatch'"),
    ],
)
def test_what_no_control_has_is_refused(values, words):
    with pytest.raises(pl.PipelabError, match=words):
        pl.explore_pipeline("Llama-3-8B", training=True, **values)


def test_the_memory_chart_has_what_each_gpu_holds():
    counts = {"A100-SXM-80": 14}
    problem = training_problem(beginning("Llama-3-8B", counts), TrainingValues(microbatches=20))
    layers = [3, 3, 3, 3, *[2] * 10]
    plan = pl.Placement.of([(n, (g,)) for g, n in enumerate(layers)])
    step = pl.timeline_of(problem, plan)
    parts = training_memory_parts(step)
    *lines, limit = parts["data"]
    assert list(limit["y"]) == [100, 100]
    shares = {}
    for line in lines:
        rank = int(line["name"].split()[1]) - 1
        need = max(line["customdata"])
        assert need == pytest.approx(step.memory_gb[rank])
        shares[rank] = max(line["y"])
        assert shares[rank] == pytest.approx(100 * need / problem.cluster.gpus[rank].memory_gb)
        assert all(a <= b for a, b in itertools.pairwise(line["x"]))
        assert min(line["y"]) > 0  # state is always there
    fullest = max(shares, key=shares.get)
    title = parts["layout"]["title"]["text"]
    assert title.startswith(f"The fullest GPU is in stage {fullest + 1}: ")
    grey = [line for line in lines if not line["showlegend"]]
    assert len(grey) == 2
    least = sorted(shares, key=shares.get)[:2]
    assert {int(line["name"].split()[1]) - 1 for line in grey} == set(least)
    less = replace(problem, workload=replace(problem.workload, batch_size=8))
    over = training_memory_parts(pl.timeline_of(less, plan))["layout"]
    assert "not fit" in over["title"]["text"]
    assert over["yaxis"]["range"][1] > 105
    assert np.isfinite(over["yaxis"]["range"][1])


def test_the_code_of_every_kind_of_mix_runs():
    for mix in (
        beginning("tiny"),
        beginning("Llama-3-8B", {"H100-SXM": 8}, gpus_per_node=8, gpus_per_stage=4),
    ):
        values = TrainingValues("GPipe", 4, 2)
        head = code_of_training(mix, values).split("result = ")[0]
        space = {}
        exec(head, space)
        mine, theirs = training_problem(mix, values), space["problem"]
        assert theirs.workload == mine.workload
        assert theirs.cluster.gpus == mine.cluster.gpus
        assert theirs.max_gpus_per_stage == mine.max_gpus_per_stage
