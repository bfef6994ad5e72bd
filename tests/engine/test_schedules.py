"""Schedules: torch's tables, what a schedule must have, every way in which one can be wrong."""

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipelab as pl
from pipelab.engine.schedules import RULES, defects
from pipelab.engine.schedules.columns import columns_of, runnable
from pipelab.io.torch_csv import to_csv
from pipelab.schedules import Action

DATA = Path(__file__).parents[1] / "data"
TORCH = json.loads((DATA / "torch_schedules.json").read_text(encoding="utf-8"))


def rows(schedule):
    return [[str(action) for action in row] for row in schedule.actions]


def read(text):
    """Read the rows of a schedule that can be run."""
    lines = [[cell for cell in line if cell] for line in csv.reader(text.splitlines())]
    return runnable(pl.Schedule.of("mine", lines)).schedule


# torch's tables


@pytest.mark.quick(89)
@pytest.mark.parametrize(
    "case", TORCH["cases"], ids=lambda c: f"{c['schedule']}-{c['pp']}x{c['m']}x{c['v']}"
)
def test_actions_equal_torchs(case):
    schedule = pl.schedule(case["schedule"], case["pp"], case["m"], case["v"])
    assert rows(schedule) == case["actions"]
    assert defects(schedule) == ()


def test_the_stored_tables_cover_every_schedule():
    assert TORCH["source"].startswith("torch 2.")
    not_torchs = {"ZBH1", "ZBH2", "ZBV", "Inference"}  # ZBV is ZBVZeroBubble there
    names = {case["schedule"] for case in TORCH["cases"]}
    assert names == set(RULES) - not_torchs | {"ZBVZeroBubble"}
    assert [case for case in TORCH["cases"] if case["m"] % case["pp"]]
    assert pl.schedule("ZBH1", 4, 8) == pl.schedule("InterleavedZeroBubble", 4, 8, 1)
    assert pl.schedule("ZBH1", 4, 8) != pl.schedule("ZBH2", 4, 8)
    assert rows(pl.schedule("Inference", 2, 2)) == [["0F0", "0F1"], ["1F0", "1F1"]]


# every schedule


