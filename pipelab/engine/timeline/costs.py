"""What every stage's forward and backward take, and every message between two stages."""

from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from typing import Annotated, Any, Literal, cast

import numpy as np
from pydantic import PlainValidator

from pipelab.engine.schedules.columns import a_schedule, columns_of, runnable
from pipelab.errors import InvalidValue, shown
from pipelab.fields import Share, checked, described, is_list
from pipelab.schedules import Schedule

PerStage = Annotated[float | Sequence[float], PlainValidator(lambda value: _per_stage(value))]
_MICROSECONDS_OF = {"": 1.0, "s": 1e6, "ms": 1e3, "us": 1.0}
OF_ACTIONS = ("forward", "backward_input", "backward_weight")
_OF_STAGES = (*OF_ACTIONS, "activation", "weight_activation")
_MOST_MICROSECONDS = 1e30  # sums of such times stay far from infinity, in microseconds too


@checked
class StageCosts:
    """Times of one microbatch on one stage, each one number for all stages or one per stage.

    Parameters
    ----------
    forward : number or one per stage
        Of one microbatch on one stage, in `unit`.
    backward_input, backward_weight : number or one per stage
        Gradients of the input and of the weights; a full backward takes both, one after the other.
        Only a schedule that runs forward alone may do without.
    comm : number or one per link
        From the end of an action to the moment its result is on the next rank. Link s joins stages
        s and s+1; between two stages on the same rank nothing is sent, whatever is given here.
    overlap : number
        What a forward and a backward run at the same time take, as a share of their sum. 1 is no
        gain at all, which is pessimistic; measured kernels are needed for less.
    activation : number or one per stage
        Memory held from the start of a forward to the end of its input gradient or full backward,
        in any unit.
    weight_activation : number or one per stage, optional
        Memory held from the end of an input gradient to the end of the weight gradient, in the same
        unit: with `activation=1` the share of a microbatch's activations that the weight gradient
        still needs. Zero Bubble's is 32/34 without stored attention scores. There is no default:
        where a backward is split, memory cannot be known without it.
    optimizer : number
        The optimizer's step, on every rank.
    unit : {"", "s", "ms", "us"}
        Unit of all times, for axes and files.

    Raises
    ------
    InvalidValue
        A cost is neither a number from 0 to 1e30 nor a list of such numbers, `overlap` is not above 0 and
        at most 1, or there is no such unit.

    Examples
    --------
    >>> costs = StageCosts(forward=1, backward_input=[1, 2], backward_weight=1, comm=0.5, unit="ms")
    >>> costs.backward_input
    (1.0, 2.0)
    """

    forward: PerStage
    backward_input: PerStage | None = None
    backward_weight: PerStage | None = None
    comm: PerStage = 0.0
    overlap: Share = 1.0
    activation: PerStage = 1.0
    weight_activation: PerStage | None = None
    optimizer: Annotated[float, PlainValidator(lambda value: _amount(value))] = 0.0
    unit: Annotated[Literal["", "s", "ms", "us"], described('"", "s", "ms" or "us"')] = ""

    def cut_for(self, schedule: Schedule) -> "StageCosts":
        """Return costs of whole ranks, cut to the schedule's stages: every rank's work in equal chunks; messages stay.

        Parameters
        ----------
        schedule : Schedule
            Whose stages the work is cut to.

        Returns
        -------
        StageCosts
            One number per stage, where ranks differ.

        Raises
        ------
        InvalidValue
            The argument is not a schedule, there are too many or too few numbers for the ranks, or
            links differ and stages are not one per rank, in order.
        InvalidSchedule
            The schedule cannot be run.
        TooLarge
            It would take minutes to run.

        Examples
        --------
        >>> import pipelab as pl
        >>> pl.StageCosts([1, 3], 1, 1).cut_for(pl.schedule("ZBV", ranks=2, microbatches=4)).forward
        (0.5, 1.5, 1.5, 0.5)
        """
        columns = runnable(a_schedule("StageCosts.cut_for", schedule))
        if columns.stage_rank == tuple(range(columns.ranks)):
            return self
        if isinstance(self.comm, tuple):
            expected = "expected one number for all links"
            raise InvalidValue("StageCosts.cut_for", [("comm", self.comm, expected)])
        parts, changed = columns.held[columns.holder], {}
        for name in _OF_STAGES:
            value = getattr(self, name)
            if isinstance(value, tuple) or (value is not None and len(set(parts.tolist())) > 1):
                whole = _spread(name, value, columns.ranks, "ranks")
                value = tuple((whole[columns.holder] / parts).tolist())
            elif value is not None:
                value /= columns.chunks
            changed[name] = value
        return replace(self, **changed)

    @property
    def microseconds(self) -> float:
        """Microseconds in one unit of time; 1 where no unit is given."""
        return _MICROSECONDS_OF[self.unit]

    def tables(self, schedule: Schedule) -> dict[str, np.ndarray]:
        """Return everything as arrays for one schedule.

        Parameters
        ----------
        schedule : Schedule
            With S stages.

        Returns
        -------
        dict of str to numpy.ndarray
            "forward", "backward_input", "backward_weight", "activation" and, where it is given,
            "weight_activation", (S,) arrays of floats, and "comm", (S - 1,), 0 within a rank.

        Raises
        ------
        InvalidValue
            The argument is not a schedule, there are too many or too few numbers, or a backward has
            no time.
        """
        columns = columns_of(a_schedule("StageCosts.tables", schedule))
        result = self.arrays(columns.stages, None if columns.forward_only else columns.name)
        result["comm"] = np.where(columns.holder[1:] != columns.holder[:-1], result["comm"], 0.0)
        return result

    def times(self, schedule: Schedule) -> np.ndarray:
        """Return how long everything takes that a schedule's graph has, by row.

        Parameters
        ----------
        schedule : Schedule
            Whose stages and links these costs are of.

        Returns
        -------
        numpy.ndarray
            As `ScheduleArrays.times` has them, (rows,) array of floats.

        Raises
        ------
        InvalidValue
            As `tables` does.
        """
        table = self.tables(schedule)
        per_stage = np.array([table[name] for name in OF_ACTIONS])
        return columns_of(schedule).times(per_stage, table["comm"], self.overlap)

    def arrays(self, stages: int, backward: str | None) -> dict[str, np.ndarray]:
        """Return everything as arrays for so many stages, each on a rank of its own.

        Parameters
        ----------
        stages : int
            S.
        backward : str or None
            What runs them backwards, for the message; None for what runs forward alone.

        Returns
        -------
        dict of str to numpy.ndarray
            As `tables` has them.

        Raises
        ------
        InvalidValue
            Too many or too few numbers, or a backward without a time.
        """
        result = {}
        for name in _OF_STAGES:
            value = getattr(self, name)
            if value is None and name == "weight_activation":
                continue
            if value is None and backward:
                expected = f"{backward} runs backwards: expected a time"
                raise InvalidValue("StageCosts", [(name, value, expected)])
            result[name] = _spread(name, 0.0 if value is None else value, stages, "stages")
        result["comm"] = _spread("comm", self.comm, stages - 1, "links")
        return result


def _per_stage(value: Any) -> float | tuple[float, ...]:
    """Return a number, or a list of numbers, as floats that can be added up, compared and hashed."""
    expected = "expected a number or a list of numbers"
    if not is_list(value):
        return _amount(value, expected)
    return tuple(_amount(each, expected, f"; number {i} is ") for i, each in enumerate(value))


def _amount(value: Any, expected: str = "expected a number", place: str = "") -> float:
    value = value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(expected)
    number = cast(float, value)
    if 0 <= number <= _MOST_MICROSECONDS:
        return float(number)
    expected = f"expected numbers from 0 to {_MOST_MICROSECONDS:g}, or take a larger unit"
    raise ValueError(expected + (place and f"{place}{shown(value)}"))


def _spread(name: str, value: Any, count: int, what: str) -> np.ndarray:
    if isinstance(value, tuple) and len(value) != count:
        expected = f"expected one number, or {count} for {count} {what}; got {len(value)}"
        raise InvalidValue("StageCosts", [(name, value, expected)])
    return np.broadcast_to(np.array(value, dtype=float), (count,))
