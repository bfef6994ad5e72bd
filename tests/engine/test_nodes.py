"""Identical nodes are interchangeable: against brute force, and data centres that are proven."""

import dataclasses
from collections import Counter

import node_oracle
import numpy as np
import pytest
from scipy.optimize import LinearConstraint, milp
from small_problems import per_million, priced

import oracle
import pipelab as pl
from pipelab.engine.cluster_parts import parts_of
from pipelab.engine.deadline import NEVER
from pipelab.engine.instance import instance_of
from pipelab.engine.packing import Packing
from pipelab.engine.reach import AtRate
from pipelab.engine.solvers import choice, highs, scip
from pipelab.engine.solvers.linear_program import LinearProgram, VariableGroups, incidence
from pipelab.writeup.linear_rates import with_link_units

MEMORY = {"H100-SXM": 80, "A100-SXM-40": 40, "L4": 24, "T4": 16}


def data_centre(*nodes, between=12.5, racks=None, **changes):
    """Nodes as (number, GPUs, type, GB/s inside); `racks`: nodes in each, and GB/s between racks."""
    gpus, node, inside = [], [], []
    for number, size, name, speed in nodes:
        for _ in range(number):
            gpus += [pl.GPU(name, MEMORY[name], 1.5, f"{name} {len(inside)}", speed)] * size
            node += [len(inside)] * size
            inside.append(speed)
    links = np.full((len(inside),) * 2, between)
    if racks is not None:
        rack = np.arange(len(inside)) // racks[0]
        links[rack[:, None] != rack] = racks[1]
    np.fill_diagonal(links, inside)
    cluster = pl.Cluster(tuple(gpus), links, np.array(node))
    options = {"max_gpus_per_stage": 8, "same_type_stages": True} | changes
    load = pl.Workload(2048, 32, "decode")
    return pl.Problem(cluster, pl.load_model("Llama-3-70B"), load, pl.Roofline(), **options)


@pytest.fixture(autouse=True)
def random_tables_do_not_look_at_nodes(monkeypatch):
    monkeypatch.setattr(oracle.TableCosts, "nodes_matter_alone", True, raising=False)


def by_nodes(problem):
    return len(instance_of(problem).types) < len(problem.cluster.kinds)


@pytest.mark.slow
@pytest.mark.daily(2)
@pytest.mark.parametrize("part", range(4))
def test_equal_to_brute_force(part):
    seen = Counter()
    for seed in range(part * 10, part * 10 + 10):
        problem = node_oracle.random_problem(seed)
        best = node_oracle.best(problem)
        result = pl.solve(problem, "aggregated", "rate")
        if best is None:
            assert result.status == "infeasible", seed
        else:
            assert result.status == "optimal", seed
            assert result.throughput == pytest.approx(best, rel=1e-9), seed
            assert result.details["fewest"]
        seen[by_nodes(problem), best is not None] += 1
    assert min(seen[True, True], seen[False, True]) > 0


def test_the_table_of_brute_force_is_brute_force():
    """The oracle with a table over used GPUs against the one that tries every placement."""
    for seed in range(12):
        problem = node_oracle.random_problem(seed, gpus=4, layers=3)
        slow, quick = oracle.best(problem), node_oracle.best(problem)
        assert (slow is None and quick is None) or quick == pytest.approx(slow, rel=1e-12)


def test_above_the_rate_of_links_one_rack_or_node_stands_for_all():
    problem = data_centre((8, 4, "L4", 32.0), between=0.1, racks=(2, 0.05))
    between, inside = (float(problem.link_throughput(b)) for b in (0.05, 0.1))
    for rate, count in ((0.9 * between, 32), (1.1 * between, 8), (1.1 * inside, 4)):
        reach = AtRate(instance_of(problem), rate)
        parts = parts_of(reach.instance, reach.hop, reach.usable, reach.one_stage_may_do, NEVER)
        assert [part.classes.count.tolist() for part in parts] == [[count]]


def test_a_cost_model_that_may_look_at_nodes_is_left_alone(monkeypatch):
    problem = node_oracle.random_problem(0, costs="table")
    assert by_nodes(problem)
    monkeypatch.setattr(oracle.TableCosts, "nodes_matter_alone", False)
    assert not by_nodes(problem)


