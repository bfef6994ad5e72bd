"""Pinned plans of the mix explorer: what they were, and what they are under the present values."""

from dataclasses import dataclass, replace

from pipelab.display import DOES_NOT_FIT
from pipelab.engine.scoring import Score, score
from pipelab.figures.baselines import Row
from pipelab.placement import Placement, Stage
from pipelab.problem import Problem
from pipelab.widgets.mix_answer import Answer

GONE = replace(DOES_NOT_FIT, word="gone")


@dataclass(frozen=True, eq=False)
class Today:
    """A pinned plan under the present values: its score, or why it is gone."""

    score: Score | None
    gone: str = ""

    def row(self, name: str) -> Row:
        """As a row of the baselines' chart."""
        if self.score is None:
            return Row(name, None, GONE, self.gone)
        return Row(name, self.score.throughput, self.score.outcome, "; ".join(self.score.reasons))

    @property
    def words(self) -> str:
        """As a cell of the pinned plans' table."""
        if self.score is None:
            return f"{GONE}: {self.gone}"
        return (
            f"{self.score.throughput:.6g}"
            if self.score.valid
            else f"not valid: {self.score.reasons[0]}"
        )


@dataclass(frozen=True, eq=False)
class Pinned:
    """A plan and the problem that it was made for.

    Attributes
    ----------
    found : Answer
        The explorer's answer when it was pinned.
    placement : Placement
    throughput : float or None
        Then, in tokens/s; None if it was not valid.
    """

    found: Answer
    placement: Placement
    throughput: float | None

    def today(self, found: Answer) -> Today:
        """The same layers on the same GPUs (the first A100 is the first A100), in the problem of another answer."""
        here = self._moved(found.problem)
        if isinstance(here, str):
            return Today(None, here)
        evaluation = score(found.problem, here, found.result)
        if not evaluation.valid and self.throughput is not None:
            return Today(None, evaluation.reasons[0])
        return Today(evaluation)

    def _moved(self, problem: Problem) -> Placement | str:
        """The placement with the GPU ids of another problem, or what is missing there."""
        mine = self.found.problem
        if mine.model.layers != problem.model.layers:
            return f"it places {mine.model.layers} layers, and there are {problem.model.layers} now"
        before, after = _by_type(mine), _by_type(problem)
        there: dict[int, int] = {}
        for gpu_type, ids in before.items():
            used, left = [g for g in ids if g in self.placement.gpus], after.get(gpu_type, [])
            if len(used) > len(left):
                return f"it needs {len(used)} × {gpu_type}, and there {'is' if len(left) == 1 else 'are'} {len(left)}"
            # The same ones if all are left, since links may differ between them; else the first
            # ones of the type.
            places = [ids.index(g) for g in used]
            same = max(places, default=0) < len(left)
            there |= {
                g: left[k if same else i] for i, (g, k) in enumerate(zip(used, places, strict=True))
            }
        return Placement(
            tuple(
                Stage(stage.layers, tuple(there[g] for g in stage.gpus))
                for stage in self.placement.stages
            )
        )


def _by_type(problem: Problem) -> dict[str, list[int]]:
    """GPU ids of each type: ids move when another type gets more or fewer."""
    ids: dict[str, list[int]] = {}
    for g, gpu in enumerate(problem.cluster.gpus):
        ids.setdefault(gpu.type, []).append(g)
    return ids
