"""The aggregated form: classes, answers against brute force and the joint ILP, ties, trade-offs, ends."""

import dataclasses
import threading

import numpy as np
import pytest
from small_problems import hourly, priced, with_table

import oracle
import pipelab as pl
from pipelab.engine.cheapest_walk import Walk
from pipelab.engine.classes import gpu_classes
from pipelab.engine.deadline import Deadline
from pipelab.engine.rate_search import seconds_to_choose
from pipelab.engine.solvers import highs

# What the write-up's cases yield with 1 to 4 GPUs per stage.
ANSWERS = {
    "tiny": (217.52, 301.784, 301.784, 345.4944),
    "small": (301.424, 430.8208, 459.476, 589.968),
    "medium_small": (249.52, 356.184, 468.0984, 603.7312),
    "medium": (264.236, 287.04, 300, 300),
    "large": (471.424, 719.8208, 1038.9312, 1358.0416),
    "demo": (810.424, 867.7208, 1046.5812, 1225.4416),
}
# Where links count in tokens: those of medium are then no bottleneck.
IN_TOKENS = ANSWERS | {"medium": (264.236, 287.04, 375.8768, 443.5368)}


def solved(problem, **options):
    """Solve, and check what holds for every answer."""
    result = pl.solve(problem, "aggregated", **options)
    if result.placement is not None:
        assert (
            pl.evaluate(problem, result.placement).throughput == result.throughput <= result.bound
        )
    if result.status == "infeasible":
        assert result.reason
    return result


@pytest.mark.quick(3)
@pytest.mark.parametrize("units", ["transfers", "tokens"])
@pytest.mark.parametrize("case", ANSWERS)
def test_the_write_ups_cases(case, units):
    for k, rate in enumerate((IN_TOKENS if units == "tokens" else ANSWERS)[case], 1):
        result = solved(pl.load_case(case, max_gpus_per_stage=k, link_units=units))
        assert (result.status, result.throughput) == ("optimal", pytest.approx(rate, rel=1e-9))


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(60))
def test_mixtures_too_many_to_list_leave_a_valid_bound(seed, monkeypatch):
    monkeypatch.setattr("pipelab.engine.stages.MOST_SUPPORTS", 3)
    split = "balanced" if seed % 3 == 0 else "even"
    problem = oracle.random_problem(seed, max_gpus_per_stage=3, batch_split=split)
    best, result = oracle.best(problem), solved(problem)
    if best is None:
        assert result.status == "infeasible"
    else:
        assert result.bound >= best * (1 - 1e-9)
        assert result.status == "optimal" or result.stopped_by == "list limit"


# Random problems: twins, layers that differ, shares of a batch, one type per stage, sizes with gaps
VARIANTS = {
    "plain": {},
    "interchangeable": {"twins": True},
    "layers differ": {"unlike": True},
    "layers differ, interchangeable": {"unlike": True, "twins": True},
    "balanced": {"batch_split": "balanced"},
    "one type per stage": {"same_type_stages": True, "twins": True},
    "table, mixed as slowest": {"layers": 6, "twins": True, "batch_split": "even"},
    "table": {"layers": 6, "unlike": True, "batch_split": "even"},
}


@pytest.mark.quick(8)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_best_has_fewest_gpus_then_stages_then_the_lowest_price_of_all(variant, seed):
    problem = oracle.random_problem(seed, **VARIANTS[variant])
    if "table" in variant:
        problem = with_table(problem, seed, slowest="slowest" in variant)
    problem = priced(problem, seed)
    every, result = list(oracle.placements(problem)), solved(problem)
    if not every:
        assert result.status == "infeasible"
        return
    best = max(rate for rate, _, _ in every)
    assert (result.status, result.throughput) == ("optimal", pytest.approx(best, rel=1e-9))
    assert result.details["fewest"]
    least = min(
        (len(gpus), stages, hourly(problem, gpus))
        for rate, gpus, stages in every
        if rate > best * (1 - 1e-9)
    )
    placement = result.placement
    paid = pytest.approx(hourly(problem, placement.gpus))
    assert (len(placement.gpus), len(placement), paid) == least
    assert pl.solve(problem, "aggregated").placement == placement
    before = seconds_to_choose.set(0.0)
    early = solved(problem)
    seconds_to_choose.reset(before)
    assert (early.throughput, early.details["fewest"]) == (result.throughput, False)


