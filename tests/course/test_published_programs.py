"""The restated programs: what they answer, item by item.

Their orders against the clock are in test_timeline.py.
"""

import inspect
import re
from itertools import pairwise, product

from pipelab.course.ledger import published_programs
from pipelab.course.ledger.published_programs import (
    Panic,
    PipelineClock,
    PipelineScheduler,
    Step,
)


def scheduler(stages, rank, plan="GPipe", layers=8):
    return PipelineScheduler(stages, rank, plan, total_layers=layers)


def test_the_steps_of_a_middle_rank_one_by_one():
    """Written out by hand from the Rust text: rank 1 of 3, three microbatches."""

    def down(m):
        return [Step("RecvActivations", m, 0), Step("Forward", m), Step("SendActivations", m, 2)]

    def back(m):
        return [Step("WaitBackward", None, 2), Step("Backward", m)]

    there = [*down(0), *down(1), *down(2)]
    assert scheduler(3, 1).schedule_steps(3) == [*there, *back(2), *back(1), *back(0)]
    eager = [*there, *back(0), *back(1), *back(2)]
    assert scheduler(3, 1, "1F1B").schedule_steps(3) == eager
    assert scheduler(3, 1, "interleaved").schedule_steps(3) == eager
    assert scheduler(2, 1, "1F1B").schedule_steps(2) == [
        *(Step("RecvActivations", 0, 0), Step("Forward", 0)),
        *(Step("RecvActivations", 1, 0), Step("Forward", 1)),
        *(Step("Backward", 0), Step("Backward", 1)),
    ]


def test_on_every_small_input_it_answers_or_panics_and_never_raises_its_errors():
    kinds = set()
    for p, rank, layers, m in product(range(4), repeat=4):
        for plan in ("GPipe", "1F1B", "interleaved"):
            made = scheduler(p, rank, plan, layers)
            try:
                made.this_stage()
                kinds |= {step.kind for step in made.schedule_steps(m)}
            except Panic:
                pass
    in_use = {"Forward", "Backward", "WaitBackward", "SendActivations", "RecvActivations"}
    assert kinds == in_use  # no WaitForward
    assert set(re.findall(r"raise (\w+)", inspect.getsource(published_programs))) == {"Panic"}


def test_every_order_of_the_clock_has_every_action_once():
    """A weight gradient always follows its input gradient, so three branches of the clock are idle."""
    for p, m in product(range(1, 6), range(9)):
        for clock in (PipelineClock(p, m, k) for k in range(p)):
            both, three = ({f"{x}{i}" for x in kinds for i in range(m)} for kinds in ("FB", "FIW"))
            assert sorted(clock.schedule_1f1b()) == sorted(both)
            order = clock.schedule_zero_bubble()
            assert sorted(order) == sorted(three)
            after = [(b[0], b[1:]) for a, b in pairwise(order) if a[0] == "I"]
            assert after == [("W", a[1:]) for a in order if a[0] == "I"]
            chunks = clock.schedule_interleaved(2)
            assert len(set(chunks)) == len(chunks) == 4 * m
