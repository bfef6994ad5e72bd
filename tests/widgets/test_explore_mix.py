"""The GPU mix explorer without a browser: values in, problem, numbers, words and traces out."""

import asyncio
import math
import re
import threading
from dataclasses import replace
from random import Random

import ipywidgets as widgets
import pytest

import pipelab as pl
from pipelab.display import rate as tokens_per_s
from pipelab.figures.methods_against_optimum import baseline_parts, row_of
from pipelab.figures.placements import placement_parts
from pipelab.requests import Limits
from pipelab.widgets import mix_answers, mix_explorer
from pipelab.widgets.background import SIGN_AFTER_S, Beside, at_rest
from pipelab.widgets.mix_answers import (
    MixState,
    deployments,
    first_answer,
    kept,
    one_gpu_per_stage,
    one_more,
    other_plans,
    solve_mix,
)
from pipelab.widgets.mix_controls import MixControls
from pipelab.widgets.mix_sentences import (
    deployment_title,
    facts_line,
    gains_line,
    headline,
    promise_line,
)
from pipelab.widgets.mix_values import (
    BATCHES,
    Mix,
    beginning,
    code_of,
    cost_models,
    problem_of,
    sources,
    types_of,
)

GO_ON = threading.Event()
MIXED = {"A100-SXM-40": 2, "L4": 2, "T4": 2}
ENGINE = beginning(
    "Llama-3-70B", {"A100-SXM-80": 4, "L4": 4}, phase="decode", batch=16, gpus_per_node=4,
    gpus_per_stage=4, runs_on="vLLM",
)  # fmt: skip
WITHIN = beginning(
    "Llama-3-8B", {"A100-SXM-40": 1, "L4": 2, "T4": 1}, phase="mixed", tpot_ms=50, ttft_ms=20_000
)
STATES = [
    beginning("tiny", {"A100": 0}, gpus_per_stage=2),
    beginning("small", {"H100": 0, "A100": 1}, network_gb_per_s=1.0, batch=64),
    beginning("medium_small", gpus_per_stage=3, batch_split="balanced"),
    beginning("Llama-3.1-405B", {"T4": 2}),  # does not fit
    beginning("medium", gpus_per_stage=2, costs="linear, no loss"),
    beginning("Llama-3-8B", {"L4": 1, "T4": 2}, phase="mixed", costs="Roofline, llama.cpp"),
    beginning("Llama-3-70B", phase="decode", batch=8, in_flight=4, context=1024, gpus_per_stage=2),
    ENGINE,
    beginning("small", gpus_per_stage=2, within=0.1),
]


@pytest.mark.quick(4)
@pytest.mark.parametrize("mix", STATES, ids=lambda m: f"{m.source}-{m.costs}")
def test_the_numbers_are_those_of_solve_and_the_code_makes_the_same(mix):
    found, space = solve_mix(mix), {}
    exec(code_of(mix), space)
    assert space["problem"] == problem_of(mix)
    assert space["result"].problem == found.problem
    assert mix.batch in (None, found.problem.workload.batch_size)
    same, best = ("status", "throughput", "bound", "placement", "reason"), space["result"]
    for ours, its in ((best, found.nominal), (space.get("robust", best), found.result)):
        assert [getattr(ours, f) for f in same] == [getattr(its, f) for f in same]
    assert found.result.status in ("optimal", "infeasible")
    for rule in found.baselines:
        assert rule.throughput == pl.solve(found.problem, rule.name).throughput
        assert rule.throughput is None or rule.throughput <= found.nominal.throughput * (1 + 1e-9)
    # the charts have the same traces whatever the values
    plan, rows = found.result.placement, [row_of("best", found.result), *found.baselines]
    assert len(placement_parts(found.problem, plan, "now")["data"]) == 3
    assert len(baseline_parts(rows, found.result.throughput)["data"]) == 7


def test_the_best_plan_of_an_engine_has_its_cost_said():
    found = solve_mix(ENGINE)
    assert headline(found)[0].endswith("proven optimal for vLLM")
    sentence = other_plans(found, GO_ON, 30)
    free = solve_mix(replace(ENGINE, runs_on=None)).result
    lost = 1 - found.result.throughput / free.throughput
    assert sentence.startswith("vLLM's rules cost ")
    assert f"{lost:.1%}" in sentence


