"""How engines fill pipelines: the best placement of every filling, against all placements."""

import dataclasses
import re

import numpy as np
import pytest
from small_problems import divided, every_placement, mask_of, per_million, tight

import oracle
import pipelab as pl
from clone import text_of

CLOSE = 3e-6  # sums of times come from a solver, as in test_in_flight.py
FILLINGS = ("by_stages", "dynamic", "micro_batches", "one")
NUMBERS = {
    "by_stages": (None, 1, 2, 3),
    "dynamic": (None, 1, 3),
    "micro_batches": (None, 2, 3, 5),
    "one": (None, 1, 3),
}


def filled(seed, filling):
    """Draw a problem whose memory holds a few microbatches, for an engine with this filling."""
    rng = np.random.default_rng(seed)
    problem = tight(seed, late=seed % 3 == 0)
    counts = filling in ("by_stages", "micro_batches")
    costs = problem.costs.with_filling(filling, int(rng.integers(0, 3)) if counts else 0)
    if filling == "micro_batches":  # its engine reads prompts in parts
        few = int(np.ceil(problem.workload.tokens_passed / rng.integers(1, 5)))
        engine = dataclasses.replace(costs.engines[costs.engine], chunk_tokens=few)
        costs = dataclasses.replace(costs, engines={**costs.engines, costs.engine: engine})
    number = NUMBERS[filling][int(rng.integers(len(NUMBERS[filling])))]
    return dataclasses.replace(problem.with_in_flight(number), costs=costs)


def every_filled(problem):
    """List (tokens/s, GPUs used, seconds of a traversal) of every placement, with all numbers that are allowed."""
    given, filling = problem.workload.in_flight, problem.costs.filling
    tokens, more, found = problem.workload.tokens, problem.costs.filling_number, []
    most = problem.model.layers + more if filling == "by_stages" else given or 1
    most = 1 if filling in ("dynamic", "one") else most  # told more, an engine has one at a time
    for n in range(1, most + 1) if filling == "by_stages" else [most]:
        for rate, used, stages, seconds in oracle._every(plain(problem, n), timed=True):
            if filling == "by_stages":
                if n > min(stages + more, given or np.inf):
                    continue
                attained = min(rate, n * tokens / seconds)
            else:
                parts = n * parts_of(problem)
                apart = max(tokens / rate, seconds / (more or np.inf))
                attained = parts * tokens / (seconds + (parts - 1) * apart)
            found.append((attained, used, seconds))
    return found


