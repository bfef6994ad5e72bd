"""Scores with their reasons, and placements as files and back."""

import dataclasses
import json

import numpy as np
import pytest

import oracle
import pipelab as pl
from pipelab.io.plans import problem_of, save_placement
from pipelab.writeup.linear_rates import with_link_units

HALVES = pl.Placement.of([(2, (0,)), (2, (1,))])


@pytest.mark.slow
def test_a_score_says_how_far_from_the_proven_optimum(tiny):
    found = pl.score(tiny, HALVES)
    assert found.valid
    assert found.throughput == pl.evaluate(tiny, HALVES).throughput
    assert found.share == pytest.approx(found.throughput / oracle.best(tiny), rel=1e-9)
    assert (
        found.sentence
        == "213.5 tokens/s, limited by stage 1 and stage 2: 70.8% of the proven optimum of 301.8."
    )
    assert found.sentence in found._repr_html_()
    assert list(found.to_frame()["stage"]) == [1, 2]
    best = pl.score(tiny, pl.solve(tiny, "joint"))
    assert best.share == 1
    assert best.sentence.endswith(": the proven optimum.")


def test_a_score_with_a_bound_alone_promises_no_more_than_that(tiny):
    early = dataclasses.replace(pl.solve(tiny, "aggregated"), status="feasible", bound=400.0)
    found = pl.score(tiny, HALVES, best=early)
    assert "at least 53.4% of the optimum, which is not above 400" in found.sentence
    rule = pl.solve(tiny, "even")
    assert rule.bound is None
    assert pl.score(tiny, HALVES, best=rule).share is None
    assert "nothing is proven" in pl.score(tiny, HALVES, best=rule).sentence


def test_a_misfit_is_an_answer_with_every_number(two_stages):
    found = pl.score(two_stages, pl.Placement.of([(3, (0, 2)), (1, (1,))]))
    assert not found.valid
    assert (found.throughput, found.share, found.broken) == (None, None, ())
    (misfit,) = found.misfits
    need = 3 * 25 + oracle.activations(two_stages) / 2
    assert (misfit.stage, misfit.gpu, misfit.gpu_type, misfit.most_layers) == (1, 2, "V100", 1)
    assert misfit.needed_gb == pytest.approx(need)
    assert misfit.deficit_gb == pytest.approx(need - misfit.offered_gb)
    assert "GB too much; 1 layer would fit there" in found.sentence
    row = found.to_frame().iloc[0]
    assert (row["stage"], row["layers"], row["gpu"], row["layers_that_fit"]) == (1, 3, 2, 1)
    assert row["deficit_gb"] == pytest.approx(need - misfit.offered_gb)
    assert "<li>stage 1" in found._repr_html_()


def test_the_most_overloaded_stage_comes_first(two_stages):
    heavy = dataclasses.replace(
        two_stages, model=dataclasses.replace(two_stages.model, layer_weight_gb=60)
    )
    found = pl.score(heavy, pl.Placement.of([(2, (0,)), (2, (2,))]))
    assert [m.stage for m in found.misfits] == [2, 1]
    assert [m.most_layers for m in found.misfits] == [0, 1]
    assert "no layer would fit there (and 1 more reason)" in found.sentence
    assert "Nor is any other: " in found.sentence  # two A100 hold a layer each, and no V100 any


