"""Dynamic batching, event by event: what a pipeline yields whose stages take whatever waits in front of them.

How an engine fills a pipeline, its filling, decides what it yields (`docs/fillings.md`; `Evaluation.attainable` has the
formulas). With "synchronous", "by_stages", "micro_batches" and "one" batches keep their sequences, and a formula is
exact. With "dynamic" a stage that becomes free takes all that waits as one batch. Two batches that meet go on as one.
Little parts them again: copies of a stage, new requests, prompts, which are passes of their own here, as in Helix's
workers, and the messages of a batch, which arrive one after the other. So most of the time most sequences travel
together, and as if all did:

    tokens/s = N / (Σ T_s(N) + hops + waiting for prompts)          N sequences, T_s(b) of stage s for b of them

A prompt is the slower vehicle on a road without overtaking. It takes P_s at stage s, and whoever comes upon it stays
behind it to the end. It entered up to X = Σ (P_s - T_s) + max T_s ago, and costs X / 2 on average; with λ prompts per
second a round waits λ · X² / 2. That is the closed form, `merged_rate`. `simulate_dynamic` follows every batch and
assumes none of this; `tests/front/test_filling.py` holds both side by side.
"""

import heapq
import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipelab.errors import InvalidValue
from pipelab.fields import Count, Positive, checked_value

__all__ = ["DynamicRun", "DynamicStage", "merged_rate", "simulate_dynamic"]


class DynamicStage(NamedTuple):
    """One stage, and the hop to the next one; after the last one, to the first.

    Attributes
    ----------
    decode_seconds : function of int
        Of a pass in which so many sequences get their next token.
    prompt_seconds : float
        Of a pass that reads one prompt.
    copies : int
        GPUs that each hold the stage; a sequence keeps to one of them.
    hop_seconds, prompt_hop_seconds : float
        Of the message of one token, or of one prompt. Messages follow one another, so the first of a batch finds the
        next stage idle more often than the others.
    """

    decode_seconds: Callable[[float], float]
    prompt_seconds: float
    copies: int = 1
    hop_seconds: float = 0.0
    prompt_hop_seconds: float = 0.0


class DynamicRun(NamedTuple):
    """What a pipeline did.

    Attributes
    ----------
    tokens_per_s : float
    token_seconds, prompt_seconds : float
        From the first stage to the end of the last one, in the mean: of a token; and of a prompt, not a number
        where none was read.
    """

    tokens_per_s: float
    token_seconds: float
    prompt_seconds: float