@given(st.sampled_from(sorted(RULES)), st.integers(1, 6), st.integers(1, 14), st.integers(1, 4))
def test_every_schedule_is_complete_and_runs_or_is_refused(name, ranks, microbatches, chunks):
    """Counted from the actions' text, with no code of the validation."""
    arguments = name, ranks, microbatches, chunks if RULES[name].chunked else None
    rounds = max(1, microbatches // ranks)
    uneven = name in ("Interleaved1F1B", "InterleavedZeroBubble") and microbatches % rounds
    if uneven or (name == "DualPipeV" and microbatches < 2 * ranks):
        with pytest.raises(pl.errors.InvalidValue, match="microbatches = "):
            pl.schedule(*arguments)
        return
    schedule, work = runnable(pl.schedule(*arguments)).schedule, {}
    for rank, row in enumerate(schedule.actions):
        for stage, kind, batch, _ in (part for one in row for part in one.parts or (one,)):
            assert schedule.stage_rank[stage] == rank
            work.setdefault((stage, batch), []).append(kind)
    assert set(work) == {(s, m) for s in range(schedule.stages) for m in range(microbatches)}
    whole = {"F"} if name == "Inference" else {"FB", "FIW"}
    assert {"".join(kinds) for kinds in work.values()} <= whole
    assert schedule.stages == ranks * schedule.chunks


@pytest.mark.parametrize("name", sorted(RULES))
def test_csv_and_text_give_the_schedule_back(name, tmp_path):
    schedule = pl.schedule(name, 3, 6)
    assert read(pl.save(schedule, tmp_path / "s.csv").read_text(encoding="utf-8")) == schedule
    lines = [line.split(": ")[1].split() for line in str(schedule).splitlines()]
    assert pl.Schedule.of(name, lines) == schedule


IDLING = pl.Schedule.of(
    "1F1B", [["0F0", "0F1", None, "0B0", None, "0B1"], [None, "1F0", "1B0", "1F1", "1B1"]]
)


def test_csv_is_written_as_torch_writes_it():
    assert to_csv(IDLING) == "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n"
    assert columns_of(read(to_csv(IDLING))).computing().schedule == pl.schedule("1F1B", 2, 2)
    first = to_csv(pl.schedule("DualPipeV", 2, 4)).splitlines()[0]
    assert first.startswith("0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,")
    idle = pl.Schedule.of("an idle rank", [["0F0", None, "0B0"], [], ["1F0", "1B0"]])
    assert read(to_csv(idle)) == columns_of(idle).computing().schedule
    assert read(to_csv(idle)).ranks == 3
    assert defects(pl.Schedule.of("blanks", [["0F0", "( 0F1 ; 0B0 )OVERLAP_F_B", "0B1"]])) == ()


@pytest.mark.parametrize(
    "text",
    ["F0", "2X0", "0SEND_F0", "(3B0;4F1)OVERLAP_F_B", "(3F0;4B1)", "-1F0", "2F0 1F0"],
)
def test_what_is_no_action_is_refused(text):
    with pytest.raises(pl.errors.InvalidValue, match="expected stage, kind and microbatch"):
        Action.parse(text)


# what can be wrong


def broken(*lines, **known):
    return pl.Schedule.of("mine", [line.split() for line in lines], **known)


@pytest.mark.parametrize(
    ("lines", "defect"),
    [
        (("0F0 0B0 1F0", "1F0 1B0"), "1F0 (rank 0, position 2): stage 1 is on rank 1"),
        (("0F0 0I0 0W0 0B0", "1F0 1B0"), "0B0 and 0I0 do the same work; expected B, or I and W"),
        (("0F0 0I0", "1F0 1B0"), "0W0 is missing on rank 0"),
        (
            ("0F0 0W0 0I0", "1F0 1B0"),
            "0W0 (rank 0, position 1) waits for 0I0, which comes later on the same rank",
        ),
        (
            ("(0F0;0B0)OVERLAP_F_B",),
            "0F0 (rank 0, position 0): the backward of the pair waits for its own forward",
        ),
        (("0F0 0B0 2F0", "1F0 1B0"), "2F0 (rank 0, position 2): stages are 0 to 1"),
    ],
)
def test_a_defect_is_named(lines, defect):
    """The schedule's own stages sit on the first rank that runs them, except where the case says otherwise."""
    schedule = broken(*lines, **({"stage_rank": [0, 1]} if len(lines) == 2 else {}))
    with pytest.raises(pl.errors.InvalidSchedule) as caught:
        runnable(schedule)
    assert defect in caught.value.defects
    assert defects(schedule) == caught.value.defects


def test_what_is_beyond_the_microbatches_and_ranks_is_impossible():
    assert defects(broken("0F0 0B0 0F5 0B5", microbatches=2))[0] == (
        "0F5 (rank 0, position 2): microbatches are 0 to 1"
    )
    assert defects(broken("0F0 0B0", stage_rank=[3])) == (
        "stage 0 is on rank 3, but ranks are 0 to 0",
    )


def test_a_deadlock_shows_the_circle_of_edges_that_block_and_not_who_waits_for_it():
    """Of a pair, the half that blocks or waits is named."""
    assert defects(broken("0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0")) == (
        "deadlock: 0B0 on rank 0 waits for 1B0 on rank 1, which comes after 1F1",
        "1F1 on rank 1 waits for 0F1 on rank 0, which comes after 0B0",
    )
    assert defects(broken("0F0 0B0 0F1 0B1", "1F0 (1F1;1B0)OVERLAP_F_B 1B1")) == (
        "deadlock: 0B0 on rank 0 waits for 1B0 on rank 1",
        "1F1 of (1F1;1B0)OVERLAP_F_B on rank 1 waits for 0F1 on rank 0, which comes after 0B0",
    )
    edges = defects(broken("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1", "2F1 2B1 2F0 2B0"))
    assert edges[0] == "deadlock: 1B0 on rank 1 waits for 2B0 on rank 2, which comes after 2F1"
    assert len(edges) == 2


@given(st.sampled_from(sorted(RULES)), st.data())
def test_any_lost_or_doubled_action_is_found(name, data):
    schedule = pl.schedule(name, 3, 6)
    whole = columns_of(schedule)
    entry = data.draw(st.integers(0, len(whole) - 1))
    if whole.paired[entry] or (entry and whole.paired[entry - 1]):
        return  # half a pair is another matter
    text = str(whole.action(entry))
    lost = whole.select(np.arange(len(whole)) != entry).schedule
    assert defects(lost) == (f"{text} is missing on rank {whole.rank[entry]}",)
    lines = rows(schedule)
    lines[int(whole.rank[entry])].append(text)
    twice = pl.Schedule.of("twice", lines, microbatches=6, stage_rank=whole.stage_rank)
    assert any(f"{text} is there 2 times" in defect for defect in defects(twice))


# bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("GPipe", 10**5000, 1), "ranks = <int>: expected at most 1,000,000,000,000,000,000"),
        (("1F1B", 4, 8, 2), "1F1B has 1 chunk per rank; schedules with any number: Interleaved1F"),
        (("DualPipeV", 4, 7), "microbatches = 7: DualPipeV on 4 ranks needs at least 8"),
        (("Interleaved1F1B", 4, 9, 2), "in 2 rounds.* nearest numbers that fit are 8 and 10"),
        (("1f1b", 4, 8), "schedule '1f1b' is not known; did you mean '1F1B'"),
        # before anything is searched or listed
        (("1F1B", 10**5, 10**5), "1F1B: 10,000,000,000 forwards .*; at most 5,000,000"),
        (("ZBV", 100_000, 1), "are listed one by one"),
    ],
)
def test_bad_numbers_are_refused(arguments, message):
    with pytest.raises(pl.PipelabError, match=message):
        pl.schedule(*arguments)