@pytest.mark.slow
def test_with_limits_the_single_pipeline_keeps_them():
    """It serves as much as the best of all placements, batches and numbers in flight; the words say by how much."""
    mix = replace(WITHIN, batch=16)
    found, space = solve_mix(mix), {}
    exec(code_of(mix), space)
    assert found.result.status == "optimal"
    assert found.result.throughput == space["best"].throughput
    assert found.service == space["best"].pipelines[0].service
    limits = Limits(ttft_ms=20_000, tpot_ms=50)
    assert found.service.keeps(limits)
    assert found.result.in_flight == found.service.in_flight
    late = 1000 * max(found.service.tpot_s, found.service.last_tpot_s)
    assert f"every {late:,.4g} ms (limit 50)" in promise_line(found)
    for rule in found.baselines:
        assert rule.throughput is None or rule.throughput <= found.result.throughput * (1 + 1e-9)
    cost = other_plans(found, GO_ON, 30)
    free = solve_mix(replace(mix, tpot_ms=1e6, ttft_ms=1e9)).result.throughput
    assert f"The limits cost {1 - found.result.throughput / free:.1%}" in cost


@pytest.mark.slow
def test_a_limit_that_cannot_be_kept_says_what_prevents_it():
    counts = {"A100-SXM-40": 1, "T4": 3}
    shown = pl.explore_mix("Llama-3-8B", counts, phase="decode", batch=8, tpot_ms=20)
    assert shown.found.result.status == "optimal"
    assert "(limit 20)" in shown.text.value
    assert shown.own.layers.disabled  # a plan by hand may break them
    shown.controls.counts["A100-SXM-40"].value = 0
    assert shown.found.result.status == "infeasible"
    assert "no pipeline keeps the limits" in shown.chart.layout.title.text
    assert "above the limit of 20: stage" in shown.text.value


@pytest.mark.slow
def test_the_batch_is_chosen_where_none_is_given():
    """It attains most of all that the slider has, and the title names it; a case keeps its own."""
    mix = beginning("Llama-3-8B", {"A100-SXM-40": 1, "L4": 1}, phase="decode")
    found = solve_mix(mix)
    each = {b: solve_mix(replace(mix, batch=b)).result.throughput for b in BATCHES}
    best = max(each, key=lambda b: each[b] or 0.0)
    assert found.problem.workload.batch_size == best != 16
    assert found.result.status == "optimal"
    assert found.result.throughput == pytest.approx(each[best], rel=1e-9)
    assert f"with a batch of {best} and {found.result.in_flight} in flight" in headline(found)[0]
    assert beginning("tiny").batch == 16


@pytest.mark.parametrize("tpot_ms", [None, 60])
@pytest.mark.parametrize("batch", [2, 64])
@pytest.mark.parametrize("counts", [{"T4": 1}, {"L4": 1}, {"A100-SXM-40": 1, "L4": 1}], ids=str)
def test_a_first_answer_is_that_of_one_batch_and_claims_nothing_of_others(counts, batch, tpot_ms):
    """Only where that one fits nowhere are all tried."""
    mix = beginning("Llama-3-8B", counts, phase="decode", tpot_ms=tpot_ms)
    first, best = first_answer(mix, batch, GO_ON, 30).result, solve_mix(mix).result
    alone = solve_mix(replace(mix, batch=batch)).result
    if alone.placement is None:
        assert (first.status, first.throughput) == (best.status, best.throughput)
    else:
        assert (first.status, first.bound, first.throughput) == ("feasible", None, alone.throughput)
    assert first.batches == BATCHES


@pytest.mark.slow
def test_the_plan_that_loses_least_is_a_switch_and_says_where_it_turns():
    shown = pl.explore_mix("Llama-3-8B", {"A100-SXM-40": 1, "T4": 2}, batch=16)
    switch, before = shown.controls.fields["within"], shown.found.result
    for within in (0.1, "band"):
        switch.value = within
        found = shown.found
        robust = pl.solve(before.problem, within=within)
        assert found.result.objective.value == pytest.approx(robust.objective.value)
        assert found.nominal.throughput == before.throughput >= found.result.throughput
        assert f"loses at most {robust.objective.value:.1f}%" in headline(found)[0]
        assert (
            other_plans(found, GO_ON, 30) == pl.sensitivity(before.problem, robust, within).sentence
        )
    shown.controls.fields["runs_on"].value = "vLLM"
    assert switch.disabled
    assert shown.found.mix.within is None


