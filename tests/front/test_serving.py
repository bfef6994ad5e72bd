"""Requests, event by event: where results are known, and what holds for any rules."""

import math
import random
from itertools import islice, repeat

import numpy as np
import pytest

from pipelab.serving import Line, Request, Simulation


def line(*seconds, waits=0.0, **rules):
    """A line through lanes, each with a function of work that says its seconds."""
    waits = np.zeros(len(seconds)) + waits
    times = lambda work: (np.array([of(work) for of in seconds]), waits)  # noqa: E731
    return Line(np.arange(len(seconds)), times, **rules)


def one_by_one(*seconds, **rules):
    return line(*seconds, at_once=math.inf, sequences=1, **rules)


def at_random(rate, prompt, seed=0, answer=1):
    chance, now = random.Random(seed), 0.0
    while True:
        now += chance.expovariate(rate)
        yield Request(now, prompt(chance), answer)


def run_of(lines, requests, number, **more):
    run = Simulation(lines, islice(requests, number), **more)
    run.run(lambda at: at.ended >= number)
    return run


def mean_and_error(values):
    """Of waits, of which neighbours depend on one another: by the means of fifty groups."""
    means = [group.mean() for group in np.array_split(np.array(values), 50)]
    return np.mean(means), np.std(means, ddof=1) / math.sqrt(len(means))


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("size", ["fixed", "exponential"])
def test_one_server_waits_as_pollaczek_and_khinchine_have_it(load, size):
    tokens = 10**6  # of a prompt in the mean, one second
    drawn = {"fixed": lambda _: tokens, "exponential": lambda c: 1 + int(c.expovariate(1 / tokens))}
    run = run_of([one_by_one(lambda w: w.reads / tokens)], at_random(load, drawn[size]), 20_000)
    waits = [v.ended - v.came - v.request.prompt / tokens for v in run.visits[2000:]]
    mean, error = mean_and_error(waits)
    known = load / (1 - load) * (0.5 if size == "fixed" else 1.0)
    assert abs(mean - known) < 3 * error
    assert run.busy[0] / run.now == pytest.approx(load, rel=0.03)


