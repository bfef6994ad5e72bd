"""Times and measures: against a second simulator, against formulas, against published numbers and generators."""

import dataclasses
import json
import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipelab as pl
from pipelab import simulator
from pipelab.course import published_programs as published
from pipelab.course.n08 import published_bubbles
from pipelab.engine.schedules import RULES, with_idle
from pipelab.engine.schedules.columns import columns_of
from pipelab.io.chrome_traces import chrome_trace
from pipelab.writeup.linear_rates import with_link_units

ONE = pl.StageCosts(forward=1, backward_input=1, backward_weight=1)


def run(name, ranks, microbatches, costs=ONE, chunks=None, **options):
    """Costs are of a whole rank."""
    schedule = pl.schedule(name, ranks, microbatches, chunks)
    return pl.simulate(schedule, costs.split(schedule.chunks), **options)


@st.composite
def runs(draw):
    """A schedule of any kind with different stages and links."""
    name = draw(st.sampled_from(sorted(RULES)))
    rule, ranks = RULES[name], draw(st.integers(1, 5))
    chunks = draw(st.integers(1, 3)) if rule.chunked else None
    low = rule.microbatches_per_rank * ranks or 1
    microbatches = draw(st.integers(low, low + 8))
    if rule.even_rounds:
        microbatches = max(1, microbatches // ranks) * min(ranks, microbatches)
    schedule = pl.schedule(name, ranks, microbatches, chunks)
    number = st.floats(0, 9, allow_nan=False).map(lambda x: round(x, 2))
    per_stage = st.lists(number, min_size=schedule.stages, max_size=schedule.stages)
    per_link = st.lists(number, min_size=schedule.stages - 1, max_size=schedule.stages - 1)
    costs = pl.StageCosts(
        draw(per_stage),
        draw(per_stage),
        draw(per_stage),
        draw(per_link),
        overlap=draw(st.sampled_from([1.0, 0.7])),
    )
    return schedule, costs


# against other simulators; buffered transfers are in test_definitions_schedules.py


@pytest.mark.slow
@given(runs())
def test_nothing_overlaps_no_dependency_breaks_and_no_work_is_lost(case):
    """Straight from the definition, with no code of either simulator."""
    schedule, costs = case
    timeline = pl.simulate(schedule, costs)
    took = {"F": costs.forward, "I": costs.backward_input, "W": costs.backward_weight}
    took["B"] = [i + w for i, w in zip(costs.backward_input, costs.backward_weight, strict=True)]
    starts, ends, work = {}, {}, [0.0] * schedule.ranks
    for rank, row in enumerate(schedule.actions):
        free = 0.0
        for action in row:
            parts = action.parts or (action,)
            start, end = _of(timeline, action)
            assert start >= free - 1e-9
            free = end
            length = sum(took[p.kind][p.stage] for p in parts) * (
                costs.overlap if action.parts else 1
            )
            assert end - start == pytest.approx(length, abs=1e-9)
            work[rank] += length
            for p in parts:
                kind = "B" if p.kind == "I" else p.kind
                starts[p.stage, kind, p.microbatch], ends[p.stage, kind, p.microbatch] = start, end
    for (stage, kind, batch), start in starts.items():
        source = {
            "F": (stage - 1, "F", batch),
            "B": (stage + 1, "B", batch),
            "W": (stage, "B", batch),
        }[kind]
        if source in ends:
            link = min(stage, source[0])
            far = schedule.stage_rank[stage] != schedule.stage_rank[source[0]]
            assert start >= ends[source] + (costs.comm[link] if far else 0) - 1e-9
        if kind == "B":
            assert start >= ends[stage, "F", batch] - 1e-9
    assert timeline.busy == pytest.approx(work, abs=1e-9)
    assert timeline.idle.total + timeline.busy == pytest.approx(
        [timeline.makespan] * schedule.ranks, abs=1e-6
    )
    assert all((part >= -1e-9).all() for part in timeline.idle)


def _of(timeline, action):
    schedule, part = timeline.columns, (action.parts or (action,))[0]
    codes = ("F", "I", "B", "W")
    chosen = (schedule.stage == part.stage) & (schedule.microbatch == part.microbatch)
    entry = int(np.flatnonzero(chosen & (schedule.kind == codes.index(part.kind)))[0])
    return timeline.start[entry], timeline.end[entry]


def all_sources(schedule):
    """By definition: for every action's text what it needs, as text, and the link between (None within a rank)."""
    parts = [part for row in schedule.actions for one in row for part in one.parts or (one,)]
    known, found = set(map(str, parts)), {}
    for stage, kind, batch, _ in parts:
        last = stage == schedule.stages - 1
        wanted = {
            "F": [(stage - 1, "F")],
            "W": [(stage, "I")],
            "B": [(stage, "F")] if last else [(stage + 1, "B"), (stage + 1, "I")],
        }["B" if kind == "I" else kind]
        mine = found.setdefault(f"{stage}{kind}{batch}", {})
        for other, code in wanted:
            if f"{other}{code}{batch}" in known:
                across = schedule.stage_rank[other] != schedule.stage_rank[stage]
                mine[f"{other}{code}{batch}"] = min(stage, other) if across else None
    return found


def halves(action):
    return [str(part) for part in action.parts or (action,)]


@given(runs())
def test_queued_messages_go_one_at_a_time_over_a_line(case):
    """Rank by rank and message by message, with no code of the simulator."""
    schedule, costs = case
    took = {"F": costs.forward, "I": costs.backward_input, "W": costs.backward_weight}
    took["B"] = [i + w for i, w in zip(costs.backward_input, costs.backward_weight, strict=True)]
    needed = all_sources(schedule)
    # The action on another rank that needs an output, and the link between.
    sent = {
        s: (t, over) for t, made in needed.items() for s, over in made.items() if over is not None
    }
    rank_of = {half: r for r, row in enumerate(schedule.actions) for a in row for half in halves(a)}
    end, arrival, line, todo = {}, {}, {}, [list(row) for row in schedule.actions]
    free = [0.0] * schedule.ranks
    while any(todo):
        for rank, row in enumerate(todo):
            while row and all(s in end for half in halves(row[0]) for s in needed[half]):
                action = row.pop(0)
                made = [source for half in halves(action) for source in needed[half].items()]
                there = [end[s] if over is None else arrival[s] for s, over in made]
                start = max([free[rank], *there])
                length = sum(took[p.kind][p.stage] for p in action.parts or (action,))
                free[rank] = start + length * (costs.overlap if action.parts else 1)
                for half in halves(action):
                    end[half] = free[rank]
                    if half in sent:
                        way = rank, rank_of[sent[half][0]]
                        message = costs.comm[sent[half][1]]
                        line[way] = max(end[half], line.get(way, 0.0)) + message
                        arrival[half] = line[way]
    timeline = pl.simulate(schedule, costs, transfers="queued")
    assert dict(zip(timeline.columns.texts, timeline.end, strict=True)) == pytest.approx(
        end, abs=1e-9
    )


def whole_actions(schedule):
    """Rank and whole action of every half's text, and the action before it on its rank."""
    found = {}
    for rank, row in enumerate(schedule.actions):
        for before, one in pairwise((None, *row)):
            found |= {str(part): (rank, one, before) for part in (*one.parts, one)}
    return found


@pytest.mark.slow
@given(runs())
def test_what_was_waited_for_is_what_is_needed_and_ended_last(case):
    """Half a pair where data is needed, the pair where the rank was busy; named alike everywhere."""
    schedule, costs = case
    timeline = pl.simulate(schedule, costs)
    frame, place, needed = timeline.to_frame(), whole_actions(schedule), all_sources(schedule)
    end = dict(zip(frame["action"], timeline.end, strict=True))
    bars = {e["name"]: e for e in chrome_trace(timeline)["traceEvents"] if e["ph"] == "X"}
    for text, name, start in zip(frame["action"], frame["waited_for"], timeline.start, strict=True):
        assert bars[text]["args"].get("waited for", "") == name
        _, whole, before = place[text]
        if name == "":
            assert (before, start) == (None, 0)
        elif name == str(before):
            assert end[str((before.parts or (before,))[0])] == start
        else:
            link = {k: v for half in halves(whole) for k, v in needed[half].items()}[name]
            assert start == pytest.approx(
                end[name] + (0 if link is None else costs.comm[link]), abs=1e-9
            )


@pytest.mark.slow
@given(runs())
def test_the_critical_path_is_a_chain_of_dependencies(case):
    """From time 0 to the makespan; each action needs the one before, and works and messages add up to the makespan."""
    schedule, costs = case
    timeline = pl.simulate(schedule, costs)
    start, end, place, needed = (
        timeline.start,
        timeline.end,
        whole_actions(schedule),
        all_sources(schedule),
    )
    entries = timeline.critical_entries
    assert [str(timeline.columns.action(i)) for i in entries] == [
        str(action) for action in timeline.critical_path
    ]
    assert (start[entries[0]], end[entries[-1]]) == (0, timeline.makespan)
    total = end[entries[0]]
    for i, j in pairwise(entries):
        (rank, one, _), (other, two, before) = (
            place[str(timeline.columns.action(i))],
            place[str(timeline.columns.action(j))],
        )
        data = {source: link for half in halves(two) for source, link in needed[half].items()}
        if str(timeline.columns.action(i)) in data and (rank != other or one != before):
            link = data[str(timeline.columns.action(i))]
            message = 0 if link is None else costs.comm[link]
        else:
            assert (rank, one) == (other, before)
            message = 0
        assert start[j] == pytest.approx(end[i] + message, abs=1e-9)
        total += message + end[j] - start[j]
    assert total == pytest.approx(timeline.makespan, abs=1e-6)


@pytest.mark.parametrize(
    ("rows", "waited_for", "critical_path"),
    [
        (
            ("0F0 0F1 0B0 0B1", "1F0 (1F1;1B0)OVERLAP_F_B 1B1"),
            {"0B0": "1B0", "1F1": "0F1", "1B1": "(1F1;1B0)OVERLAP_F_B"},
            "0F0 0F1 1B0 0B0 0B1",
        ),
        (
            ("0F0 (0F1;0B0)OVERLAP_F_B 0B1", "1F0 1B0 1F1 1B1"),
            {"0B0": "1B0", "0F1": "1B0", "1F1": "0F1", "0B1": "1B1"},
            "0F0 1F0 1B0 0F1 1F1 1B1 0B1",
        ),
    ],
    ids=["a backward half is waited for", "a forward half waits"],
)
def test_the_half_of_a_pair_that_is_meant_is_named(rows, waited_for, critical_path):
    schedule = pl.Schedule.of("pairs", [row.split() for row in rows])
    timeline = pl.simulate(schedule, pl.StageCosts([2, 1], 2, 1))
    frame = timeline.to_frame().set_index("action")["waited_for"]
    assert frame[list(waited_for)].to_dict() == waited_for
    quicker = pl.simulate(schedule, pl.StageCosts([2, 1], 1, 1))
    assert " ".join(map(str, quicker.critical_path)) == critical_path


# published and known numbers


@pytest.mark.parametrize("row", published_bubbles(), ids=lambda r: f"{r.model}-{r.microbatches}")
def test_zero_bubble_table_5(row):
    got = {
        name: round(
            pl.simulate(pl.schedule(name, row.ranks, row.microbatches), row.costs).zb_bubble_rate, 4
        )
        for name in ("1F1B", "ZB-H1", "ZB-H2")
    }
    assert got == {name: row.rates[name] for name in got}


@pytest.mark.parametrize("as_printed", [True, False])
def test_the_interleaved_column_by_the_definition(as_printed, monkeypatch):
    """The smallest setting; the wait from the last rank back to the first dropped as the column has it, or kept."""
    row = min(published_bubbles(), key=lambda r: r.ranks * r.microbatches)
    p, m, chunks, costs = row.ranks, row.microbatches, row.chunks, row.costs.split(row.chunks)
    needs = simulator._needs

    def fewer_needs(action, stages):
        stage, kind, batch, _ = action
        around = stage % p == 0 if kind == "F" else stage % p == p - 1 and stage < stages - 1
        return {} if around and batch % p else needs(action, stages)

    if as_printed:
        monkeypatch.setattr(simulator, "_needs", fewer_needs)
    stages = p * chunks
    parts = costs.forward, costs.backward_input, costs.backward_weight
    each = [[cost] * stages for cost in parts]
    order = pl.schedule("Interleaved1F1B", p, m, chunks)
    times = simulator.action_times(order, *each, [costs.comm] * (stages - 1))
    spans = [times[rank[-1]][1] - times[rank[0]][0] for rank in order.actions]
    ideal = m * chunks * sum(each[i][0] for i in range(3))
    rate = (max(spans) - ideal) / max(spans)
    assert round(rate, 4) == (row.rates["1F1B-I"] if as_printed else 0.1090)


SLOW_LINKS = pl.StageCosts(1, 1, 1, comm=0.5)
UNEQUAL = pl.StageCosts([2, 5, 3], comm=[1, 0.5])
NOTHING = pl.StageCosts(0, 0, 0)


@pytest.mark.parametrize(
    ("order", "costs", "known"),
    [
        (("1F1B", 4, 8), ONE, {"makespan": 33, "ideal": 24, "bubble_ratio": 3 / 8}),
        (("1F1B", 4, 8), ONE, {"bubble_fraction": 3 / 11, "zb_bubble_rate": 9 / 33}),
        (("1F1B", 4, 8), ONE, {"span": 33, "peak_in_flight": (4, 3, 2, 1)}),
        (("1F1B", 2, 2), NOTHING, {"makespan": 0, "bubble_fraction": 0, "zb_bubble_rate": 0}),
        (("ZBH1", 4, 8), ONE, {"makespan": 27, "span": 27, "zb_bubble_rate": 1 / 9}),
        # a span has no bubble where its makespan has
        (("ZBH2", 4, 8), ONE, {"makespan": 27, "span": 24, "zb_bubble_rate": 0}),
        (("ZBH2", 4, 8), ONE, {"bubble_fraction": 1 / 9}),
        # messages hurt 1F1B more than GPipe
        (("GPipe", 4, 16), SLOW_LINKS, {"makespan": 60}),
        (("1F1B", 4, 16), SLOW_LINKS, {"makespan": 71}),
        (("Interleaved1F1B", 4, 8, 2), ONE, {"makespan": 28.5, "peak_in_flight": (11, 9, 7, 5)}),
        (
            ("Interleaved1F1B", 4, 8, 4),
            ONE,
            {"makespan": 26.25, "peak_in_flight": (19, 17, 15, 13)},
        ),
        # a flow shop: once through all, then the slowest stage
        (("Inference", 3, 10), UNEQUAL, {"makespan": 2 + 5 + 3 + 1.5 + 9 * 5}),
        (("Inference", 2, 50), pl.StageCosts(1), {"peak_in_flight": (1, 1), "peak_memory": (1, 1)}),
    ],
)
def test_known_times_and_measures(order, costs, known):
    name, ranks, microbatches, *chunks = order
    timeline = run(name, ranks, microbatches, costs, *chunks)
    assert {name: getattr(timeline, name) for name in known} == {
        name: pytest.approx(value) for name, value in known.items()
    }


@pytest.mark.parametrize(
    ("order", "chunks", "makespan", "held"),
    [
        (published.scheduler_1f1b(4, 8), 1, 33, (5, 4, 3, 2)),
        (published.scheduler_gpipe(4, 8), 1, 33, (8, 8, 8, 8)),
        (published.clock_1f1b(4, 8), 1, 33, (4, 3, 2, 1)),
        (published.clock_interleaved(4, 8, 2), 2, 64.5, (16, 16, 16, 16)),
        (published.clock_interleaved(4, 8, 4), 4, 80.25, (32, 32, 32, 32)),
        (published.clock_zero_bubble(4, 8), 1, 30, (4, 3, 2, 1)),
    ],
)
def test_published_generators_against_the_clock(order, chunks, makespan, held):
    """What is wrong with them, input by input, is in the ledger."""
    timeline = pl.simulate(order, ONE.split(chunks))
    assert (timeline.makespan, timeline.peak_in_flight) == (makespan, held)


# closed forms and lower bounds


GRID = [(p, m) for p in (1, 2, 3, 5) for m in (1, 2, 3, 5, 6, 9, 12)]
SHAPES = [(f, b, w) for f in (0, 1, 3) for b in (0, 1, 3) for w in (0, 1, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(RULES) - {"Inference"}))
def test_closed_forms_equal_the_simulation_wherever_they_claim_to_hold(name):
    claimed = {}
    for p, m in GRID:
        for chunks in (1, 2, 3) if RULES[name].chunked else (None,):
            try:
                schedule = pl.schedule(name, p, m, chunks)
            except pl.errors.InvalidValue:
                continue
            for shape in SHAPES:
                costs = pl.StageCosts(*shape).split(schedule.chunks)
                timeline = pl.simulate(schedule, costs)
                for form in pl.closed_forms(schedule, costs):
                    claimed[form.formula] = claimed.get(form.formula, 0) + (form.value is not None)
                    if form.value is not None:
                        got = getattr(timeline, form.quantity)
                        assert got == pytest.approx(form.value), (p, m, chunks, shape, form)
    if name == "InterleavedZeroBubble":
        return  # only its case of one chunk, ZBH1, has formulas
    assert claimed
    assert min(claimed.values()) >= 20  # none holds by never claiming anything


@pytest.mark.slow
@given(st.data())
def test_gpipes_closed_form_holds_on_unequal_stages_and_links(data):
    p, m = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 7))
    number = st.integers(0, 9)
    lists = [data.draw(st.lists(number, min_size=n, max_size=n)) for n in (p, p, p, p - 1)]
    schedule, costs = pl.schedule("GPipe", p, m), pl.StageCosts(*lists)
    assert pl.simulate(schedule, costs).makespan == pl.closed_forms(schedule, costs)[0].value


