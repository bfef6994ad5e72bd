"""The engine's schedules and times equal the front's definitions, on every small size and on random inputs."""

import random
from itertools import product

import pytest

import pipelab as pl
from pipelab import schedules
from pipelab.engine.schedules import RULES, defects, with_idle
from pipelab.engine.schedules.columns import columns_of
from pipelab.errors import InvalidSchedule, NotApplicable
from pipelab.schedules import Action
from pipelab.simulator import action_times

FAMILY = {
    "GPipe": schedules.gpipe,
    "1F1B": schedules.one_f_one_b,
    "ZBH1": schedules.zb_h1,
    "ZBH2": schedules.zb_h2,
}


# the rules


@pytest.mark.parametrize("name", FAMILY)
def test_the_rules_of_the_family_are_the_engines(name):
    for ranks, microbatches in product(range(1, 7), range(1, 13)):
        assert FAMILY[name](ranks, microbatches) == pl.schedule(name, ranks, microbatches)


def test_the_interleaved_rule_is_the_engines_or_both_refuse():
    refused = 0
    for size in product(range(1, 7), range(1, 13), range(1, 5)):
        try:
            made = pl.schedule("Interleaved1F1B", *size)
        except pl.errors.InvalidValue:
            refused += 1
            with pytest.raises(pl.errors.InvalidValue, match="rounds of equal length"):
                schedules.interleaved(*size)
        else:
            assert schedules.interleaved(*size) == made
    assert 0 < refused < 100


def test_zb_v_by_its_name_is_the_rule():
    """The engine has no ZB-V of its own; torch's tables are in test_schedules.py."""
    for ranks, microbatches in product(range(1, 7), range(1, 13)):
        made = pl.schedule("ZBV", ranks, microbatches)
        assert made == schedules.zb_v(ranks, microbatches)
        assert defects(made) == ()
        assert made.stage_rank == (*range(ranks), *reversed(range(ranks)))


def test_the_columns_of_a_schedule_hold_its_actions():
    for name in RULES:
        made = pl.schedule(name, 3, 6)
        copy = pl.Schedule.of("copy", [list(row) for row in made.actions])
        assert made == copy
        assert copy == made
        assert hash(made) == hash(copy)
        assert columns_of(copy).actions == copy.actions
        assert columns_of(copy).schedule == made
        assert columns_of(copy).texts == columns_of(made).texts
        other = columns_of(made).select(columns_of(made).microbatch != 5).schedule
        assert other != made
        assert made != other


# the simulator


def random_costs(stages: int, random: random.Random) -> list:
    """Forward, both gradients and comm in eighths, whose sums are exact; a third of the links are free."""
    cost = lambda: random.randrange(33) / 8  # noqa: E731
    comm = [cost() * (random.random() < 0.67) for _ in range(stages - 1)]
    return [*([cost() for _ in range(stages)] for _ in range(3)), comm]


def random_schedule(random: random.Random) -> pl.Schedule:
    """Any stages on any ranks, in any order in which the actions can be run one after the other.

    Each is as likely as another to be next; of a stage and a microbatch the backward is split or
    not, and some forwards run together with a backward of the same rank.
    """
    ranks, stages = random.randint(1, 4), random.randint(1, 6)
    microbatches = random.randint(1, 5)
    holder = [*range(min(ranks, stages)), *(random.randrange(ranks) for _ in range(stages))][
        :stages
    ]
    random.shuffle(holder)
    rows: list[list] = [[] for _ in range(max(holder) + 1)]
    split = {(s, m): random.random() < 0.5 for s in range(stages) for m in range(microbatches)}
    able = [Action(0, "F", m) for m in range(microbatches)]
    while able:
        action = able.pop(random.randrange(len(able)))
        partners = [
            other
            for other in able
            if {action.kind, other.kind} == {"F", "B"}
            and holder[other.stage] == holder[action.stage]
        ]
        one = [action]
        if partners and random.random() < 0.5:
            one = sorted([action, random.choice(partners)], key=lambda part: "FB".index(part.kind))
            able.remove(one[1] if one[0] is action else one[0])
        rows[holder[action.stage]].append(Action.pair(*one) if len(one) == 2 else action)
        for stage, kind, m, _ in one:
            if kind == "W":
                continue
            if kind == "I":
                able.append(Action(stage, "W", m))
            forward = kind == "F" and stage < stages - 1
            following = stage + 1 if forward else stage if kind == "F" else stage - 1
            if following >= 0:
                backward = "I" if split[following, m] else "B"
                able.append(Action(following, "F" if forward else backward, m))
    return pl.Schedule.of("random", rows, microbatches=microbatches, stage_rank=holder)


