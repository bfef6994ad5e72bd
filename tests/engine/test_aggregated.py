"""The aggregated form: classes, answers against brute force and the joint ILP, ties, proofs, trade-offs."""

import dataclasses
import re
import threading
from fractions import Fraction

import numpy as np
import pytest
from test_objectives import priced

import oracle
import pipelab as pl
from pipelab.engine.cheapest_walk import Walk
from pipelab.engine.classes import gpu_classes
from pipelab.engine.deadline import Deadline
from pipelab.engine.instance import instance_of
from pipelab.engine.rate_search import Search, walks
from pipelab.engine.reach import Reach
from pipelab.engine.solvers import highs
from pipelab.engine.stages import links_of

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


def agrees(problem, **options):
    best, result = oracle.best(problem), solved(problem, **options)
    if best is None:
        assert result.status == "infeasible"
    else:
        assert (result.status, result.throughput) == ("optimal", pytest.approx(best, rel=1e-9))
        assert result.details["fewest"]
    return result


@pytest.mark.quick(3)
@pytest.mark.parametrize("units", ["transfers", "tokens"])
@pytest.mark.parametrize("case", ANSWERS)
def test_the_write_ups_cases(case, units):
    for k, rate in enumerate((IN_TOKENS if units == "tokens" else ANSWERS)[case], 1):
        result = solved(pl.load_case(case, max_gpus_per_stage=k, link_units=units))
        assert (result.status, result.throughput) == ("optimal", pytest.approx(rate, rel=1e-9))


VARIANTS = {
    "plain": {},
    "interchangeable": {"twins": True},
    "layers differ": {"unlike": True},
    "layers differ, interchangeable": {"unlike": True, "twins": True},
    "balanced": {"batch_split": "balanced"},
    "one type per stage": {"same_type_stages": True, "twins": True},
}


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("variant", VARIANTS)
def test_equal_to_brute_force(variant, seed):
    agrees(oracle.random_problem(seed, **VARIANTS[variant]))


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("slowest", [True, False])
def test_sizes_with_gaps_and_any_cost_model(slowest, seed):
    problem = oracle.random_problem(
        seed + 1000, layers=6, unlike=seed % 3 == 0, twins=seed % 2 == 0, batch_split="even"
    )
    agrees(
        dataclasses.replace(
            problem, costs=oracle.TableCosts(seed, slowest, link_units=problem.costs.link_units)
        )
    )


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(60))
def test_mixtures_too_many_to_list_leave_a_valid_bound(seed, monkeypatch):
    monkeypatch.setattr("pipelab.engine.stages.MOST_SUPPORTS", 3)
    problem = oracle.random_problem(
        seed, max_gpus_per_stage=3, batch_split="balanced" if seed % 3 == 0 else "even"
    )
    best, result = oracle.best(problem), solved(problem)
    if best is None:
        assert result.status == "infeasible"
    else:
        assert result.bound >= best * (1 - 1e-9)
        assert result.status == "optimal" or result.stopped_by == "list limit"
        assert result.status == "optimal" or "were left out" in result.sentence


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(12))
def test_equal_to_the_joint_ilp_beyond_brute_force(seed):
    problem = oracle.random_problem(
        seed, layers=6, gpus=6, twins=seed % 2 == 0, unlike=seed % 3 == 0
    )
    joint, result = pl.solve(problem, "joint", form="tight"), solved(problem)
    assert result.status == joint.status
    if joint.throughput is not None:
        assert result.throughput == pytest.approx(joint.throughput, rel=1e-9)


def cost(problem, gpus):
    return round(sum(problem.cluster.gpus[g].usd_per_hour for g in gpus), 6)


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(40))
def test_among_equals_fewest_gpus_then_stages_then_lowest_price(seed):
    problem = priced(oracle.random_problem(seed, twins=True, unlike=seed % 4 == 0), seed)
    every = list(oracle.placements(problem))
    result = solved(problem)
    if not every:
        assert result.status == "infeasible"
        return
    top = max(rate for rate, _, _ in every)
    least = min(
        (len(g), stages, cost(problem, g)) for rate, g, stages in every if rate > top * (1 - 1e-9)
    )
    found = result.placement
    assert (len(found.gpus), len(found), cost(problem, found.gpus)) == least
    assert pl.solve(problem, "aggregated").placement == found


def test_a_trade_off_that_is_stopped_keeps_its_points():
    stop, points = threading.Event(), []
    curve = pl.trade_off(
        pl.load_case("large", max_gpus_per_stage=4),
        stop=stop,
        on_point=lambda p: (points.append(p), stop.set()),
    )
    assert not curve.complete
    assert len(curve.points) == len(points) == 1


