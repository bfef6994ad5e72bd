"""Why nothing is faster: a reason that can be checked without a solver.

The next higher rate that any stage or link has is out of reach, because
dual prices say so (`dual_prices.py`), or whole stages, links or positions in the model do, in cases that are refuted
one by one (`refutation.py`). A certificate for which neither was found says so first.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from pipelab.checked import given
from pipelab.costs import MEMORY_SLACK
from pipelab.errors import InvalidValue, PipelabError, TooLarge
from pipelab.formulations.aggregated.counting import Counting
from pipelab.formulations.aggregated.dual_prices import dual_prices
from pipelab.formulations.aggregated.layered import Layered
from pipelab.formulations.aggregated.rates import StageRates, index_of_rate, stage_rates
from pipelab.formulations.aggregated.recipes import Recipes, patterns_at, recipes_at
from pipelab.formulations.aggregated.usage import Limits
from pipelab.formulations.refutation import Branch, Leaf, check_refutation, leaves_of, refute
from pipelab.html import table
from pipelab.infeasible import why_no_layer_fits
from pipelab.methods.search import Search
from pipelab.methods.solvers import check_solver, run_program
from pipelab.problem import Problem
from pipelab.program import Columns, LinearProgram, RowBlock
from pipelab.result import Result
from pipelab.words import counted, listed

if TYPE_CHECKING:
    from pipelab.kinds import DataFrame

__all__ = ["Certificate", "certificate"]

_MOST_STAGES_CHECKED = 300_000
_BY_STAGES = ("no stage", "no faster stage", "dual prices")


@dataclass(frozen=True, eq=False)
class Certificate:
    """Why nothing is faster than a proven answer.

    Attributes
    ----------
    throughput : float or None
        The proven answer in tokens/s; None where no placement exists at all.
    rate : float or None
        The next higher rate that any stage or link has; None if no stage is faster than the answer.
    by : str
        "no stage": nothing fits anywhere; "no faster stage"; "dual prices": at their prices all GPUs together cost
        less than the layers are worth; "whole stages": they would do in parts, but not in whole stages; "links": all
        layers could be held, but no order of stages has only links of that rate; "position": layers differ, and no
        path of stages and links of that rate leads through the model.
    prices : tuple of Fraction
        Of a GPU of each kind, in layers at that rate, in the order of `cluster.kinds`.
    values : tuple of Fraction
        Of each layer, mostly 1. No stage that reaches the rate holds layers worth more than its GPUs cost.
    most_layers : int or None
        No placement at that rate holds more; None where that was not computed.
    idle : tuple of int
        Kinds of which no GPU is in any stage that reaches the rate.
    loose : bool
        Where `by` is "links": that links reach the rate for one GPU of every stage only is too much already.
    cases : Branch, Leaf or None
        Where `by` is "whole stages", "links" or "position": the cases, each with weights that refute it.
    """

    problem: Problem
    throughput: float | None
    rate: float | None
    by: str
    prices: tuple[Fraction, ...]
    values: tuple[Fraction, ...]
    most_layers: int | None
    idle: tuple[int, ...] = ()
    loose: bool = False
    cases: Branch | Leaf | None = None

    @property
    def refutes(self) -> bool:
        """Whether `check` can tell; False where only a solver's word is known."""
        return self.by in _BY_STAGES or self.cases is not None

    @property
    def left_over(self) -> int | None:
        """Layers that nobody could hold at that rate."""
        return None if self.most_layers is None else self.problem.model.layers - self.most_layers

    @property
    def total_price(self) -> Fraction:
        """What all GPUs cost together, in layers."""
        return sum((n * u for n, _, u in self._named()), Fraction(0))

    @property
    def total_value(self) -> Fraction:
        """What all layers are worth together; their number where each counts once."""
        return sum(self.values, Fraction(0))

    @property
    def sentence(self) -> str:
        """The proof in words; the first ones say so if it is none."""
        if self.refutes:
            return self._claim
        return "No proof, only a solver's word: too many cases would have to be told apart. " + self._claim

    @property
    def _claim(self) -> str:
        if self.by == "no stage":
            return f"No stage fits anywhere: {why_no_layer_fits(self.problem)}."
        if self.rate is None:
            return f"No stage is faster than {self.throughput:.7g} tokens/s, so no placement is."
        layers = self.problem.model.layers
        head = f"The next higher rate is {self.rate:.7g} tokens/s. "
        if self.throughput is None:
            head = f"Even at the lowest rate, {self.rate:.7g} tokens/s, there is no placement. "
        if self.by == "dual prices":
            return head + self._by_prices(layers)
        if self.by == "whole stages":
            most, rest = self.most_layers, self.left_over
            return f"{head}There whole stages hold at most {most} of the {layers} layers: {rest} left over{self._told}."
        if self.by == "links":
            return (
                f"{head}The GPUs could hold all layers there, but stages joined by links of that rate hold at most "
                f"{self.most_layers} of the {layers} layers{self._told}."
            )
        path = "No sequence of stages joined by links that reach it covers the layers from first to last"
        return f"{head}{path}{self._told}."

    def _by_prices(self, layers: int) -> str:
        priced = ", ".join(f"{n} × {t} at {u}" for n, t, u in self._named() if u)
        idle = ", ".join(name for k, (_, name, _) in enumerate(self._named()) if k in self.idle)
        parts = ([priced] if priced else []) + ([f"{idle} can hold none"] if idle else [])
        among = "; ".join(parts)
        if all(v == 1 for v in self.values):
            return (
                f"There all GPUs together hold at most {self.most_layers} of the {layers} layers ({among}): "
                f"{self.left_over} left over."
            )
        odd = [f"layer {i} counts as {v}" for i, v in enumerate(self.values, 1) if v != 1]
        some = listed(odd) if len(odd) <= 3 else f"layers count from {min(self.values)} to {max(self.values)}"
        return (
            f"There all GPUs together hold at most {self.total_price} layers ({among}), and the model's {layers} count "
            f"as {self.total_value}: {some}."
        )

    @property
    def _told(self) -> str:
        if self.cases is None:
            return ""
        number = leaves_of(self.cases)
        shown = "refuted" if number == 1 else f"{counted(number, 'case')}, each refuted"
        return f" ({shown} by weights of the program's rows, which .check() adds up)"

    def _named(self) -> list[tuple[int, str, Fraction]]:
        """Number, name and price of every kind; the name has the memory where types alone are not clear."""
        kinds = self.problem.cluster.kinds
        types = [kind.type for kind in kinds]
        names = [t if types.count(t) == 1 else f"{t} ({k.memory_gb:g} GB)" for t, k in zip(types, kinds, strict=True)]
        return list(zip(self.problem.cluster.kind_count.tolist(), names, self.prices, strict=True))

    def frame(self) -> "DataFrame":
        """One row per kind of GPU: how many there are, the price of each in layers at the next rate, and together."""
        import pandas as pd

        kinds = self.problem.cluster.kinds
        return pd.DataFrame(
            {
                "gpu_type": [kind.type for kind in kinds],
                "memory_gb": [kind.memory_gb for kind in kinds],
                "count": self.problem.cluster.kind_count,
                "layers_per_gpu": [str(u) for u in self.prices],
                "layers": [float(n * u) for n, _, u in self._named()],
            }
        )

    def check(self) -> int:
        """Check the certificate in exact arithmetic, without a solver.

        Dual prices are checked with the cost model's own `stage`, one possible stage after the other: every mixture of
        GPUs that the rules allow is asked what it yields with every span of layers. This shares no code with the
        program that found the prices. Cases are checked one by one against the rows of the counting program.

        Returns
        -------
        int
            Number of stages, or of cases, looked at.

        Raises
        ------
        PipelabError
            Some stage reaches the rate with layers worth more than its GPUs cost, or all GPUs cost as much as all
            layers are worth, or some case is not refuted: this is no proof.
        InvalidValue
            Nothing can be checked here: see `refutes`.
        TooLarge
            More stages than anyone would wait for.
        """
        if not self.refutes:
            expected = "expected a certificate that refutes: this one rests on a solver's word"
            raise InvalidValue("certificate", [("by", self.by, expected)])
        if self.cases is not None:
            leaves = check_refutation(_program(stage_rates(self.problem), self), self.cases)
            if not leaves:
                raise PipelabError("some case is not refuted by its weights, so this is no proof")
            return leaves
        number = 0
        for gpus, layers in self._stages():
            number += 1
            cost = self.problem.costs.stage(
                self.problem.model, self.problem.workload, gpus, layers, self.problem.batch_split
            )
            if any(m > g.memory_gb * MEMORY_SLACK for m, g in zip(cost.memory_gb, gpus, strict=True)):
                continue
            if self.by == "no stage":
                broken = cost.throughput > 0
            elif self.rate is None:
                broken = cost.throughput > given(self.throughput) * (1 + 1e-9)
            else:
                price = sum((self.prices[self.problem.cluster.kinds.index(g)] for g in gpus), Fraction(0))
                value = sum(self.values[layers.start : layers.stop], Fraction(0))
                broken = cost.throughput >= self.rate and value > price
            if broken:
                raise PipelabError(f"{[g.type for g in gpus]} with {len(layers)} layers contradict the certificate")
        if self.rate is not None and self.total_price >= self.total_value:
            raise PipelabError(
                f"the GPUs cost {self.total_price} and the layers are worth {self.total_value}, which is no proof"
            )
        return number

    def _stages(self) -> Any:
        problem, kinds = self.problem, self.problem.cluster.kinds
        there = dict(zip(kinds, problem.cluster.kind_count, strict=True))
        largest = min(problem.max_gpus_per_stage, len(problem.cluster))
        spans = [range(a, b) for a in range(problem.model.layers) for b in range(a + 1, problem.model.layers + 1)]
        if problem.model.uniform and len(set(self.values)) <= 1:
            spans = [s for s in spans if s.start == 0]
        mixtures = sum(math.comb(len(kinds) + k - 1, k) for k in range(1, largest + 1))
        if mixtures * len(spans) > _MOST_STAGES_CHECKED:
            size = {"stages": mixtures * len(spans)}
            raise TooLarge(f"the check would look at {mixtures * len(spans):,} stages one by one", size)
        for number in range(1, largest + 1):
            for gpus in combinations_with_replacement(kinds, number):
                possible = all(gpus.count(g) <= there[g] for g in set(gpus))
                if possible and (not problem.same_type_stages or len({g.type for g in gpus}) == 1):
                    yield from ((gpus, span) for span in spans)

    def __str__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(self.sentence)}</p>" + (table(self.frame()) if self.rate is not None else "")