def assert_equal_times(schedule: pl.Schedule, costs: list, overlap: float) -> None:
    """Action by action, to the last bit: sums of eighths are exact, and so is half of them."""
    want = action_times(schedule, *costs, overlap=overlap)
    *times, comm = costs
    timeline = pl.simulate(schedule, pl.StageCosts(*times, comm, overlap=overlap))
    first = timeline.node_entry.tolist()
    got = [timeline.columns.whole(i) for i in first]
    assert [str(action) for row in schedule.actions for action in row] == list(map(str, got))
    assert list(zip(timeline.node_start, timeline.node_end, strict=True)) == [want[a] for a in got]


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(20))
def test_times_of_random_schedules_are_the_engines(seed):
    chance, pairs, crossed = random.Random(seed), 0, 0
    for _ in range(100):
        schedule = random_schedule(chance)
        assert defects(schedule) == ()
        assert_equal_times(
            schedule, random_costs(schedule.stages, chance), chance.choice([1, 0.5, 0.75])
        )
        pairs += any(action.parts for row in schedule.actions for action in row)
        crossed += len(set(schedule.stage_rank)) > 1
    assert pairs > 8
    assert crossed > 40


@pytest.mark.quick(5)
@pytest.mark.parametrize("name", RULES)
def test_times_of_named_schedules_are_the_engines(name):
    chance = random.Random(name)
    for ranks, microbatches in product(range(1, 6), (1, 3, 8, 12)):
        try:
            schedule = pl.schedule(name, ranks, microbatches)
        except pl.errors.InvalidValue:
            continue
        assert_equal_times(schedule, random_costs(schedule.stages, chance), 0.5)


@pytest.mark.slow
def test_what_cannot_run_is_refused_by_both():
    """Two actions of a rank exchanged: some orders still run, and take the same time; others block."""
    chance, ran, blocked = random.Random(3), 0, 0
    for _ in range(200):
        whole = random_schedule(chance)
        rows = [list(row) for row in whole.actions]
        row = chance.choice(rows)
        if len(row) < 2:
            continue
        i, j = chance.sample(range(len(row)), 2)
        row[i], row[j] = row[j], row[i]
        known = {"microbatches": whole.microbatches, "stage_rank": whole.stage_rank}
        schedule = pl.Schedule.of("exchanged", rows, **known)
        costs = random_costs(schedule.stages, chance)
        if defects(schedule):
            blocked += 1
            with pytest.raises(InvalidSchedule, match=r"cannot be run: .* waits for the"):
                action_times(schedule, *costs)
        else:
            ran += 1
            assert_equal_times(schedule, costs, 0.75)
    assert ran > 15
    assert blocked > 30


def test_a_deadlock_says_what_every_rank_waits_for():
    rows = [["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"], []]
    with pytest.raises(InvalidSchedule) as caught:
        action_times(pl.Schedule.of("mine", rows), [1, 1], [1, 1], [1, 1], [0])
    assert caught.value.defects == (
        "0B0 on rank 0 waits for the input gradient of stage 1, microbatch 0",
        "1F1 on rank 1 waits for the forward of stage 0, microbatch 1",
    )


def test_what_lies_outside_the_domain_is_refused():
    whole = pl.schedule("1F1B", 2, 2)
    costs = [[1, 1], [1, 1], [1, 1], [0]]
    outside = [
        (with_idle(whole), "action = 'IDLE': expected F, B, I or W"),
        (pl.Schedule.of("twice", [["0F0", "0F0", "0B0"], ["1F0", "1B0"]]), "on rank 0, once"),
        (pl.Schedule.of("astray", [["0F0", "0B0", "1F0"], ["1B0"]]), "action = '1B0'.* on rank 1"),
        (pl.Schedule.of("far", [["0F0", "0B0", "2F0"]], stage_rank=[0, 0]), "action = '2F0'"),
    ]
    for schedule, message in outside:
        with pytest.raises(NotApplicable, match=message):
            action_times(schedule, *costs)
    for i in range(4):
        longer = [[*cost, 1] if i == j else cost for j, cost in enumerate(costs)]
        with pytest.raises(pl.errors.InvalidValue, match=f"expected {2 - (i == 3)}$"):
            action_times(whole, *longer)
        negative = [[*cost[:-1], -1] if i == j else cost for j, cost in enumerate(costs)]
        with pytest.raises(pl.errors.InvalidValue, match="= -1: expected at least 0"):
            action_times(whole, *negative)
    for overlap in (0, 1.5):
        with pytest.raises(pl.errors.InvalidValue, match="expected above 0, at most 1"):
            action_times(whole, *costs, overlap=overlap)