# Classes


def test_classes_do_not_depend_on_how_a_cluster_is_written_down():
    rows = np.array([[300.0, 100, 100], [100, 300, 100], [100, 100, 50]])
    group = np.array([0, 0, 1, 1, 2, 2, 2])
    pool = tuple(pl.GPU("A", 80) for _ in group)
    short = gpu_classes(pl.Cluster(pool, rows, group))
    long = gpu_classes(pl.Cluster(pool, rows[np.ix_(group, group)]))
    for classes in (short, long):
        assert [m.tolist() for m in classes.members] == [[0, 1], [2, 3], [4, 5, 6]]
    assert (short.bandwidth_gb_per_s == long.bandwidth_gb_per_s).all()


def test_a_link_a_delay_or_a_price_that_differs_parts_two_gpus():
    def members(pool, links, latency=0.0):
        classes = gpu_classes(pl.Cluster(pool, links, None, latency))
        return [m.tolist() for m in classes.members]

    pool, links = (pl.GPU("A", 80),) * 4, np.full((4, 4), 100.0)
    assert members(pool, links) == [[0, 1, 2, 3]]
    node = np.array([0, 0, 1, 1])
    late = np.where(node[:, None] == node, 0.0, 20.0)
    assert members(pool, links, late) == [[0, 1], [2, 3]]
    late[3, 0] = 21  # one way from one GPU to one other
    assert members(pool, links, late) == [[0], [1], [2], [3]]
    assert members((*pool[:2], pl.GPU("A", 80, usd_per_hour=1.0)), links[:3, :3]) == [[0, 1], [2]]
    links[0, 1] = 90.0
    assert members(pool, links) == [[0], [1], [2, 3]]


def test_the_program_does_not_grow_with_the_cluster():
    def size(gpus):
        cluster = pl.Cluster.from_counts({"A100": gpus, "T4": gpus}, {"A100": 80, "T4": 16}, 100)
        medium = pl.load_case("medium", max_gpus_per_stage=4)
        return solved(dataclasses.replace(medium, cluster=cluster)).size["variables"]

    assert size(40) == size(20_000)


# Ties


def made(types, coefficients, layers, links, k, memory=9.0, prices=None, efficiency=0.85):
    """Stages of one GPU yield constant + per_layer · n; links are given in transfers/s, weights are 1 GB a layer."""
    n = len(types)
    memory = memory if isinstance(memory, list) else [memory] * n
    prices = prices or [None] * n
    pool = tuple(pl.GPU(t, m, p) for t, m, p in zip(types, memory, prices, strict=True))
    rates = {t: pl.writeup.Coefficients(0, 0, a, c) for t, (a, c) in coefficients.items()}
    costs = pl.writeup.LinearThroughput(rates, efficiency)
    model, load = pl.Model("made", layers, 1, 1, 1.0), pl.Workload(1, 1)
    cluster = pl.Cluster(pool, np.broadcast_to(links, (n, n)) * model.bytes_per_element / 2**30)
    return pl.Problem(cluster, model, load, costs, max_gpus_per_stage=k, same_type_stages=False)


def test_easier_questions_never_say_no_to_what_exists():
    """Recipes of one class that come from two patterns keep the spans of both."""
    rates = {"A": (0, 100), "B": (-15, 130), "C": (30, 10), "D": (24, -2), "E": (24, -2.5)}
    links = np.full((5, 5), 9.0)
    links[2, 0] = links[0, 3] = links[0, 4] = 500.0
    problem = made("ABCDE", rates, 9, links, 2, [3.5, 2.5, 3.5, 4.5, 4.5], efficiency=0.6)
    assert solved(problem).throughput == pytest.approx(100)