def simulate_dynamic(
    stages: Sequence[DynamicStage],
    sequences: int,
    answer_tokens: float,
    tokens: int = 10_000,
    seed: int = 0,
) -> DynamicRun:
    """Run a closed loop of sequences: when an answer ends, the next request's prompt enters.

    Parameters
    ----------
    stages : sequence of DynamicStage
    sequences : int
        That are in the pipeline at any time.
    answer_tokens : float
        Mean length of an answer; lengths are geometric. Infinite: answers do not end.
    tokens : int
        Until the end. The first fifth is not counted.
    seed : int
        Of lengths, copies and the beginning.

    Returns
    -------
    DynamicRun

    Raises
    ------
    InvalidValue
        A number is not a whole number of at least 1, or there is no stage.
    """
    checked_value("simulate_dynamic", "sequences", sequences, Count)
    checked_value("simulate_dynamic", "tokens", tokens, Count)
    if not stages:
        raise InvalidValue("simulate_dynamic", [("stages", stages, "expected at least one")])
    chance, last = random.Random(seed), len(stages) - 1
    workers = [(s, c) for s, stage in enumerate(stages) for c in range(stage.copies)]
    waiting: dict[tuple[int, int], list[int]] = {worker: [] for worker in workers}
    busy = dict.fromkeys(workers, False)
    copy_of = [[chance.randrange(s.copies) for s in stages] for _ in range(sequences)]
    reads, entered = [False] * sequences, [0.0] * sequences  # whether its prompt is read now
    ends = 0.0 if math.isinf(answer_tokens) else 1 / answer_tokens
    events: list[tuple[float, int, str, tuple[int, int], list[int]]] = []
    token_times: list[float] = []
    prompt_times: list[float] = []
    number, counted_from, now = 0, 0.0, 0.0
    woken: set[tuple[int, int]] = set()

    def plan(at: float, what: str, worker: tuple[int, int], group: list[int]) -> None:
        nonlocal number
        number += 1  # of two events at a time the one that was planned first
        heapq.heappush(events, (at, number, what, worker, group))

    def arrive(group: Sequence[int], stage: int, at: float, hop: float) -> None:
        for i in group:  # a message each, one after the other
            at += hop
            plan(at, "arrives", (stage, copy_of[i][stage]), [i])

    def start(worker: tuple[int, int]) -> None:
        if busy[worker] or not waiting[worker]:
            return
        stage, group, at = stages[worker[0]], waiting[worker], now
        waiting[worker], busy[worker] = [], True
        prompts = [i for i in group if reads[i]]
        decodes = [i for i in group if not reads[i]]
        if prompts:
            at += len(prompts) * stage.prompt_seconds
            plan(at, "passed", worker, prompts)
        if decodes:
            at += stage.decode_seconds(len(decodes))
            plan(at, "passed", worker, decodes)
        plan(at, "is free", worker, [])

    one_round = sum(stage.decode_seconds(1) + stage.hop_seconds for stage in stages)
    for i in range(sequences):
        arrive([i], 0, chance.random() * one_round, 0.0)
    while len(token_times) < tokens:
        now, _, what, worker, group = heapq.heappop(events)
        if what == "arrives":
            waiting[worker] += group
            if worker[0] == 0:
                entered[group[0]] = now
        elif what == "is free":
            busy[worker] = False
        elif worker[0] < last:
            stage = stages[worker[0]]
            hop = stage.prompt_hop_seconds if reads[group[0]] else stage.hop_seconds
            arrive(group, worker[0] + 1, now, hop)
        else:
            for i in group:
                (prompt_times if reads[i] else token_times).append(now - entered[i])
                if len(token_times) == tokens // 5:
                    counted_from = now
                reads[i] = not reads[i] and chance.random() < ends
                if reads[i]:
                    copy_of[i] = [chance.randrange(s.copies) for s in stages]
            arrive(group, 0, now, stages[last].hop_seconds)
        woken.add(worker)
        if not events or events[0][0] > now:  # all that happens now has happened
            for worker in sorted(woken):
                start(worker)
            woken.clear()
    kept = token_times[tokens // 5 :]
    return DynamicRun(
        tokens_per_s=len(kept) / (now - counted_from),
        token_seconds=math.fsum(kept) / len(kept),
        prompt_seconds=math.fsum(prompt_times) / len(prompt_times) if prompt_times else math.nan,
    )


def merged_rate(
    stages: Sequence[DynamicStage], sequences: float, answer_tokens: float
) -> tuple[float, float]:
    """Compute the closed form: all sequences travel together, and wait behind prompts.

    Parameters
    ----------
    stages : sequence of DynamicStage
        Copies divide the sequences evenly.
    sequences, answer_tokens : float
        As for `simulate_dynamic`.

    Returns
    -------
    tuple of float
        Tokens/s, and seconds from the first stage to the end of the last one.
    """
    checked_value("merged_rate", "sequences", sequences, Positive)
    passes = [s.decode_seconds(max(1.0, sequences / s.copies)) for s in stages]
    behind = math.fsum(
        max(0.0, s.prompt_seconds - seconds) for s, seconds in zip(stages, passes, strict=True)
    )
    half = (behind + max(passes)) ** 2 / 2 / answer_tokens  # seconds, for each token per second
    round_trip = math.fsum(passes) + math.fsum(s.hop_seconds for s in stages)
    # N = λ · (round trip + λ · half)
    slope = round_trip / 2
    rate = sequences / (slope + math.sqrt(slope**2 + half * sequences))
    return rate, sequences / rate - stages[-1].hop_seconds