# Classes


def test_classes_of_the_cases():
    assert gpu_classes(pl.load_case("demo").cluster).names == ("H100", "A10", "T4")
    small = gpu_classes(pl.load_case("small").cluster)
    assert sorted(small.count.tolist()) == [2, 2, 2, 4]


def test_classes_do_not_depend_on_how_a_cluster_is_written_down():
    rows = np.array([[300.0, 100, 100], [100, 300, 100], [100, 100, 50]])
    group = np.array([0, 0, 1, 1, 2, 2, 2])
    pool = tuple(pl.GPU("A", 80) for _ in group)
    short = gpu_classes(pl.Cluster(pool, rows, group))
    long = gpu_classes(pl.Cluster(pool, rows[np.ix_(group, group)]))
    for classes in (short, long):
        assert [m.tolist() for m in classes.members] == [[0, 1], [2, 3], [4, 5, 6]]
    assert (short.bandwidth_gb_per_s == long.bandwidth_gb_per_s).all()


def test_a_link_that_differs_in_one_direction_parts_two_gpus():
    links = np.full((3, 3), 100.0)
    assert len(gpu_classes(pl.Cluster((pl.GPU("A", 80),) * 3, links))) == 1
    links[0, 1] = 90.0
    assert len(gpu_classes(pl.Cluster((pl.GPU("A", 80),) * 3, links))) == 3
    priced_pool = (pl.GPU("A", 80), pl.GPU("A", 80, usd_per_hour=1.0))
    assert len(gpu_classes(pl.Cluster(priced_pool, np.full((2, 2), 100.0)))) == 2


def test_gpus_whose_links_differ_in_latency_are_of_different_classes():
    pool, fast = (pl.GPU("A", 80),) * 4, np.full((4, 4), 100.0)
    node = np.array([0, 0, 1, 1])
    late = np.where(node[:, None] == node, 0.0, 20.0)
    classes = gpu_classes(pl.Cluster(pool, fast, None, late))
    assert [m.tolist() for m in classes.members] == [[0, 1], [2, 3]]
    assert classes.latency_ms.tolist() == [[0, 20], [20, 0]]
    assert classes.bandwidth_gb_per_s.tolist() == [[100, 100], [100, 100]]
    late[3, 0] = 21  # one way from one GPU to one other
    assert [m.tolist() for m in gpu_classes(pl.Cluster(pool, fast, None, late)).members] == [
        [0],
        [1],
        [2],
        [3],
    ]
    assert len(gpu_classes(pl.Cluster(pool, fast, None, 20.0))) == 1


@pytest.mark.parametrize("seed", range(30))
def test_swapping_gpus_of_a_class_changes_no_throughput(seed):
    problem = oracle.random_problem(seed, gpus=6, twins=True)
    classes = gpu_classes(problem.cluster)
    matrix = problem.cluster.bandwidth_matrix()
    for members in classes.members:
        for other in members[1:]:
            order = np.arange(len(matrix))
            order[[members[0], other]] = order[[other, members[0]]]
            swapped = matrix[np.ix_(order, order)]
            off = ~np.eye(len(matrix), dtype=bool)
            assert (swapped[off] == matrix[off]).all()
            assert problem.cluster.gpus[members[0]] == problem.cluster.gpus[other]


def test_the_program_does_not_grow_with_the_cluster():
    def size(gpus):
        cluster = pl.Cluster.from_counts({"A100": gpus, "T4": gpus}, {"A100": 80, "T4": 16}, 100)
        result = solved(
            dataclasses.replace(pl.load_case("medium", max_gpus_per_stage=4), cluster=cluster)
        )
        return result.size["variables"]

    assert size(40) == size(20_000)


# Order


def test_circuits_apart_from_the_pipeline_are_no_placement(monkeypatch):
    """Two nodes with no fast link between them: counts that balance, and no pipeline."""
    links = np.full((4, 4), 1.0)
    links[:2, :2] = links[2:, 2:] = 400.0
    tiny = pl.load_case("tiny")
    model = dataclasses.replace(tiny.model, layer_weight_gb=60.0)
    cluster = pl.Cluster((pl.GPU("A100", 80),) * 4, links)
    problem = dataclasses.replace(tiny, model=model, cluster=cluster)
    monkeypatch.setattr("pipelab.engine.cluster_parts._components", lambda hop, usable: [usable])
    (walk,) = walks(Reach(instance_of(problem), 150.0), {}, {})
    run = highs.run(walk.program)
    assert run.status == "optimal"
    _, apart = walk._order(run.x)
    assert len(apart) == 1
    end = walk.solved()
    assert (end.order, end.bound) == (None, np.inf)
    assert len(end.walk.circuits) == 2  # one in each node
    agrees(problem)