def certificate(result: Result, solver: str = "scip") -> Certificate:
    """Why nothing is faster: the next higher rate, and what is missing there.

    Parameters
    ----------
    result : Result
        Proven optimal or infeasible, by any method.
    solver : {"scip", "highs"}
        Who answers the small programs.

    Returns
    -------
    Certificate
        `sentence` is the proof in words; `rate`, in tokens/s, the next higher one; `prices` how many layers a GPU of
        each kind is good for there. `check()` checks it.

    Raises
    ------
    InvalidValue
        The result is not proven, holds under a limit only, or is of something else than throughput: there is nothing to
        certify.
    PipelabError
        A placement of that rate exists after all: the result is wrong.
    TooLarge
        Too many mixtures of too many kinds of GPU would have to be listed.
    UnknownName
        There is no such solver.

    Examples
    --------
    >>> import pipelab as pl
    >>> result = pl.solve(pl.load_case("medium", max_gpus_per_stage=2), "aggregated")
    >>> proof = pl.certificate(result)
    >>> proof.left_over, proof.by
    (3, 'whole stages')
    """
    if not isinstance(result, Result) or result.status not in ("optimal", "infeasible"):
        given = getattr(result, "status", result)
        raise InvalidValue("certificate", [("result", given, "expected a result that is optimal or infeasible")])
    check_solver(solver)
    if "under_limit" in result.details:
        expected = f"expected a result without limits; this is {result.reason}"
        raise InvalidValue("certificate", [("result", result.throughput, expected)])
    if result.objective is not None:
        expected = f"expected a result for the greatest throughput; this one has the least {result.objective.unit}"
        raise InvalidValue("certificate", [("result", result.throughput, expected)])
    problem, rates = result.problem, stage_rates(result.problem)
    nothing = (Fraction(0),) * len(problem.cluster.kinds)
    ones = (Fraction(1),) * problem.model.layers
    if not len(rates.thresholds):
        return Certificate(problem, None, None, "no stage", nothing, ones, 0)
    reached = -1 if result.throughput is None else index_of_rate(rates.thresholds, result.throughput)
    if reached + 1 == len(rates.thresholds):
        return Certificate(problem, result.throughput, None, "no faster stage", nothing, ones, None)
    rate = float(rates.thresholds[reached + 1])
    prices, values = dual_prices(rates, rate)
    proof = Certificate(problem, result.throughput, rate, "dual prices", prices, values, None, _idle(rates, rate))
    if proof.total_price < proof.total_value:
        plain = all(v == 1 for v in values)
        return replace(proof, most_layers=math.floor(proof.total_price)) if plain else proof
    if not problem.model.spans.alike_inside:
        return _with_cases(_without_a_path(proof, rates, solver), rates)
    # Each step may leave out less; where mixtures are too many to list, the last one proves nothing.
    for by, loose in (("whole stages", False), ("links", True), ("links", False)):
        found = _recipes(rates, rate, by, loose)
        most = most_layers(found, solver)
        if most < problem.model.layers:
            if found.order.narrowed:
                raise TooLarge(
                    "a proof would have to list too many mixtures of classes", {"classes": len(rates.classes)}
                )
            return _with_cases(replace(proof, by=by, most_layers=most, loose=loose), rates)
    raise PipelabError(f"a placement of {rate:.7g} tokens/s exists, so {result.throughput} is not the best")


