"""The front's definitions of placement against the engine and against trying everything."""

import dataclasses
from itertools import combinations, pairwise

import numpy as np
import pytest

import oracle
import pipelab as pl
import roofline_oracle
from pipelab import candidates, column_generation, counting, exhaustive, joint_ilp, splits
from pipelab.engine.formulations import joint_ilp_forms as joint
from pipelab.engine.formulations.candidates import enumerate_candidates
from pipelab.engine.formulations.program_size import count_candidates


def _every_split(layers, stages):
    """Every split, as the numbers of the layers in each stage."""
    for cuts in combinations(range(1, layers), stages - 1):
        yield [list(range(a, b)) for a, b in pairwise([0, *cuts, layers])]


def _slowest(split, costs, speeds):
    return max(
        sum(costs[i] for i in part) / speed for part, speed in zip(split, speeds, strict=True)
    )


def _inputs(seed):
    """Layers, stages, costs and speeds: whole numbers, so that there are ties, and others."""
    rng = np.random.default_rng(seed)
    layers = int(rng.integers(1, 9))
    stages = int(rng.integers(1, layers + 1))
    if rng.random() < 0.5:
        return rng, layers, stages, rng.integers(0, 6, layers), rng.integers(1, 4, stages)
    return rng, layers, stages, rng.uniform(0, 9, layers), rng.uniform(0.1, 8, stages)


@pytest.mark.quick(2)
@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_the_exact_splits_are_the_best_of_all(first):
    for seed in range(first, first + 100):
        rng, layers, stages, costs, speeds = _inputs(seed)
        every = list(_every_split(layers, stages))
        assert splits.count_splits(layers, stages) == len(every)
        values = [_slowest(split, costs, speeds) for split in every]
        tried = splits.split_exhaustive(costs, stages, speeds=speeds)
        assert [list(part) for part in tried] in every
        assert splits.bottleneck(tried, costs, speeds) == pytest.approx(min(values), rel=1e-9)
        found = splits.split_minmax(costs, stages, speeds=speeds)
        assert [list(part) for part in found] in every
        assert splits.bottleneck(found, costs, speeds) == pytest.approx(min(values), rel=1e-9)
        memory, limits = rng.integers(0, 4, layers), rng.integers(0, 10, stages)
        kept = [
            value
            for split, value in zip(every, values, strict=True)
            if all(sum(memory[part]) <= top for part, top in zip(split, limits, strict=True))
        ]
        found = splits.split_minmax(costs, stages, speeds=speeds, memory=memory, limits=limits)
        if not kept:
            assert found is None
            continue
        assert splits.bottleneck(found, costs, speeds) == pytest.approx(min(kept), rel=1e-9)
        assert all(sum(memory[list(p)]) <= top for p, top in zip(found, limits, strict=True))


@pytest.mark.quick(2)
@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_the_rules_of_thumb_keep_to_what_they_say(first):
    """Even: the least spread. Proportional: nearest to the shares. By FLOPs: as read aloud.

    The bandwidth-aware rule stands in tests/front/test_splits.py.
    """
    for seed in range(first, first + 100):
        _, layers, stages, costs, weights = _inputs(seed)
        even = [len(part) for part in splits.split_even(layers, stages)]
        assert sorted(even, reverse=True) == even
        assert sum(even) == layers
        assert max(even) - min(even) <= 1
        every = [[len(part) for part in split] for split in _every_split(layers, stages)]
        shared = [len(part) for part in splits.split_proportional(layers, weights)]
        off = ((np.array(every) - layers * weights / sum(weights)) ** 2).sum(axis=1)
        assert off[every.index(shared)] == pytest.approx(off.min(), abs=1e-9)
        assert _by_flops(costs, stages) == [
            len(part) for part in splits.split_by_flops(costs, stages)
        ]


def _by_flops(flops, stages):
    """One stage after the other, each as short as the rule allows."""
    sizes, start, total = [], 0, sum(flops)
    for later in range(stages - 1, 0, -1):
        stop = start + 1
        while stop < len(flops) - later and sum(flops[start:stop]) * (1 + 1e-9) < total / stages:
            stop += 1
        sizes.append(stop - start)
        start = stop
    return [*sizes, len(flops) - start]


def _as_listed(problem):
    """The engine's candidates in the form of the definition, and the definition's own."""
    engine = enumerate_candidates(problem)
    stages = [
        (range(a, b), engine.sets[s])
        for a, b, s in zip(engine.start, engine.stop, engine.set_of, strict=True)
    ]
    allocations = candidates.list_allocations(problem)
    return engine, stages, allocations, candidates.list_connections(problem, allocations)


def _problem(seed):
    """By the write-up's costs, from a table without a formula, or a roofline in turn."""
    if seed % 4 == 3:
        return roofline_oracle.random_problem(seed, layers=4, gpus=3)
    problem = oracle.random_problem(seed, layers=5, gpus=4, unlike=seed % 3 == 0)
    if seed % 4 == 1:
        problem = dataclasses.replace(
            problem, costs=oracle.TableCosts(seed, False, link_units=problem.costs.link_units)
        )
    return problem