def test_formulas_of_time_claim_nothing_for_messages_that_queue():
    costs = pl.StageCosts(1, 1, 1, comm=0.5)
    forms = pl.closed_forms(pl.schedule("GPipe", 3, 8), costs, transfers="queued")
    assert [form.quantity for form in forms if form.value is not None] == ["peak_in_flight"]
    assert "buffered transfers" in forms[0].holds_when
    # with one rank there is nothing to wait for
    (form, _) = pl.closed_forms(pl.schedule("1F1B", 1, 3), ONE, transfers="queued")
    assert form.value == run("1F1B", 1, 3, transfers="queued").makespan == 9
    with pytest.raises(pl.errors.UnknownName, match="transfers 'fast' is not known"):
        pl.closed_forms(pl.schedule("1F1B", 1, 3), ONE, transfers="fast")


def test_formulas_claim_nothing_of_an_order_that_only_bears_the_name():
    gpipe = pl.schedule("GPipe", 3, 4)
    borrowed = pl.Schedule.of("1F1B", gpipe.actions)
    forms = pl.closed_forms(borrowed, ONE)
    assert [form.value for form in forms] == [None, None]
    assert all(
        f.holds_when.startswith("pl.schedule's own order of 1F1B, which this is not") for f in forms
    )
    assert pl.closed_forms(pl.Schedule.of("mine", gpipe.actions), ONE) == ()
    few = [
        [f"{s}F0", f"{5 - s}F0", f"{5 - s}I0", f"{5 - s}W0", f"{s}I0", f"{s}W0"] for s in range(3)
    ]
    too_few = pl.Schedule.of("DualPipeV", few)  # pl.schedule makes none of one microbatch
    assert pl.simulate(too_few, ONE).makespan > 0
    assert {form.value for form in pl.closed_forms(too_few, ONE)} == {None}
    for same in (
        pl.Schedule.of("GPipe", gpipe.actions),
        with_idle(gpipe),
    ):
        assert [form.value for form in pl.closed_forms(same, ONE)] == [18, (4, 4, 4)]