@pytest.mark.parametrize("seed", range(60))
def test_stages_are_packed_where_that_is_possible(seed):
    """The rows against every assignment of stages to nodes."""
    rng = np.random.default_rng(seed)
    sizes = np.sort(rng.choice(np.arange(2, 7), int(rng.integers(1, 4)), replace=False))
    capacity, number = rng.integers(2, 9, int(rng.integers(1, 4))), rng.integers(0, 3, len(sizes))
    packing = Packing(np.arange(len(sizes)), sizes, tuple(map(np.arange, capacity)))
    columns = VariableGroups(
        {"n": len(sizes)} | ({"b": packing.columns} if packing.columns else {})
    )
    per_recipe = incidence(np.arange(len(sizes)), len(sizes))
    rows = [
        LinearConstraint(b.matrix, b.lower, b.upper) for b in packing.rows(columns, 0, per_recipe)
    ]
    fixed = np.zeros((len(sizes), columns.total))
    fixed[:, : len(sizes)] = np.eye(len(sizes))
    answer = milp(
        np.zeros(columns.total), integrality=np.ones(columns.total),
        constraints=[*rows, LinearConstraint(fixed, number, number)],
    )  # fmt: skip
    items = np.repeat(sizes, number).tolist()
    possible = fits(tuple(sorted(capacity.tolist())), tuple(sorted(items, reverse=True)))
    assert (answer.x is not None) == possible
    if possible:
        bins = packing.packed(items)
        used = np.bincount(bins, items, len(capacity)) if items else np.zeros(len(capacity))
        assert (used <= capacity).all()