@pytest.mark.parametrize("seed", range(30))
def test_link_kinds_are_the_pairs_that_links_allow(seed):
    """A stage may follow another just where all links between their classes reach the rate."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 6))
    reaches = rng.random((size, size)) < 0.6
    links = links_of(np.where(reaches, 0.0, np.inf), [np.ones(size, dtype=bool)], 3)
    if links.free:
        assert reaches.all()
        return
    for support, kind in zip(links.support, links.kind_of, strict=True):
        for other, following in zip(links.support, links.kind_of, strict=True):
            allowed = bool(reaches[np.ix_(support, other)].all())
            hop = links.seconds[links.leave[kind], links.enter[following]]
            assert np.isfinite(hop) == allowed


# Proofs


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("case", "k", "by", "left"),
    [
        ("medium", 1, "dual prices", 35),
        ("medium", 2, "whole stages", 3),
        ("medium", 3, "links", 68),
        ("demo", 3, "no faster stage", None),
    ],
)
def test_certificates_of_the_cases(case, k, by, left):
    proof = pl.certificate(solved(pl.load_case(case, max_gpus_per_stage=k)))
    assert (proof.by, proof.left_over) == (by, left)
    if left is not None:
        assert f"{left} left over" in proof.sentence or by == "links"
    assert proof.check() > 0


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(60))
def test_every_proven_answer_has_a_certificate(seed):
    problem = oracle.random_problem(seed, **list(VARIANTS.values())[seed % 6])
    result = solved(problem)
    proof = pl.certificate(result)
    assert str(proof)
    assert proof.rate is None or proof.rate > (result.throughput or 0)
    assert proof.most_layers is None or proof.most_layers < problem.model.layers
    assert proof.check() > 0


def test_a_false_certificate_is_found_out():
    proof = pl.certificate(solved(pl.load_case("medium", max_gpus_per_stage=1)))
    cheap = dataclasses.replace(proof, prices=tuple(u - 1 if u else u for u in proof.prices))
    with pytest.raises(pl.PipelabError, match=r"with 9 layers contradict the certificate"):
        cheap.check()
    dear = dataclasses.replace(proof, prices=tuple(u + 10 for u in proof.prices))
    # dearer than all layers are worth, and just as dear
    share = Fraction(proof.total_value) / Fraction(proof.total_price)
    even = dataclasses.replace(proof, prices=tuple(u * share for u in proof.prices))
    for wrong in (dear, even):
        with pytest.raises(pl.PipelabError, match="which is no proof"):
            wrong.check()


def test_where_memory_keeps_a_placement_from_its_rate_the_remedy_is_named():
    """No rate exceeds what it certifies; less is attained, since memory holds too few."""
    four = pl.Cluster.from_counts({"L4": 4}, 24, 1.0)
    load = pl.Workload(16_384, 8, "decode")
    problem = pl.Problem(four, pl.load_model("Llama-3-8B"), load, pl.Roofline())
    result = pl.solve(problem)
    assert result.throughput < result.evaluation.rate
    number = result.in_flight
    remedy = f"certificate(solve(problem.with_in_flight({number}), objective='rate'))"
    for given in (result, pl.solve(problem.with_in_flight(number))):
        with pytest.raises(pl.errors.NotApplicable, match=re.escape(remedy)):
            pl.certificate(given)
    proof = pl.certificate(pl.solve(problem.with_in_flight(number), objective="rate"))
    proof.check()
    assert proof.throughput >= result.evaluation.rate > result.throughput


def test_a_wrong_answer_gets_no_certificate():
    result = solved(pl.load_case("medium", max_gpus_per_stage=2))
    worse = dataclasses.replace(result, throughput=264.236, bound=264.236)
    with pytest.raises(pl.PipelabError, match=r"exists, so 264\.236 is not the best"):
        pl.certificate(worse)
    with pytest.raises(
        pl.errors.InvalidValue, match="expected a result that is optimal or infeasible"
    ):
        pl.certificate(pl.solve(pl.load_case("tiny"), "even"))


def made(types, coefficients, layers, links, k, memory=9.0, prices=None, efficiency=0.85):
    """Stages of one GPU yield constant + per_layer · n; links are given in transfers/s, weights are 1 GB a layer."""
    n = len(types)
    memory = memory if isinstance(memory, list) else [memory] * n
    pool = tuple(
        pl.GPU(t, m, None if prices is None else p)
        for t, m, p in zip(types, memory, prices or types, strict=True)
    )
    costs = pl.writeup.LinearThroughput(
        {t: pl.writeup.Coefficients(0, 0, a, c) for t, (a, c) in coefficients.items()}, efficiency
    )
    model, workload = pl.Model("made", layers, 1, 1, 1.0), pl.Workload(1, 1)
    speed = np.broadcast_to(links, (n, n)) * model.bytes_per_element / 2**30
    return pl.Problem(
        pl.Cluster(pool, speed),
        model,
        workload,
        costs,
        max_gpus_per_stage=k,
        same_type_stages=False,
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize("others", [0, 8])
def test_easier_questions_never_say_no_to_what_exists(others, monkeypatch):
    """Recipes of one class that come from two patterns keep the spans of both."""
    rates = {
        "A": (0, 100),
        "B": (-15, 130),
        "C": (30, 10),
        "D": (24, -2),
        "E": (24, -2.5),
        "Z": (0, 100),
    }
    links = np.full((5 + others,) * 2, 9.0)
    links[2, 0] = links[0, 3] = links[0, 4] = 500.0
    links[5:, 5:] = np.arange(others**2).reshape(others, others) / 64 + 9
    memory = [3.5, 2.5, 3.5, 4.5, 4.5, *[1.5] * others]
    problem = made([*"ABCDE", *"Z" * others], rates, 9, links, 2, memory, efficiency=0.6)
    assert solved(problem).throughput == pytest.approx(100)


@pytest.mark.parametrize("gpus", [6, 30])
def test_a_long_chain_of_near_ties_is_not_one_rate(gpus):
    """Each link is faster than the next slower one by less than one part in 10^10, and one of them decides."""
    links = 100 * (1 + 0.99e-10) ** np.arange(gpus * gpus).reshape(gpus, gpus)
    np.random.default_rng(gpus).shuffle(links.reshape(-1))
    problem = made(["T"] * gpus, {"T": (0, 1e12)}, 2, links, 1, 1.5)
    result = solved(problem)
    matrix = problem.cluster.bandwidth_matrix()
    np.fill_diagonal(matrix, 0)
    best = problem.link_throughput(matrix.max())
    assert (result.status, result.throughput) == ("optimal", pytest.approx(best, rel=1e-13))
    slower = problem.link_throughput(np.sort(matrix, axis=None)[-2])
    assert best > slower * (1 + 0.5e-10)  # so that the two are told apart


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(20))
def test_a_certificate_never_rests_on_mixtures_left_out(seed, monkeypatch):
    problem = oracle.random_problem(
        seed, gpus=5, layers=4, max_gpus_per_stage=3, unlike=seed % 3 == 0
    )
    result = solved(problem)
    if result.status != "optimal":
        return
    rates = result.details["instance"].thresholds
    lower = float(rates[max(0, np.searchsorted(rates, result.throughput * (1 - 1e-9)) - 2)])
    monkeypatch.setattr("pipelab.engine.stages.MOST_SUPPORTS", 5)
    if lower < result.throughput * (1 - 1e-9):  # claims less than exists: must not be certified
        with pytest.raises((pl.PipelabError, pl.errors.TooLarge)):
            pl.certificate(dataclasses.replace(result, throughput=lower, bound=lower))


@pytest.mark.parametrize("step", [2e-12, 5e-12, 9e-12, 2e-11, 5e-11, 2e-10])
def test_near_ties_do_not_hide_the_smaller_placement(step):
    problem = made("AAB", {"A": (0, 100), "B": (0, 100 * (1 + step))}, 2, 500, 1, [2.5, 2.5, 1.5])
    result = solved(problem)
    assert (result.status, result.details["fewest"], len(result.placement.gpus)) == (
        "optimal",
        True,
        1,
    )
    assert len(pl.trade_off(problem).points) == 1


def test_prices_a_millionth_apart_are_told_apart():
    problem = made("AB", {"A": (10, 100), "B": (10, 100)}, 3, 1000, 1, prices=[3.123457, 3.123456])
    result = solved(problem)
    assert (result.details["fewest"], result.placement.gpus) == (True, (1,))
    assert [p.placement.gpus for p in pl.trade_off(problem, "usd_per_hour").points] == [(1,)]


@pytest.mark.parametrize(("second", "points"), [(3.1234567, 1), (3.123, 2)])
def test_prices_closer_than_a_solver_sees_are_one_price(second, points):
    """The slower GPU is a point of the curve only where it is cheaper by more than 2 parts in 100,000."""
    problem = made("AB", {"A": (10, 60), "B": (9, 54)}, 3, 1000, 1, prices=[3.1235, second])
    curve = pl.trade_off(problem, "usd_per_hour")
    assert (curve.complete, len(curve.points)) == (True, points)


def test_a_point_of_a_trade_off_says_under_which_limit_it_is_best():
    points = pl.trade_off(pl.load_case("tiny", max_gpus_per_stage=4)).points
    assert points[0].reason == ""
    assert ", proven optimal among placements of at most 3 GPUs in " in points[1].sentence
    with pytest.raises(pl.errors.InvalidValue, match="of placements of at most 3 GPUs"):
        pl.certificate(points[1])
    priced = made("AB", {"A": (10, 100), "B": (5, 50)}, 2, 1000, 1, prices=[2.0, 1.0])
    points = pl.trade_off(priced, "usd_per_hour").points
    assert [p.under_limit for p in points] == ["", "a lower price than the point before"]


def test_a_certificate_names_who_is_idle_and_no_other():
    problem = made("XX", {"X": (10, 100)}, 4, 500, 1, [1.5, 3.5])
    sentence = str(pl.certificate(solved(problem)))
    assert "X (3.5 GB)" in sentence
    assert "X (1.5 GB) can hold none" in sentence
    nothing = pl.certificate(solved(made("A", {"A": (1, 100)}, 2, 10, 1, 0.1)))
    assert (nothing.by, nothing.left_over) == ("no stage", 2)
    assert "layer 1 alone needs" in str(nothing)


# Ended early


@pytest.mark.slow
@pytest.mark.parametrize("answered", [1, 2, 3, 5, 8])
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


@pytest.mark.quick(1)
@pytest.mark.parametrize("last", [1, 2, 3])
def test_questions_left_open_are_answered_in_the_time_that_is_left(last, monkeypatch):
    """Some programs take longer than a third of the time: in the end all of it is theirs."""
    medium = pl.load_case("medium", max_gpus_per_stage=4)
    asked = solved(medium).details["subproblems"]
    slow = sorted({q.rate for q in asked if q.variables})[-last:]
    real, late, now = Walk.least, [], []

    def least(self):
        if now[-1].asked in slow and now[-1].share < 0.4:
            late.append(now[-1].asked)
            return real(dataclasses.replace(self, deadline=Deadline(0)))
        return real(self)

    def asking(self, index, *how):
        self.asked = self.rate(index)
        now.append(self)
        return ask(self, index, *how)

    ask = Search._asked
    monkeypatch.setattr(Search, "_asked", asking)
    monkeypatch.setattr(Walk, "least", least)
    result = solved(medium, time_limit=100)
    assert (result.throughput, result.bound, result.stopped_by) == (300.0, 300.0, None)
    assert late


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


def stop_at(monkeypatch, number, before):
    """An event that is set at a question's number, before or after its answer."""
    real, asked, stop = highs.run, [], threading.Event()

    def run(program, **options):
        asked.append(program)
        if before and len(asked) == number:
            stop.set()
        found = real(program, **options)
        if len(asked) == number:
            stop.set()
        return found

    monkeypatch.setattr(highs, "run", run)
    return stop