def test_a_formula_has_no_value_where_it_does_not_hold():
    forms = pl.closed_forms(pl.schedule("ZBH1", 4, 8), pl.StageCosts(1, 1, 2))
    assert [form.value for form in forms] == [None, None, (4, 3, 2, 1)]
    unequal = pl.closed_forms(pl.schedule("1F1B", 2, 3), pl.StageCosts([1, 2], 1, 1))
    assert unequal[0].value is None
    # both stages on one rank: nothing is sent
    alone = pl.schedule("ZBV", 1, 4), pl.StageCosts(1, 1, 1, comm=5)
    assert pl.closed_forms(*alone)[0].value == pl.simulate(*alone).span == 4 * 6
    talking = pl.closed_forms(pl.schedule("1F1B", 2, 3), pl.StageCosts(1, 1, 1, comm=1))
    assert talking[0].value is None


@pytest.mark.slow
@given(st.data())
def test_the_lower_bound_is_never_above_a_simulation(data):
    name = data.draw(st.sampled_from(["GPipe", "1F1B", "ZBH1", "ZBH2"]))
    p, m = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))
    number = st.integers(0, 9)
    lists = [data.draw(st.lists(number, min_size=n, max_size=n)) for n in (p, p, p, p - 1)]
    costs = pl.StageCosts(*lists)
    timeline = pl.simulate(pl.schedule(name, p, m), costs)
    bound = pl.lower_bound(costs, m, p, max_in_flight=timeline.peak_in_flight)
    assert pl.lower_bound(costs, m, p) <= bound <= timeline.makespan + 1e-9
    if not timeline.columns.splits_backward:
        whole = pl.lower_bound(
            costs, m, p, max_in_flight=timeline.peak_in_flight, split_backward=False
        )
        assert bound <= whole <= timeline.makespan + 1e-9
    queued = pl.simulate(timeline.schedule, costs, transfers="queued")
    assert bound <= queued.makespan + 1e-9


