"""What boostr's `PipelineClock` says of itself, in comments and tests."""

from collections.abc import Callable, Iterable
from itertools import product
from typing import TYPE_CHECKING, Any

import pipelab as pl
from pipelab.course import published_orders as published
from pipelab.course.ledger.claims import FAILS, HOLDS, TRIED, Claim
from pipelab.course.ledger.comparisons import EQUAL, EVERY, TEXT, Trial, tried
from pipelab.engine.schedules import with_idle

if TYPE_CHECKING:
    from pipelab.course.ledger.shared_results import SharedResults
    from pipelab.schedules import Schedule

TESTS, ONE = "mod tests", "pub fn schedule_1f1b"
INTERLEAVED, ZERO = "Interleaved 1F1B schedule", "Zero-bubble schedule that splits"
P, M = 4, 8
SIZES = [(p, m) for p, m in product(range(1, 7), range(1, 9))]
ENOUGH = [(p, m) for p, m in product(range(2, 7), range(2, 9)) if m >= p]
ENOUGH_SAID = "2 to 6 stages, from as many to 8 micro-batches"


def _row(schedule: "Schedule", rank: int) -> str:
    """Actions of one rank without their stage."""
    return " ".join(f"{action.kind}{action.microbatch}" for action in schedule.actions[rank])


def _ahead(schedule: "Schedule") -> list[int]:
    """Forwards of every rank before it first alternates."""
    return [
        next(i for i, action in enumerate(row) if action.kind != "F") - 1
        for row in schedule.actions
    ]


def _count(schedule: "Schedule", kind: str, rank: int = 0) -> int:
    return sum(action.kind == kind for action in schedule.actions[rank])


def _ratio(schedule: "Schedule") -> float:
    return pl.simulate(schedule, pl.StageCosts(1, 1, 1).cut_for(schedule)).bubble_ratio


def _drawn() -> "Schedule":
    """What the comment draws, on every stage."""
    return pl.Schedule.of(
        "drawn",
        [[f"{r}F{m}" for m in range(4)] + [f"{r}B{m}" for m in (3, 2, 1, 0)] for r in range(4)],
    )


def _by_size(
    holds: Callable[[int, int], bool],
    sizes: Iterable[tuple[int, int]] = ENOUGH,
    whole: bool = False,
) -> Trial:
    return tried(((f"{p} stages, {m} micro-batches", holds(p, m)) for p, m in sizes), whole)


def _ratios(
    shared: "SharedResults",
    order: Callable[[int, int], "Schedule"],
    formula: Callable[[int, int], float],
) -> Trial:
    """Sizes on which the clock's bubble ratio of an order is a formula's."""
    both = ((p, m, _ratio(order(p, m)), formula(p, m)) for p, m in ENOUGH)
    return tried(
        (f"{p} stages, {m} micro-batches: {a:.4g}, not {b:.4g}", abs(a - b) < 1e-9)
        for p, m, a, b in both
    )


def _near_zero(shared: "SharedResults") -> Trial:
    """Sizes with a bubble ratio below a tenth."""
    ratios = ((p, m, _ratio(published.clock_zero_bubble(p, m))) for p, m in ENOUGH)
    return tried((f"{p} stages, {m} micro-batches: {r:.4g}", r < 0.1) for p, m, r in ratios)


def _weights_in_warm_up(p: int, m: int) -> int:
    """Weight gradients before the first input gradient, over all ranks."""
    order = published.clock_zero_bubble(p, m)
    return sum(_row(order, rank).split(" I")[0].count("W") for rank in range(p))


def _each_once(make: Callable[[int, int], "Schedule"], kinds: str, p: int, m: int) -> bool:
    """Whether on every rank every kind occurs once a micro-batch."""
    order = make(p, m)
    return all(_count(order, kind, rank) == m for kind in kinds for rank in range(p))


