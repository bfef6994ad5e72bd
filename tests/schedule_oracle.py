"""Second simulators of what `pipelab.simulator` does not cover: transfers that wait for the other rank.

Slow, and written otherwise: every time by recursion over actions as text, or step by step.
"""

import re
import sys
from functools import cache

sys.setrecursionlimit(20_000)


class Circle(Exception):
    """An action waits for itself."""


def slow_rendezvous(
    schedule,
    forward,
    backward,
    weight,
    comm,
    overlap=1.0,
):
    """Start and end of every action, by its text.

    Parameters
    ----------
    forward, backward, weight : one per stage
    comm : one per link
    """
    rows = [[str(action) for action in row] for row in schedule.actions]
    last_stage, rank_of = schedule.stages - 1, schedule.stage_rank
    place = {}
    for rank, row in enumerate(rows):
        for position, text in enumerate(row):
            for part in re.findall(r"\d+[A-Z]\d+", text):
                place[part] = rank, position

    def parts(rank, position):
        found = re.findall(r"(\d+)([A-Z])(\d+)", rows[rank][position])
        return [(int(stage), kind, int(batch)) for stage, kind, batch in found]

    def duration(rank, position):
        took = {"F": forward, "I": backward, "W": weight}
        each = [
            backward[s] + weight[s] if k == "B" else took[k][s]
            for s, k, _ in parts(rank, position)
        ]  # fmt: skip
        return sum(each) * (overlap if len(each) == 2 else 1)

    def gradient_of(stage, batch):
        return f"{stage}B{batch}" if f"{stage}B{batch}" in place else f"{stage}I{batch}"

    def needs(stage, kind, batch):
        """Text of what an action needs, and the link it comes over (None within a rank)."""
        if kind == "F" and stage > 0:
            source, link = f"{stage - 1}F{batch}", stage - 1
        elif kind in "BI" and stage < last_stage:
            source, link = gradient_of(stage + 1, batch), stage
        else:
            return None
        return source, link if rank_of[link] != rank_of[link + 1] else None

    def sends(stage, kind, batch):
        """Text of who uses an action's result on another rank, and the link."""
        if kind == "F" and stage < last_stage and rank_of[stage] != rank_of[stage + 1]:
            return f"{stage + 1}F{batch}", stage
        if kind in "BI" and stage > 0 and rank_of[stage] != rank_of[stage - 1]:
            return gradient_of(stage - 1, batch), stage - 1
        return None

    working = set()

    @cache
    def end(rank, position):
        return start(rank, position) + duration(rank, position)

    @cache
    def start(rank, position):
        if (rank, position) in working:
            raise Circle(rows[rank][position])
        working.add((rank, position))
        ready = [end(rank, position - 1)] if position else [0.0]
        for part in parts(rank, position):
            if need := needs(*part):
                source, link = need
                if link is None:
                    ready.append(end(*place[source]))
                else:
                    ready.append(arrival(source, (rank, position), link))
        if position:
            for part in parts(rank, position - 1):
                if taken := sends(*part):
                    text = "{}{}{}".format(*part)
                    ready.append(arrival(text, place[taken[0]], taken[1]))
        working.discard((rank, position))
        return max(ready)

    def arrival(source, taker, link):
        posted = end(taker[0], taker[1] - 1) if taker[1] else 0.0
        return max(end(*place[source]), posted) + comm[link]

    return {
        text: (start(rank, position), end(rank, position))
        for rank, row in enumerate(rows)
        for position, text in enumerate(row)
    }  # fmt: skip


def slow_blocking(schedule, forward, backward, weight, comm, overlap=1.0):
    """Start and end of every action and message, by text: ranks walk through their lists and meet for every message.

    The messages are listed here anew; `Circle` if nobody can go on.
    """
    rank_of, last = schedule.stage_rank, schedule.stages - 1

    def far(stage, other):
        return 0 <= other <= last and rank_of[stage] != rank_of[other]

    def messages(parts, sending):
        found = []
        for stage, kind, batch in parts:
            if kind == "F":
                other, letter = stage + (1 if sending else -1), "F"
            elif kind in "BI":
                other, letter = stage + (-1 if sending else 1), "B"
            else:
                continue
            if far(stage, other):
                mine, theirs = ("SEND", "RECV") if sending else ("RECV", "SEND")
                texts = f"{stage}{mine}_{letter}{batch}", f"{other}{theirs}_{letter}{batch}"
                found.append((*texts, comm[min(stage, other)]))
        return found

    took = {
        "F": forward,
        "I": backward,
        "W": weight,
        "B": [b + w for b, w in zip(backward, weight, strict=True)],
    }
    todo = []
    for row in schedule.actions:
        steps = []
        for action in row:
            parts = [(part.stage, part.kind, part.microbatch) for part in action.parts or (action,)]
            length = sum(took[kind][stage] for stage, kind, _ in parts) * (
                overlap if action.parts else 1
            )
            steps += [*messages(parts, False), (str(action), None, length), *messages(parts, True)]
        todo.append(steps)
    times, clock, place = {}, [0.0] * len(todo), [0] * len(todo)

    def head(rank):
        return todo[rank][place[rank]] if place[rank] < len(todo[rank]) else (None, None, 0)

    moved = True
    while moved:
        moved = False
        for rank in range(len(todo)):
            text, partner, length = head(rank)
            if text is None:
                continue
            both = [rank]
            if partner is not None:
                both += [other for other in range(len(todo)) if head(other)[0] == partner]
                if len(both) == 1:
                    continue
            start = max(clock[r] for r in both)
            for r in both:
                times[head(r)[0]] = start, start + length
                clock[r] = start + length
            for r in both:
                place[r] += 1
            moved = True
    if any(place[rank] < len(todo[rank]) for rank in range(len(todo))):
        raise Circle(str([head(rank)[0] for rank in range(len(todo))]))
    return times
