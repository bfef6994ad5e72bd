"""The lab *A roofline of your own machine*: three constants from measured times, and how well they predict others."""

import math
import random
from functools import cache
from statistics import mean
from typing import Any, NamedTuple, cast

import numpy as np
from scipy.optimize import least_squares

from pipelab.course.exercises import Exercise, Given
from pipelab.course.scored_labs import Lab, Try, problems
from pipelab.display import Figure
from pipelab.errors import shown
from pipelab.figures.theme import NEUTRAL_LIGHT, new_figure

Work = tuple[float, float]  # operations and bytes
_WORTH_IT = 3.0  # the baseline is off by at least so many times as much as the best
_VARIES = 0.1  # a time by chance, as the standard deviation of its logarithm


class Machine(NamedTuple):
    """A roofline with an overhead: what takes longer, computing or moving, and what every call costs."""

    flops: float  # per second
    bandwidth: float  # bytes per second
    overhead: float  # seconds

    def seconds(self, work: Work) -> float:
        """Time of one operation."""
        return max(work[0] / self.flops, work[1] / self.bandwidth) + self.overhead


class Timed(Given):
    """Times that were measured on a machine, and what is to be predicted; the machine is no argument."""

    machine: Machine

    def __iter__(self) -> Any:
        return iter((self.measured, self.asked))

    def __repr__(self) -> str:
        return f"measured={self.measured!r}, asked={self.asked!r}"


def _times(chance: random.Random) -> Timed | None:
    """Draw a machine and times measured on it: a little too short or too long, and now and then far too long.

    Were no time too short, the fastest seen would be right, and beat a least-squares fit that the long ones spoil.
    """
    machine = Machine(
        10 ** chance.uniform(10.5, 14.5),
        10 ** chance.uniform(9.5, 12.3),
        10 ** chance.uniform(-6, -4),
    )
    measured = []
    for _ in range(40):
        work = _work(chance, machine, 1)
        late = math.exp(chance.gauss(0, _VARIES))
        if chance.random() < 0.08:  # something else ran
            late *= chance.uniform(1.5, 3)
        measured.append((*work, machine.seconds(work) * late))
    asked = [_work(chance, machine, 10) for _ in range(30)]
    given = Timed(measured=measured, asked=asked, machine=machine)
    return given if _baseline(given) >= _WORTH_IT * _best(given) else None


def _work(chance: random.Random, machine: Machine, most: float) -> Work:
    """Draw work between a tenth of the overhead and so many tens of milliseconds, on either side of the ridge."""
    seconds = 10 ** chance.uniform(math.log10(machine.overhead) - 1, math.log10(most) - 2)
    side = 10 ** chance.uniform(-1.5, 1.5)
    return machine.flops * seconds * min(1, side), machine.bandwidth * seconds * min(1, 1 / side)


def _error(given: Timed, seconds: Any) -> float:
    """Mean error in per cent, by factors: twice as long counts as much as half as long."""
    pairs = zip(seconds, given.asked, strict=True)
    return 100 * mean(abs(math.log(s / given.machine.seconds(work))) for s, work in pairs)


def _naive(given: Timed) -> Machine:
    """The fastest that was seen, in operations and in bytes, and the shortest time as the overhead."""
    return Machine(
        max(flops / s for flops, _, s in given.measured),
        max(size / s for _, size, s in given.measured),
        min(s for *_, s in given.measured),
    )


@cache
def _baseline(given: Timed) -> float:
    naive = _naive(given)
    return _error(given, [naive.seconds(work) for work in given.asked])


def fitted(measured: list[tuple[float, float, float]], start: Machine) -> Machine:
    """Fit the logarithms of times by least squares, in which a time far off counts less."""
    flops, size, seconds = np.array(measured).T

    def off(logs: np.ndarray) -> np.ndarray:
        machine = np.exp(logs)
        predicted = np.maximum(flops / machine[0], size / machine[1]) + machine[2]
        return np.log(predicted / seconds)

    first = np.log(start)
    return Machine(*np.exp(least_squares(off, first, loss="cauchy", f_scale=_VARIES).x).tolist())


@cache
def _best(given: Timed) -> float:
    machine = fitted(given.measured, _naive(given))
    return _error(given, [machine.seconds(work) for work in given.asked])


def _off(given: Timed, seconds: Any) -> str:
    if not isinstance(seconds, list) or len(seconds) != len(given.asked):
        return f"expected a list of {len(given.asked)} times, yours gives {shown(seconds)}"
    if not all(isinstance(s, int | float) and math.isfinite(s) and s > 0 for s in seconds):
        return f"expected seconds, more than 0; yours gives {shown(seconds)}"
    return ""


def _draw(tried: Try) -> Figure:
    """Predicted above true times, both on logarithmic axes; a right prediction is on the diagonal."""
    from pipelab.course.pictures import finish

    given, figure = cast(Timed, tried.given), new_figure()
    true = [given.machine.seconds(work) for work in given.asked]
    ends = [min(true), max(true)]
    figure.add_scatter(x=ends, y=ends, mode="lines", line={"color": NEUTRAL_LIGHT}, name="right")
    naive = _naive(given)
    for name, predicted in (
        ("baseline", [naive.seconds(work) for work in given.asked]),
        ("yours", [] if tried.wrong else tried.answer),
    ):
        figure.add_scatter(x=true if len(predicted) else [], y=predicted, mode="markers", name=name)
    text = f"The baseline is off by {tried.baseline:.3g} %"
    if not tried.wrong:
        text = f"Yours is off by {tried.value:.3g} %, the baseline by {tried.baseline:.3g} %"
    axes = {"type": "log", "exponentformat": "power"}
    return finish(
        figure,
        text,
        "each point is an operation that was not measured",
        x={"title": "true time, s", **axes},
        y={"title": "predicted time, s", **axes},
    )


EXERCISES: dict[str, Exercise] = {
    "lab_roofline": Lab(
        signature="my_times(measured, asked)",
        inputs=problems(91, 12, _times),
        off=_off,
        expects="a list of one time in seconds for every operation that is asked",
        value=_error,
        baseline=_baseline,
        best=_best,
        baseline_is="the fastest that was seen, the shortest time as overhead",
        best_is="a robust least-squares fit",
        measure="mean error in %",
        size=lambda given: (
            f"ridge at {given.machine.flops / given.machine.bandwidth:.3g} operations per byte"
        ),
        advice=(
            "small operations take the overhead and hardly more; which of your constants do they tell?",
            "far left of the ridge only bandwidth counts, far right only operations per second",
            "compare times by their ratio, so by logarithms: a time of 1 µs counts as much as one of 1 s",
            "some times are far too long, because something else ran: let these count less, or not at all",
        ),
        drawn=_draw,
    ),
}
