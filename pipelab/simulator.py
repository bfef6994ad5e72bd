"""When each action of a schedule runs: as soon as its rank is free and its data is there.

Every rank works through its actions in order, one at a time, each for a known time. An action also
waits for what it works on: a forward for the forward of the stage before, an input gradient or a
full backward for that of the stage after (on the last stage, for its own forward), a weight
gradient for its input gradient. What another rank has made arrives a while after it was made. The
sender goes on at once meanwhile: transfers are *buffered*.

`pl.simulate` gives the same times many times faster, and knows two more kinds of transfer.
"""

from collections import deque
from collections.abc import Sequence

from pipelab.errors import InvalidSchedule, InvalidValue, NotApplicable
from pipelab.schedules import Action, Schedule

__all__ = ["action_times"]

# What an action makes and others work on: of one stage and one microbatch the output ("F") or the
# gradient of the input ("I") or of the weights ("W").
Result = tuple[int, str, int]


def action_times(
    schedule: Schedule,
    forward: Sequence[float],
    backward_input: Sequence[float],
    backward_weight: Sequence[float],
    comm: Sequence[float],
    overlap: float = 1.0,
) -> dict[Action, tuple[float, float]]:
    """Start and end of every action, with buffered transfers.

    Parameters
    ----------
    schedule : Schedule
        S stages. Every action computes (no sends, no receives, no idle ticks), is listed once, and
        belongs to a stage of its rank.
    forward, backward_input, backward_weight : sequences of S numbers
        How long each takes on each stage. A full backward takes the time of both gradients.
    comm : sequence of S - 1 numbers
        How long what stages s and s + 1 send each other is on its way. Within a rank it takes no
        time, whatever is given here.
    overlap : number
        What a pair takes, as a share of the sum of its parts.

    Returns
    -------
    dict of Action to (start, end)
        In the unit of the costs; the first action starts at 0.

    Raises
    ------
    InvalidSchedule
        No rank can go on, though work is left: says what each rank waits for.
    InvalidValue
        There are too many or too few numbers.
    NotApplicable
        The schedule lists an action that does not compute, is there twice or on another rank.

    Examples
    --------
    >>> import pipelab as pl
    >>> from pipelab.simulator import action_times
    >>> times = action_times(pl.schedule("1F1B", 2, 2), [1, 1], [1, 1], [1, 1], comm=[0.5])
    >>> times[pl.Action(0, "B", 1)]
    (8.0, 10.0)
    """
    _check_actions(schedule)
    _check_lengths(schedule.stages, forward, backward_input, backward_weight, comm)
    both = [i + w for i, w in zip(backward_input, backward_weight, strict=True)]
    took = {"F": forward, "B": both, "I": backward_input, "W": backward_weight}
    made: dict[Result, float] = {}  # when each result was ready
    times: dict[Action, tuple[float, float]] = {}
    free = [0.0] * schedule.ranks  # when each rank ended its last action
    todo = [deque(row) for row in schedule.actions]
    while any(todo):
        ready = [
            bool(row) and made.keys() >= _needs(row[0], schedule.stages).keys() for row in todo
        ]
        if not any(ready):
            raise InvalidSchedule(_waiting(schedule, todo, made), f"schedule {schedule.name!r}")
        for rank in range(schedule.ranks):
            if not ready[rank]:
                continue
            action = todo[rank].popleft()
            start = free[rank]
            for result, link in _needs(action, schedule.stages).items():
                near = schedule.stage_rank[result[0]] == rank
                start = max(start, made[result] + (0 if near else comm[link]))
            length = sum(took[part.kind][part.stage] for part in _parts(action))
            free[rank] = start + length * (overlap if action.parts else 1)
            times[action] = start, free[rank]
            for stage, kind, microbatch, _ in _parts(action):
                made[stage, "I" if kind == "B" else kind, microbatch] = free[rank]
    return times


def _parts(action: Action) -> tuple[Action, ...]:
    return action.parts or (action,)


def _needs(action: Action, stages: int) -> dict[Result, int]:
    """What an action works on, and the link over which it comes if the maker is on another rank."""
    needs: dict[Result, int] = {}
    for stage, kind, microbatch, _ in _parts(action):
        if kind == "W":
            needs[stage, "I", microbatch] = stage
        elif kind == "F" and stage > 0:
            needs[stage - 1, "F", microbatch] = stage - 1
        elif kind in ("B", "I") and stage < stages - 1:
            needs[stage + 1, "I", microbatch] = stage
        elif kind in ("B", "I"):
            needs[stage, "F", microbatch] = stage
    return needs


def _waiting(schedule: Schedule, todo: list[deque[Action]], made: dict[Result, float]) -> list[str]:
    """Of every rank that cannot go on, which action waits for what."""
    words = {"F": "forward", "I": "input gradient"}
    return [
        f"{row[0]} on rank {rank} waits for the {words[kind]} of stage {stage}, microbatch {batch}"
        for rank, row in enumerate(todo)
        if row
        for stage, kind, batch in _needs(row[0], schedule.stages)
        if (stage, kind, batch) not in made
    ]


def _check_actions(schedule: Schedule) -> None:
    seen = set()
    for rank, row in enumerate(schedule.actions):
        for part in (part for action in row for part in _parts(action)):
            held = 0 <= part.stage < schedule.stages and schedule.stage_rank[part.stage] == rank
            if part.kind not in ("F", "B", "I", "W") or not held or part in seen:
                expected = f"expected F, B, I or W of a stage on rank {rank}, once"
                raise NotApplicable("action_times", [("action", str(part), expected)])
            seen.add(part)


def _check_lengths(stages: int, *costs: Sequence[float]) -> None:
    names = ("forward", "backward_input", "backward_weight", "comm")
    for name, values, number in zip(
        names, costs, (stages, stages, stages, stages - 1), strict=True
    ):
        if len(values) != number:
            raise InvalidValue("action_times", [(name, values, f"expected {number} numbers")])