@pytest.mark.parametrize("limit", [None, 60])
@pytest.mark.parametrize("last", [1, 2, 3])
def test_a_stop_before_anything_was_found_still_ends_with_a_placement(limit, last, monkeypatch):
    stop = stop_at(monkeypatch, last, before=True)
    result = solved(pl.load_case("medium", max_gpus_per_stage=4), stop=stop, time_limit=limit)
    assert (result.status, result.stopped_by) == ("feasible", "stop")
    assert result.throughput <= 300 <= result.bound


@pytest.mark.parametrize("last", [1, 2, 3])
def test_what_is_proven_infeasible_was_stopped_by_nothing(last, monkeypatch):
    """The stop comes with one of the answers that rule out all rates; only after the last of them is it too late."""
    stop = stop_at(monkeypatch, last, before=False)
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


def test_no_room_has_a_reason():
    tiny = pl.load_case("tiny")
    nothing = oracle.heavier(tiny, 90)
    assert "layer 1 alone needs" in solved(nothing).reason
    few = dataclasses.replace(
        tiny, model=dataclasses.replace(tiny.model, layers=40, layer_weight_gb=20)
    )
    assert "all GPUs together can hold at most 8 of the 40 layers" in solved(few).reason
    with pytest.raises(pl.errors.UnknownName, match="no option 'solver'"):
        pl.solve(tiny, "aggregated", solver="highs")
