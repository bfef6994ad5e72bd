"""What a search for deployments knows: its columns, the best deployment so far, and what proves how far it is off."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pipelab.engine.deadline import Deadline
from pipelab.engine.deployments.master_program import (
    DeploymentGoal,
    PipelineColumn,
    Prices,
    solve_relaxation,
    solve_whole_program,
)
from pipelab.engine.deployments.offers import halves
from pipelab.engine.deployments.pricing import Offer
from pipelab.engine.deployments.rounding import as_often_as_chosen, round_down_and_fill
from pipelab.engine.solvers.solver_run import Progress
from pipelab.engine.tolerances import ONE_ANSWER

ROUNDING_SECONDS = 5.0  # for the whole program over the columns that are known
_MOST_COLUMNS_RELAXED = 2_000  # in a linear program that takes a moment
_PRICE_MARGIN_SHARE = 1e-9  # of the price of all GPUs: rounding in sums of prices


@dataclass
class DeploymentSearch:
    """What is known in a search for one goal: columns, the best deployment of them, and bounds.

    Attributes
    ----------
    offers : list of Offer
        Workloads that pipelines can have, all over the same classes of GPUs. An offer whose numbers in flight were
        halved is replaced by its halves.
    goal : DeploymentGoal
    gap : float
        Stop where the best may be at most this much better, as a share.
    enough : float
        Stop once a deployment has this value.
    columns : list of PipelineColumn
    best : list of PipelineColumn
        The pipelines of the best deployment so far, repeated.
    prices : Prices or None
        Prices that give the best bound so far.
    bounds : dict of str to float
        What no deployment beats, by what proves it: "work of stages", "prices of pipelines", "mixes of GPUs", "lists
        of pipelines", "single pipelines".
    settled : bool
        The best deployment so far was proven to be the best, whatever the bound says.
    steps : int
        Extensions of labels in all lists (`Listing.steps`).
    """

    offers: list[Offer]
    goal: DeploymentGoal
    deadline: Deadline
    on_progress: Callable | None = None
    gap: float = 0.0
    enough: float = np.inf
    columns: list[PipelineColumn] = field(default_factory=list)
    best: list[PipelineColumn] | None = None
    prices: Prices | None = None
    rounds: int = 0
    settled: bool = False
    bounds: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    progress: list[Progress] = field(default_factory=list)
    _seen: set[PipelineColumn] = field(default_factory=set)
    _best_rate: dict[tuple[str, tuple[int, ...]], float] = field(default_factory=dict)

    @property
    def value(self) -> float | None:
        """What the best deployment so far is compared by; None before the first."""
        return None if self.best is None else self.goal.value(self.best)

    @property
    def bound(self) -> float | None:
        """The best of the bounds; None before the first."""
        return (max if self.goal.load else min)(self.bounds.values(), default=None)

    def knows(self, bound: float, what: str) -> None:
        """Keep a bound on all deployments, and what proves it, if it is better."""
        better = max if self.goal.load else min
        self.bounds[what] = better(bound, self.bounds.get(what, bound))

    @property
    def open(self) -> float:
        """The share by which a deployment may be better than the best so far; infinite without one."""
        if self.best is None or self.bound is None or not self.value:
            return np.inf
        distance = self.bound / self.value - 1
        return max(0.0, -distance if self.goal.load else distance)

    @property
    def proven(self) -> bool:
        """Whether no deployment is better than the best."""
        return self.settled or self.open <= ONE_ANSWER

    @property
    def finished(self) -> bool:
        """Whether the best is proven, or good enough, or within the gap that was asked for."""
        return self.proven or self.open <= self.gap or (self.value or 0.0) >= self.enough

    @property
    def slack(self) -> float:
        """The most that a pipeline of a better deployment may be below the price of its GPUs, in units of the bound."""
        if self.prices is None:
            return np.inf
        # no pipeline is further below: its rate is above 0, and its GPUs cost no more than all
        of_all_gpus = float(self.prices.cost @ self.goal.counts) * self.prices.unit
        most = of_all_gpus * (1 + _PRICE_MARGIN_SHARE)
        if self.value is None:
            return most
        return min(most, abs(self.prices.bound - self.value) + _PRICE_MARGIN_SHARE * most)

    @property
    def pipelines(self) -> list[PipelineColumn]:
        """The columns that are pipelines."""
        return [column for column in self.columns if column.exists]

    def add_column(self, column: PipelineColumn) -> int:
        """Add a column unless it is known or has no rate; return how many were added."""
        key = column._replace(stages=(), at=-1)
        if key in self._seen or not column.rate:
            return 0
        self._seen.add(key)
        self.columns.append(column)
        if column.exists:
            mix = column.offer.pool, column.gpus
            self._best_rate[mix] = max(self._best_rate.get(mix, 0.0), column.rate)
        return 1

    def keep_if_better(self, chosen: list[PipelineColumn]) -> None:
        """Take a deployment for the best if it is better."""
        if not self.goal.served(chosen) or not min(self.goal.serves(chosen).values()):
            return
        value, best = self.goal.value(chosen), self.value
        if best is None or (value < best if self.goal.load else value > best):
            self.best = chosen

    def round_relaxation(self) -> None:
        """Make a deployment from the relaxation over the columns that are pipelines."""
        columns = self.pipelines
        if len(columns) > _MOST_COLUMNS_RELAXED and self.prices is not None:
            profit = [self.prices.profit(column) for column in columns]
            columns = [columns[i] for i in np.argsort(profit)[-_MOST_COLUMNS_RELAXED:]]
        answer = solve_relaxation(self.goal, columns)
        if answer is not None:
            self.keep_if_better(round_down_and_fill(self.goal, columns, answer.number))

    def solve_whole_for(self, seconds: float) -> None:
        """Solve the whole program over all columns, for at most these seconds."""
        self.round_relaxation()
        if self.pipelines and not self.finished:
            self._solve_whole(self.pipelines, self.deadline.within(seconds))
            self.report_progress()
        self.deadline.check()

    def _solve_whole(self, columns: list[PipelineColumn], deadline: Deadline) -> bool:
        """Keep the best deployment of some columns; return whether the whole program was solved."""
        run = solve_whole_program(self.goal, columns, deadline)
        if run.x is not None:
            self.keep_if_better(as_often_as_chosen(columns, run.x))
        return run.status in ("optimal", "infeasible")

    def halve(self, offer: Offer) -> list[Offer]:
        """Put the halves of an offer in its place."""
        parts = halves(offer, self.deadline)
        self.offers = [other for other in self.offers if other is not offer] + parts
        return parts

    def report_progress(self) -> None:
        moment = Progress(
            seconds=self.deadline.spent, incumbent=self.value, bound=self.bound, nodes=self.rounds
        )
        self.progress.append(moment)
        if self.on_progress is not None:
            self.on_progress(moment)
        self.deadline.ask(moment)
