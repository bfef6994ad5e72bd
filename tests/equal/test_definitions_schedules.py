"""The engine's schedules and times equal the front's definitions, on every small size and on random inputs."""

import random
from itertools import product

import pytest

import pipelab as pl
from pipelab import schedules
from pipelab.engine.schedules import RULES, defects
from pipelab.engine.schedules.columns import columns_of
from pipelab.errors import InvalidSchedule, NotApplicable
from pipelab.simulator import action_times
from schedule_oracle import random_costs, random_schedule

FAMILY = {
    "GPipe": schedules.gpipe,
    "1F1B": schedules.one_f_one_b,
    "ZBH1": schedules.zb_h1,
    "ZBH2": schedules.zb_h2,
    "ZBV": schedules.zb_v,  # of which the engine has no other; torch's tables are in test_schedules.py
}


@pytest.mark.parametrize("name", FAMILY)
def test_the_rules_of_the_family_are_the_engines(name):
    for ranks, microbatches in product(range(1, 6), range(1, 12)):
        made, rule = pl.schedule(name, ranks, microbatches), FAMILY[name](ranks, microbatches)
        assert (rule, hash(rule)) == (made, hash(made))
        assert defects(made) == ()


def test_the_interleaved_rule_is_the_engines_or_both_refuse():
    refused = 0
    for size in product(range(1, 5), range(1, 11), range(1, 4)):
        try:
            made = pl.schedule("Interleaved1F1B", *size)
        except pl.errors.InvalidValue:
            refused += 1
            with pytest.raises(pl.errors.InvalidValue, match="rounds of equal length"):
                schedules.interleaved(*size)
        else:
            assert schedules.interleaved(*size) == made
    assert 0 < refused < 60


def assert_equal_times(schedule, costs, overlap):
    """Action by action, to the last bit: sums of eighths are exact, and so is half of them."""
    want = action_times(schedule, *costs, overlap=overlap)
    *times, comm = costs
    timeline = pl.simulate(schedule, pl.StageCosts(*times, comm, overlap=overlap))
    got = [timeline.columns.whole(i) for i in timeline.node_entry.tolist()]
    assert [str(action) for row in schedule.actions for action in row] == list(map(str, got))
    assert list(zip(timeline.node_start, timeline.node_end, strict=True)) == [want[a] for a in got]


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(20))
def test_random_schedules_take_the_engines_times_or_are_refused_by_both(seed):
    """As they are, and with two actions of a rank exchanged: some orders still run, and others block."""
    chance, paired, ran, blocked = random.Random(seed), 0, 0, 0
    for _ in range(80):
        whole = random_schedule(chance)
        rows = [list(row) for row in whole.actions]
        row = chance.choice(rows)
        i, j = chance.randrange(len(row)), chance.randrange(len(row))
        row[i], row[j] = row[j], row[i]
        known = {"microbatches": whole.microbatches, "stage_rank": whole.stage_rank}
        exchanged = pl.Schedule.of("random", rows, **known)
        costs = random_costs(whole.stages, chance)
        for schedule in (whole, exchanged):
            assert columns_of(schedule).actions == schedule.actions
            if found := defects(schedule):
                assert schedule != whole, found
                with pytest.raises(InvalidSchedule, match=r"cannot be run: .* waits for the"):
                    action_times(schedule, *costs)
            else:
                assert_equal_times(schedule, costs, chance.choice([1, 0.5, 0.75]))
        paired += any(action.parts for row in whole.actions for action in row)
        ran += exchanged != whole and not found
        blocked += bool(found)
    assert min(paired, ran, blocked) > 3


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", RULES)
def test_times_of_named_schedules_are_the_engines(name):
    chance = random.Random(name)
    for ranks, microbatches in product(range(1, 5), (1, 3, 8)):
        try:
            schedule = pl.schedule(name, ranks, microbatches)
        except pl.errors.InvalidValue:
            continue
        assert_equal_times(schedule, random_costs(schedule.stages, chance), 0.5)


def test_a_deadlock_says_what_every_rank_waits_for():
    rows = [["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"], []]
    with pytest.raises(InvalidSchedule) as caught:
        action_times(pl.Schedule.of("mine", rows), [1, 1], [1, 1], [1, 1], [0])
    assert caught.value.defects == (
        "0B0 on rank 0 waits for the input gradient of stage 1, microbatch 0",
        "1F1 on rank 1 waits for the forward of stage 0, microbatch 1",
    )


def test_what_lies_outside_the_domain_is_refused():
    whole, costs = pl.schedule("1F1B", 2, 2), [[1, 1], [1, 1], [1, 1], [0]]
    for schedule, message in (
        (pl.Schedule.of("idle", [["0F0", None, "0B0"]]), "action = 'IDLE': expected F, B, I or W"),
        (pl.Schedule.of("twice", [["0F0", "0F0", "0B0"], ["1F0", "1B0"]]), "on rank 0, once"),
        (pl.Schedule.of("astray", [["0F0", "0B0", "1F0"], ["1B0"]]), "action = '1B0'.* on rank 1"),
        (pl.Schedule.of("far", [["0F0", "0B0", "2F0"]], stage_rank=[0, 0]), "action = '2F0'"),
    ):
        with pytest.raises(NotApplicable, match=message):
            action_times(schedule, *costs)
    for wrong, overlap, message in (
        ([*costs[:3], [0, 0]], 1, "expected 1$"),
        ([[1, -1], *costs[1:]], 1, "= -1: expected at least 0"),
        (costs, 1.5, "expected above 0, at most 1"),
    ):
        with pytest.raises(pl.errors.InvalidValue, match=message):
            action_times(whole, *wrong, overlap=overlap)