@pytest.mark.quick(1)
@pytest.mark.parametrize("first", range(0, 500, 25))
def test_candidates_are_the_engines(first):
    """Allocations and connections in the same order with the same rates, and as many as are counted."""
    for seed in range(first, first + 25):
        problem = _problem(seed)
        engine, stages, allocations, connections = _as_listed(problem)
        assert [(a.layers, a.gpus) for a in allocations] == stages
        assert [a.rate for a in allocations] == pytest.approx(engine.throughput, rel=1e-9)
        links = sorted(zip(engine.tail, engine.head, engine.link_throughput, strict=True))
        assert [c[:2] for c in connections] == [link[:2] for link in links]
        assert [c.rate for c in connections] == pytest.approx([x[2] for x in links], rel=1e-9)
        counts = count_candidates(problem)
        assert (counts["allocations"], counts["connections"]) == (len(stages), len(connections))
        assert counts["with_successor"] == len({c.sender for c in connections})
        assert counts["with_predecessor"] == len({c.receiver for c in connections})


def _agrees(value, truth):
    return (value is None) == (truth is None) and (value is None or value == pytest.approx(truth))


@pytest.mark.quick(1)
@pytest.mark.parametrize("first", range(0, 200, 20))
def test_trying_all_is_the_engines_exhaustive_search(first):
    for seed in range(first, first + 20):
        problem = oracle.random_problem(seed, layers=4, gpus=3, unlike=seed % 3 == 0)
        engine, best = pl.solve(problem, "exhaustive"), exhaustive.solve_by_trying_all(problem)
        assert _agrees(best.throughput, engine.throughput), seed
        listed = list(exhaustive.list_placements(problem))
        assert len(set(map(str, listed))) == len(listed) == engine.size["placements"]


@pytest.mark.quick(1)
@pytest.mark.parametrize("first", range(0, 160, 10))
def test_the_joint_ilp_proves_what_trying_everything_finds(first):
    for seed in range(first, first + 10):
        problem = oracle.random_problem(seed, layers=4, gpus=3, unlike=seed % 3 == 0)
        found, truth = joint_ilp.solve_by_joint_ilp(problem), oracle.best(problem)
        assert _agrees(found.throughput, truth), seed
        assert found.bound == found.throughput
        if truth is not None:
            evaluated = pl.evaluate(problem, found.placement).throughput
            assert evaluated == pytest.approx(truth, rel=1e-9)


def test_every_family_says_the_same_as_the_engines_at_random_points():
    """Most families follow from the others, so that answers alone would not show a wrong one."""
    rng = np.random.default_rng(0)
    for problem in (pl.load_case("tiny", max_gpus_per_stage=k) for k in (1, 3, 4)):
        allocations = candidates.list_allocations(problem)
        connections = candidates.list_connections(problem, allocations)
        families, mine = joint_ilp.state_families(problem, allocations, connections)
        assert list(families) == [family.name for family in joint.FORMS["written"].families]
        engine = enumerate_candidates(problem)
        order = np.lexsort((engine.head, engine.tail))  # the engine goes boundary by boundary
        names = ("tail", "head", "link_throughput")
        engine = dataclasses.replace(engine, **{n: getattr(engine, n)[order] for n in names})
        program = joint.build(engine, joint.FORMS["written"])
        for _ in range(10):
            x = rng.uniform(0, 200, program.columns.total)
            for name, where in program.columns.slices.items():
                if name in "ze":
                    x[where] = x[where] > rng.choice([150, 195])
                mine[name].value = x[where] if name != "t" else x[where][0]
            for name, family in families.items():
                if name == "stage_bottleneck":  # the engine keeps the M of the write-up's author
                    continue
                block = program.blocks[name]
                assert len(block) == max(1, family.size)
                beyond = np.maximum(block.lower - block.matrix @ x, block.matrix @ x - block.upper)
                assert np.ravel(family.violation()) == pytest.approx(np.maximum(beyond, 0)), name


def _counts(problem):
    """What counting says: the engine's answer, or a refusal for one of the two reasons there are."""
    engine = pl.solve(problem, "aggregated")
    alike_inside = problem.model.spans.alike_inside
    try:
        found = counting.solve_by_counting(problem)
    except pl.errors.NotApplicable as error:
        reason = str(error)
        if not alike_inside:
            assert "expected identical layers between the first and the last" in reason
            return "unlike"
        assert "expected links that do not bind" in reason
        slowest = problem.link_throughput(problem.cluster.bandwidth_matrix()).min()
        fast = problem.cluster.scaled_bandwidth(1e6)
        free = pl.solve(dataclasses.replace(problem, cluster=fast), "aggregated")
        assert slowest < free.throughput
        return "links"
    assert alike_inside
    assert _agrees(found.throughput, engine.throughput)
    if found.placement is None:
        return "nothing fits"
    evaluated = pl.evaluate(problem, found.placement).throughput
    assert evaluated == found.throughput
    if not problem.model.uniform:
        return "ends whole" if len(found.placement) == 1 else "ends apart"
    mixed = any(
        len({problem.cluster.kind_of[g] for g in s.gpus}) > 1 for s in found.placement.stages
    )
    return "mixed" if mixed else "several" if len(found.placement) > 1 else "one"


