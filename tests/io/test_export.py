"""Scores with their reasons, and placements as files and back."""

import dataclasses
import json

import pytest

import oracle
import pipelab as pl
from pipelab.io.plans import problem_of, save_placement

HALVES = pl.Placement.of([(2, (0,)), (2, (1,))])


def _of_weight(problem, gb):
    """The problem with layers of so many GB."""
    model = dataclasses.replace(problem.model, layer_weight_gb=gb)
    return dataclasses.replace(problem, model=model)


def test_a_score_says_how_far_from_the_proven_optimum(tiny):
    found = pl.score(tiny, HALVES)
    assert found.throughput == pl.evaluate(tiny, HALVES).throughput
    assert found.share == pytest.approx(found.throughput / oracle.best(tiny), rel=1e-9)
    assert found.sentence.endswith("stage 2: 70.8% of the proven optimum of 301.8.")
    assert found.sentence in found._repr_html_()
    assert list(found.to_frame()["stage"]) == [1, 2]
    best = pl.score(tiny, pl.solve(tiny, "aggregated"))
    assert (best.share, best.sentence.split(": ")[-1]) == (1, "the proven optimum.")


def test_a_score_with_a_bound_alone_promises_no_more_than_that(tiny):
    early = dataclasses.replace(pl.solve(tiny, "aggregated"), status="feasible", bound=400.0)
    found = pl.score(tiny, HALVES, best=early)
    assert "at least 53.4% of the optimum, which is not above 400" in found.sentence
    rule = pl.score(tiny, HALVES, best=pl.solve(tiny, "even"))
    assert rule.share is None
    assert "nothing is proven" in rule.sentence


def test_what_does_not_fit_is_an_answer_with_every_number(two_stages):
    found = pl.score(two_stages, pl.Placement.of([(3, (0, 2)), (1, (1,))]))
    assert (found.valid, found.throughput, found.share, found.broken) == (False, None, None, ())
    (misfit,) = found.misfits
    need = 3 * 25 + oracle.activations(two_stages) / 2
    assert (misfit.needed_gb, misfit.gpu_type) == (pytest.approx(need), "V100")
    assert misfit.deficit_gb == pytest.approx(need - misfit.offered_gb)
    assert "GB too much; 1 layer would fit there" in found.sentence
    row = found.to_frame().iloc[0]
    assert (row["stage"], row["layers"], row["gpu"], row["layers_that_fit"]) == (1, 3, 2, 1)
    broken = pl.score(two_stages, pl.Placement.of([(4, (0,)), (1, (0,)), (1, (99,))]))
    for reason in ("GPU 0 is used more than once", "stage 3 uses GPU 99", "(layers 1–4) needs"):
        assert any(reason in said for said in broken.reasons)