@pytest.mark.parametrize("seed", range(5))
def test_of_fixed_times_only_the_slowest_lane_counts(seed):
    """Friedman: waits in a tandem are those in front of its slowest server, request by request."""
    chance = random.Random(seed)
    times = [chance.uniform(0.2, 1) for _ in range(chance.randint(2, 9))]
    waits = []
    for lanes in (times, [max(times)]):
        served = [lambda w, t=t: t for t in lanes]
        run = run_of([one_by_one(*served)], at_random(0.8, lambda _: 1, seed), 3000)
        waits.append([v.ended - v.came - sum(lanes) for v in run.visits])
    assert waits[0] == pytest.approx(waits[1], abs=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_a_tandem_is_passed_as_the_recurrence_has_it(seed):
    """Lanes in the order of arrival, with sizes that differ: b = max(free, at), lane by lane, in plain Python."""
    chance = random.Random(seed)
    slope = [chance.uniform(0, 1) for _ in range(chance.randint(1, 6))]
    waits = [chance.choice([0.0, 0.3]) for _ in slope]
    requests = list(islice(at_random(0.7, lambda c: c.randint(1, 9), seed), 200))
    lanes = [lambda w, a=a: 0.1 + a * w.reads / 5 for a in slope]
    run = run_of([one_by_one(*lanes, waits=waits)], iter(requests), 200)
    free, ends = [0.0] * len(slope), []
    for request in requests:
        at = request.seconds
        for k, a in enumerate(slope):
            free[k] = max(at, free[k]) + 0.1 + a * request.prompt / 5
            at = free[k] + waits[k]
        ends.append(at)
    assert [visit.ended for visit in run.visits] == pytest.approx(ends)


@pytest.mark.parametrize("under_way", [1, 2, 4, 9])
@pytest.mark.parametrize("batch", [1, 3])
def test_full_batches_go_round_at_the_rate_of_littles_law(under_way, batch):
    times = [1.0, 2.0, 0.5]
    rules = {"at_once": under_way, "sequences": batch}
    lanes = [lambda w, t=t: t for t in times]
    loop = repeat(Request(0.0, 1, 10**6, written=1))
    run = Simulation([line(*lanes, **rules)], loop, clients=under_way * batch)
    run.run(lambda at: at.tokens >= 2000 * batch)
    rate = min(under_way * batch / sum(times), batch / max(times))
    assert run.tokens / run.now == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize("parts", [1, 2, 5, 12])
@pytest.mark.parametrize("at_once", [1, 3, math.inf])
def test_parts_of_a_batch_follow_one_another(parts, at_once):
    """As the evaluator has it: traversal and parts less one intervals, of the slowest lane or of so many at once."""
    times = [0.1, 0.3, 0.2]
    lanes = [lambda w, t=t: t for t in times]
    rules = line(*lanes, part_tokens=10, parts_at_once=at_once)
    run = run_of([rules], iter([Request(0.0, 10 * parts, 1)]), 1)
    exact = at_once in (1, math.inf)
    known = sum(times) + (parts - 1) * max(max(times), sum(times) / at_once)
    assert run.now == pytest.approx(known) if exact else known <= run.now * (1 + 1e-9)


def test_a_token_has_to_come_back_before_the_next():
    run = run_of([line(lambda w: 1.0, back_seconds=0.25)], iter([Request(0.0, 1, 5)]), 1)
    assert (run.visits[0].first, run.visits[0].ended) == (1.0, 1 + 4 * 1.25)


class Watched(Simulation):
    """Notes what is read and written, and that room is never exceeded."""

    def __init__(self, *given, **more):
        self.read, self.written, self.writers_lost, self.admissions = 0, 0, 0, []
        super().__init__(*given, **more)

    def _form(self, rules, gate):
        before = {visit.number for visit in gate.ready}
        parts = super()._form(rules, gate)
        self.admissions += [v.number for v, _ in parts if v.number not in before]
        self.read += sum(tokens for _, tokens in parts)
        self.written += sum(not tokens for _, tokens in parts)
        assert gate.held == sum(v.held for v in self.visits if math.isnan(v.ended))
        assert gate.held <= rules.room
        assert len(parts) <= rules.sequences
        assert sum(tokens or 1 for _, tokens in parts) <= rules.tokens
        return parts

    def _preempt(self, visit, gate):
        self.writers_lost += not visit.to_read
        latest = {number: turn for turn, number in enumerate(self.admissions)}
        assert latest[visit.number] == max(latest[v.number] for v in gate.ready)
        super()._preempt(visit, gate)

    def nobody_waits_beside_room(self):
        """Whenever all that happens at a time has happened."""
        for rules, gate in zip(self.lines, self.gates, strict=True):
            if gate.waiting and gate.under_way < rules.at_once and self.events[0][0] > self.now:
                visit = gate.waiting[0]
                needs = visit.to_read + (1 if rules.grows else visit.to_write)
                assert gate.held + needs > rules.room


def drawn(seed, **rules):
    """Requests and a line whose rules are drawn, too."""
    chance = random.Random(seed)
    sizes = [(chance.randint(1, 30), chance.randint(1, 12)) for _ in range(40)]
    span = chance.choice([6, 60])
    requests = [Request(chance.uniform(0, span), *size) for size in sizes]
    room = chance.choice([math.inf, max(map(sum, sizes)) + chance.randint(0, 20)])
    given = {
        "at_once": chance.choice([1, 2, 5]), "sequences": chance.choice([1, 3, 8]), "room": room,
        "tokens": chance.choice([math.inf, 16, 2]), "grows": chance.random() < 0.5,
        "back_seconds": chance.choice([0.0, 0.2]), "part_tokens": chance.choice([math.inf, 7]),
        "parts_at_once": chance.choice([1, 2, math.inf]),
    }  # fmt: skip
    slopes = [(chance.random(), chance.random()) for _ in range(3)]
    lanes = [lambda w, a=a, b=b: 0.02 * (1 + a * w.reads + b * w.writes) for a, b in slopes]
    return sorted(requests), line(*lanes, **given | rules)


@pytest.mark.quick(30)
@pytest.mark.parametrize(
    "seed", sorted(range(300), key=lambda seed: seed != 161)
)  # readmitted there
def test_every_token_is_read_and_written_once_whatever_the_rules(seed):
    requests, rules = drawn(seed)
    run = Watched([rules], iter(requests))
    run.run(Watched.nobody_waits_beside_room)
    assert run.ended == len(requests)
    again = sum(visit.preempted for visit in run.visits)
    assert bool(again) <= rules.grows
    prompts = sum(request.prompt for request in requests)
    assert (run.read == prompts) if not again else (run.read > prompts)
    # the first token of an answer, and the next after a preemption, comes with the end of what is read
    assert run.written == sum(request.answer - 1 for request in requests) - run.writers_lost
    for visit in run.visits:
        assert visit.came <= visit.admitted < visit.first <= visit.ended
        assert visit.context == visit.request.prompt + visit.request.answer - 1


@pytest.mark.quick(10)
@pytest.mark.parametrize("seed", range(60))
def test_whoever_joins_a_running_batch_is_done_no_later(seed):
    """If each pass takes a second whoever is in it, and all are there at the beginning."""
    chance = random.Random(seed)
    requests = [Request(0.0, 1, chance.randint(1, 9)) for _ in range(12)]
    places = chance.randint(1, 5)
    ends = []
    for refills in (True, False):
        rules = line(lambda w: 1.0, sequences=places, refills=refills)
        ends.append(run_of([rules], iter(requests), 12).now)
    assert ends[0] <= ends[1]
    batches = [requests[i : i + places] for i in range(0, 12, places)]
    assert ends[1] == sum(max(request.answer for request in batch) for batch in batches)


def test_where_room_runs_out_the_last_one_reads_again():
    """Two sequences of 4 + 4 tokens in room for 13: the second loses its cache, and the first ends first."""
    rules = line(lambda w: 1.0, sequences=2, room=13, grows=True)
    run = run_of([rules], iter([Request(0.0, 4, 4)] * 2), 2)
    assert [visit.preempted for visit in run.visits] == [0, 1]
    assert run.visits[0].ended == 4
    waits = line(lambda w: 1.0, sequences=2, room=13)
    run = run_of([waits], iter([Request(0.0, 4, 4)] * 2), 2)
    assert [visit.admitted for visit in run.visits] == [0, 4]


def test_requests_are_sent_in_turns_by_share_and_larger_ones_than_memory_are_rejected():
    lines = [line(lambda w: 1e-3, share=share, room=50) for share in (3, 1)]
    lines = [one._replace(lanes=np.array([k])) for k, one in enumerate(lines)]
    requests = [Request(float(k), 100 if k == 7 else 5, 2) for k in range(40)]
    run = run_of(lines, iter(requests), 40)
    assert [sum(v.line == k for v in run.visits) for k in (0, 1)] == [30, 10]
    assert [v.number for v in run.visits if v.rejected] == [7]


def test_clients_send_when_an_answer_has_ended_whatever_the_time():
    requests = [Request(100.0 * k, 1, 1) for k in range(6)]
    run = run_of([line(lambda w: 1.0)], iter(requests), 6, clients=2)
    assert [visit.came for visit in run.visits] == [0, 1, 2, 3, 4, 100]


def test_whoever_reads_hands_the_cache_on():
    reads = one_by_one(lambda w: 1.0, hands_on=lambda prompt: prompt / 10)
    writes = line(lambda w: 0.5, sequences=4)._replace(lanes=np.array([1]))
    run = run_of([reads, writes], iter([Request(0.0, 20, 3)]), 1)
    (visit,) = run.visits
    assert (visit.first, visit.ended) == (3.0, 4.0)
    assert visit.line == 1


@pytest.mark.parametrize("follow", [0, 5])
def test_the_way_of_a_request_has_all_its_passes(follow):
    requests, rules = drawn(1, part_tokens=math.inf, room=math.inf)
    run = Simulation([rules], iter(requests), follow=follow)
    run.run(lambda at: False)
    visit = run.visits[follow]
    begins, ends = [row[1] for row in run.way], [row[2] for row in run.way]
    assert len(run.way) % 3 == 0
    assert min(begins) == visit.admitted
    assert max(ends) == visit.ended