def test_the_bound_of_whole_backwards_is_reached_on_equal_stages_and_often_missed_on_others():
    assert pl.lower_bound(ONE, 8, 4, split_backward=False) == run("1F1B", 4, 8).makespan == 33
    unequal = pl.StageCosts([1, 3, 1, 2], [1, 3, 1, 2], [1, 3, 1, 2])
    bound = pl.lower_bound(unequal, 8, 4, split_backward=False)
    assert bound >= max(3 * (1 + 8 * 3), 3 * (1 + 3 + 1 + 8 * 2))
    assert run("1F1B", 4, 8, unequal).makespan > bound


@pytest.mark.parametrize(
    ("numbers", "zbh1", "optimum"),
    [
        ((4, 8, 1, 1, 1, 0, 4), 27, 27),
        ((8, 16, 1, 1, 1, 0, 8), 55, 55),
        ((4, 8, 30, 29, 20, 1, 4), 761, 725),
        ((8, 24, 10, 10, 5, 0, 8), 705, 670),
    ],
)
def test_the_lower_bound_equals_four_proven_optima(numbers, zbh1, optimum):
    """Optima proved with CP-SAT elsewhere; that the bound reaches them makes it as sharp as can be there."""
    p, m, *times, held = numbers
    costs = pl.StageCosts(*times)
    assert run("ZBH1", p, m, costs).makespan == zbh1
    assert pl.lower_bound(costs, m, p, max_in_flight=held) == optimum


