"""When each action of a schedule runs: as soon as its rank is free and its data is there.

Every rank works through its actions in order, one at a time, each for a known time. An action also
waits for what it works on: a forward for the forward of the stage before, an input gradient or a
full backward for that of the stage after (on the last stage, for its own forward), a weight
gradient for its input gradient. What another rank has made arrives a while after it was made. The
sender goes on at once meanwhile: transfers are *buffered*. Messages never queue on a link.

This is a definition to read. `pl.simulate` runs `engine/timeline/timeline.py` instead: the same
times (`tests/equal/test_definitions_schedules.py`), for a schedule that it has seen before 3 times faster
with 128 actions and 100 times with 65,536. It knows one more kind of transfer.
"""

from collections import deque
from collections.abc import Sequence

from pipelab.errors import InvalidSchedule, InvalidValue, NotApplicable
from pipelab.fields import amounts
from pipelab.schedules import Action, Schedule

__all__ = ["action_times"]

# What a pass makes and others work on: of one stage and one microbatch the activations ("F") or the
# gradient of the input ("I") or of the weights ("W").
Output = tuple[int, str, int]


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
    forward, backward_input, backward_weight : sequences of S numbers, at least 0
        How long each takes on each stage. A full backward takes the time of both gradients.
    comm : sequence of S - 1 numbers, at least 0
        How long what stages s and s + 1 send each other is on its way. Within a rank it takes no
        time, whatever is given here.
    overlap : number
        What a pair takes, as a share of the sum of its parts; above 0 and at most 1.

    Returns
    -------
    dict of Action to (start, end)
        In the unit of the costs; the first action starts at 0. A pair is one key: both of its parts
        start and end together.

    Raises
    ------
    InvalidSchedule
        No rank can go on, though work is left: says what each rank waits for.
    InvalidValue
        There are too many or too few numbers, or one is negative, or no overlap.
    NotApplicable
        The schedule lists an action that does not compute, is there twice or on another rank.

    Examples
    --------
    >>> import pipelab as pl
    >>> from pipelab.simulator import action_times
    >>> times = action_times(pl.schedule("1F1B", 2, 2), [1, 1], [1, 1], [1, 1], comm=[0.5])
    >>> times[Action(0, "B", 1)]
    (8.0, 10.0)
    """
    _check_actions(schedule)
    stages = schedule.stages
    forward = amounts("action_times", "forward", forward, stages)
    backward_input = amounts("action_times", "backward_input", backward_input, stages)
    backward_weight = amounts("action_times", "backward_weight", backward_weight, stages)
    comm = amounts("action_times", "comm", comm, stages - 1)
    if not 0 < overlap <= 1:
        raise InvalidValue("action_times", [("overlap", overlap, "expected above 0, at most 1")])
    both = [i + w for i, w in zip(backward_input, backward_weight, strict=True)]
    took = {"F": forward, "B": both, "I": backward_input, "W": backward_weight}
    made: dict[Output, float] = {}  # when each output was ready
    times: dict[Action, tuple[float, float]] = {}
    free = [0.0] * schedule.ranks  # when each rank ended its last action
    todo = [deque(row) for row in schedule.actions]
    # Rounds are no time: each rank's order is fixed, so it does not matter who is asked first.
    while any(todo):
        ready = [bool(row) and made.keys() >= _needs(row[0], stages).keys() for row in todo]
        if not any(ready):
            raise InvalidSchedule(_waiting(schedule, todo, made), f"schedule {schedule.name!r}")
        for rank in range(schedule.ranks):
            if not ready[rank]:
                continue
            action = todo[rank].popleft()
            start = free[rank]
            for output, link in _needs(action, stages).items():
                near = schedule.stage_rank[output[0]] == rank
                start = max(start, made[output] + (0 if near else comm[link]))
            length = sum(took[part.kind][part.stage] for part in _parts(action))
            free[rank] = start + length * (overlap if action.parts else 1)
            times[action] = start, free[rank]
            for stage, kind, microbatch, _ in _parts(action):
                made[stage, "I" if kind == "B" else kind, microbatch] = free[rank]
    return times


def _parts(action: Action) -> tuple[Action, ...]:
    return action.parts or (action,)


def _needs(action: Action, stages: int) -> dict[Output, int]:
    """Return what an action works on, and the link over which it comes if the maker is on another rank."""
    needs: dict[Output, int] = {}
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


def _waiting(schedule: Schedule, todo: list[deque[Action]], made: dict[Output, float]) -> list[str]:
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
