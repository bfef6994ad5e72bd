"""Compare a user's own placement with the proven optimum, or say in numbers why it does not fit."""

from dataclasses import dataclass
from html import escape
from typing import Annotated

from pydantic import InstanceOf

from pipelab import display
from pipelab.engine import arguments
from pipelab.engine.answers import Result, placement_in
from pipelab.engine.solving import solve
from pipelab.engine.tolerances import ONE_ANSWER, SOLVER
from pipelab.errors import InvalidPlacement, InvalidValue
from pipelab.evaluation import Evaluation, broken_rules, evaluate
from pipelab.fields import Frozen, checked_arguments, described, given
from pipelab.placement import Placement, Stage, named_layers
from pipelab.problem import Problem, fits_in


@dataclass(frozen=True, kw_only=True)
class Misfit(Frozen):
    """A stage that needs more memory than one of its GPUs has; if several lack memory, the one that lacks most."""

    stage: int  # counted from 1
    layers: range
    gpu: int
    gpu_type: str
    needed_gb: float
    offered_gb: float
    most_layers: int  # that fit on its GPUs, from the stage's first one on

    @property
    def deficit_gb(self) -> float:
        """GB that are missing."""
        return self.needed_gb - self.offered_gb

    @property
    def sentence(self) -> str:
        """The shortage in words."""
        layers = display.counted(self.most_layers, "layer") if self.most_layers else "no layer"
        return (
            f"stage {self.stage} ({named_layers(self.layers)}) needs {self.needed_gb:.4g} GB on GPU {self.gpu} "
            f"({self.gpu_type}), which has {self.offered_gb:g} GB: {self.deficit_gb:.4g} GB too much; "
            f"{layers} would fit there"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Score(Frozen):
    """How good a placement is; made by `pl.score`.

    Attributes
    ----------
    problem : Problem
        Gives the rules and rates.
    placement : Placement
        The placement that is scored.
    evaluation : Evaluation or None
        None if the placement is not valid.
    broken : tuple of str
        Rules that it breaks, other than memory.
    misfits : tuple of Misfit
        Stages beyond the memory of their GPUs, the most overloaded first.
    best : Result
        The result that it is compared with.
    """

    problem: Problem
    placement: Placement
    evaluation: Evaluation | None
    broken: tuple[str, ...]
    misfits: tuple[Misfit, ...]
    best: Result

    @property
    def valid(self) -> bool:
        """Whether the placement breaks no rule and fits."""
        return self.evaluation is not None

    @property
    def throughput(self) -> float | None:
        """Rate in tokens/s; None if it is not valid."""
        return given(self.evaluation).throughput if self.valid else None

    @property
    def share(self) -> float | None:
        """Throughput as a share of the proven optimum, or of the proven bound: then the true share may be larger.

        None if the placement is not valid, or nothing is proven.
        """
        return given(self.throughput) / self.best.bound if self.valid and self.best.bound else None

    @property
    def outcome(self) -> display.Outcome:
        """Proven if it is the proven optimum; refused if it breaks a rule other than memory."""
        if not self.valid:
            return display.REFUSED if self.broken else display.DOES_NOT_FIT
        proven = self.best.status == "optimal" and given(self.share) >= 1 - ONE_ANSWER
        return display.PROVEN if proven else display.NOT_PROVEN

    @property
    def reasons(self) -> tuple[str, ...]:
        """Every reason against the placement; empty for a valid one."""
        return (*self.broken, *(misfit.sentence for misfit in self.misfits))

    @property
    def sentence(self) -> str:
        """The score in one sentence."""
        if not self.valid:
            unsaid = len(self.reasons) - 1
            more = f" (and {display.counted(unsaid, 'more reason')})" if unsaid else ""
            infeasible = self.best.status == "infeasible"
            none = f" Nor is any other: {self.best.reason}." if infeasible else ""
            return f"This placement is not valid: {self.reasons[0]}{more}.{none}"
        first, *others = given(self.evaluation).bottlenecks
        more = f" and {others[0] if len(others) == 1 else f'{len(others)} more'}" if others else ""
        text = f"{display.rate(given(self.throughput))}, limited by {first}{more}"
        if self.share is None:
            return f"{text}; nothing is proven about the optimum."
        if self.best.status != "optimal":
            most = f"which is not above {display.number(given(self.best.bound))}"
            return f"{text}: at least {self.share:.1%} of the optimum, {most}."
        if self.share >= 1 - ONE_ANSWER:
            return f"{text}: the proven optimum."
        return f"{text}: {self.share:.1%} of the proven optimum of {display.number(given(self.best.bound))}."

    def to_frame(self) -> display.DataFrame:
        """Return one row per stage (`Evaluation.to_frame`) of a valid placement, else one per overloaded stage.

        Returns
        -------
        pandas.DataFrame
            Of overloaded stages: `stage` (counted from 1), `layers` (their number), `gpu`,
            `gpu_type`, `needed_gb`, `offered_gb`, `deficit_gb` and `layers_that_fit`.
        """
        if self.valid:
            return given(self.evaluation).to_frame()
        columns = ["stage", "layers", "gpu", "gpu_type", "needed_gb", "offered_gb", "deficit_gb"]
        rows = [[getattr(misfit, column) for column in columns] for misfit in self.misfits]
        frame = display.data_frame(rows, columns)
        frame["layers"] = frame["layers"].map(len)
        return frame.assign(layers_that_fit=[m.most_layers for m in self.misfits])

    def __repr__(self) -> str:
        return f"<Score: {self.sentence}>"

    def _repr_html_(self) -> str:
        head = f"<p>{self.outcome.html}: {escape(self.sentence)}</p>"
        if self.valid:
            return head + given(self.evaluation)._repr_html_()
        listed = "".join(f"<li>{escape(reason)}</li>" for reason in self.reasons)
        html = f"{head}<ul>{listed}</ul>"
        return html + display.table(self.to_frame(), digits=4) if self.misfits else html


@checked_arguments
def score(
    problem: arguments.AskedProblem,
    placement: Placement | Result,
    best: Annotated[
        InstanceOf[Result] | None, described("a Result, such as pl.solve(problem)")
    ] = None,
    *,
    time_limit: float | None = 60,
) -> Score:
    """Evaluate a placement, and say how far it is from the best or why it does not fit.

    Parameters
    ----------
    problem : Problem
        Gives the rules and rates.
    placement : Placement or Result
        The placement to score; of a result, its placement.
    best : Result, optional
        The result to compare with; by default that of `solve`.
    time_limit : float, optional
        Seconds for that solve, 60 by default. If it runs out, the share is one of the proven bound.

    Returns
    -------
    Score
        A placement that breaks a rule or does not fit has a score, too: all reasons.

    Raises
    ------
    InvalidValue
        `best` is not a result of this problem (the placement is faster than its bound), `problem` is
        not a Problem, or `placement` is neither a Placement nor a Result with one.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", max_gpus_per_stage=2)
    >>> print(pl.score(tiny, pl.Placement.of([(2, (0,)), (2, (1,))])).sentence)
    213.5 tokens/s, limited by stage 1 and stage 2: 70.8% of the proven optimum of 301.8.
    >>> print(pl.score(tiny, pl.Placement.of([(3, (0,))])).sentence)
    This placement is not valid: layer 4 is not assigned to any stage, left out at the end.
    """
    placement = placement_in(placement, "score")
    broken: tuple[str, ...] = tuple(broken_rules(problem, placement))
    misfits = _misfits(problem, placement)
    evaluation = None
    if not broken and not misfits:
        try:
            evaluation = evaluate(problem, placement)
        except InvalidPlacement as error:
            # all fits, and still a stage has no rate: times left out of `Measured`
            broken = error.defects
    if best is None:
        best = solve(problem, time_limit=time_limit)
    if evaluation is not None:
        _refuse_other_problem(evaluation, best)
    return Score(
        problem=problem,
        placement=placement,
        evaluation=evaluation,
        broken=broken,
        misfits=misfits,
        best=best,
    )


def _refuse_other_problem(evaluation: Evaluation, best: Result) -> None:
    if best.status == "infeasible":
        claim = "that there is no placement"
    elif best.bound is not None and evaluation.throughput > best.bound * (1 + SOLVER):
        claim = f"at most {best.bound:,.7g} tokens/s"
    else:
        return
    expected = (
        f"expected a result of this problem: it claims {claim}, yet this one yields "
        f"{evaluation.throughput:,.7g}"
    )
    raise InvalidValue("score", [("best", best.problem.name, expected)])


def _misfits(problem: Problem, placement: Placement) -> tuple[Misfit, ...]:
    """Return the overloaded stages among those whose layers and GPUs exist, most overloaded first."""
    misfits, gpus = [], problem.cluster.gpus
    for i, stage in enumerate(placement.stages, 1):
        layers = stage.layers
        exists = layers.start >= 0 and layers.stop <= problem.model.layers
        if not (exists and stage.gpus and all(0 <= g < len(gpus) for g in stage.gpus)):
            continue
        lacking = _lacking(problem, stage)
        if lacking is not None:
            g, needed = lacking
            most = _most(problem, stage)
            misfits.append(
                Misfit(
                    stage=i,
                    layers=layers,
                    gpu=g,
                    gpu_type=gpus[g].type,
                    needed_gb=needed,
                    offered_gb=gpus[g].memory_gb,
                    most_layers=most,
                )
            )
    return tuple(sorted(misfits, key=lambda m: -m.deficit_gb))


def _lacking(problem: Problem, stage: Stage) -> tuple[int, float] | None:
    """Return the GPU of a stage that lacks most memory, and what it needs; None if all have enough."""
    gpus = [problem.cluster.gpus[g] for g in stage.gpus]
    need = problem.stage_cost(gpus, stage.layers).memory_gb
    if all(fits_in(n, gpu.memory_gb) for n, gpu in zip(need, gpus, strict=True)):
        return None
    lacks = (n - gpu.memory_gb for n, gpu in zip(need, gpus, strict=True))
    _, needed, g = max(zip(lacks, need, stage.gpus, strict=True))
    return g, needed


def _most(problem: Problem, stage: Stage) -> int:
    """Return the most layers, from the stage's first one on, that fit; tried in turn: rules may be of any kind."""
    for count in range(len(stage.layers) - 1, 0, -1):
        fewer = Stage(range(stage.layers.start, stage.layers.start + count), stage.gpus)
        if _lacking(problem, fewer) is None:
            return count
    return 0