def test_every_control_is_a_field_of_the_mix():
    mix = beginning(
        "Llama-3-8B", {"A100-SXM-40": 4, "T4": 3}, phase="mixed", batch=24, context=3000, gpus_per_node=2,
        output_tokens=100, in_flight=40, network_gb_per_s=3.0, gpus_per_stage=12, batch_split="balanced",
        costs="Roofline, eager", runs_on="vLLM", tpot_ms=50, ttft_ms=20_000,
    )  # fmt: skip
    controls, changed = MixControls(mix), mix
    assert controls.mix == mix
    for name, value in {
        "batch": 64, "context": 512, "output_tokens": 32, "in_flight": 3, "gpus_per_node": 4,
        "gpus_per_stage": 1, "batch_split": "even", "costs": "Roofline", "runs_on": None, "tpot_ms": 20,
        "ttft_ms": 500,
    }.items():  # fmt: skip
        controls.fields[name].value = value
        changed = replace(changed, **{name: value})
        assert controls.mix == changed
    controls.fields["batch"].value = controls.fields["in_flight"].value = 0
    controls.fields["network_gb_per_s"].value, controls.counts["T4"].value = 50.0, 1
    chosen = controls.mix
    assert (chosen.batch, chosen.in_flight, chosen.network_gb_per_s) == (None, None, 50)
    assert chosen.counts == (("A100-SXM-40", 4), ("T4", 1))
    # a phase has only the limits on its own times
    for phase, tpot, ttft in (("decode", 20, None), ("prefill", None, 500)):
        controls.fields["phase"].value = phase
        assert (controls.mix.tpot_ms, controls.mix.ttft_ms) == (tpot, ttft)


def test_every_source_has_a_beginning_that_makes_a_problem():
    assert set(sources()) == {*pl.writeup.cases(), *pl.hardware.models().index}
    for source in sources():
        mix = beginning(source)
        assert set(dict(mix.counts)) <= set(types_of(source))
        assert len(problem_of(mix).cluster) == sum(dict(mix.counts).values())
        others = {beginning(source, costs=name) for name in cost_models(source)}
        assert mix in others
        assert len(others) == len(cost_models(source))
        if mix.is_case:
            assert problem_of(mix) == pl.load_case(source, link_units="tokens")


