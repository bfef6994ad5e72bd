"""What every stage's forward and backward take, and every message between two stages."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from pipelab.errors import InvalidValue
from pipelab.schedules.schedule import Schedule

__all__ = ["StageCosts"]

PerStage = float | Sequence[float]
_UNITS = {"": 1.0, "s": 1e6, "ms": 1e3, "us": 1.0}


@dataclass(frozen=True)
class StageCosts:
    """Times of one microbatch on one stage, each one number for all stages or one per stage.

    Parameters
    ----------
    forward : number or one per stage
    backward_input, backward_weight : number or one per stage
        Gradients of the input and of the weights; a full backward takes both, one after the other.
        Only a schedule that runs forward alone may do without.
    comm : number or one per link
        From the end of an action to the moment its result is on the next rank. Link s joins stages s and
        s+1; between two stages on the same rank nothing is sent, whatever is given here.
    overlap : number
        What a forward and a backward run at the same time take, as a share of their sum. 1 is no gain at
        all, which flatters nobody; measured kernels are needed for less.
    activation : number or one per stage
        Memory held from the start of a forward to the end of its input gradient or full backward.
    weight_activation : number or one per stage
        Memory held from then to the end of the weight gradient.
    optimizer : number
        The optimizer's step, on every rank.
    unit : {"", "s", "ms", "us"}
        Unit of all times, for axes and files.

    Examples
    --------
    >>> costs = StageCosts(forward=1, backward_input=[1, 2], backward_weight=1, comm=0.5, unit="ms")
    >>> costs.backward_input
    (1.0, 2.0)
    >>> StageCosts(forward=1).split(2).forward  # the same model cut into twice as many stages
    0.5
    """

    forward: PerStage
    backward_input: PerStage | None = None
    backward_weight: PerStage | None = None
    comm: PerStage = 0.0
    overlap: float = 1.0
    activation: PerStage = 1.0
    weight_activation: PerStage = 0.0
    optimizer: float = 0.0
    unit: str = ""

    def __post_init__(self):
        if self.unit not in _UNITS:
            raise InvalidValue("StageCosts", [("unit", self.unit, 'expected "", "s", "ms" or "us"')])
        one_number = ("overlap", "optimizer")
        for name in (f.name for f in fields(self) if f.name != "unit"):
            value = getattr(self, name)
            if value is None and name.startswith("backward"):
                continue
            # Numbers are kept as floats and sequences as tuples, so that costs can be compared and hashed.
            object.__setattr__(self, name, _times(name, value, one_number=name in one_number))

    def split(self, chunks: int) -> "StageCosts":
        """The costs of a stage cut into `chunks` equal ones; messages stay as large as they are.

        Raises
        ------
        InvalidValue
            A cost is given stage by stage: then say what the smaller stages cost.
        """
        if not isinstance(chunks, int) or chunks < 1:
            raise InvalidValue("StageCosts.split", [("chunks", chunks, "expected a whole number of at least 1")])
        if chunks == 1:
            return self
        changed = {}
        for name in ("forward", "backward_input", "backward_weight", "activation", "weight_activation"):
            value = getattr(self, name)
            if isinstance(value, tuple):
                raise InvalidValue("StageCosts.split", [(name, value, "expected one number for all stages")])
            changed[name] = None if value is None else value / chunks
        return replace(self, **changed)

    def cut_for(self, schedule: Schedule) -> "StageCosts":
        """Costs of whole ranks, cut to the schedule's stages: every rank's work in equal chunks; messages stay.

        Examples
        --------
        >>> import pipelab as pl
        >>> pl.StageCosts([1, 3], 1, 1).cut_for(pl.schedule("ZBV", ranks=2, microbatches=4)).forward
        (0.5, 1.5, 1.5, 0.5)

        Raises
        ------
        InvalidValue
            There are too many or too few numbers for the ranks, or links differ and ranks hold several stages.
        """
        if schedule.chunks == 1:
            return self
        if isinstance(self.comm, tuple):
            raise InvalidValue("StageCosts.cut_for", [("comm", self.comm, "expected one number for all links")])
        changed = {}
        for name in ("forward", "backward_input", "backward_weight", "activation", "weight_activation"):
            value = getattr(self, name)
            if isinstance(value, tuple):
                whole = _spread(name, value, schedule.ranks, "ranks")
                value = tuple((whole[schedule.holder] / schedule.chunks).tolist())
            elif value is not None:
                value /= schedule.chunks
            changed[name] = value
        return replace(self, **changed)

    @property
    def microseconds(self) -> float:
        """Microseconds in one unit of time; 1 where no unit is given."""
        return _UNITS[self.unit]

    def tables(self, schedule: Schedule) -> dict[str, np.ndarray]:
        """Everything as arrays for one schedule: `forward` … per stage, `comm` per link, 0 within a rank.

        Raises
        ------
        InvalidValue
            Too many or too few numbers, or a backward without a time.
        """
        result = {}
        for name in ("forward", "backward_input", "backward_weight", "activation", "weight_activation"):
            value = getattr(self, name)
            if value is None and not schedule.forward_only:
                what = f"{schedule.name} runs backwards: expected a time"
                raise InvalidValue("StageCosts", [(name, value, what)])
            result[name] = _spread(name, 0.0 if value is None else value, schedule.stages, "stages")
        link = _spread("comm", self.comm, schedule.stages - 1, "links")
        result["comm"] = np.where(schedule.holder[1:] != schedule.holder[:-1], link, 0.0)
        return result


def _times(name: str, value, *, one_number: bool):
    try:
        array = np.asarray(value)
    except ValueError:  # a ragged list
        array = np.array(None)
    if array.dtype.kind not in "iuf" or array.ndim > (0 if one_number else 1):
        expected = "expected a number" + ("" if one_number else " or a list of numbers")
        raise InvalidValue("StageCosts", [(name, value, expected)])
    array = array.astype(float)
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(bad):
        where = "" if array.ndim == 0 else f"; number {bad[0]} is {array[bad[0]]:g}"
        raise InvalidValue("StageCosts", [(name, value, f"expected finite numbers of at least 0{where}")])
    return float(array) if array.ndim == 0 else tuple(array.tolist())


def _spread(name: str, value, count: int, what: str) -> np.ndarray:
    if isinstance(value, tuple) and len(value) != count:
        expected = f"expected one number, or {count} for {count} {what}; got {len(value)}"
        raise InvalidValue("StageCosts", [(name, value, expected)])
    return np.broadcast_to(np.array(value, dtype=float), (count,))
