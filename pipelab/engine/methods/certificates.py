"""Why nothing is faster, as something that can be checked without a solver.

The next higher rate that any stage or link has is out of reach, because dual prices say so
(`duals`), or whole stages, links or positions in the model do, in cases that are
refuted one by one (`refutation`). What rests on a solver's answer alone says so first.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np

from pipelab.cluster import GPU
from pipelab.display import counted, listed, table
from pipelab.engine.duals import dual_prices
from pipelab.engine.infeasible import why_no_layer_fits
from pipelab.engine.instance import Instance, instance_of
from pipelab.engine.layer_runs import runs_of
from pipelab.engine.methods.refutation import (
    Branch,
    Leaf,
    check_refutation,
    leaves_of,
    refute,
)
from pipelab.engine.reach import Reach
from pipelab.engine.search import Search, walks
from pipelab.engine.solvers.linear_program import LinearProgram
from pipelab.engine.tolerances import LAST_BITS
from pipelab.engine.walk import Circuit, Walk
from pipelab.errors import InvalidValue, NotApplicable, PipelabError, TooLarge
from pipelab.fields import given
from pipelab.problem import Problem
from pipelab.solving import Result

if TYPE_CHECKING:
    from pandas import DataFrame

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
        "no stage": nothing fits anywhere; "no faster stage"; "dual prices": at their prices all
        GPUs together cost less than the layers' dual prices add up to; "whole stages": they would do in parts,
        but not in whole stages; "links": all layers could be held, but no order of stages has only
        links of that rate; "position": layers differ, and no path of stages and links of that rate
        leads through the model.
    prices : tuple of Fraction
        Of a GPU of each kind, in layers at that rate, in the order of `cluster.kinds`.
    values : tuple of Fraction
        Of each layer, mostly 1. No stage that reaches the rate holds layers whose dual prices exceed its
        GPUs cost.
    most_layers : int or None
        No placement at that rate holds more; None where that was not computed.
    idle : tuple of int
        Kinds of which no GPU is in any stage that reaches the rate.
    circuits : tuple of tuples of Circuit
        Where `by` is "links": what a pipeline must enter from outside, in each part of the cluster.
    cases : tuple of Branch or Leaf, or None
        Where `by` is "whole stages", "links" or "position": the cases, each with weights that
        refute it; one tree for each part of the cluster that a pipeline may be in.
    """

    problem: Problem
    throughput: float | None
    rate: float | None
    by: str
    prices: tuple[Fraction, ...]
    values: tuple[Fraction, ...]
    most_layers: int | None
    idle: tuple[int, ...] = ()
    circuits: tuple[tuple[Circuit, ...], ...] = ()
    cases: tuple[Branch | Leaf, ...] | None = None

    @property
    def refutes(self) -> bool:
        """Whether `check()` can verify it; False if only a solver's answer supports it."""
        return self.by in _BY_STAGES or self.cases is not None

    @property
    def left_over(self) -> int | None:
        """Layers that no GPU could hold at that rate."""
        return None if self.most_layers is None else self.problem.model.layers - self.most_layers

    @property
    def total_price(self) -> Fraction:
        """What all GPUs cost together, in layers."""
        return sum((n * u for n, _, u in self._named()), Fraction(0))

    @property
    def total_value(self) -> Fraction:
        """Dual prices of all layers together; their number where each is 1."""
        return sum(self.values, Fraction(0))

    @property
    def sentence(self) -> str:
        """The proof in words; the first ones say so if it is none."""
        if self.refutes:
            return self._claim
        return (
            "Not verified: this rests on the solver's answer, since its tree of cases grew too large. "
            + self._claim
        )

    @property
    def _claim(self) -> str:
        if self.by == "no stage":
            return f"No stage fits anywhere: {why_no_layer_fits(self.problem)}."
        if self.rate is None:
            return f"No stage is faster than {self.throughput:,.7g} tokens/s, so no placement is."
        layers = self.problem.model.layers
        head = f"The next higher rate is {self.rate:,.7g} tokens/s. "
        if self.throughput is None:
            head = f"Even at the lowest rate, {self.rate:,.7g} tokens/s, there is no placement. "
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
        idle = ", ".join(dict.fromkeys(self._names[k] for k in self.idle))
        parts = ([priced] if priced else []) + ([f"{idle} can hold none"] if idle else [])
        among = "; ".join(parts)
        if all(v == 1 for v in self.values):
            return (
                f"There all GPUs together hold at most {self.most_layers} of the {layers} layers ({among}): "
                f"{self.left_over} left over."
            )
        odd = [f"layer {i} counts as {v}" for i, v in enumerate(self.values, 1) if v != 1]
        some = (
            listed(odd)
            if len(odd) <= 3
            else f"layers count from {min(self.values)} to {max(self.values)}"
        )
        return (
            f"There all GPUs together hold at most {self.total_price} layers ({among}), and the model's {layers} count "
            f"as {self.total_value}: {some}."
        )

    @property
    def _told(self) -> str:
        if self.cases is None:
            return ""
        number = sum(map(leaves_of, self.cases))
        shown = "infeasible" if number == 1 else f"{counted(number, 'case')}, each infeasible"
        return f" ({shown} by a Farkas certificate; verify with .check())"

    @property
    def _names(self) -> list[str]:
        """Of every kind its type, with the memory where types are not clear."""
        kinds = self.problem.cluster.kinds
        sizes = Counter(name for name, _ in {(k.type, k.memory_gb) for k in kinds})
        return [k.type if sizes[k.type] == 1 else f"{k.type} ({k.memory_gb:g} GB)" for k in kinds]

    def _named(self) -> list[tuple[int, str, Fraction]]:
        """Number, name and price of every kind, nodes aside."""
        number: Counter = Counter()
        for i, n in enumerate(self.problem.cluster.kind_count.tolist()):
            number[self._names[i], self.prices[i]] += n
        return [(n, name, price) for (name, price), n in number.items()]

    def to_frame(self) -> "DataFrame":
        """One row per kind of GPU: how many there are, the price of each in layers at the next rate, and together."""
        import pandas as pd

        kinds = self.problem.cluster.kinds
        return pd.DataFrame(
            {
                "gpu_type": [kind.type for kind in kinds],
                "memory_gb": [kind.memory_gb for kind in kinds],
                "count": self.problem.cluster.kind_count,
                "layers_per_gpu": [str(u) for u in self.prices],
                "layers": [
                    float(n * u)
                    for n, u in zip(self.problem.cluster.kind_count, self.prices, strict=True)
                ],
            }
        )

    def check(self) -> int:
        """Check the certificate in exact arithmetic, without a solver.

        Dual prices are checked with the cost model's own `stage`, one possible stage after the
        other: every mixture of GPUs that the rules allow is evaluated with every span of
        layers. This shares no code with the program that found the prices. Cases are checked one by
        one against the rows of the counting program.

        Returns
        -------
        int
            Number of stages, or of cases, looked at.

        Raises
        ------
        PipelabError
            Some stage reaches the rate with layers whose dual prices exceed its GPUs', or all
            GPUs cost as much as all layers, or some case is not refuted: this is no proof.
        InvalidValue
            Nothing can be checked here: see `refutes`.
        TooLarge
            More stages than anyone would wait for.
        """
        if not self.refutes:
            expected = "expected a certificate that refutes: this one rests on a solver's word"
            raise InvalidValue("certificate", [("by", self.by, expected)])
        instance = instance_of(self.problem)
        following = _next_rate(instance, self.throughput)
        if self.rate != following:
            raise PipelabError(
                f"the next higher rate is {following}, not {self.rate}, so this is no proof"
            )
        if self.cases is not None:
            programs = given(programs_of(instance, self))
            leaves = [check_refutation(*own) for own in zip(programs, self.cases, strict=True)]
            if not all(leaves):
                raise PipelabError("some case is not refuted by its weights, so this is no proof")
            return sum(leaves)
        if any(u < 0 for u in self.prices):
            raise PipelabError(
                "a GPU has a price below 0, so a GPU that is not used would count: this is no proof"
            )
        number, price_of = 0, dict(zip(self.problem.cluster.kinds, self.prices, strict=True))
        for kind, i in zip(self.problem.cluster.kinds, instance.type_of_kind, strict=True):
            price_of[instance.types[i]] = price_of[kind]
        for gpus, layers in self._stages(instance):
            number += 1
            cost = self.problem.stage_cost(gpus, layers)
            if not cost.fits(gpus):
                continue
            if self.by == "no stage":
                broken = cost.throughput > 0
            elif self.rate is None:
                broken = cost.throughput > given(self.throughput) * (1 + LAST_BITS)
            else:
                price = sum((price_of[g] for g in gpus), Fraction(0))
                value = sum(self.values[layers.start : layers.stop], Fraction(0))
                broken = cost.throughput * (1 + LAST_BITS) >= self.rate and value > price
            if broken:
                raise PipelabError(
                    f"{[g.type for g in gpus]} with {len(layers)} layers contradict the certificate"
                )
        if self.rate is not None and self.total_price >= self.total_value:
            raise PipelabError(
                f"the GPUs' prices sum to {self.total_price} and the layers' to {self.total_value}, which is no proof"
            )
        return number

    def _stages(self, instance: Instance) -> Iterator[tuple[tuple[GPU, ...], range]]:
        """Every mixture of GPUs with every span; where identical nodes count as one, of GPUs in no node and of one."""
        problem, kinds = self.problem, instance.types
        there = dict(zip(kinds, instance.count.tolist(), strict=True))
        largest = min(problem.max_gpus_per_stage, len(problem.cluster))
        spans = [
            range(a, b)
            for a in range(problem.model.layers)
            for b in range(a + 1, problem.model.layers + 1)
        ]
        if problem.model.uniform and len(set(self.values)) <= 1:
            spans = [s for s in spans if s.start == 0]
        mixtures = sum(math.comb(len(kinds) + k - 1, k) for k in range(1, largest + 1))
        if mixtures * len(spans) > _MOST_STAGES_CHECKED:
            size = {"stages": mixtures * len(spans)}
            raise TooLarge(
                f"the check would look at {mixtures * len(spans):,} stages one by one", size
            )
        for number in range(1, largest + 1):
            for gpus in combinations_with_replacement(kinds, number):
                possible = all(gpus.count(g) <= there[g] for g in set(gpus))
                if possible and (not problem.same_type_stages or len({g.type for g in gpus}) == 1):
                    yield from ((gpus, span) for span in spans)
        largest_of = {node.sort: node for node in sorted(instance.nodes, key=lambda n: len(n.gpus))}
        for node in largest_of.values():
            gpu, most = problem.cluster.gpus[node.gpus[0]], len(node.gpus)
            for number in range(2, min(most, largest) + 1):
                yield from (((gpu,) * number, span) for span in spans)

    def __str__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(self.sentence)}</p>" + (
            table(self.to_frame()) if self.rate is not None else ""
        )