def test_a_cost_model_changes_what_it_says_and_nothing_else():
    def of(source, costs):
        return problem_of(beginning(source, costs=costs))

    assert [of("tiny", costs).costs.efficiency for costs in cost_models("tiny")] == [0.85, 1]
    engines = ({}, {"engine": "vLLM 0.2"}, {"engine": "llama.cpp"})
    names = cost_models("Llama-3-8B")
    assert [of("Llama-3-8B", name).costs for name in names] == [pl.Roofline(**e) for e in engines]
    for source in ("tiny", "Llama-3-8B"):
        first, *others = (of(source, costs) for costs in cost_models(source))
        assert all(replace(other, costs=first.costs) == first for other in others)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: beginning("tyny"), r"no case or model 'tyny'.*tiny"),
        (lambda: beginning("tiny", {"H100": 1}), r"no GPU type of tiny named 'H100'"),
        (lambda: beginning("tiny", batches=3), r"no control 'batches'.*batch"),
        (lambda: problem_of(beginning("tiny", {"A100": 0, "V100": 0})), "GPUs = 0: expected at"),
        (lambda: beginning("tiny", costs="Roofline"), "tiny has 'linear', 'linear, no loss'"),
        (lambda: beginning("Llama-3-8B", tpot_ms=50), "the phase prefill has no such time"),
        (lambda: beginning("Llama-3-8B", runs_on="vllm"), "there is no engine 'vllm'"),
        (lambda: beginning("Llama-3-8B", costs="linear"), "Llama-3-8B has 'Roofline', "),
        (lambda: problem_of(Mix("Llama-3-8B", (("L4", 1),))), "have links of their own"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_one_clear_error(call, message):
    with pytest.raises(pl.PipelabError, match=message):
        call()


def test_one_gpu_more_is_solved_for_every_type_and_kept():
    mix = beginning("small", {"A100": 1, "V100": 2, "H100": 0})
    gains, now = dict(one_more(mix, GO_ON, 30)), solve_mix(mix).result
    assert list(gains) == ["A100", "V100", "H100"]
    for gpu_type, gain in gains.items():
        more = mix.with_one_more(gpu_type)
        assert dict(more.counts)[gpu_type] == dict(mix.counts)[gpu_type] + 1
        assert kept(more).result.throughput == gain
        assert pl.solve(problem_of(more), "aggregated").throughput == gain
    best = max(gains, key=gains.get)
    said = f"One more {best} would help most: {tokens_per_s(gains[best])} (+"
    assert gains_line(now, gains, gains).startswith(said)
    for known, part in (
        ({"A100": gains["A100"]}, "being solved"),
        (dict.fromkeys(gains, 0.0), "does not help"),
        ({"V100": None}, "Not proven in time: V100"),
    ):
        assert part in gains_line(now, known, gains)


def test_one_gpu_per_stage_is_the_original_formulations_optimum():
    mix = beginning("tiny", {"A100": 1, "V100": 2}, gpus_per_stage=2)
    alone = pl.solve(replace(problem_of(mix), max_gpus_per_stage=1), "single_gpu")
    assert one_gpu_per_stage(mix).throughput == pytest.approx(alone.throughput)


def test_prices_are_per_hour_and_per_million_tokens():
    found, facts = solve_mix(beginning("Llama-3-8B", MIXED, batch=16)), pl.hardware.load_gpus()
    placement, throughput = found.result.placement, found.result.throughput
    used = [found.problem.cluster.gpus[g].type for g in placement.gpus]
    per_hour = sum(facts[t].usd_per_hour for t in used)
    per_million = per_hour * 1e6 / throughput / 3600
    said = facts_line(found.problem, placement, throughput)
    assert said.endswith(f"${per_hour:.2f}/h, ${per_million:.3g} per million tokens.")
    tiny = solve_mix(beginning("tiny"))
    assert "No price is known" in facts_line(tiny.problem, tiny.result.placement, 1.0)


@pytest.mark.slow
def test_how_far_the_rate_may_be_off_is_said_and_whether_the_plan_stays_the_best():
    mix = pl.explore_mix("Llama-3-8B", {"A100-SXM-40": 1, "L4": 1, "T4": 0}, batch=16)
    found = mix.found
    expected = pl.hardware.expected_rate(found.problem, found.result.evaluation)
    assert expected.sentence in mix.text.value
    said = other_plans(found, GO_ON, 30)
    assert said == pl.sensitivity(found.problem, found.result, expected.within).sentence
    late = other_plans(solve_mix(beginning("Llama-3-8B", MIXED, batch=16)), GO_ON, 0.0)
    assert "not proven in time" in late
    assert other_plans(solve_mix(STATES[0]), GO_ON, 30) == ""  # of its rates nothing is known


def test_who_is_stopped_yields_nothing_more():
    stop = threading.Event()
    stop.set()
    found = solve_mix(beginning("Llama-3-8B", {"A100-SXM-40": 1, "L4": 2}, batch=32))
    assert dict(one_more(found.mix, stop, 30)) == {}
    assert list(deployments(found, stop, 1.0)) == []


# the deployment above it


@pytest.mark.slow
def test_until_it_is_proven_the_chart_says_how_much_more_there_may_be():
    found = solve_mix(beginning("Llama-3-8B", {"A100-SXM-40": 1, "L4": 2, "T4": 1}, batch=16))
    far = pl.deploy(found.problem, gap=0.5)
    title = deployment_title(replace(far, status="feasible", bound=1.25 * far.value), found)
    assert "25.0% more, being proven" in title
    *_, proven = deployments(found, GO_ON, 30)
    assert proven.throughput == pl.deploy(found.problem).throughput
    assert deployment_title(proven, found).endswith(", proven")
    assert list(deployments(found, GO_ON, 30)) == [proven]  # and is kept


@pytest.mark.slow
@pytest.mark.parametrize("tpot_ms", [None, 60.0])
@pytest.mark.parametrize("l4", [2, *(pytest.param(n, marks=pytest.mark.nightly) for n in (3, 5))])
def test_no_deployment_is_worse_than_the_pipeline_below_it(l4, tpot_ms, monkeypatch):
    """Also if there was no time for one."""
    monkeypatch.setattr(mix_answers, "FIRST_S", 0.0)
    counts = {"A100-SXM-40": 2, "L4": l4, "T4": 2}
    mix = beginning("Llama-3-8B", counts, phase="mixed", batch=4, context=512)
    if tpot_ms:
        mix = replace(mix, output_tokens=100, tpot_ms=tpot_ms)
    found = solve_mix(mix)
    assert found.result.throughput
    for shown in deployments(found, GO_ON, 0.0):
        assert shown.throughput >= found.result.throughput * (1 - 1e-9)
        assert shown.gap is None or shown.gap >= 0


def test_a_deployment_of_one_pipeline_is_the_placement_drawn_below():
    """Two optimal placements side by side would look as if one of them were wrong."""
    found = solve_mix(beginning("tiny", {"A100": 1, "V100": 0}))
    best = pl.deploy(found.problem)
    assert (best.count, best.throughput) == (1, found.result.throughput)
    halves = pl.Placement.of([(2, (0,)), (2, (1,))])
    other = replace(best, pipelines=(replace(best.pipelines[0], replicas=(halves,)),))
    for shown in (best, other):
        state = MixState(mix=found.mix, answer=found, deployment=shown)
        bars = mix_explorer._deployment_chart(state)["data"][0]
        assert list(zip(bars["base"], bars["x"], strict=True)) == [(0.5, 4)]


# work beside the kernel's loop


@pytest.mark.slow
def test_what_takes_longer_says_so_and_only_the_newest_answer_arrives():
    signs, answers = [], []

    async def reader():
        beside = Beside(signs.append)
        beside.run(lambda stop: "quick", lambda value, error: answers.append(value))
        await at_rest()
        assert (answers, signs[-1]) == (["quick"], False)
        beside.later(lambda stop: ["unwanted"], answers.append, wait_s=0.2)
        beside.run(lambda stop: stop.wait(60), lambda value, error: answers.append("unwanted"))
        while not signs[-1]:  # at work
            await asyncio.sleep(SIGN_AFTER_S / 10)
        beside.run(lambda stop: 1 / 0, lambda value, error: answers.append(type(error)))
        await at_rest()
        assert (answers, signs[-1]) == (["quick", ZeroDivisionError], False)
        # what fails while nobody waits is told
        told = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: told.append(context["exception"]))
        beside.later(lambda stop: iter([1 / 0]), lambda item: None, wait_s=0.0)
        await at_rest()
        await asyncio.sleep(0.05)
        assert [type(error) for error in told] == [ZeroDivisionError]

    asyncio.run(reader())