def test_a_long_chain_of_near_ties_is_not_one_rate():
    """Each link is faster than the next slower one by less than one part in 10^10, and one of them decides."""
    links = 100 * (1 + 0.99e-10) ** np.arange(36).reshape(6, 6)
    np.random.default_rng(6).shuffle(links.reshape(-1))
    problem = made("TTTTTT", {"T": (0, 1e12)}, 2, links, 1, 1.5)
    result = solved(problem)
    matrix = problem.cluster.bandwidth_matrix()
    np.fill_diagonal(matrix, 0)
    best = problem.link_throughput(matrix.max())
    assert (result.status, result.throughput) == ("optimal", pytest.approx(best, rel=1e-13))


@pytest.mark.parametrize("step", [2e-12, 9e-12, 2e-11, 2e-10])
def test_near_ties_do_not_hide_the_smaller_placement(step):
    problem = made("AAB", {"A": (0, 100), "B": (0, 100 * (1 + step))}, 2, 500, 1, [2.5, 2.5, 1.5])
    result = solved(problem)
    assert (result.status, result.details["fewest"]) == ("optimal", True)
    assert len(result.placement.gpus) == 1
    assert len(pl.trade_off(problem).points) == 1


# Ended early


@pytest.mark.parametrize("answered", [1, 3, 5])
def test_questions_left_open_do_not_lower_the_bound(answered, monkeypatch):
    """Only so many questions are answered; the time for all others is up, though some is left in all."""
    real, asked = Walk.least, []

    def least(self):
        asked.append(self)
        late = len(asked) > answered
        return real(dataclasses.replace(self, deadline=Deadline(0)) if late else self)

    monkeypatch.setattr(Walk, "least", least)
    result = solved(pl.load_case("medium", max_gpus_per_stage=4), time_limit=100)
    assert result.bound >= 300
    assert result.status == "optimal" or result.stopped_by == "time limit"
    assert len(asked) > answered


def test_a_rate_left_open_has_another_turn(monkeypatch):
    real, asked = highs.run, []

    def first_rate_left_open(program, **options):
        asked.append(program)
        return real(program, **options | ({"deadline": Deadline(0)} if len(asked) <= 2 else {}))

    monkeypatch.setattr(highs, "run", first_rate_left_open)
    result = solved(pl.load_case("medium", max_gpus_per_stage=4), time_limit=1000)
    first, *others = result.details["subproblems"]
    assert first.answer == "not answered"
    assert (result.status, result.throughput) == ("optimal", 300.0)
    assert min(other.rate for other in others if other.answer == "no") <= first.rate


@pytest.mark.parametrize("last", [1, 2, 3])
def test_what_is_proven_infeasible_was_stopped_by_nothing(last, monkeypatch):
    """The stop comes with one of the answers that rule out all rates; only after the last of them is it too late."""
    real, asked, stop = highs.run, [], threading.Event()

    def run(program, **options):
        asked.append(program)
        answer = real(program, **options)
        if len(asked) == last:
            stop.set()
        return answer

    monkeypatch.setattr(highs, "run", run)
    # its layers fit in parts, but in no whole stages
    result = solved(oracle.random_problem(190, unlike=True), stop=stop)
    assert len(result.details["subproblems"]) >= last
    ended = (result.status, result.stopped_by)
    assert ended == (("infeasible", None) if last == 3 else ("unknown", "stop"))


def test_a_stop_and_a_gap():
    medium = pl.load_case("medium", max_gpus_per_stage=3)
    stop = threading.Event()
    result = solved(medium, stop=stop, on_progress=lambda moment: stop.set())
    assert result.stopped_by == "stop"
    assert result.bound >= 300
    loose = solved(medium, gap=0.9)
    assert loose.stopped_by == "gap limit"
    assert loose.gap <= 0.9