# memory


def test_memory_over_time_of_one_rank():
    costs = pl.StageCosts(1, 1, 1, activation=34, weight_activation=32)
    timeline = run("ZBH1", 1, 2, costs)  # F0 I0 W0 F1 I1 W1
    steps = timeline.memory(0)
    assert steps.time.tolist() == [0, 0, 2, 3, 5, 6]
    assert steps.amount.tolist() == [0, 34, 32, 34, 32, 0]
    assert timeline.peak_memory == (34,)


@pytest.mark.parametrize("p", [2, 4, 6])
def test_peak_memory_of_the_zero_bubble_schedules_as_the_paper_has_it(p):
    """Worker i holds (p-i+1)·M_B + (i-1)·M_W at most in ZB-H1, (2p-2i+1)·M_B + (2i-2)·M_W in ZB-H2.

    Table 2 has the largest alone, p·M_B and (2p-1)·M_B; what is in flight on the other ranks is not
    from there.
    """
    full, rest = 34.0, 32.0
    costs = pl.StageCosts(1, 1, 1, activation=full, weight_activation=rest)
    one, two = run("ZBH1", p, 4 * p, costs).peak_memory, run("ZBH2", p, 4 * p, costs).peak_memory
    assert one == tuple((p - i + 1) * full + (i - 1) * rest for i in range(1, p + 1))
    assert two == tuple((2 * p - 2 * i + 1) * full + (2 * i - 2) * rest for i in range(1, p + 1))
    for name, most, told in (("1F1B", p, "p"), ("ZBH1", p, "p"), ("ZBH2", 2 * p - 1, "2p-1")):
        order = pl.schedule(name, p, 4 * p)
        (form,) = [f for f in pl.closed_forms(order, costs) if f.quantity == "peak_in_flight"]
        assert max(form.value) == most
        assert (
            form.source
            == f"counted in the order; the largest, {told}, is that of Zero Bubble, table 2"
        )


@pytest.mark.slow
@given(runs(), st.sampled_from([0, 0.25, 0.9375, 1]))
def test_peak_memory_is_what_is_counted_along_every_ranks_order(case, share):
    schedule, costs = case
    if columns_of(schedule).forward_only:
        return
    timeline = pl.simulate(schedule, dataclasses.replace(costs, weight_activation=share))
    assert timeline.peak_memory == schedule_peak(schedule, share)
    assert timeline.peak_in_flight == schedule_peak(schedule, 0)