@pytest.mark.slow
def test_first_an_answer_then_everything_else_that_is_known(monkeypatch):
    """The proof where the batch is chosen, the deployment, one GPU more, and what else a reader is told."""
    monkeypatch.setattr(mix_explorer, "_FIRST_S", 0.0)
    mix_answers._kept.clear()

    early = []

    async def watched():
        shown = pl.explore_mix("Llama-3-8B", {"A100-SXM-40": 1, "L4": 1}, phase="decode")
        shown.observe(lambda change: early.append(change["new"]), "state")
        first, best = shown.found.result, shown.best
        assert "being solved" in shown.text.value
        assert "being solved" in shown.deployed.layout.title.text
        await at_rest()
        watched = pl.watch_solve(pl.load_case("tiny", max_gpus_per_stage=2))
        await at_rest()
        assert not watched.solving.running
        return first, best, shown

    first, best, shown = asyncio.run(watched())
    proven = shown.found.result
    assert (first.status, best, proven.status) == ("feasible", None, "optimal")
    # a deployment does not wait for that proof, and is there from then on
    assert early[0].answer.result is first
    assert None not in {state.deployment for state in early}
    assert (first.throughput or 0.0) <= proven.throughput <= (first.bound or math.inf)
    assert "proven optimal" in shown.chart.layout.title.text
    said, size = shown.text.value, proven.problem.workload.batch_size
    assert "being solved" not in said
    for part in (f"The batch of {size} is the best of 1, 2,", "One more ", "Expect", "Turns at"):
        assert part in said
    assert "one GPU per stage" in "".join(shown.baselines.layout.yaxis.ticktext)
    assert shown.best.status == "optimal"
    bands = {y for trace in shown.deployed.data for y in trace.y}
    assert bands == set(range(len(shown.best.pipelines)))