def certificate(result: Result) -> Certificate:
    """Why nothing is faster: the next higher rate, and what is missing there.

    Parameters
    ----------
    result : Result
        Proven optimal or infeasible, by any method.

    Returns
    -------
    Certificate
        `sentence` is the proof in words; `rate`, in tokens/s, the next higher one; `prices` how
        many layers a GPU of each kind is good for there. `check()` checks it.

    Raises
    ------
    NotApplicable
        Memory keeps the placement from the greatest rate: this proof is of rates.
    InvalidValue
        The result is not proven, holds under a limit only, or is of something else than throughput:
        there is nothing to certify.
    PipelabError
        A placement of that rate exists after all: the result is wrong.
    TooLarge
        Too many mixtures of too many kinds of GPU would have to be listed.

    Examples
    --------
    >>> import pipelab as pl
    >>> result = pl.solve(pl.load_case("medium", max_gpus_per_stage=2), "aggregated")
    >>> proof = pl.certificate(result)
    >>> proof.left_over, proof.by
    (3, 'whole stages')
    """
    if not isinstance(result, Result) or result.status not in ("optimal", "infeasible"):
        status = getattr(result, "status", result)
        raise InvalidValue(
            "certificate", [("result", status, "expected a result that is optimal or infeasible")]
        )
    if "under_limit" in result.details:
        expected = f"expected a result without limits; this is {result.reason}"
        raise InvalidValue("certificate", [("result", result.throughput, expected)])
    if result.objective is not None:
        expected = f"expected a result for the greatest throughput; this one has the least {result.objective.unit}"
        raise InvalidValue("certificate", [("result", result.throughput, expected)])
    problem, instance = result.problem, instance_of(result.problem)
    nothing = (Fraction(0),) * len(problem.cluster.kinds)
    ones = (Fraction(1),) * problem.model.layers
    if not len(instance.thresholds):
        return Certificate(problem, None, None, "no stage", nothing, ones, 0)
    rate = _next_rate(instance, result.throughput)
    if rate is None:
        return Certificate(problem, result.throughput, None, "no faster stage", nothing, ones, None)
    prices, values = dual_prices(instance, rate)
    proof = Certificate(
        problem, result.throughput, rate, "dual prices", prices, values, None, _idle(instance, rate)
    )
    if proof.total_price < proof.total_value:
        plain = all(v == 1 for v in values)
        return replace(proof, most_layers=math.floor(proof.total_price)) if plain else proof
    if not runs_of(problem.model).alike_inside:
        return _with_cases(_without_a_path(proof, instance), instance)
    # Each step may leave out less; where mixtures are too many to list, the last one proves
    # nothing.
    for by in ("whole stages", "links"):
        walks = walks_of(instance, rate, by)
        held, circuits = zip(*map(most_layers, walks), strict=True)
        if max(held) < problem.model.layers:
            if any(walk.stages.links.narrowed for walk in walks):
                raise TooLarge(
                    "a proof would have to list too many mixtures of classes",
                    {"classes": len(instance.classes)},
                )
            found = replace(proof, by=by, most_layers=max(held), circuits=circuits)
            return _with_cases(found, instance)
    if result.memory_for is None and "rounds" in result.details:
        own, number = given(result.evaluation), result.in_flight
        expected = (
            f"expected one that attains the greatest rate, as this proof is of rates: memory holds {number} in "
            f"flight, and with so many no placement may attain its rate (this one's, {own.rate:.7g}, needs "
            f"{own.in_flight_needed}). "
            f"certificate(solve(problem.with_in_flight({number}), objective='rate')) proves which rate none exceeds"
        )
        raise NotApplicable("certificate", [("result", result.throughput, expected)])
    raise PipelabError(
        f"a placement of {rate:,.7g} tokens/s exists, so {result.throughput} is not the best"
    )


