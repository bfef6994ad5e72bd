"""A first schedule: the best of the published rules that keeps to the limits, or a greedy one."""

from collections.abc import Iterator

from pipelab.engine.best_schedules.question import MEMORY_SLACK, Question
from pipelab.engine.deadline import Deadline
from pipelab.engine.schedules import schedule
from pipelab.engine.timeline.simulation import simulate
from pipelab.engine.timeline.timeline import Timeline
from pipelab.schedules import Schedule

# One stage per rank. Where the backward is split, a full one is run as its halves.
RULES = ("GPipe", "1F1B", "ZBH1", "ZBH2")


# Beyond so many actions the greedy schedule takes seconds: it is made where no rule keeps to the limits.
_QUICK = 5_000


def first_schedules(question: Question, deadline: Deadline) -> Iterator[Timeline]:
    """Simulated, each within the limits; at least one."""
    found = 0
    for name in RULES:
        made = None if found and deadline.reason else _by_rule(question, name)
        if made is not None and question.keeps(timeline := simulate(made, question.costs)):
            found += 1
            yield timeline
    if not found or (question.actions <= _QUICK and not deadline.reason):
        yield simulate(greedy(question), question.costs)


def _by_rule(question: Question, name: str) -> Schedule | None:
    rule = schedule(name, question.ranks, question.microbatches)
    kinds = {action.kind for row in rule.actions for action in row}
    if "W" in kinds:
        return rule if question.split_backward else None
    if not question.split_backward:
        return rule
    halves = [
        [
            (kind, action.microbatch)
            for action in row
            for kind in ("IW" if action.kind == "B" else "F")
        ]
        for row in rule.actions
    ]
    return question.schedule(f"{name}, backward split", halves)


def greedy(question: Question) -> Schedule:
    """What can start first goes first: input gradients before forwards, weight gradients in the gaps.

    A forward waits while it does not fit in memory, so this keeps to any limits that one microbatch
    fits in: the oldest microbatch of a rank can always go on.
    """
    ranks, m = question.ranks, question.microbatches
    comm = question.table["comm"].tolist()
    back = question.kinds[1]
    length = {kind: question.length[kind].tolist() for kind in question.kinds}
    whole, kept = (-question.takes[kind] for kind in ("B", "W"))
    done = [dict.fromkeys(question.kinds, 0) for _ in range(ranks)]
    ends: list[dict[str, list[float]]] = [{k: [] for k in question.kinds} for _ in range(ranks)]
    free = [0.0] * ranks
    rows: list[list[tuple[str, int]]] = [[] for _ in range(ranks)]

    def fits(rank: int) -> bool:
        full = done[rank]["F"] - done[rank][back] + 1
        rest = done[rank]["I"] - done[rank]["W"] if question.split_backward else 0
        if full > question.in_flight[rank]:
            return False
        if question.memory is None:
            return True
        held = full * whole[rank] + rest * kept[rank]
        return bool(held <= question.memory[rank] * (1 + MEMORY_SLACK))

    def arrives(rank: int, kind: str) -> float | None:
        """When the next action of this kind has what it works on; None where nobody knows yet."""
        k = done[rank][kind]
        if k == m:
            return None
        if kind == "F":
            if not fits(rank):
                return None
            if rank == 0:
                return 0.0
            before, delay = ends[rank - 1]["F"], comm[rank - 1]
        elif kind == back and rank < ranks - 1:
            before, delay = ends[rank + 1][back], comm[rank]
        else:
            before, delay = ends[rank]["F" if kind == back else back], 0.0
        return before[k] + delay if k < len(before) else None

    for _ in range(ranks * m * len(question.kinds)):
        # Of all ranks' next actions the one that starts first; at the same time the one that others
        # wait for most.
        start, _, rank, kind = min(
            (max(free[rank], at), order, rank, kind)
            for rank in range(ranks)
            for order, kind in enumerate((back, "F", "W")[: len(question.kinds)])
            if (at := arrives(rank, kind)) is not None
        )
        rows[rank].append((kind, done[rank][kind]))
        done[rank][kind] += 1
        free[rank] = start + length[kind][rank]
        ends[rank][kind].append(free[rank])
    return question.schedule("greedy", rows)