# the widget


def page_of(shown):
    """What a reader sees of the single pipeline."""
    charts = [chart.drawing for chart in (shown.chart, shown.baselines)]
    words = [part.value for part in (shown.text, shown.refusal, shown.own.layers, shown.own.why)]
    return [*charts, *words, shown.code.code, shown.controls.mix]


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(60))
def test_the_page_follows_from_the_values_of_the_controls_alone(seed):
    """However they came about, also by way of values that contradict each other, and of plans of one's own."""
    random = Random(seed)
    shown = pl.explore_mix(random.choice(["tiny", "small"]), gpus_per_stage=2)
    for _ in range(6):
        controls = shown.controls
        values = {
            "phase": ["prefill", "decode", "mixed"], "context": [256, 1024], "in_flight": [0, 1, 2],
            "batch_split": ["even", "balanced"], "gpus_per_stage": [1, 2], "network_gb_per_s": [1.0, 50.0],
            "source": ["tiny", "small", "Llama-3-8B"], "costs": cost_models(controls.mix.source),
        }  # fmt: skip
        name = random.choice([*values, "counts", "more", "plan"])
        if name == "plan" and shown.found and shown.found.result.placement:
            shown.own.layers.value = f"{shown.found.problem.model.layers - 1} 1"
            shown.own.back.click()
        elif name == "counts":
            random.choice([*controls.counts.values()]).value = random.randint(0, 2)
        elif name == "more" and controls.more.options[1:]:
            controls.more.value = random.choice(controls.more.options[1:])[1]
        elif name in values:
            controls.fields[name].value = random.choice(values[name])
        controls.fields["batch"].value = 16  # one that is chosen takes longer
        assert shown.code.code == code_of(controls.mix)
        assert page_of(shown) == page_of(mix_explorer.MixExplorer(controls.mix)), (
            name,
            controls.mix,
        )


@pytest.mark.slow
def test_the_explorer_explains_what_cannot_be_and_tells_who_listens():
    mix = pl.explore_mix("tiny", gpus_per_stage=2)
    heard, controls = [], mix.controls
    mix.observe(lambda change: heard.append(change["new"]), "state")
    controls.counts["A100"].value = 1
    assert "Not used:" in mix.text.value
    controls.fields["phase"].value = "decode"
    assert "expected &#x27;prefill&#x27;" in mix.refusal.value
    assert (mix.text.value, mix.found) == ("", None)
    assert len(mix.chart.data[0].y) == 0
    controls.fields["phase"].value = "prefill"
    controls.fields["source"].value = "Llama-3-8B"
    assert list(controls.counts) == ["A100-SXM-40", "L4", "T4"]
    controls.more.value = "H100-SXM"
    controls.fields["costs"].value = "Roofline, eager"
    controls.fields["source"].value = "Llama-2-7B"  # from model to model the mix and the costs stay
    assert (dict(controls.mix.counts)["H100-SXM"], controls.mix.costs) == (1, "Roofline, eager")
    names = [state.answer and state.answer.problem.name for state in heard]
    assert names == ["tiny", None, "tiny", *["Llama-3-8B"] * 3, "Llama-2-7B"]