HALF = Action(-1, "OVERLAP_F_B", -1, (Action(0, "F", 1),))


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"microbatches": 0}, "microbatches = 0: expected at least 1"),
        ({"stage_rank": []}, r"stage_rank = .*: expected the rank that holds each stage"),
        ({"stage_rank": [0, -1]}, r"stage_rank\[1\] = -1: expected at least 0"),
        ({"rows": [[], []]}, "expected a row of actions for each rank"),
        ({"rows": ["0F0 0B0"]}, r"rows\[0\] = .*: expected a list of actions, such as"),
        ({"rows": [["0F0"], [Action("a", "F", 0)]]}, r"\(rank 1, position 0\): stage = 'a'"),
        ({"rows": [["0F5000000"]]}, "microbatch = 5000000: expected at most 4,999,999"),
        ({"rows": [[Action(0, "Q", 0)]]}, r"kind = 'Q': expected one of F, I, B, W"),
        # not the next action for its other half
        ({"rows": [["0F0", HALF, "0B0", "0B1"]]}, "parts = .*: expected a forward and a full"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused_at_the_door(known, message):
    known = {"name": "mine", "rows": [["0F0", "0B0"]]} | known
    with pytest.raises(pl.errors.InvalidValue, match=message):
        pl.Schedule.of(known.pop("name"), known.pop("rows"), **known)


def test_a_schedule_changed_by_hand_is_checked_again():
    with pytest.raises(pl.errors.InvalidValue, match="Schedule: microbatches = 0"):
        dataclasses.replace(pl.schedule("1F1B", 2, 2), microbatches=0)


def test_very_many_defects_are_cut_short():
    """One high number is answered without a table of all that is missing."""
    found = defects(pl.Schedule.of("mine", [["0F0", "0B0"]], microbatches=500_000))
    assert len(found) == 1000
    (gap,) = defects(pl.Schedule.of("mine", [["0F0", "0B0", "0F4999999", "0B4999999"]]))
    assert gap.endswith("5,000,000 microbatches need 5,000,000 forwards, and there are 2")


def test_what_would_take_minutes_to_time_is_refused():
    with pytest.raises(pl.errors.TooLarge, match="at most 1,000,000 and 40,000,000 cells"):
        runnable(pl.schedule("1F1B", 50_000, 1))