def test_what_a_split_backward_holds_is_not_known_without_the_share_that_w_needs():
    for name in ("ZBH1", "ZBH2", "ZBV", "InterleavedZeroBubble", "DualPipeV"):
        timeline = run(name, 2, 8)
        for attempt in (lambda t=timeline: t.peak_memory, lambda t=timeline: t.memory(0)):
            with pytest.raises(
                pl.errors.InvalidValue,
                match=r"memory: weight_activation = None: .* weight_activation=32 / 34",
            ):
                attempt()
    assert run("1F1B", 2, 4).peak_memory == (2, 1)  # whose backward frees everything at once


@pytest.mark.parametrize("m", [8, 32])
def test_zbh1_holds_a_little_less_than_four_microbatches_on_every_rank(m):
    """Not 4 3 2 1: a weight gradient that is put off keeps what it needs, which is nearly all."""
    held = {
        share: run("ZBH1", 4, m, pl.StageCosts(1, 1, 1, weight_activation=share))
        for share in (0, 32 / 34, 1)
    }
    assert [round(peak, 2) for peak in held[32 / 34].peak_memory] == [4, 3.94, 3.88, 3.82]
    assert held[0].peak_memory == (4, 3, 2, 1)
    assert held[1].peak_memory == (4, 4, 4, 4)


def test_what_is_held_for_a_moment_alone_is_held():
    """Forward and backward of no length: taken and freed at once, and never less than nothing."""
    nothing = run("1F1B", 1, 2, pl.StageCosts(0, 0, 0))  # F0 B0 F1 B1
    assert nothing.peak_memory == (1,)
    assert [x.tolist() for x in nothing.memory(0)] == [[0, 0, 0], [0, 1, 0]]
    for name in ("GPipe", "1F1B", "ZBH1", "ZBH2", "ZBV"):
        for times in ((0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 0, 1)):
            timeline = run(name, 3, 5, pl.StageCosts(*times, weight_activation=0))
            chunks = timeline.schedule.chunks
            assert timeline.peak_memory == tuple(held / chunks for held in timeline.peak_in_flight)
            assert all((timeline.memory(rank).amount >= 0).all() for rank in range(3))
    quick = pl.simulate(pl.schedule("Inference", 1, 2), pl.StageCosts(0))
    assert quick.peak_memory == quick.peak_in_flight == (1,)
    # W needs more than B
    weights = run("ZBH1", 1, 1, pl.StageCosts(1, 1, 1, activation=2, weight_activation=3))
    assert [x.tolist() for x in weights.memory(0)] == [[0, 0, 2, 3], [0, 2, 3, 0]]


def schedule_peak(schedule, share):
    """Counted by hand along every rank's order."""
    peaks = []
    for row in schedule.actions:
        held = peak = 0
        for action in row:
            kinds = [part.kind for part in action.parts or (action,)]
            held += kinds.count("F")
            peak = max(peak, held)
            held += (
                share * (kinds.count("I") - kinds.count("W")) - kinds.count("B") - kinds.count("I")
            )
        peaks.append(peak)
    return tuple(peaks)


# idle time, optimizer


def test_idle_time_by_cause():
    idle = run("1F1B", 4, 8).idle
    assert idle.warm_up.tolist() == [6, 5, 4, 3]
    assert idle.cool_down.tolist() == [3, 4, 5, 6]
    assert idle.steady.tolist() == idle.network.tolist() == [0, 0, 0, 0]
    slow = pl.simulate(pl.schedule("1F1B", 2, 4), pl.StageCosts([1, 3], [1, 3], [1, 3]))
    assert slow.idle.steady.tolist() == [6, 0]
    message = pl.simulate(pl.schedule("GPipe", 2, 1), pl.StageCosts(1, 1, 1, comm=0.25))
    assert message.idle.network.tolist() == [0.25, 0.25]


def test_while_somebody_still_works_the_wait_is_not_the_networks():
    """A slow message and a quick one; the maker of the quick one is still at work while the slow one travels."""
    rows = [
        row.split()
        for row in ("0F0 0F1 0B0 0B1", "1F0 (1F1;1B0)OVERLAP_F_B 1B1", "2F0 2B0 2F1 2B1")
    ]
    costs = pl.StageCosts([3, 1, 1], 0.25, 0.25, comm=[10, 0])
    timeline = pl.simulate(pl.Schedule.of("pairs", rows), costs)
    # Rank 1: 1F0 from 13 to 14, the pair from 16: 0F1 has travelled since 6, but 2B0 ended at 15.5
    # only.
    assert timeline.to_frame().set_index("action")["start"][["1F0", "1F1", "1B0"]].tolist() == [
        13,
        16,
        16,
    ]
    assert timeline.idle.network.tolist()[1] == 10 + 0.5


def test_an_optimizer_that_waits_for_nobody_makes_the_span_count():
    costs = pl.StageCosts(1, 1, 1, optimizer=2)
    together = run("ZBH2", 4, 8, costs)
    alone = run("ZBH2", 4, 8, costs, synchronous_optimizer=False)
    assert (together.iteration_time, alone.iteration_time) == (27 + 2, 24 + 2)


def test_overlap_shortens_pairs_alone():
    schedule = pl.schedule("DualPipeV", 2, 6)
    plain, quick = (pl.simulate(schedule, pl.StageCosts(1, 1, 1, overlap=o)) for o in (1.0, 0.5))
    pairs = sum(bool(action.parts) for action in schedule.actions[0])
    assert plain.busy[0] - quick.busy[0] == pairs * 3 * 0.5