def _chunk_order(p: int, m: int) -> bool:
    """Whether, micro-batch by micro-batch, forwards go up through a rank's chunks and backwards down."""
    for row in published.clock_interleaved(p, m, 3).actions:
        for kind, mb in product("FB", range(m)):
            chunks = [a.stage for a in row if (a.kind, a.microbatch) == (kind, mb)]
            if chunks != sorted(chunks, reverse=kind == "B"):
                return False
    return True


def _as_others_do(p: int, m: int) -> bool:
    return published.clock_1f1b(p, m).actions == pl.schedule("1F1B", p, m).actions


def _order(ranks: int, microbatches: int, rank: int) -> "Callable[[SharedResults], Any]":
    return lambda shared: _row(published.clock_1f1b(ranks, microbatches), rank)


def _quicker(p: int, m: int) -> bool:
    """Whether its zero-bubble order takes less time than its 1F1B."""
    orders = published.clock_zero_bubble(p, m), published.clock_1f1b(p, m)
    zero, one = (pl.simulate(order, pl.StageCosts(1, 1, 1)).makespan for order in orders)
    return zero < one


def _seen() -> tuple[int, int, int]:
    row = published.clock_interleaved(2, 4, 2).actions[0]
    chunks = sorted({a.stage for a in row})
    fewest = [
        min(sum((a.stage, a.kind) == (chunk, kind) for a in row) for chunk in chunks)
        for kind in "FB"
    ]
    return len(chunks), fewest[0], fewest[1]


ALTERNATE = "F0 B0 F1 B1 F2 B2 F3 B3"