def _next_rate(instance: Instance, throughput: float | None) -> float | None:
    """The lowest rate of any stage or link above the answer; None if there is none."""
    reached = -1 if throughput is None else instance.index_of(throughput)
    higher = instance.thresholds[reached + 1 :]
    return float(higher[0]) if len(higher) else None


def _with_cases(proof: Certificate, instance: Instance) -> Certificate:
    """The proof with cases that can be checked, if some were found in time."""
    programs = programs_of(instance, proof)
    trees = [refute(program) for program in programs or ()]
    cases = tuple(tree for tree in trees if tree is not None)
    return replace(proof, cases=cases) if cases and len(cases) == len(trees) else proof


def _idle(instance: Instance, rate: float) -> tuple[int, ...]:
    """Kinds that are in no stage of that rate."""
    busy, reach = np.zeros(len(instance.types), dtype=bool), Reach(instance, rate)
    for takes, _ in reach.choices + reach.in_nodes_by_type:
        for _, own in takes:
            busy |= own
    return tuple(np.flatnonzero(~busy[instance.type_of_kind]).tolist())


def _without_a_path(proof: Certificate, instance: Instance) -> Certificate:
    """Layers differ: ask the search itself whether the rate can be reached."""
    index = int(np.searchsorted(instance.thresholds, given(proof.rate)))
    reached = Search(instance).reaches(index)
    if reached:
        raise PipelabError(
            f"a placement of {proof.rate:,.7g} tokens/s exists, so the result is not the best"
        )
    if reached is None:
        raise TooLarge(
            "a proof would have to list too many mixtures of classes",
            {"classes": len(instance.classes)},
        )
    return replace(proof, by="position")