def test_new_costs_use_the_compiled_order_again():
    schedule = pl.schedule("ZBH1", 4, 8)
    first = pl.simulate(schedule, ONE)
    assert pl.simulate(schedule, pl.StageCosts(2, 2, 2)).graph is first.graph


# bad input, showing


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pl.StageCosts(-1), "forward = -1: expected finite numbers of at least 0"),
        (lambda: pl.StageCosts(-(10**400)), "expected finite numbers of at least 0"),
        (lambda: pl.StageCosts([1, math.inf]), "at least 0; number 1 is inf"),
        (lambda: pl.StageCosts([1, 10**400]), "at most 1e.30, or take a larger unit; number 1 is"),
        (lambda: pl.StageCosts([1, True]), "forward = .*: expected a number or a list of numbers"),
        (lambda: pl.StageCosts({1: 2}), "forward = .*: expected a number or a list of numbers"),
        (lambda: pl.StageCosts(np.ones((2, 2))), "expected a number or a list of numbers"),
        (lambda: pl.StageCosts(1, optimizer=[1]), r"optimizer = \[1\]: expected a number"),
        (lambda: pl.StageCosts(1, overlap=5), "overlap = 5: expected a share of the sum of both"),
        (lambda: pl.StageCosts(1, overlap=0), "overlap = 0: expected a share of the sum of both"),
        (lambda: pl.StageCosts(1, unit="hours"), 'unit = .hours.: expected "", "s", "ms" or "us"'),
        (lambda: pl.StageCosts([1, 2]).split(2), "expected one number for all stages"),
        (lambda: ONE.split(0), "StageCosts.split: chunks = 0: expected at least 1"),
        (lambda: ONE.cut_for("1F1B"), "StageCosts.cut_for: schedule = '1F1B': expected a Schedule"),
        (lambda: ONE.tables(None), "StageCosts.tables: schedule = None: expected a Schedule"),
        (lambda: pl.lower_bound(3, 2, 2), "lower_bound: costs = 3: expected StageCosts"),
        (lambda: pl.lower_bound(ONE, True, 2), "lower_bound: microbatches = True"),
        (lambda: pl.lower_bound(ONE, 2, 10**8), "lower_bound: ranks = 100000000"),
        (lambda: pl.lower_bound(ONE, 2, 2, max_in_flight=0), "in_flight = 0: expected at least 1"),
        (
            lambda: pl.lower_bound(ONE, 2, 2, max_in_flight=[1, 2, 3]),
            "lower_bound: max_in_flight = ",
        ),
        (
            lambda: pl.lower_bound(ONE, 2, 2, max_in_flight=[1, 2.5]),
            r"max_in_flight\[1\] = 2.5: expected a whole",
        ),
        (lambda: pl.lower_bound(ONE, 2, 2, split_backward="x"), "'x': expected True or False"),
        (lambda: pl.lower_bound(pl.StageCosts(1), 2, 2), "backward_input = None: training runs"),
        (lambda: pl.closed_forms("1F1B", ONE), "schedule = '1F1B': expected a Schedule; make one"),
        (lambda: pl.closed_forms(pl.schedule("1F1B", 2, 2), 3), "costs = 3: expected StageCosts"),
        (lambda: pl.simulate("1F1B", ONE), "expected a Schedule; make one with pl.schedule"),
        (lambda: pl.simulate(pl.schedule("1F1B", 2, 4), 3), "expected StageCosts"),
        (lambda: run("1F1B", 3, 4, pl.StageCosts([1, 2], 1, 1)), "or 3 for 3 stages; got 2"),
        (
            lambda: run("1F1B", 3, 4, pl.StageCosts(1, 1, 1, comm=[1] * 3)),
            "or 2 for 2 links; got 3",
        ),
        (
            lambda: run("1F1B", 3, 4, pl.StageCosts(1)),
            "= None: 1F1B runs backwards: expected a time",
        ),
        (lambda: run("1F1B", 2, 2).memory(True), "memory: rank = True: expected a whole number"),
        (lambda: run("GPipe", 4, 1).memory(5), "rank = 5: expected at most 3"),
        (lambda: run("1F1B", 2, 2, synchronous_optimizer=1), "= 1: expected True or False"),
        (lambda: pl.inference_costs(3, 4, 5), "inference_costs: problem = 3: expected a Problem"),
        (
            lambda: pl.simulate(pl.Schedule.of("mine", [["0F0"], ["1F0", "1B0"]]), ONE),
            "0B0 is missing",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call, message):
    with pytest.raises((pl.errors.InvalidValue, pl.errors.InvalidSchedule), match=message):
        call()


@pytest.mark.parametrize("transfers", ["bufered", [], None, np.array([1, 2])])
def test_transfers_are_known_by_name(transfers):
    with pytest.raises(pl.errors.UnknownName, match=r"transfers .* is not known.*buffered"):
        run("1F1B", 3, 4, transfers=transfers)