CLAIMS = (
    Claim(
        "pub enum PipelineAction", "No work this tick (pipeline bubble)", "listed where a rank idles",
        lambda shared: (
            _count(published.clock_1f1b(2, 2), "IDLE", 1), _count(with_idle(pl.schedule("1F1B", 2, 2)), "IDLE", 1),
        ),
        "idle ticks that it lists on rank 1 of 2, and those of its 1F1B", FAILS, EQUAL,
    ),
    Claim(
        "Standard 1F1B schedule", "Stage 0: F0 F1 F2 F3 B3 B2 B1 B0", "what the code below the drawing does",
        lambda shared: (_row(_drawn(), 0), _row(published.clock_1f1b(P, 4), 0)), "the drawing and the code, rank 0",
        FAILS, EQUAL,
        note="The drawing is GPipe with reversed backwards, which keeps every micro-batch in flight; the code is 1F1B.",
    ),
    Claim(
        "Standard 1F1B schedule", "Warmup: stage k does num_stages - k - 1 extra forwards before steady state",
        "the code does so",
        lambda shared: _by_size(lambda p, m: _ahead(published.clock_1f1b(p, m)) == [p - k - 1 for k in range(p)]),
        f"forwards ahead of the first pair; {ENOUGH_SAID}", TRIED, EVERY,
    ),
    Claim(
        "Standard 1F1B schedule", "Steady state: alternate Forward + Backward. - Cooldown: remaining backwards",
        "pipelab's 1F1B",
        lambda shared: _by_size(_as_others_do, SIZES),
        "its order and pl.schedule's; 1 to 6 stages, 1 to 8 micro-batches", TRIED, EVERY,
    ),
    Claim(
        INTERLEAVED, "Bubble ratio reduces from (S-1)/M", "the clock's, of its 1F1B",
        lambda shared: _ratios(shared, published.clock_1f1b, lambda p, m: (p - 1) / m), ENOUGH_SAID, TRIED, EVERY,
    ),
    Claim(
        INTERLEAVED, "to (S-1)/(M*V)", "the clock's, of its own order with 2 chunks",
        lambda shared: _ratios(
            shared, lambda p, m: published.clock_interleaved(p, m, 2), lambda p, m: (p - 1) / (2 * m),
        ),
        ENOUGH_SAID, FAILS, EVERY,
        note="It sends each micro-batch through all chunks, the same on every rank: almost serial. With {} stages, {} "
        "micro-batches and 4 chunks its bubble ratio is {}, with 2 chunks {}; Interleaved1F1B as others do it reaches "
        "{}, the formula's.",
        known=lambda shared: (
            P, M, *(_ratio(published.clock_interleaved(P, M, v)) for v in (4, 2)),
            _ratio(pl.schedule("Interleaved1F1B", P, M)),
        ),
    ),
    Claim(
        INTERLEAVED, "forwards go v=0→V-1 (low→high logical stage), backwards go v=V-1→0 (high→low", "in its order",
        lambda shared: _by_size(_chunk_order), f"three chunks; {ENOUGH_SAID}", TRIED, EVERY,
    ),
    Claim(
        ZERO, "W passes are scheduled into pipeline bubbles", "less time than 1F1B with B and W in one",
        lambda shared: _by_size(_quicker),
        f"its zero-bubble order and its 1F1B against the clock; {ENOUGH_SAID}", TRIED, EVERY,
        note="Some are: with {} stages and {} micro-batches it takes {}, its 1F1B {}. But every W follows its B at "
        "once, so most bubbles stay: ZB-H1, which holds W back, takes {}.",
        known=lambda shared: (
            P, M, shared.run(published.clock_zero_bubble(P, M)).makespan,
            shared.run(published.clock_1f1b(P, M)).makespan,
            shared.run(pl.schedule("ZBH1", P, M)).makespan,
        ),
    ),
    Claim(
        ZERO, "This achieves near-zero bubble ratio when M >= S", "below a tenth, by the clock", _near_zero,
        ENOUGH_SAID,
        FAILS, EVERY,
    ),
    Claim(
        "pub fn schedule_zero_bubble", "Warmup: forwards, interleaved with W passes to fill bubbles",
        "some W before the first B", lambda shared: _by_size(lambda p, m: _weights_in_warm_up(p, m) > 0),
        f"weight gradients before the first input gradient; {ENOUGH_SAID}", FAILS, EVERY,
        note="The branch that would run them can never be taken.",
    ),
    Claim(TESTS, "Single stage: no warmup, steady = all 4, immediate F+B pairs", ALTERNATE, _order(1, 4, 0),
          "clock_1f1b", HOLDS, TEXT),
    Claim(TESTS, "Warmup: F0, F1, F2 … Steady: F3, B0 … Cooldown: B1, B2, B3", "F0 F1 F2 F3 B0 B1 B2 B3",
          _order(4, 4, 0), "clock_1f1b", HOLDS, TEXT),
    Claim(TESTS, "Stage 3 (last) warmup = 0, all steady: F+B pairs", ALTERNATE, _order(4, 4, 3), "clock_1f1b", HOLDS,
          TEXT),
    Claim(TESTS, "Warmup: F0, F1 … Steady (4): F2 B0, F3 B1, F4 B2, F5 B3 … Cooldown: B4, B5",
          "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5", _order(4, 6, 1), "clock_1f1b", HOLDS, TEXT),
    Claim(TESTS, "Every 1F1B schedule produces exactly 2*M actions (M forwards + M backwards)", "on every stage",
          lambda shared: _by_size(lambda p, m: _each_once(published.clock_1f1b, "FB", p, m), SIZES),
          "1 to 6 stages, 1 to 8 micro-batches, as in its test", TRIED, EVERY),
    Claim(TESTS, "fn test_zero_bubble_covers_all_mb() { for stages in 1..=4 { for mb in stages..=8",
          "M of every action on every stage",
          lambda shared: _by_size(
              lambda p, m: _each_once(published.clock_zero_bubble, "FIW", p, m),
              [(p, m) for p in range(1, 5) for m in range(p, 9)], whole=True,
          ),
          "all sizes of its test", HOLDS, EVERY),
    Claim(TESTS, "Each of 2 virtual stages should see 4 forwards and 4 backwards", "2, 4 and 4",
          lambda shared: _seen(), "virtual stages of rank 0 of 2, and the fewest of each action on one of them",
          "exact"),
)  # fmt: skip
