"""How engines fill pipelines: the best placement of every filling, against all placements."""

import dataclasses
import re

import numpy as np
import pytest
from small_problems import divided, every_placement, mask_of, per_million, tight

import oracle
import pipelab as pl
from clone import text_of
from pipelab.costs import filled
from pipelab.engine.speed_costs import with_speeds
from pipelab.problem import StageCost

CLOSE = 3e-6  # sums of times come from a solver, as in test_in_flight.py
# In 17, 95 and 109 more are wanted in flight than there are stages.
SEEDS = (17, 95, 109, *(n for n in range(1, 501) if n not in (17, 95, 109)))
FILLINGS = ("by_stages", "dynamic", "micro_batches", "one")
NUMBERS = {
    "by_stages": (None, 1, 2, 3),
    "dynamic": (None, 1, 3),
    "micro_batches": (None, 2, 3, 5),
    "one": (None, 1, 3),
}


def drawn(seed, filling):
    """Draw a problem whose memory holds a few microbatches, for an engine with this filling."""
    rng = np.random.default_rng(seed)
    problem = tight(seed, late=seed % 3 == 0)
    if (
        filling == "by_stages" and seed % 2
    ):  # room for more than there are stages, and links that ask for them
        cluster = problem.cluster
        gpus = [dataclasses.replace(gpu, memory_gb=3 * gpu.memory_gb) for gpu in cluster.gpus]
        sent = 1000 * float(np.median(problem.message_seconds(cluster.bandwidth_matrix(), 0.0)))
        late = cluster.latency_matrix() + sent * rng.uniform(1, 20)
        cluster = pl.Cluster(gpus, cluster.bandwidth_matrix(), None, late)
        problem = dataclasses.replace(problem, cluster=cluster)
    counts = filling in ("by_stages", "micro_batches")
    costs = filled(problem.costs, filling, int(rng.integers(0, 3)) if counts else 0)
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
    costs = filled(problem.costs, "synchronous")
    return dataclasses.replace(problem, costs=costs).with_in_flight(number)


@pytest.mark.quick(3)
@pytest.mark.examples
@pytest.mark.parametrize("filling", FILLINGS)
@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_the_most_of_all_placements_and_the_least_time_and_money_at_a_rate(seed, filling):
    problem = drawn(seed, filling)
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
    problem = drawn(seed, filling)
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
@pytest.mark.parametrize("seed", [*range(31, 201), *range(1, 31)])
def test_a_deployment_has_the_most_of_all_divisions(seed, filling):
    problem = drawn(seed, filling)
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
    if filling != "micro_batches":  # of which the bound is that of synchronous pipelines
        assert answer.status == "optimal"
    assert answer.throughput <= most * (1 + 1e-9)
    if answer.status == "optimal":
        assert answer.throughput == pytest.approx(most, rel=CLOSE)


@pytest.mark.parametrize("filling", FILLINGS)
def test_what_does_not_cover_a_filling_refuses_it_by_name(filling):
    problem = drawn(2, filling).with_in_flight(2)
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
        filled(costs, "by_stage")
    with pytest.raises(pl.errors.InvalidValue, match="filling_number"):
        filled(costs, "by_stages", -1)


@dataclasses.dataclass(frozen=True)
class FixedTimes(pl.hardware.CostModel):
    """A cost model of one's own whose stages all take as long, and which knows nothing of fillings."""

    ms: float = 10.0
    gpu_types = ("A",)

    def stage(self, model, workload, gpus, layers, batch_split):
        even = (workload.batch_size / len(gpus),) * len(gpus)
        memory = (float(len(layers)),) * len(gpus)
        return StageCost(1000 * workload.tokens / self.ms, even, memory, 1, self.ms / 1000)


def test_a_cost_model_of_ones_own_takes_a_filling():
    """And keeps it where the engine changes it otherwise."""
    cluster = pl.Cluster.from_counts({"A": 3}, 2.5, 1e5)
    model, load = pl.Model("four layers", 4, 8, 8, 1.0), pl.Workload(100, 2)
    problem = pl.Problem(cluster, model, load, FixedTimes(), 1)
    assert pl.solve(problem).throughput == pytest.approx(200 / 0.01, rel=1e-4)
    one = dataclasses.replace(problem, costs=filled(problem.costs, "one"))
    assert one != problem
    assert pl.solve(one).throughput == pytest.approx(200 / 0.02, rel=1e-4)
    twice = dataclasses.replace(one, costs=with_speeds(one.costs, {"A": 2.0}))
    assert pl.solve(twice).throughput == pytest.approx(400 / 0.02, rel=1e-4)


CHANGES = {
    "preferring_rate": (), "for_training": (), "cutting_every_layer": (),
    "cutting_no_layer": (), "counting_memory_of": ("vLLM", 0.8), "with_link_units": ("tokens",),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_every_cost_model_keeps_its_filling_whatever_changes_it(change):
    roof = pl.Roofline(tensor_parallel=False)
    table = {"A100-SXM-40": {(1, 1.0): 1.0, (2, 1.0): 2.0}}
    known = [
        roof, pl.LayerTimes({"A100-SXM-40": 1.0}), pl.hardware.Measured(table, roof), FixedTimes(),
        pl.load_case("tiny", link_units="tokens").costs,
    ]  # fmt: skip
    for costs in known:
        changed = filled(filled(costs, "one"), "by_stages", 2)
        changed = getattr(changed, change)(*CHANGES[change])
        assert (changed.filling, changed.filling_number) == ("by_stages", 2)


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

    as_filled = list(rates())
    monkeypatch.setattr("pipelab.engine.runs_on.filled", lambda costs, *filling: costs)
    stated = re.findall(r"\| ([\d,]+) \| ([\d,]+) \|", page)
    assert stated == list(zip(rates(), as_filled, strict=True))
    assert len(stated) == 7