def test_every_kind_of_number_counts():
    costs = pl.StageCosts(
        10**25, Fraction(1, 2), np.array([1, 2], np.uint8), comm=np.float32(0.5), overlap=np.int8(1)
    )
    assert costs.forward == 1e25
    assert (costs.backward_input, costs.backward_weight, costs.comm, costs.overlap) == (
        0.5,
        (1.0, 2.0),
        0.5,
        1.0,
    )
    assert pl.StageCosts(np.array(3)).split(np.int64(2)).forward == 1.5
    assert hash(costs) == hash(dataclasses.replace(costs))
    # numpy's small numbers do not overflow
    small = pl.lower_bound(ONE, np.uint8(200), np.int8(100), max_in_flight=np.int8(100))
    assert small == pl.lower_bound(ONE, 200, 100, max_in_flight=100)
    assert run("1F1B", 2, 2).memory(np.int8(1)).amount.max() == 1


def test_the_largest_costs_stay_finite():
    most = pl.StageCosts(1e30, 1e30, 1e30, comm=1e30, activation=1e30, optimizer=1e30, unit="s")
    timeline = pl.simulate(pl.schedule("1F1B", 3, 5), most)
    assert all(
        map(
            math.isfinite,
            [*timeline.measures().values(), *timeline.peak_memory, timeline.iteration_time],
        )
    )
    assert math.isfinite(pl.lower_bound(most, 5, 3))
    assert "Infinity" not in json.dumps(chrome_trace(timeline))


def test_the_lower_bound_of_a_very_large_pipeline_takes_no_listing():
    assert pl.lower_bound(ONE, 10_000, 10_000) == 10_000 * 3 + 9_999


def test_a_timeline_shows_itself():
    timeline = pl.simulate(pl.schedule("1F1B", 2, 2), pl.StageCosts(1, 1, 1, comm=0.5, unit="ms"))
    frame = timeline.to_frame()
    assert list(frame.columns) == [
        "rank",
        "action",
        "stage",
        "kind",
        "microbatch",
        "start_ms",
        "end_ms",
        "waited_for",
    ]
    assert frame.set_index("action")["waited_for"].to_dict() == {
        "0F0": "", "0F1": "0F0", "0B0": "1B0", "0B1": "1B1", "1F0": "0F0", "1B0": "1F0", "1F1": "1B0", "1B1": "1F1",
    }  # fmt: skip
    assert "zb_bubble_rate" in timeline._repr_html_().replace("<wbr>", "")
    assert "warm_up" in timeline.idle._repr_html_().replace("<wbr>", "")
    assert [str(a) for a in timeline.critical_path] == ["0F0", "1F0", "1B0", "1F1", "1B1", "0B1"]


def test_of_two_that_end_together_the_one_on_the_same_rank_was_waited_for():
    frame = (
        pl.simulate(pl.schedule("Inference", 2, 2), pl.StageCosts(1)).to_frame().set_index("action")
    )
    assert frame["waited_for"].to_dict() == {"0F0": "", "0F1": "0F0", "1F0": "0F0", "1F1": "1F0"}


def test_the_chrome_trace_holds_every_action_and_message():
    timeline = pl.simulate(pl.schedule("1F1B", 2, 3), pl.StageCosts(1, 1, 1, comm=0.5, unit="ms"))
    events = chrome_trace(timeline)["traceEvents"]
    bars = {e["name"]: e for e in events if e["ph"] == "X"}
    assert len(bars) == 12
    assert (bars["1F0"]["ts"], bars["1F0"]["dur"], bars["1F0"]["tid"]) == (1500, 1000, 1)
    assert bars["1F0"]["args"] == {"stage": 1, "microbatch": 0, "waited for": "0F0"}
    ends = {}
    for e in events:
        if e["ph"] in "sf":
            ends.setdefault(e["id"], []).append((e["tid"], e["ts"]))
    assert len(ends) == 6
    assert [(0, 1000), (1, 1500)] in ends.values()  # the first forward's result


def test_a_placements_pipeline_reaches_the_evaluated_throughput(two_stages):
    """In the long run the pipeline yields what its bottleneck yields, be that a stage or a link."""
    problem = with_link_units(two_stages, "tokens")
    placement = pl.Placement.of([(2, (0,)), (2, (1,))])
    for slower in (1.0, 1e-7):
        slow = dataclasses.replace(problem, cluster=problem.cluster.scaled_bandwidth(slower))
        evaluated = pl.evaluate(slow, placement)
        costs = pl.inference_costs(slow, placement, tokens=512)
        few, many = (
            pl.simulate(pl.schedule("Inference", 3, m), costs).makespan for m in (100, 300)
        )
        assert 200 * 512 / (many - few) == pytest.approx(evaluated.throughput)
    assert evaluated.bottlenecks[0].startswith("link")
    with pytest.raises(
        pl.errors.InvalidValue, match=r"costs\.link_units = 'transfers': expected 'tokens'"
    ):
        pl.inference_costs(two_stages, placement, tokens=512)
    for tokens in (0, math.nan, True, None):
        with pytest.raises(pl.errors.InvalidValue, match="inference_costs: tokens = "):
            pl.inference_costs(problem, placement, tokens=tokens)


def test_the_lower_bound_knows_overlapped_pairs():
    order = pl.Schedule.of("pairs", [["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"]])
    costs = pl.StageCosts(1, 1, 1, overlap=0.5)
    assert pl.lower_bound(costs, 2, 1) <= pl.simulate(order, costs).makespan == 4.5
