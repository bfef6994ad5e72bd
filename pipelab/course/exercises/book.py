"""All exercises by name, and the one function that checks an answer."""

from pipelab.course.exercises.answer import Answer, DrawnAnswer, verdict
from pipelab.course.exercises.audits import AUDITS
from pipelab.course.exercises.averages import AVERAGES, SmallestMix
from pipelab.course.exercises.contest import Contest
from pipelab.course.exercises.counts import COUNTS
from pipelab.course.exercises.cuts import CUTS
from pipelab.course.exercises.deploying import DEPLOYING
from pipelab.course.exercises.exercise import Exercise
from pipelab.course.exercises.joint import JOINT
from pipelab.course.exercises.one_gpu_per_stage import ONE_GPU_PER_STAGE
from pipelab.course.exercises.puzzle import Puzzle
from pipelab.course.exercises.refutation import Refutation
from pipelab.course.exercises.requirement import Requirement
from pipelab.course.exercises.schedules import SCHEDULES
from pipelab.course.exercises.search import SEARCH
from pipelab.course.exercises.serving import SERVING
from pipelab.course.exercises.splits import SPLITS
from pipelab.course.exercises.training import TRAINING
from pipelab.course.exercises.write_up import WRITE_UP
from pipelab.errors import UnknownName, nearest

EXERCISES: dict[str, Exercise | Contest | Puzzle | SmallestMix | Refutation | Requirement] = {
    **CUTS,
    **SPLITS,
    **SEARCH,
    **ONE_GPU_PER_STAGE,
    **AVERAGES,
    **JOINT,
    **COUNTS,
    **SCHEDULES,
    **SERVING,
    **DEPLOYING,
    **TRAINING,
    **WRITE_UP,
    **AUDITS,
}


def check(name: str, value: object) -> Answer:
    """Compare a reader's answer with the target of an exercise, which is computed here and now.

    For a wrong one it says whether it is too high or too low, and which common mistake leads to it,
    if any.

    Parameters
    ----------
    name : str
        Of the exercise: notebook and number, such as `"05.1"`.
    value : number, function, Schedule, Placement, None or ...
        The reader's; `...` means not attempted yet, and so does None where no reader would arrive
        at it. A function is tried on many inputs, and a schedule is run by the simulator.

    Returns
    -------
    Answer
        The verdict in words, with its sign and colour in a notebook. A value of a wrong kind is a
        wrong answer. Where a function is wrong, the smallest input on which it is may be drawn
        below.

    Raises
    ------
    UnknownName
        There is no such exercise.

    Examples
    --------
    >>> print(check("00.1", None))
    exercise 00.1: not attempted yet
    >>> print(check("00.1", 6166.8172))
    exercise 00.1: right, 6,166.817 tokens/s
    >>> print(check("00.1", 3413.3333))
    exercise 00.1: not yet. Yours is 3,413.333 tokens/s, too low. Hint: that is by memory; the
    weights asked for are speeds
    """
    if name not in EXERCISES:
        raise UnknownName(f"there is no exercise {name!r}; {nearest(name, EXERCISES)}")
    exercise = EXERCISES[name]
    if value is ... or (value is None and not exercise.none):
        return verdict("not attempted yet", f"exercise {name}: not attempted yet")
    failure, picture = None, None
    if isinstance(exercise, Puzzle) and callable(value):
        failure, picture = exercise.smallest_failure(value), exercise.picture
        right, why = exercise.graded(failure)
    else:
        right, why = exercise.grade(value)
    if right:
        return verdict("right", f"exercise {name}: right, {why}")
    answer = verdict("not yet", f"exercise {name}: not yet. {why[0].upper()}{why[1:]}")
    if failure is not None and picture:
        return DrawnAnswer(answer.text, answer.html, picture(failure))
    return answer
