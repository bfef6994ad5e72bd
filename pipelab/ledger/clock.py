"""What boostr's `PipelineClock` says of itself, in comments and tests."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pipelab as pl
from pipelab import seeds_schedules as published
from pipelab.ledger.claims import Claim
from pipelab.ledger.comparisons import ABOVE, EQUAL, NUMBERS, TEXT

if TYPE_CHECKING:
    from pipelab.ledger.desk import Desk
    from pipelab.schedules.schedule import Schedule

__all__ = ["CLAIMS"]

TESTS, ONE, INTERLEAVED, ZERO = "tests", "schedule_1f1b", "schedule_interleaved", "schedule_zero_bubble"
P, M = 4, 8


def _row(schedule: "Schedule", rank: int) -> str:
    """Actions of one rank without their stage."""
    return " ".join(f"{action.kind}{action.microbatch}" for action in schedule.actions[rank])


def _ahead(schedule: "Schedule") -> tuple[int, ...]:
    """Forwards of every rank before it first alternates."""
    return tuple(next(i for i, action in enumerate(row) if action.kind != "F") - 1 for row in schedule.actions)


def _count(schedule: "Schedule", kind: str, rank: int = 0) -> int:
    return sum(action.kind == kind for action in schedule.actions[rank])


def _ratio(schedule: "Schedule") -> float:
    return pl.simulate(schedule, pl.StageCosts(1, 1, 1).cut_for(schedule)).bubble_ratio


def _drawn() -> "Schedule":
    """What the comment draws, on every stage."""
    return pl.Schedule.of(
        "drawn", [[f"{r}F{m}" for m in range(4)] + [f"{r}B{m}" for m in (3, 2, 1, 0)] for r in range(4)]
    )


def _weights_in_warm_up(microbatches: int) -> tuple[int, int]:
    """Weight gradients before the first input gradient, over all ranks; and forwards there."""
    before = [_row(published.clock_zero_bubble(P, microbatches), rank).split(" I")[0] for rank in range(P)]
    return sum(text.count("W") for text in before), sum(text.count("F") for text in before)


def _even_counts(make: Callable, sizes: Iterable[tuple[int, int]], kinds: str) -> tuple[int, int]:
    """Ranks on which every kind occurs once a microbatch, and ranks."""
    found = [all(_count(make(p, m), kind, rank) == m for kind in kinds) for p, m in sizes for rank in range(p)]
    return sum(found), len(found)


def _order(ranks: int, microbatches: int, rank: int) -> "Callable[[Desk], Any]":
    return lambda desk: _row(published.clock_1f1b(ranks, microbatches), rank)


ALL_SIZES = [(p, m) for p in range(1, 7) for m in range(1, 9)]
ENOUGH = [(p, m) for p in range(1, 5) for m in range(p, 9)]
ALTERNATE = "F0 B0 F1 B1 F2 B2 F3 B3"

CLAIMS = (
    Claim(
        "PipelineAction", "Idle: no work this tick (pipeline bubble)", "emitted where a rank idles",
        lambda desk: (
            _count(published.clock_1f1b(2, 2), "IDLE", 1), _count(pl.schedule("1F1B", 2, 2).with_idle(), "IDLE", 1),
        ),
        "idle ticks on rank 1 of 2, its and 1F1B's", "wrong", EQUAL,
    ),
    Claim(
        ONE, "Stage 0: F0 F1 F2 F3 B3 B2 B1 B0 (drawn above the code)", "what the code does",
        lambda desk: (_row(_drawn(), 0), _row(published.clock_1f1b(P, 4), 0)), "the drawing and the code, rank 0",
        "wrong", EQUAL, note="The drawing is GPipe with reversed backwards; the code is right.",
    ),
    Claim(
        ONE, "the drawing shows 1F1B", "1F1B's memory",
        lambda desk: (desk.run(_drawn()).peak_in_flight, desk.run(pl.schedule("1F1B", P, 4)).peak_in_flight),
        "microbatches in flight by rank, as drawn and in 1F1B", "wrong", EQUAL,
    ),
    Claim(
        ONE, "Warmup: stage k does num_stages - k - 1 extra forwards before steady state", "3, 2, 1 and 0",
        lambda desk: _ahead(published.clock_1f1b(P, M)), "forwards ahead of the first pair, by rank", "exact",
    ),
    Claim(
        ONE, "Steady state: alternate Forward + Backward; Cooldown: remaining backwards", "pipelab's 1F1B",
        lambda desk: (_row(published.clock_1f1b(P, M), 1), _row(pl.schedule("1F1B", P, M), 1)),
        "rank 1 of 4 in its order and in pl.schedule's", "exact", EQUAL,
    ),
    Claim(
        INTERLEAVED, "Bubble ratio reduces from (S-1)/M", "3 and 8",
        lambda desk: (P - 1, round((P - 1) / _ratio(published.clock_1f1b(P, M)), 9)),
        "S - 1 over the bubble_ratio of its 1F1B, by the clock", "exact",
    ),
    Claim(
        INTERLEAVED, "… to (S-1)/(M*V)", "its own order's",
        lambda desk: (
            float(pl.PipelineBubbleStats(P, M, 2).bubble_ratio_interleaved),
            _ratio(published.clock_interleaved(P, M, 2)),
        ),
        "the formula with 2 chunks, and its order against the clock", "wrong", EQUAL,
        note="It sends each microbatch through all chunks, alike on every rank: almost serial.",
    ),
    Claim(
        INTERLEAVED, "Bubble ratio … (S-1)/(M*V), of interleaving as others do it", "the clock's",
        lambda desk: (
            float(pl.PipelineBubbleStats(P, M, 2).bubble_ratio_interleaved),
            _ratio(pl.schedule("Interleaved1F1B", P, M)),
        ),
        "the formula with 2 chunks, and Interleaved1F1B against the clock", "exact", EQUAL,
    ),
    Claim(
        INTERLEAVED, "(S-1)/(M*V): more chunks, less bubble", "less with 4 chunks than with 2",
        lambda desk: (_ratio(published.clock_interleaved(P, M, 2)), _ratio(published.clock_interleaved(P, M, 4))),
        "bubble_ratio of its order with 2 chunks, and with 4", "wrong", ABOVE,
    ),
    Claim(
        INTERLEAVED, "forwards go v=0→V-1, backwards go v=V-1→0", "0 4 4 0",
        lambda desk: " ".join(f"{a.stage}" for a in published.clock_interleaved(P, 1, 2).actions[0]),
        "stages of rank 0, one microbatch, 2 chunks", "exact", TEXT,
    ),
    Claim(
        ZERO, "W passes are scheduled into pipeline bubbles", "less idle time than 1F1B with B and W apart",
        lambda desk: (
            desk.run(published.clock_zero_bubble(P, M)).makespan,
            desk.run(pl.schedule("ZBH1", P, M)).makespan,
        ),
        "its makespan and ZB-H1's, whose W do fill bubbles", "wrong", EQUAL,
    ),
    Claim(
        ZERO, "This achieves near-zero bubble ratio when M >= S", "0.0",
        lambda desk: _ratio(published.clock_zero_bubble(P, M)), "bubble_ratio by the clock", "wrong", NUMBERS,
    ),
    Claim(
        ZERO, "Warmup: forwards, interleaved with W passes to fill bubbles", "some W",
        lambda desk: (_weights_in_warm_up(M)[0], _weights_in_warm_up(M)[1] - 2 * P),
        "weight gradients before the first input gradient, and forwards there beyond two a rank", "wrong", EQUAL,
        note="The branch that would run them can never be taken.",
    ),
    Claim(TESTS, "1f1b_single_stage, 4 micro-batches", ALTERNATE, _order(1, 4, 0), "clock_1f1b", "exact", TEXT),
    Claim(TESTS, "1f1b_first_stage_4stages_4mb", "F0 F1 F2 F3 B0 B1 B2 B3",
          _order(4, 4, 0), "clock_1f1b", "exact", TEXT),
    Claim(TESTS, "1f1b_last_stage_4stages_4mb", ALTERNATE, _order(4, 4, 3), "clock_1f1b", "exact", TEXT),
    Claim(TESTS, "1f1b_middle_stage, stage 1 of 4, 6 micro-batches", "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
          _order(4, 6, 1), "clock_1f1b", "exact", TEXT),
    Claim(TESTS, "every 1F1B schedule produces exactly M forwards and M backwards", "every size and stage",
          lambda desk: _even_counts(published.clock_1f1b, ALL_SIZES, "FB"), "ranks on which it holds, and ranks",
          "exact", EQUAL),
    Claim(TESTS, "zero_bubble_covers_all_mb", "every size and stage",
          lambda desk: _even_counts(published.clock_zero_bubble, ENOUGH, "FIW"), "ranks on which it holds, and ranks",
          "exact", EQUAL),
    Claim(TESTS, "interleaved_covers_all_mb: 4 forwards and 4 backwards of each of 2 chunks", "8 and 8",
          lambda desk: tuple(_count(published.clock_interleaved(2, 4, 2), kind) for kind in "FB"),
          "actions of rank 0, both chunks", "exact"),
)  # fmt: skip