def test_misfits_agree_with_the_evaluator_and_with_brute_force():
    valid = unfit = 0
    unknown = dataclasses.replace(
        pl.solve(pl.load_case("tiny")),
        status="unknown",
        placement=None,
        throughput=None,
        bound=None,
    )
    for seed in range(150):
        problem = oracle.random_problem(seed, unlike=seed % 3 == 0)
        if seed % 2:
            units = problem.costs.link_units
            costs = oracle.TableCosts(seed, slowest=False, link_units=units)
            problem = dataclasses.replace(problem, costs=costs, batch_split="even")
        layers, last = problem.model.layers, len(problem.cluster) - 1
        parts = [(layers // 2, (0,)), (layers - layers // 2, (last,))]
        placement = pl.Placement.of(parts if last and layers > 1 else [(layers, (0,))])
        found = pl.score(problem, placement, best=dataclasses.replace(unknown, problem=problem))
        fits = [oracle.stage(problem, s.gpus, s.layers) is not None for s in placement.stages]
        said = [i + 1 not in [m.stage for m in found.misfits] for i in range(len(fits))]
        assert (said, found.valid) == (fits, all(fits)), seed
        for misfit in found.misfits:
            stage = placement.stages[misfit.stage - 1]
            first, stop = stage.layers.start, stage.layers.stop
            held = [range(first, end) for end in range(first + 1, stop)]
            held = [len(span) for span in held if oracle.stage(problem, stage.gpus, span)]
            assert misfit.most_layers == max(held, default=0), seed
        if found.valid:
            assert found.throughput == pl.evaluate(problem, placement).throughput
        valid, unfit = valid + found.valid, unfit + (not found.valid)
    assert min(valid, unfit) > 15


def test_a_result_of_another_problem_is_refused(tiny):
    slow, heavy = (pl.solve(_of_weight(tiny, gb), "aggregated") for gb in (25, 500))
    with pytest.raises(pl.errors.InvalidValue, match="a result of this problem: it claims at most"):
        pl.score(tiny, pl.Placement.of([(4, (0, 1))]), best=slow)
    with pytest.raises(pl.errors.InvalidValue, match="there is no placement, yet this one yields"):
        pl.score(tiny, HALVES, best=heavy)


def test_json_holds_everything_with_its_units(two_stages, tmp_path, monkeypatch):
    for home in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(home, str(tmp_path))
    result = pl.solve(two_stages, "aggregated")
    assert pl.save(result, "~/new/plan.json") == tmp_path / "new" / "plan.json"
    document = json.loads((tmp_path / "new" / "plan.json").read_text(encoding="utf-8"))
    found = result.evaluation
    assert document["attainable_tokens_per_s"] == document["bound_tokens_per_s"] == found.attainable
    assert document["rate_tokens_per_s"] == found.rate
    assert "in_flight" not in document  # links that count transfers have no time
    assert (document["status"], document["method"]) == ("optimal", "aggregated")
    assert document["bottlenecks"] == list(found.bottlenecks)
    first, report, link = document["stages"][0], found.stages[0], found.links[0]
    assert first["memory_needed_gb"] == list(report.memory_gb)
    assert first["memory_offered_gb"] == list(report.memory_limit_gb)
    assert first["throughput_tokens_per_s"] == report.throughput
    assert document["links"][0]["throughput_transfers_per_s"] == link.throughput
    assert document["links"][0]["slowest_pair_of_gpus"] == [link.sender, link.receiver]
    own = save_placement(two_stages, result.placement, tmp_path / "own.json")
    assert "status" not in json.loads(own.read_text("utf-8"))  # a placement alone proves nothing


def test_a_plan_says_how_many_in_flight_fill_it_and_how_layers_are_cut(tmp_path):
    cluster = pl.Cluster.from_counts({"L4": 4}, 24, 1.0)
    load = pl.Workload(2048, 8, "decode", in_flight=3)
    model = pl.load_model("Llama-3-8B")
    problem = pl.Problem(cluster, model, load, pl.Roofline(), 2, same_type_stages=False)
    placement = pl.Placement.of([(16, (0, 1)), (16, (2, 3))])
    path = save_placement(problem, placement, tmp_path / "plan.json")
    document, found = json.loads(path.read_text(encoding="utf-8")), pl.evaluate(problem, placement)
    cut = [stage["gpus_per_layer"] for stage in document["stages"]]
    assert cut == [stage.degree for stage in found.stages]
    under = document["conditions"]
    assert document["in_flight"] == under["in_flight_given"] == 3
    needed = pl.timeline_of(problem, placement).in_flight_needed
    assert under["microbatches_that_fill_the_pipeline"] == needed
    assert pl.load_placement(path, problem) == placement
    for number in (1, None):
        with pytest.raises(pl.errors.InvalidData, match="made with in_flight_given = 3"):
            pl.load_placement(path, problem.with_in_flight(number))
    save_placement(problem.with_in_flight(None), placement, path)
    with pytest.raises(pl.errors.InvalidData, match="made with in_flight_given = None"):
        pl.load_placement(path, problem)


@pytest.mark.slow
def test_a_plan_loaded_for_its_problem_has_the_rate_that_was_saved(tmp_path):
    """Or is refused under another rule, workload or cluster."""
    unequal = refused = 0
    for seed in range(24):
        problem = oracle.random_problem(seed, unlike=seed % 3 == 0)
        result = pl.solve(problem, "aggregated")
        if result.placement is None:
            continue
        unequal += any(len(set(stage.batch)) > 1 for stage in result.evaluation.stages)
        path = save_placement(problem, result.placement, tmp_path / "plan.json")
        again = pl.load_placement(path, problem)
        assert again == result.placement, seed
        rate = pl.evaluate(problem, again).throughput
        assert rate == pytest.approx(result.throughput, rel=1e-12)
        workload = dataclasses.replace(problem.workload, batch_size=problem.workload.batch_size + 1)
        units = "tokens" if problem.costs.link_units == "transfers" else "transfers"
        costs = dataclasses.replace(problem.costs, link_units=units)
        both = {"costs": costs, "workload": workload}
        for change in ({"costs": costs}, {"workload": workload}, both):
            other = dataclasses.replace(problem, **change)
            with pytest.raises(pl.errors.InvalidData, match="this plan was made with "):
                pl.load_placement(path, other)
            refused += 1
    assert unequal
    assert refused > 30


def test_a_plan_has_the_shares_that_its_rate_needs_and_is_refused_with_others(tmp_path):
    """tiny, four GPUs in one stage that finish together: 443.85 tokens/s, and no even split has them."""
    problem = pl.load_case("tiny", max_gpus_per_stage=4, batch_split="balanced")
    even = dataclasses.replace(problem, batch_split="even")
    result = pl.solve(problem, "aggregated")
    assert result.throughput == pytest.approx(443.85, abs=0.005)
    path = pl.save(result, tmp_path / "plan.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    shares = document["stages"][0]["sequences_per_gpu"]
    assert shares == pytest.approx([4.976, 4.976, 3.024, 3.024], abs=0.001)
    assert sum(shares) == pytest.approx(16)
    told = r"made with batch_split = 'balanced'; the problem has batch_split = 'even'"
    with pytest.raises(pl.errors.InvalidData, match=told):
        pl.load_placement(path, even)
    del document["conditions"]  # as one written by hand
    path.write_text(json.dumps(document), encoding="utf-8")
    assert pl.load_placement(path, problem) == result.placement
    with pytest.raises(pl.errors.InvalidData, match=r"443\.8.*, but for this problem .*345\.49"):
        pl.load_placement(path, even)
    for wrong in ([4, 4, 4, 4], [4, 4], "x"):
        document["stages"][0]["sequences_per_gpu"] = wrong
        path.write_text(json.dumps(document), encoding="utf-8")
        with pytest.raises(pl.errors.InvalidData, match="stage 1: sequences_per_gpu"):
            pl.load_placement(path, problem)


def test_rules_that_are_given_come_before_those_of_a_plans_file(tmp_path):
    path = pl.save(pl.solve(pl.load_case("tiny", max_gpus_per_stage=2)), tmp_path / "plan.json")
    assert problem_of(path) == pl.load_case("tiny", max_gpus_per_stage=2)
    assert problem_of(path, max_gpus_per_stage=3) == pl.load_case("tiny", max_gpus_per_stage=3)


def test_what_cannot_be_saved_is_refused_and_leaves_the_old_file(tiny, tmp_path):
    path = save_placement(tiny, HALVES, tmp_path / "plan.json")
    before = path.read_text(encoding="utf-8")
    with pytest.raises(pl.errors.InvalidPlacement, match="layer 4 is not assigned to any stage"):
        save_placement(tiny, pl.Placement.of([(3, (0,))]), path)
    with pytest.raises(pl.errors.InvalidValue, match="expected a result that has one"):
        pl.save(pl.solve(_of_weight(tiny, 500), "aggregated"), path)
    assert path.read_text(encoding="utf-8") == before
    with pytest.raises(pl.errors.InvalidValue, match=r"plan\.csv'?: expected a name that ends in"):
        save_placement(tiny, HALVES, tmp_path / "plan.csv")


STAGE = {"first_layer": 1, "last_layer": 2, "gpus": [0]}
BAD_JSON = [
    ({"stages": []}, 'expected an object with "stages", a list of at least one stage'),
    ({"pipelines": []}, "this is a deployment"),
    ({"points": []}, "this is a trade-off; load one of its points"),
    ({"stages": [3]}, "stage 1: 3: expected an object"),
    ({"stages": [{"first_layer": 1, "gpu": [0]}]}, "'last_layer' is missing"),
    ({"stages": [STAGE], "conditions": 3}, "field 'conditions': 3: expected an object"),
    ({"stages": [STAGE | {"first_layer": 3}]}, "'last_layer': 2: expected .*at least 3"),
    ({"stages": [STAGE | {"gpus": []}]}, "'gpus': .*at least one GPU id"),
    ({"stages": [STAGE | {"last_layer": 2 * 10**9}]}, r"'last_layer': .*below 10\^9"),
]


@pytest.mark.parametrize(("document", "message"), BAD_JSON)
def test_a_bad_json_is_refused_at_its_stage(document, message, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(pl.errors.InvalidData, match=message):
        pl.load_placement(path)