def test_a_plan_of_ones_own_is_scored_and_the_way_back_is_there():
    mix = pl.explore_mix("Llama-3-8B", MIXED, batch=16)
    own, best = mix.own, mix.found.result
    layers = own.layers.value
    assert layers == ",".join(str(len(s.layers)) for s in best.placement.stages)
    for plan, beginning_of_title in ((False, "Llama-3-8B, 6 GPUs: "), (True, "Your plan: ")):
        if plan:
            first, second, *others = map(int, layers.split(","))
            own.layers.value = ",".join(map(str, (first - 1, second + 1, *others)))
        title, text = mix.chart.layout.title.text, mix.text.value
        assert title.startswith(beginning_of_title)
        assert "limited by" in title
        # a finding is said once
        assert not re.search("limit|optimal|optimum|in [0-9]+ stages", text)
    assert own.score.throughput < best.throughput
    assert "your plan" in mix.baselines.layout.yaxis.ticktext
    space = {}
    exec(mix.code.code, space)
    assert space["score"].throughput == own.score.throughput
    kinds = [mix.found.problem.cluster.gpus[s.gpus[0]].type for s in best.placement.stages]
    own.layers.value = ",".join("32" if i == kinds.index("T4") else "0" for i in range(len(kinds)))
    assert not own.score.valid
    assert f"{own.score.misfits[0].deficit_gb:.4g} GB too much" in mix.text.value
    own.back.click()
    assert (own.layers.value, own.score) == (layers, None)


def test_any_list_of_layers_that_can_be_placed_is_taken_and_others_are_refused_with_a_way_back():
    mix = pl.explore_mix("tiny", gpus_per_stage=2)
    own = mix.own
    for text in ("1,1,1,1", "2 1 1", "0,4"):
        own.layers.value = text
        assert own.why.value == ""
        numbers = [int(n) for n in re.split("[ ,]", text) if n != "0"]
        assert [len(s.layers) for s in own.score.placement.stages] == numbers
        assert own.score.valid
    for text, why in (
        ("1,1,1,1,0", "5 stages need as many GPUs, and there are 4"),
        ("1,1,1", "these add up to 3, and the model has 4 layers"),
        ("3,x", "expected whole numbers that add up to 4, such as 3,1; got x"),
        ("", "expected whole numbers that add up to 4, such as 3,1; got nothing"),
    ):
        own.layers.value = text
        assert why in own.why.value
        own.back.click()
        assert (own.layers.value, own.why.value, own.score) == ("4", "", None)
    mix = pl.explore_mix("tiny")
    mix.own.layers.value = "3,1"  # a last stage takes an unused GPU
    assert mix.own.score.placement == pl.Placement.of([(3, (0,)), (1, (1,))])
    mix.own.layers.value = "4"
    assert mix.own.score is None


@pytest.mark.slow
def test_the_control_of_batches_in_flight_reaches_what_a_placement_needs():
    load = {"phase": "decode", "batch": 1, "context": 128, "network_gb_per_s": 0.01}
    both = pl.explore_pipeline("Llama-3-70B", {"T4": 200}, **load)
    needed = both.placed.in_flight_needed
    assert both.in_flight.max >= needed > 32
    assert both.mix.controls.fields["in_flight"].max >= needed


def test_what_was_stopped_early_is_not_called_the_optimum(monkeypatch):
    monkeypatch.setattr(mix_explorer, "_LIMIT_S", 0.0)
    shown = pl.explore_mix("medium", context=300)
    assert shown.found.result.stopped_by == "time limit"
    assert "stopped early" in shown.chart.layout.title.text
    assert "proven optimum" not in shown.baselines.layout.yaxis.ticktext


def shown(panel):
    """Labels of the controls on the page; one list alone is the simple preset."""
    parts = list(panel.children[0].children)
    for part in parts:
        parts += part.children if isinstance(part, widgets.VBox) else []
    return [part.description for part in parts if not isinstance(part, widgets.HTML | widgets.VBox)]


def test_the_simple_preset_has_three_controls():
    every, simple = pl.explore_mix("small"), pl.explore_mix("small", simple=True)
    assert len(shown(every.panel)) == 18
    assert shown(simple.panel) == ["A100", "V100", "H100"]
    assert simple.controls.mix == every.controls.mix
    both = pl.explore_pipeline("tiny", {"A100": 1, "V100": 0}, simple=True)
    assert shown(both.mix.panel) == ["A100", "V100", "GPUs per stage, up to"]
    hidden = simple.own.layout, both.in_flight.layout
    assert [layout.display for layout in hidden] == ["none"] * 2
    for panel in (simple.panel, both.mix.panel):
        panel.more.value = True
    assert shown(simple.panel) == shown(every.panel)
    assert [layout.display for layout in hidden] == [None] * 2