def test_misfits_agree_with_the_evaluator_and_with_brute_force():
    valid = unfit = 0
    for seed in range(300):
        problem = oracle.random_problem(seed, unlike=seed % 3 == 0)
        if seed % 2:
            problem = dataclasses.replace(
                problem,
                costs=oracle.TableCosts(seed, slowest=False, link_units=problem.costs.link_units),
                batch_split="even",
            )
        gpus = range(len(problem.cluster))
        half = max(1, problem.model.layers // 2)
        parts = [(half, (0,)), (problem.model.layers - half, (len(gpus) - 1,))]
        parts = (
            parts if len(gpus) > 1 and problem.model.layers > 1 else [(problem.model.layers, (0,))]
        )
        placement = pl.Placement.of(parts)
        found = pl.score(
            problem, placement, best=pl.Result(problem, "none", "unknown", None, None, None, 0.0)
        )
        unfitting = [
            i
            for i, s in enumerate(placement.stages, 1)
            if oracle.stage(problem, s.gpus, s.layers) is None
        ]
        assert sorted(m.stage for m in found.misfits) == unfitting, seed
        assert found.valid == (not unfitting), seed
        for misfit in found.misfits:
            stage = placement.stages[misfit.stage - 1]
            first = stage.layers.start
            held = [
                n
                for n in range(1, len(stage.layers))
                if oracle.stage(problem, stage.gpus, range(first, first + n))
            ]
            assert misfit.most_layers == max(held, default=0), seed
        if found.valid:
            assert found.throughput == pl.evaluate(problem, placement).throughput
            valid += 1
        unfit += bool(unfitting)
    assert valid > 30
    assert unfit > 30


def test_broken_rules_are_listed_beside_what_does_not_fit(two_stages):
    found = pl.score(two_stages, pl.Placement.of([(4, (0,)), (1, (0,)), (1, (99,))]))
    assert "GPU 0 is used more than once" in found.reasons
    assert any("stage 3 uses GPU 99" in reason for reason in found.reasons)
    assert any("stage 1 (layers 1–4) needs" in reason for reason in found.reasons)
    assert found.sentence.endswith(
        f"{found.reasons[0]} (and {len(found.reasons) - 1} more reasons)."
    )


def test_a_result_of_another_problem_is_refused(tiny):
    slow = dataclasses.replace(tiny, model=dataclasses.replace(tiny.model, layer_weight_gb=45))
    with pytest.raises(
        pl.errors.InvalidValue, match="expected a result of this problem: it claims"
    ):
        pl.score(tiny, pl.Placement.of([(4, (0, 1))]), best=pl.solve(slow, "aggregated"))
    heavy = dataclasses.replace(tiny, model=dataclasses.replace(tiny.model, layer_weight_gb=500))
    with pytest.raises(
        pl.errors.InvalidValue, match="it claims that there is no placement, yet this one yields"
    ):
        pl.score(tiny, HALVES, best=pl.solve(heavy, "aggregated"))
    with pytest.raises(pl.errors.InvalidValue, match="best = 3: expected a Result"):
        pl.score(tiny, HALVES, best=3)
    with pytest.raises(pl.errors.InvalidValue, match="placement = None: expected a Placement"):
        pl.score(tiny, None)


@pytest.mark.slow
def test_placements_come_back_from_their_files(tmp_path):
    kept = 0
    for seed in range(300):
        problem, rng = oracle.random_problem(seed), np.random.default_rng(seed)
        sizes = rng.multinomial(
            problem.model.layers, np.full(len(problem.cluster), 1 / len(problem.cluster))
        )
        gpus = rng.permutation(len(problem.cluster)).tolist()
        placement = pl.Placement.of(
            [(n, (g,)) for n, g in zip(sizes.tolist(), gpus, strict=True) if n]
        )
        path = tmp_path / "new" / "plan.json"
        try:
            assert save_placement(problem, placement, path) == path
        except pl.errors.InvalidPlacement:
            continue
        assert pl.load_placement(str(path)) == placement, seed
        kept += len(placement) > 1
    result = pl.solve(pl.load_case("medium", max_gpus_per_stage=2), "aggregated")
    assert pl.save(result, str(path)) == path
    assert pl.load_placement(path) == result.placement
    assert kept > 20
    # replaced whole, nothing left over
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["plan.json"]


def test_json_holds_everything_with_its_units(two_stages, tmp_path):
    result = pl.solve(two_stages, "aggregated")
    document = json.loads(pl.save(result, tmp_path / "plan.json").read_text(encoding="utf-8"))
    found = result.evaluation
    assert document["attainable_tokens_per_s"] == document["bound_tokens_per_s"] == found.attainable
    assert document["rate_tokens_per_s"] == found.rate
    assert "in_flight" not in document  # links that count transfers have no time
    assert (document["status"], document["method"]) == ("optimal", "aggregated")
    assert document["bottlenecks"] == list(found.bottlenecks)
    first = document["stages"][0]
    report = found.stages[0]
    assert first["gpus"] == list(report.stage.gpus)
    assert first["memory_needed_gb"] == list(report.memory_gb)
    assert first["memory_offered_gb"] == list(report.memory_limit_gb)
    assert first["throughput_tokens_per_s"] == report.throughput
    assert document["links"][0]["throughput_transfers_per_s"] == found.links[0].throughput
    assert document["links"][0]["slowest_pair_of_gpus"] == [
        found.links[0].sender,
        found.links[0].receiver,
    ]
    own = json.loads(
        save_placement(two_stages, result.placement, tmp_path / "own.json").read_text("utf-8")
    )
    assert "status" not in own  # a placement alone proves nothing


def test_rules_that_are_given_come_before_those_of_a_plans_file(tmp_path):
    path = pl.save(pl.solve(pl.load_case("tiny", max_gpus_per_stage=2)), tmp_path / "plan.json")
    assert problem_of(path) == pl.load_case("tiny", max_gpus_per_stage=2)
    assert problem_of(path, max_gpus_per_stage=3) == pl.load_case("tiny", max_gpus_per_stage=3)


def _balanced():
    return pl.load_case("tiny", max_gpus_per_stage=4, batch_split="balanced")


def test_a_plan_has_the_shares_that_its_rate_needs(tmp_path):
    """tiny, four GPUs in one stage that finish together: 443.85 tokens/s, and no even split has them."""
    problem = _balanced()
    result = pl.solve(problem, "aggregated")
    assert result.throughput == pytest.approx(443.85, abs=0.005)
    path = pl.save(result, tmp_path / "plan.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    shares, under = document["stages"][0]["sequences_per_gpu"], document["conditions"]
    assert (document["in_flight"], under["in_flight_given"]) == (2, None)
    assert shares == pytest.approx([4.976, 4.976, 3.024, 3.024], abs=0.001)
    assert sum(shares) == pytest.approx(under["batch_size"]) == pytest.approx(16)
    assert (under["batch_split"], under["link_units"], under["max_gpus_per_stage"]) == (
        "balanced",
        "transfers",
        4,
    )
    assert (under["phase"], under["sequence_length"]) == ("prefill", 2048)
    again = pl.load_placement(path, problem)
    assert pl.evaluate(problem, again).throughput == result.throughput


@pytest.mark.slow
def test_a_plan_loaded_for_its_problem_has_the_rate_that_was_saved(tmp_path):
    """Or is refused: under another rule, workload or cluster; and what the message says to do helps."""
    unequal = refused = 0
    for seed in range(60):
        problem = oracle.random_problem(seed, unlike=seed % 3 == 0)
        result = pl.solve(problem, "aggregated")
        if result.placement is None:
            continue
        unequal += any(len(set(stage.batch)) > 1 for stage in result.evaluation.stages)
        path = save_placement(problem, result.placement, tmp_path / "plan.json")
        assert pl.load_placement(path, problem) == result.placement, seed
        again = pl.evaluate(problem, pl.load_placement(path, problem))
        assert again.throughput == pytest.approx(result.throughput, rel=1e-12)
        workload = dataclasses.replace(problem.workload, batch_size=problem.workload.batch_size + 1)
        units = "tokens" if problem.costs.link_units == "transfers" else "transfers"
        costs = dataclasses.replace(problem.costs, link_units=units)
        for change in (
            {"costs": costs},
            {"workload": workload},
            {"costs": costs, "workload": workload},
        ):
            other = dataclasses.replace(problem, **change)
            with pytest.raises(pl.errors.InvalidData, match="this plan was made with ") as caught:
                pl.load_placement(path, other)
            remedy = str(caught.value).partition("Give it the plan's: ")[2]
            as_it_was = eval(remedy, {"dataclasses": dataclasses, "pl": pl, "problem": other})
            assert pl.load_placement(path, as_it_was) == result.placement
            refused += 1
    assert unequal
    assert refused > 100


def test_a_plan_of_another_rule_is_refused_with_the_remedy(tmp_path):
    problem = _balanced()
    path = pl.save(pl.solve(problem, "aggregated"), tmp_path / "plan.json")
    even = dataclasses.replace(problem, batch_split="even")
    told = "made with batch_split = 'balanced'; the problem has batch_split = 'even'"
    with pytest.raises(
        pl.errors.InvalidData,
        match=rf"{told}.*dataclasses.replace\(problem, batch_split='balanced'\)",
    ):
        pl.load_placement(path, even)
    document = json.loads(path.read_text(encoding="utf-8"))
    del document["conditions"]  # as one written by hand
    del document["stages"][0]["sequences_per_gpu"]
    path.write_text(json.dumps(document), encoding="utf-8")
    assert pl.load_placement(path) == pl.load_placement(path, problem)
    with pytest.raises(
        pl.errors.InvalidData, match=r"the plan: .*443\.8.*, but for this problem .*345\.49"
    ):
        pl.load_placement(path, even)
    for shares, told in (
        ([4, 4, 4, 4], "but for this problem 4.97"),
        ([4, 4], "expected 4 numbers"),
        ("x", "expected 4"),
    ):
        document["stages"][0]["sequences_per_gpu"] = shares
        path.write_text(json.dumps(document), encoding="utf-8")
        with pytest.raises(pl.errors.InvalidData, match=f"stage 1: sequences_per_gpu .*{told}"):
            pl.load_placement(path, problem)
    with pytest.raises(pl.errors.InvalidValue, match="problem = 3: expected a Problem"):
        pl.load_placement(path, 3)


def test_a_plan_says_how_many_in_flight_fill_it_and_how_layers_are_cut(tmp_path):
    cluster, load = (
        pl.Cluster.from_counts({"L4": 4}, 24, 1.0),
        pl.Workload(2048, 8, "decode", in_flight=3),
    )
    problem = pl.Problem(
        cluster,
        pl.load_model("Llama-3-8B"),
        load,
        pl.Roofline(),
        2,
        same_type_stages=False,
    )
    placement = pl.Placement.of([(16, (0, 1)), (16, (2, 3))])
    document = json.loads(
        save_placement(problem, placement, tmp_path / "plan.json").read_text(encoding="utf-8")
    )
    found = pl.evaluate(problem, placement)
    assert [stage["gpus_per_layer"] for stage in document["stages"]] == [
        stage.degree for stage in found.stages
    ]
    under = document["conditions"]
    assert document["in_flight"] == under["in_flight_given"] == 3
    assert document["rate_tokens_per_s"] == found.rate
    assert document["attainable_tokens_per_s"] == found.attainable
    assert (under["in_flight_given"], under["phase"], under["cost_model"]) == (
        3,
        "decode",
        "Roofline",
    )
    fills = under["microbatches_that_fill_the_pipeline"]
    assert fills == pl.timeline_of(problem, placement).in_flight_needed
    assert pl.load_placement(tmp_path / "plan.json", problem) == placement
    for number in (1, None):
        with pytest.raises(
            pl.errors.InvalidData,
            match=r"in_flight_given = 3; .*replace.problem\.workload, in_flight=3",
        ):
            pl.load_placement(tmp_path / "plan.json", problem.with_in_flight(number))
    path = save_placement(problem.with_in_flight(None), placement, tmp_path / "chosen.json")
    assert pl.load_placement(path, problem.with_in_flight(None)) == placement
    with pytest.raises(pl.errors.InvalidData, match=r"replace.problem\.workload, in_flight=None"):
        pl.load_placement(path, problem)


def test_a_plan_is_compared_with_its_problem_down_to_the_links(tmp_path):
    problem = pl.load_case("tiny", max_gpus_per_stage=2, link_units="tokens")
    path = save_placement(problem, HALVES, tmp_path / "plan.json")
    assert pl.load_placement(path, problem) == HALVES
    slow = dataclasses.replace(problem, cluster=problem.cluster.scaled_bandwidth(1e-6))
    told = r"213\.5.*: the cluster, model or cost model differs from the plan's\. Omit problem= to read only the stages"
    with pytest.raises(pl.errors.InvalidData, match=rf"the plan: rate_tokens_per_s {told}"):
        pl.load_placement(path, slow)
    with pytest.raises(
        pl.errors.InvalidData,
        match=r"link_units = 'tokens'; .*: pl\.writeup\.with_link_units\(problem, 'tokens'\)",
    ):
        pl.load_placement(path, with_link_units(problem, "transfers"))


def test_what_cannot_be_saved_is_refused_and_leaves_the_old_file(tiny, tmp_path):
    path = save_placement(tiny, HALVES, tmp_path / "plan.json")
    before = path.read_text(encoding="utf-8")
    with pytest.raises(pl.errors.InvalidPlacement, match="layer 4 is not assigned to any stage"):
        save_placement(tiny, pl.Placement.of([(3, (0,))]), path)
    assert path.read_text(encoding="utf-8") == before
    for name in ("plan.csv", "plan.xlsx"):
        with pytest.raises(
            pl.errors.InvalidValue, match=rf"{name}'?: expected a name that ends in \.json"
        ):
            save_placement(tiny, HALVES, tmp_path / name)
    heavy = dataclasses.replace(tiny, model=dataclasses.replace(tiny.model, layer_weight_gb=500))
    with pytest.raises(pl.errors.InvalidValue, match="expected a result that has one"):
        pl.save(pl.solve(heavy, "aggregated"), path)


STAGE = {"first_layer": 1, "last_layer": 2, "gpus": [0]}
BAD_JSON = [
    ("{", "cannot be read as JSON"),
    ("[]", 'expected an object with "stages"'),
    ('{"stages": 3}', 'expected an object with "stages", a list of at least one'),
    ('{"stages": []}', "a list of at least one stage"),
    ('{"stages": [3]}', "stage 1: 3: expected an object"),
    (json.dumps({"stages": [STAGE], "conditions": 3}), "field 'conditions': 3: expected an object"),
]
BAD_STAGES = [
    ({"gpu": [0]}, "'gpus' is missing; did you mean 'gpu'"),
    ({"last_layer": 2.5}, r"field 'last_layer': 2\.5"),
    ({"first_layer": True}, "'first_layer': True: expected"),
    ({"gpus": "0"}, "'gpus': '0': expected at least"),
    ({"gpus": [-1]}, "'gpus': -1: expected a whole"),
    ({"gpus": []}, "stage 1, field 'gpus': .*at least one GPU id"),
    ({"first_layer": 0}, "stage 1, field 'first_layer': 0: .*at least 1"),
    ({"first_layer": 3}, "stage 1, field 'last_layer': 2: expected .*at least 3"),
    ({"last_layer": 2000000000}, r"'last_layer': 2000000000: .*below 10\^9"),
]


def _with_stage(changes):
    """A plan of one stage, changed; without GPUs where they stand under another name."""
    stage = {key: value for key, value in STAGE.items() if "gpu" not in changes or key != "gpus"}
    return json.dumps({"stages": [stage | changes]})


@pytest.mark.parametrize(
    ("text", "message"), BAD_JSON + [(_with_stage(changes), says) for changes, says in BAD_STAGES]
)
def test_a_bad_json_is_refused_at_its_stage(text, message, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(pl.errors.InvalidData, match=message):
        pl.load_placement(path)


def test_files_that_are_not_there_are_named(tmp_path):
    with pytest.raises(pl.errors.InvalidData, match=r"gone\.json: there is no such file"):
        pl.load_placement(tmp_path / "gone.json")
    for name in ("plan.txt", "plan.csv"):
        with pytest.raises(pl.errors.InvalidValue, match=r"expected a name that ends in \.json"):
            pl.load_placement(tmp_path / name)


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    path = pl.save(pl.solve(pl.load_case("tiny")), "~/plan.json")
    assert path == tmp_path / "plan.json"
    assert path.is_file()