def parts_of(problem):
    """Into how many parts prompts are cut."""
    load = problem.workload
    if problem.costs.filling != "micro_batches" or load.phase != "prefill":
        return 1
    return -(-load.batch_size * load.sequence_length // problem.costs.chunk_tokens)


def plain(problem, number):
    """The same problem with so many in memory and the usual filling."""
    costs = problem.costs.with_filling("synchronous")
    return dataclasses.replace(problem, costs=costs).with_in_flight(number)


@pytest.mark.quick(3)
@pytest.mark.examples
@pytest.mark.parametrize("filling", FILLINGS)
@pytest.mark.parametrize("seed", range(1, 501))
def test_it_is_the_most_of_all_placements_and_the_least_time_and_money_at_a_rate(seed, filling):
    problem = filled(seed, filling)
    every, answer = every_filled(problem), pl.solve(problem, "aggregated")
    if not every:
        assert answer.status == "infeasible"
        return
    most = max(rate for rate, _, _ in every)
    assert answer.status == "optimal"
    assert answer.throughput == pl.evaluate(problem, answer.placement).attainable
    assert answer.throughput == pytest.approx(most, rel=CLOSE)
    assert answer.bound >= most * (1 - CLOSE)
    floor = 0.7 * most
    there = [(rate, used, seconds) for rate, used, seconds in every if rate >= floor]
    quickest = pl.solve(problem, objective="latency", at_least=floor)
    assert quickest.objective.value == pytest.approx(min(s for _, _, s in there), rel=CLOSE)
    cheapest = pl.solve(problem, objective="cost", at_least=floor)
    least = min(per_million(problem, used, rate) for rate, used, _ in there)
    assert cheapest.objective.value == pytest.approx(least, rel=CLOSE)


@pytest.mark.quick(2)
@pytest.mark.parametrize("filling", FILLINGS)
@pytest.mark.parametrize("seed", range(1, 12))
def test_every_placement_is_evaluated_as_written_out(seed, filling):
    problem = filled(seed, filling)
    best = {}
    for rate, used, _ in every_filled(problem):
        best[frozenset(used)] = max(rate, best.get(frozenset(used), 0.0))
    found = {}
    for placement in every_placement(problem):
        try:
            attained = pl.evaluate(problem, placement).attainable
        except pl.errors.InvalidPlacement:
            continue
        used = frozenset(placement.gpus)
        found[used] = max(attained, found.get(used, 0.0))
    assert found == pytest.approx(best, rel=1e-9)


@pytest.mark.quick(2)
@pytest.mark.examples
@pytest.mark.parametrize("filling", FILLINGS)
@pytest.mark.parametrize("seed", range(1, 201))
def test_a_deployment_has_the_most_of_all_divisions(seed, filling):
    problem = filled(seed, filling)
    best = [0.0] * (1 << len(problem.cluster))
    for rate, used, _ in every_filled(problem):
        best[mask_of(used)] = max(rate, best[mask_of(used)])
    answer = pl.deploy(problem)
    most = max(divided(best))
    if not most:
        assert answer.status != "optimal"
        assert not answer.pipelines
        return
    assert pl.evaluate(problem, answer).throughput == pytest.approx(answer.throughput, rel=1e-12)
    assert answer.bound >= most * (1 - CLOSE)
    if filling in ("dynamic", "one"):  # the others' bound is that of synchronous pipelines
        assert answer.status == "optimal"
    assert answer.throughput <= most * (1 + 1e-9)
    if answer.status == "optimal":
        assert answer.throughput == pytest.approx(most, rel=CLOSE)


@pytest.mark.parametrize("filling", FILLINGS)
def test_what_does_not_cover_a_filling_refuses_it_by_name(filling):
    problem = filled(2, filling).with_in_flight(2)
    answer = pl.solve(problem)
    asked = [lambda: pl.flow(problem), lambda: pl.certificate(pl.solve(problem, objective="rate"))]
    if filling == "micro_batches":
        asked.append(lambda: pl.timeline_of(problem, answer))
    else:
        shown = pl.timeline_of(problem, answer)
        assert shown.steady_rate == pytest.approx(answer.throughput)
    for ask in asked:
        with pytest.raises(pl.errors.NotApplicable, match=f"filling = '{filling}'"):
            ask()


def test_a_filling_that_there_is_not_names_the_nearest():
    costs = tight(1).costs
    with pytest.raises(pl.errors.InvalidValue, match="by_stages"):
        costs.with_filling("by_stage")
    with pytest.raises(pl.errors.InvalidValue, match="filling_number"):
        costs.with_filling("by_stages", -1)


class FixedTimes(pl.LayerTimes):
    """A cost model of one's own whose stages all take as long."""

    def stage(self, model, workload, gpus, layers, batch_split):
        cost = super().stage(model, workload, gpus, layers, batch_split)
        return cost._replace(throughput=workload.tokens / 0.01, pass_seconds=0.01)


def test_a_cost_model_of_ones_own_takes_a_filling():
    cluster = pl.Cluster.from_counts({"A": 3}, 2.5, 1e5)
    model, load = pl.Model("four layers", 4, 8, 8, 1.0), pl.Workload(100, 2)
    costs = FixedTimes({"A": 1.0}).with_filling("one")
    problem = pl.Problem(cluster, model, load, costs, 1)
    assert pl.solve(problem).throughput == pytest.approx(200 / 0.02, rel=1e-4)
    plain = dataclasses.replace(problem, costs=costs.with_filling("synchronous"))
    assert pl.solve(plain).throughput == pytest.approx(200 / 0.01, rel=1e-4)


@pytest.mark.slow
def test_the_page_says_what_rates_of_engines_become(monkeypatch):
    page, llama = text_of("docs/fillings.md"), pl.load_model("Llama-3-70B")
    prompts, decode = pl.Workload(2048, 1), pl.Workload(2048, 16, "decode")
    mixed, helix = {"A100-SXM-80": 4, "L4": 4}, pl.load_cluster("helix-single24")
    nodes = [pl.hardware.cluster_of_counts(mixed, per_node, 100) for per_node in (4, 8)]
    places = {
        "README": (helix, prompts, 2),
        "10": (helix, decode, 1),
        "11": (nodes[0], decode, 4),
        "[Using pipelab](using.md#the-command-line)": (nodes[1], pl.Workload(2048, 8), None),
    }

    def rates():
        for place, engine in re.findall(r"^\| (.+), (\S+)(?: and \S+)? \| [\d,]+ \|", page, re.M):
            cluster, load, most = places[place]
            problem = pl.Problem(cluster, llama, load, pl.Roofline(), most)
            yield f"{pl.solve(problem, runs_on=engine).throughput:,.0f}"

    filled = list(rates())
    monkeypatch.setattr(pl.Roofline, "with_filling", lambda costs, *filling: costs)
    stated = re.findall(r"\| ([\d,]+) \| ([\d,]+) \|", page)
    assert stated == list(zip(rates(), filled, strict=True))
    assert len(stated) == 7