def most_layers(walk: Walk) -> tuple[int, tuple[Circuit, ...]]:
    """The most layers, up to all, that whole stages can hold in a pipeline; and the circuits that were forbidden."""
    held, most = 0, walk.stages.problem.model.layers
    while held < most:
        enough = (held + most + 1) // 2
        end = replace(walk, fewest=enough).solved()
        walk = replace(walk, circuits=end.walk.circuits)
        held, most = (held, enough - 1) if end.order is None else (enough, most)
    return held, walk.circuits


def programs_of(instance: Instance, proof: Certificate) -> list[LinearProgram] | None:
    """The programs that have no solution: any pipeline of more layers than `most_layers`, part by part.

    None where mixtures were left out: what they do not know they cannot exclude.
    """
    walks = walks_of(instance, given(proof.rate), proof.by)
    if any(walk.stages.links.narrowed for walk in walks):
        return None
    fewest = None if proof.by == "position" else given(proof.most_layers) + 1
    circuits = proof.circuits or ((),) * len(walks)
    return [
        replace(walk, fewest=fewest, circuits=own).program
        for walk, own in zip(walks, circuits, strict=True)
    ]


def walks_of(instance: Instance, rate: float, by: str) -> list[Walk]:
    """Any pipeline of a rate, in every part of the cluster that it may be in."""
    return list(walks(Reach(instance, rate, links=by != "whole stages"), {}, {}))