def fits(free, items):
    """Whether items go into bins, one item after the other into every bin."""
    if not items:
        return True
    return any(
        fits((*free[:i], room - items[0], *free[i + 1 :]), items[1:])
        for i, room in enumerate(free)
        if room >= items[0]
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize(("seed", "network"), [(372, "star"), (199, "random"), (333, "lopsided")])
def test_links_that_join_some_nodes_and_not_others(seed, network):
    """Each is wrong when one condition for merging classes is left out."""
    problem = node_oracle.random_problem(seed, gpus=8, layers=4, network=network)
    result = pl.solve(problem, "aggregated", "rate")
    assert result.status == "optimal"
    assert result.throughput == pytest.approx(node_oracle.best(problem))


@pytest.mark.quick(5)
@pytest.mark.parametrize("seed", [417, *range(400, 417), 418, 419])  # 417: what is in flight binds
def test_fewest_gpus_least_cost_and_least_latency_equal_brute_force(seed):
    problem = priced(node_oracle.random_problem(seed, gpus=5, layers=3, max_gpus_per_stage=2), seed)
    problem = with_link_units(problem, "tokens")
    every, result = list(oracle.attained(problem)), pl.solve(problem, "aggregated")
    floor = float(np.median([rate for rate, *_ in every])) if every and seed % 2 else 0.0
    cheap, quick = (
        pl.solve(problem, objective=goal, at_least=floor) for goal in ("cost", "latency")
    )
    if not every:
        assert {result.status, cheap.status, quick.status} == {"infeasible"}
        return
    assert {result.status, cheap.status, quick.status} == {"optimal"}
    best = max(rate for rate, *_ in every)
    fewest = min(len(gpus) for rate, gpus, _ in every if rate >= best * (1 - 1e-9))
    assert result.throughput == pytest.approx(best, rel=1e-9)
    assert len(result.placement.gpus) == fewest
    reached = [row for row in every if row[0] >= floor * (1 - 1e-9)]
    paid = min(per_million(problem, gpus, rate) for rate, gpus, _ in reached)
    assert cheap.objective.value == pytest.approx(paid, rel=1e-9)
    assert quick.objective.value == pytest.approx(min(row[2] for row in reached), rel=1e-8)


@pytest.mark.parametrize("seed", range(12))
def test_both_solvers_answer_every_small_program_alike(seed, monkeypatch):
    """The same status, and the same least or most."""
    problem, highs_run = node_oracle.random_problem(seed, costs="roofline"), highs.run

    def solved(program, **options):
        run, other = highs_run(program, **options), scip.run(program)
        assert run.status == other.status
        if run.x is not None:
            assert run.objective == pytest.approx(other.objective, rel=2e-6, abs=1e-9)
        return run

    monkeypatch.setattr(highs, "run", solved)
    pl.solve(problem, "aggregated", "rate")
    pl.solve(problem, objective="latency")


ONE_SORT, FOUR_SORTS = (
    [(16, 8, "A100-SXM-40", 300.0)],
    [(8, 8, "H100-SXM", 450.0), (16, 8, "A100-SXM-40", 300.0), (32, 4, "L4", 32.0), (32, 4, "T4", 16.0)],
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nodes", "objective"),
    [(ONE_SORT, "cost"), (ONE_SORT, "latency"), (FOUR_SORTS, "throughput")],
)
def test_data_centres_are_proven(nodes, objective):
    result = pl.solve(data_centre(*nodes), objective=objective, time_limit=60)
    assert (result.status, result.reason) == ("optimal", "")
    assert pl.evaluate(result.problem, result.placement).throughput == result.throughput


def test_a_limit_is_kept_where_another_row_differs_in_its_limit_only():
    """SCIP took the row for a bound of its objective, lost it, and returned 114 where 104 are allowed."""
    columns, price = VariableGroups({"n": 9}), np.array([[4, 4, 2, 2, 4, 4, 8, 8, 8]])
    least = np.array([[1, 1, 1, 1, 2, 2, 4, 4, 1]])
    most = np.array([[1, 1, 1, 1, 3, 3, 5, 5, 2]])
    first, last = np.array([[0, 1, 0, 1, 0, 1, 0, 1, 0]]), np.array([[0, 0, 0, 0, 0, 0, 0, 0, 1]])
    rows = [(least, -np.inf, 80), (most, 80, np.inf), (first, 1, 1), (last, 1, 1), (price, -np.inf, 128)]  # fmt: skip
    for limit, status in ((104, "infeasible"), (114, "optimal")):
        blocks = {
            str(i): columns.rows({"n": row.astype(float)}, low, high)
            for i, (row, low, high) in enumerate([*rows, (price, -np.inf, limit)])
        }
        upper = np.array([32.0, 1, 64, 1, 32, 1, 16, 1, 1])
        objective = -price[0].astype(float)
        program = LinearProgram(
            columns, np.zeros(9), upper, np.ones(9, dtype=bool), objective, blocks
        )
        for solver in ("scip", "highs"):
            assert choice.run_program(program, solver).status == status, (solver, limit)


def test_what_breaks_a_program_is_refused_and_said(monkeypatch):
    real = highs.run

    def one_too_many(program, **options):
        run = real(program, **options)
        return run if run.x is None else dataclasses.replace(run, x=run.x + program.integer)

    monkeypatch.setattr(highs, "run", one_too_many)
    with pytest.raises(pl.PipelabError, match=r"HiGHS .* returned what breaks .* of its program"):
        pl.solve(node_oracle.random_problem(0, costs="roofline"), "aggregated", "rate")


def test_what_a_solution_breaks_is_named():
    columns = VariableGroups({"n": 2, "t": 1})
    blocks = {
        "whole": columns.rows({"n": np.array([[1.0, 2.0]])}, 1, 3),
        "mixed": columns.rows({"n": np.array([[1e4, 0.0]]), "t": -np.ones((1, 1))}, lower=0),
    }
    whole = np.array([True, True, False])
    program = LinearProgram(columns, np.zeros(3), np.full(3, 2.0), whole, np.ones(3), blocks)
    for name, x in [
        (None, [1 - 1e-7, 1, 2.0]),
        (None, [np.nan, np.nan, 1.0]),
        ("row 'whole'", [2, 1, 0.0]),
        ("row 'whole'", [0, 0, 0.0]),
        ("row 'mixed'", [0, 1, 1.0]),
        ("whole numbers", [0.5, 1, 0.0]),
        ("bounds", [1, 1, 3.0]),
        ("bounds", [-1, 1, 0.0]),
    ]:
        assert choice.broken_by(program, np.array(x)) == name