def _with_cases(proof: Certificate, rates: StageRates) -> Certificate:
    """The proof with cases that can be checked, if some were found in time."""
    return replace(proof, cases=refute(_program(rates, proof)))


def _program(rates: StageRates, proof: Certificate) -> LinearProgram:
    """The program that has no solution."""
    found = _recipes(rates, given(proof.rate), proof.by, proof.loose)
    if proof.by == "position":
        return Layered(found, Limits()).program()
    return Counting(found, Limits(), strict=0 if found.order.free else 2).program()


def _recipes(rates: StageRates, rate: float, by: str, loose: bool) -> Recipes:
    return recipes_at(rates, rate, links=by != "whole stages", loose=loose)


def _idle(rates: StageRates, rate: float) -> tuple[int, ...]:
    """Kinds that are in no stage of that rate."""
    busy = np.zeros(len(rates.problem.cluster.kinds), dtype=bool)
    for parts, _ in patterns_at(rates, rate):
        for _, own in parts:
            busy |= own
    return tuple(np.flatnonzero(~busy).tolist())


def _without_a_path(proof: Certificate, rates: StageRates, solver: str) -> Certificate:
    """Layers differ: ask the search itself whether the rate can be reached."""
    reached = Search(rates, solver).reach(int(np.searchsorted(rates.thresholds, given(proof.rate))))
    if reached:
        raise PipelabError(f"a placement of {proof.rate:.7g} tokens/s exists, so the result is not the best")
    if reached is None:
        raise TooLarge("a proof would have to list too many mixtures of classes", {"classes": len(rates.classes)})
    return replace(proof, by="position")