def _with_other_ends(problem, seed):
    """The problem with a first and a last layer that weigh and work more or less than those between them."""
    rng, layers = np.random.default_rng(seed), problem.model.layers
    factors = np.ones((2, layers))
    factors[:, 0], factors[:, -1] = rng.choice([0.25, 1, 1.5, 2.5], (2, 2))
    weights, works = map(tuple, factors.tolist())
    model = dataclasses.replace(problem.model, weight_factors=weights, work_factors=works)
    return dataclasses.replace(problem, model=model, batch_split="even")


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, pytest.param(48, marks=pytest.mark.nightly)])
def test_counting_is_the_aggregated_optimum_or_a_refusal(first):
    """Every outcome occurs, so every part of the domain and every refusal was seen."""
    seen = {}
    for seed in range(first, 240 if first else 48):
        problem = oracle.random_problem(
            seed, layers=6, gpus=5, unlike=seed % 8 == 0, twins=seed % 2 == 0
        )
        if seed % 4 == 1:
            problem = dataclasses.replace(
                problem, costs=oracle.TableCosts(seed, False, link_units=problem.costs.link_units)
            )
        if seed % 3:
            problem = dataclasses.replace(problem, cluster=problem.cluster.scaled_bandwidth(1e4))
        for other in (problem, _with_other_ends(problem, seed)):
            outcome = _counts(other)
            seen[outcome] = seen.get(outcome, 0) + 1
    every = "unlike", "links", "nothing fits", "mixed", "several", "ends whole", "ends apart"
    assert min(seen.get(outcome, 0) for outcome in every) > 1, seen


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(24))
def test_a_deployment_lies_between_column_generation_and_its_bound(seed):
    """Every second model has other layers at its ends."""
    rng = np.random.default_rng(seed)
    counts = {"A100": int(rng.integers(1, 4)), "T4": int(rng.integers(1, 4))}
    memory = {"A100": float(rng.choice([3, 5, 8])), "T4": float(rng.choice([2, 3, 4]))}
    tiny = pl.load_case("tiny", max_gpus_per_stage=int(rng.integers(1, 3)), link_units="tokens")
    model = dataclasses.replace(tiny.model, layers=6)
    cluster = pl.Cluster.from_counts(counts, memory, 1e6)
    problem = dataclasses.replace(tiny, cluster=cluster, model=model)
    _lies_between(_with_other_ends(problem, seed) if seed % 2 else problem)


def _lies_between(problem):
    defined, deployed = column_generation.deploy_by_column_generation(problem), pl.deploy(problem)
    if not defined.placements:
        assert (deployed.status, defined.bound) == ("infeasible", 0.0)
        return
    assert deployed.status == "optimal"
    assert defined.throughput * (1 - 1e-9) <= deployed.throughput <= defined.bound * (1 + 1e-7)


@pytest.mark.parametrize("ask", [_counts, _lies_between])
def test_definitions_take_a_real_model_on_four_gpus(ask):
    """Llama-3-8B, whose last layer has the head."""
    gpus = pl.Cluster.from_counts({"L4": 3, "T4": 1}, {"L4": 24, "T4": 16}, 12.5)
    llama = pl.load_model("Llama-3-8B")
    assert not llama.uniform
    outcome = ask(pl.Problem(gpus, llama, pl.Workload(2048, 1), pl.Roofline()))
    assert outcome in ("ends apart", None)


@pytest.mark.parametrize("name", ["tiny", "small", "large"])
def test_counting_solves_the_bundled_cases(name):
    assert _counts(pl.load_case(name, max_gpus_per_stage=3)) in ("mixed", "several", "one")


def test_what_is_too_much_is_refused_with_its_number(monkeypatch):
    def refused(told, ask, *arguments):
        with pytest.raises((pl.errors.TooLarge, pl.errors.NotApplicable), match=told):
            ask(*arguments)

    medium = pl.load_case("medium", max_gpus_per_stage=3)
    refused(r"the stages reach 375\.877 tokens/s, the links", counting.solve_by_counting, medium)
    six = dataclasses.replace(medium, max_gpus_per_stage=6)
    refused("medium has up to 137,200 rates of stages", counting.solve_by_counting, six)
    told = "medium has more than 20,000 placements"
    refused(told, exhaustive.solve_by_trying_all, medium)
    large, small = pl.load_case("large"), pl.load_case("small", max_gpus_per_stage=2)
    told = "large has up to 90,720 allocations, more than 20,000"
    refused(told, candidates.list_allocations, large)
    many = candidates.list_allocations(small) * 3
    refused(r"small has up to [\d,]+ connections", candidates.list_connections, small, many)
    monkeypatch.setattr(joint_ilp, "MOST_CONNECTIONS", 419)
    tiny = pl.load_case("tiny", max_gpus_per_stage=2)
    told = r"tiny has 420 connections, more than 419; pl\.solve"
    refused(told, joint_ilp.solve_by_joint_ilp, tiny)
