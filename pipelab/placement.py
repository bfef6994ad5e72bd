"""A placement: stages in order, each with its layers and its GPUs."""

from collections.abc import Iterable, Sequence

from pipelab.display import DataFrame, data_frame, table
from pipelab.errors import InvalidValue
from pipelab.fields import checked, is_list

__all__ = ["Placement", "Stage", "named_layers", "show_layers"]


_MOST_LAYERS = 10**9  # of a stage: a number that Python can count with, whatever the model has


def show_layers(layers: range) -> str:
    """Write layers as people count them, from 1.

    >>> show_layers(range(0, 8)), show_layers(range(3, 4))
    ('1–8', '4')
    """
    return f"{layers.start + 1}–{layers.stop}" if len(layers) > 1 else f"{layers.start + 1}"


def named_layers(layers: range) -> str:
    """Write layers with the noun, counted from 1.

    >>> named_layers(range(0, 8)), named_layers(range(3, 4))
    ('layers 1–8', 'layer 4')
    """
    return f"layer{'s' if len(layers) > 1 else ''} {show_layers(layers)}"


@checked
class Stage:
    """Consecutive layers held by one set of GPUs, each with a full copy; no problem is asked yet.

    Parameters
    ----------
    layers : range
        Numbered from 0; `range(0, 8)` is shown to people as layers 1–8.
    gpus : tuple of int
        GPU ids in any order; kept ascending.

    Raises
    ------
    InvalidValue
        No layer, a range with steps, or ids that are no whole numbers.
    """

    layers: range
    gpus: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.layers.step != 1 or not 0 < self.layers.stop - self.layers.start <= _MOST_LAYERS:
            expected = "expected consecutive layers, at least one, such as range(0, 4)"
            raise InvalidValue("Stage", [("layers", self.layers, expected)])
        object.__setattr__(self, "gpus", tuple(sorted(self.gpus)))


@checked
class Placement:
    """Stages in pipeline order.

    A placement is valid for a problem if (`evaluate` names each rule that is broken)

    - every layer is on exactly one stage, and the stages hold the layers in order;
    - a GPU serves at most one stage, and is one of the cluster's;
    - a stage has 1 to `max_gpus_per_stage` GPUs, with `same_type_stages` of one type;
    - each GPU has the memory that its stage needs on it, and the cost model has a rate for that.

    Parameters
    ----------
    stages : tuple of Stage
        First to last.

    Raises
    ------
    InvalidValue
        `stages` holds something other than stages.

    Examples
    --------
    >>> placement = Placement.of([(4, (0, 1)), (4, (2,))])
    >>> placement.stages[1].layers
    range(4, 8)
    """

    stages: tuple[Stage, ...]

    @classmethod
    def of(cls, parts: Iterable[tuple[int, Sequence[int]]]) -> "Placement":
        """Make a placement from (number of layers, GPU ids) pairs, the layers counted off in order.

        Parameters
        ----------
        parts : iterable of (int, sequence of int)
            One pair per stage.

        Returns
        -------
        Placement
            Whether it is valid for a problem, `evaluate` says.

        Raises
        ------
        InvalidValue
            `parts` is no list, or a part is no such pair or has no layer.
        """
        expected = "expected (number of layers, GPU ids), such as (4, (0, 1)) or (4, (0,))"
        if not is_list(parts):
            raise InvalidValue("Placement.of", [("parts", parts, f"{expected}, for each stage")])
        stages, start = [], 0
        for part in parts:
            try:
                layers, gpus = part
                gpus = tuple(gpus)
                if not abs(layers) <= _MOST_LAYERS or int(layers) != layers:
                    raise ValueError(layers)
                layers = int(layers)
            except (TypeError, ValueError):
                raise InvalidValue("Placement.of", [("part", part, expected)]) from None
            stages.append(Stage(range(start, start + layers), gpus))
            start += layers
        return cls(tuple(stages))

    @property
    def gpus(self) -> tuple[int, ...]:
        """All GPU ids in use, in pipeline order."""
        return tuple(g for stage in self.stages for g in stage.gpus)

    def __len__(self) -> int:
        return len(self.stages)

    def __str__(self) -> str:
        parts = [f"layers {show_layers(s.layers)} on {list(s.gpus)}" for s in self.stages]
        return " → ".join(parts)

    def to_dict(self) -> dict:
        """Plain data for JSON.

        Returns
        -------
        dict
            `stages`, each with `first_layer` and `last_layer` (counted from 1, as the write-up
            prints them) and `gpus`.
        """
        return {
            "stages": [
                {
                    "first_layer": s.layers.start + 1,
                    "last_layer": s.layers.stop,
                    "gpus": list(s.gpus),
                }
                for s in self.stages
            ]
        }

    def to_frame(self) -> DataFrame:
        """Return the placement as a table, one row per stage.

        Returns
        -------
        pandas.DataFrame
            Columns `stage` and `layers` (both counted from 1), `layer_count`, and `gpus`, the ids
            as text.
        """
        return data_frame(
            {
                "stage": range(1, len(self.stages) + 1),
                "layers": [show_layers(s.layers) for s in self.stages],
                "layer_count": [len(s.layers) for s in self.stages],
                "gpus": [", ".join(map(str, s.gpus)) for s in self.stages],
            }
        )

    def _repr_html_(self) -> str:
        return table(self.to_frame())