def most_layers(found: Recipes, solver: str = "scip") -> int:
    """The most layers, up to all, that whole stages of these recipes can hold in a pipeline."""
    form = Counting(found, Limits(), strict=0 if found.order.free else 2)
    program = form.program()
    if not program.columns.total:
        return 0
    columns = Columns({**program.columns.sizes, "layers": 1})
    # What is held is no number any more but a column of its own, at most all layers.
    held = ("at_most_all_layers", "at_least_all_layers")
    blocks = {name: _widened(block, -1.0 if name in held else 0.0) for name, block in program.blocks.items()}
    blocks[held[0]].upper[:], blocks[held[1]].lower[:] = 0, 0
    objective = np.zeros(columns.total)
    objective[-1] = 1
    program = LinearProgram(
        columns, np.zeros(columns.total), np.append(program.upper, found.rates.problem.model.layers),
        np.append(program.integer, True), objective, blocks,
    )  # fmt: skip
    run = run_program(solver, program)
    return 0 if run.x is None else int(np.rint(given(run.objective)))


def _widened(block: RowBlock, value: float) -> RowBlock:
    """The same rows with one column more."""
    column = sp.coo_array(np.full((len(block), 1), value))
    return RowBlock(sp.csr_array(sp.hstack([block.matrix, column])), block.lower.copy(), block.upper.copy())
