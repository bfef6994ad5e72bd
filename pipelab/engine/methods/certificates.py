"""Why nothing is faster, as something that can be checked without a solver.

The next higher rate that any stage or link has is out of reach, because dual prices say so
(`dual_prices`), or whole stages, links or positions in the model do. The first is checked stage by stage,
the others by a dynamic program over the GPUs that are used so far (`most_held`).

How many layers is a GPU good for at a given rate?

Give every GPU of kind k a price u_k ≥ 0 and every layer l a value y_l such that no stage that
reaches the rate holds layers of more value than its GPUs cost:

    Σ_(l in stage) y_l ≤ Σ_(g in stage) u_(kind of g)      for every stage that reaches the rate.

A placement that reaches it holds every layer once and uses no GPU twice, so the value of all layers
together is at most what all GPUs cost. If the GPUs cost less, Σ_k N_k u_k < Σ_l y_l, no placement reaches
the rate (Farkas' lemma). Anyone can check it by hand, stage by stage. Usually every layer has the
value 1, and u_k is the number of layers that a GPU of kind k is good for; if the last stage also has
the model's head, the last layer's value is higher.

The best prices are the dual solution of the linear relaxation of the counting program, links aside.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import heappop, heappush
from itertools import accumulate, combinations_with_replacement
from numbers import Rational
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from pipelab.cluster import GPU
from pipelab.costs import refuse_filling
from pipelab.display import DataFrame, data_frame, listed, table
from pipelab.engine.answers import Result
from pipelab.engine.classes import gpu_classes
from pipelab.engine.infeasible import why_no_layer_fits
from pipelab.engine.instance import Instance, instance_of, without_node
from pipelab.engine.reach import AtRate
from pipelab.engine.solvers import highs
from pipelab.engine.solvers.linear_program import VariableGroups, incidence
from pipelab.engine.tolerances import LAST_BITS
from pipelab.errors import InvalidValue, NotApplicable, PipelabError, TooLarge
from pipelab.evaluation import evaluate
from pipelab.fields import Frozen, given
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.spans import Spans

_MOST_STAGES_CHECKED = 300_000
_MOST_CASE_STEPS = 1_000_000  # from a case to the next: some seconds
# stages in the linear program; above, layers that differ are not priced one by one
_MOST_PRICED_STAGES = 20_000
# Denominators to try, the simplest first: a solver's decimals mostly approximate simple fractions.
_DENOMINATORS = (12, 1000, 10**6)
_BY_HELD = ("whole stages", "links")


@dataclass(frozen=True, eq=False, kw_only=True)
class Certificate(Frozen):
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
    placement : Placement or None
        One that has the throughput.
    """

    problem: Problem
    throughput: float | None
    rate: float | None = None
    by: str
    prices: tuple[Fraction, ...]
    values: tuple[Fraction, ...]
    most_layers: int | None = None
    placement: Placement | None = None

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
        """The proof in words."""
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
        held = f"at most {self.most_layers} of the {layers} layers"
        if self.by == "whole stages":
            return f"{head}There whole stages hold {held}: {self.left_over} left over (verify with .check())."
        if self.by == "links":
            joined = f"stages joined by links of that rate hold {held} (verify with .check())"
            return f"{head}The GPUs could hold all layers there, but {joined}."
        path = "No sequence of stages joined by links that reach it covers the layers from first to last"
        return f"{head}{path} (verify with .check())."

    def _by_prices(self, layers: int) -> str:
        priced = ", ".join(f"{n} × {t} at {u}" for n, t, u in self._named() if u)
        held = "There all GPUs together hold at most"
        if all(v == 1 for v in self.values):
            most = f"{self.most_layers} of the {layers} layers ({priced})"
            return f"{held} {most}: {self.left_over} left over."
        odd = [f"layer {i} counts as {v}" for i, v in enumerate(self.values, 1) if v != 1]
        some = f"layers count from {min(self.values)} to {max(self.values)}"
        if len(odd) <= 3:
            some = listed(odd)
        most = f"{self.total_price} layers ({priced})"
        return f"{held} {most}, and the model's {layers} count as {self.total_value}: {some}."

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

    def to_frame(self) -> DataFrame:
        """Return one row per kind of GPU: how many there are, and the price of one and of all in layers at `rate`."""
        kinds, count = self.problem.cluster.kinds, self.problem.cluster.kind_count
        columns = {
            "gpu_type": [kind.type for kind in kinds],
            "memory_gb": [kind.memory_gb for kind in kinds],
            "count": count,
            "layers_per_gpu": [str(u) for u in self.prices],
            "layers": count * np.array(self.prices, dtype=float),
        }
        return data_frame(columns)

    def check(self) -> int:
        """Check everything that the certificate says, in exact arithmetic and without a solver.

        The placement is evaluated. The cost model's own `stage` is asked, one possible stage after the other: every
        mixture of GPUs that the rules allow, with every span of layers. The next rate must be the next of
        these and of the links, and dual prices must cover what reaches it. Where they do not suffice, a dynamic
        program finds what stages can hold in a row, for every number of GPUs of each class that they may
        use. This shares no code with the programs that found the answer.

        Returns
        -------
        int
            Number of stages, or of cases, looked at.

        Raises
        ------
        PipelabError
            Something is not as the certificate says; for example, a stage reaches the rate with layers whose
            dual prices exceed its GPUs', or stages hold more layers: this is no proof.
        TooLarge
            More stages than anyone would wait for.
        """
        self._check_form()
        number, rates = 0, set[float]()
        value_before = [Fraction(0), *accumulate(self.values)]
        for gpus, layers, price in self._stages():
            number += 1
            throughput = _throughput(self.problem, gpus, layers)
            rates.add(throughput)
            if self.rate is not None and throughput * (1 + LAST_BITS) >= self.rate:
                value = value_before[layers.stop] - value_before[layers.start]
                held = f"{[gpu.type for gpu in gpus]} with {len(layers)} layers"
                _proven(value <= price, f"{held} contradict the certificate")
        self._check_rate(rates)
        if self.by in ("whole stages", "links", "position"):
            return self._check_held()
        most = None if self.throughput is not None else 0
        if self.by == "dual prices":
            paid, value = self.total_price, self.total_value
            _proven(paid < value, f"the GPUs' prices sum to {paid} and the layers' to {value}")
            most = math.floor(paid) if all(v == 1 for v in self.values) else None
        _proven(self.most_layers == most, f"GPUs hold {most} layers, not {self.most_layers}")
        return number

    def _check_form(self) -> None:
        """Check that every part is there, of its type, and that the placement has the throughput."""
        problem, by = self.problem, ("no stage",)
        shape = len(problem.cluster.kinds), problem.model.layers
        _proven(shape == (len(self.prices), len(self.values)), f"{shape} prices and values are due")
        exact = all(isinstance(x, Rational) for x in (*self.prices, *self.values))
        _proven(exact and min(self.prices) >= 0, "a price is no fraction of at least 0")
        if self.rate is not None:
            alike = problem.model.spans.alike_inside
            by = ("dual prices", *(_BY_HELD if alike else ("position",)))
        elif self.throughput is not None:
            by = ("no faster stage",)
        _proven(self.by in by, f"it is by {self.by!r}, where {' or '.join(by)} is possible")
        evaluated = None
        if self.placement is not None:
            filled = problem.with_in_flight(problem.workload.in_memory)
            evaluated = evaluate(filled, self.placement).rate
        text = f"its placement has {evaluated}, not {self.throughput}"
        _proven(_same(evaluated, self.throughput), text)

    def _check_rate(self, rates: set[float]) -> None:
        """Check that the rate is the next one of all that stages have, and links between them."""
        apart = ~np.eye(len(self.problem.cluster), dtype=bool)
        bandwidths = np.unique(self.problem.cluster.bandwidth_matrix()[apart])
        links = np.atleast_1d(self.problem.link_throughput(bandwidths))
        rates = rates | set(links[links < max(rates)].tolist())
        reached = (self.throughput or 0.0) * (1 + 2 * LAST_BITS)
        following = min((rate for rate in rates if rate > reached), default=None)
        text = f"the next higher rate is {following}, not {self.rate}"
        _proven(_same(following, self.rate), text)

    def _check_held(self) -> int:
        layers, rate = self.problem.model.layers, given(self.rate)
        stages = stages_of(self.problem, rate)
        held, number = most_held(self.problem, stages, rate, self.by != "whole stages")
        same = held == self.most_layers and held < layers
        _proven(same, f"stages hold {held} of {layers} layers there, not {self.most_layers}")
        if self.by == "links":
            whole, _ = most_held(self.problem, stages, rate, links=False)
            _proven(whole == layers, f"whole stages hold {whole} layers, whatever the links")
        return number

    def _counted_as(self, gpu: GPU) -> GPU:
        """Return the GPU in no node, where identical nodes count as one."""
        return without_node(gpu) if self.problem.costs.nodes_matter_alone else gpu

    def _stages(self) -> Iterator[tuple[tuple[GPU, ...], range, Fraction]]:
        """Return every mixture of GPUs with every span, and the least that such GPUs cost.

        Where identical nodes count as one, mixtures are of GPUs in no node, and identical GPUs of one node come apart.
        """
        problem, layers = self.problem, self.problem.model.layers
        # number of layers is all that counts
        one = problem.model.uniform and len(set(self.values)) <= 1
        spans = [range(a, b) for a in range(1 if one else layers) for b in range(a + 1, layers + 1)]
        prices, nodes = defaultdict[GPU, list](list), defaultdict[GPU, list](list)
        counts = problem.cluster.kind_count.tolist()
        for kind, count, price in zip(problem.cluster.kinds, counts, self.prices, strict=True):
            prices[self._counted_as(kind)] += [price] * count
            if kind.node and self._counted_as(kind) != kind:
                nodes[replace(kind, node="node", machine="")].append((count, price))
        kinds = list(prices)
        cheapest = {gpu: sorted(of_kind) for gpu, of_kind in prices.items()}
        for mixture in _mixtures(problem, kinds, list(map(len, prices.values())), len(spans)):
            numbers = Counter(kinds[k] for k in mixture)
            paid = (sum(cheapest[gpu][:n]) for gpu, n in numbers.items())
            least = sum(paid, Fraction(0))
            yield from ((tuple(numbers.elements()), span, least) for span in spans)
        for kind, offers in nodes.items():
            most = min(max(offers)[0], problem.max_gpus_per_stage)
            for number in range(2, most + 1):
                least = number * min(price for count, price in offers if count >= number)
                yield from (((kind,) * number, span, least) for span in spans)

    def __str__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        from html import escape

        prices = table(self.to_frame()) if self.rate is not None else ""
        return f"<p>{escape(self.sentence)}</p>{prices}"


def certificate(result: Result) -> Certificate:
    """Say why nothing is faster: the next higher rate, and what is missing there.

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
        Dual prices do not suffice, and a proof without a solver would take too many cases.

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
        expected = "expected a result that is optimal or infeasible"
        raise InvalidValue("certificate", [("result", status, expected)])
    if result.under_limit:
        expected = f"expected one without limits; this is of placements of {result.under_limit}"
        raise InvalidValue("certificate", [("result", result.throughput, expected)])
    if result.runs_on:
        expected = "expected a result among all placements; this proof knows no engine's rules"
        raise InvalidValue("certificate", [("result.runs_on", result.runs_on, expected)])
    if result.objective is not None:
        expected = f"expected a result for the greatest throughput; this one has the least {result.objective.unit}"
        raise InvalidValue("certificate", [("result", result.throughput, expected)])
    refuse_filling("certificate", result.problem.costs)
    problem, instance = result.problem, instance_of(result.problem)
    unpriced = Certificate(
        problem=problem,
        throughput=result.throughput,
        by="no faster stage",
        prices=(Fraction(0),) * len(problem.cluster.kinds),
        values=(Fraction(1),) * problem.model.layers,
        placement=result.placement,
    )
    if not len(instance.thresholds):
        return replace(unpriced, by="no stage", most_layers=0)
    rate = _next_rate(instance, result.throughput)
    if rate is None:
        return unpriced
    prices, values = dual_prices(instance, rate)
    proof = replace(unpriced, rate=rate, by="dual prices", prices=prices, values=values)
    if proof.total_price < proof.total_value:
        plain = all(v == 1 for v in values)
        return replace(proof, most_layers=math.floor(proof.total_price)) if plain else proof
    alike, stages = problem.model.spans.alike_inside, stages_of(problem, rate)
    for by in _BY_HELD if alike else ("position",):
        held, _ = most_held(problem, stages, rate, by != "whole stages")
        if held < problem.model.layers:
            return replace(proof, by=by, most_layers=held)
    if result.memory_for is None and "rounds" in result.details:
        evaluated, number = given(result.evaluation), result.in_flight
        expected = (
            f"expected one that attains the greatest rate, as this proof is of rates: memory holds {number} in "
            f"flight, and with so many no placement may attain its rate (this one's, {evaluated.rate:.7g}, needs "
            f"{evaluated.in_flight_needed}). "
            f"certificate(solve(problem.with_in_flight({number}), objective='rate')) proves which rate none exceeds"
        )
        raise NotApplicable("certificate", [("result", result.throughput, expected)])
    doubt = f"so {result.throughput} is not the best"
    raise PipelabError(f"a placement of {rate:,.7g} tokens/s exists, {doubt}")


def _proven(holds: bool, otherwise: str) -> None:
    """Raise `PipelabError` where a part of a certificate does not hold."""
    if not holds:
        raise PipelabError(f"{otherwise}, so this is no proof")


def _same(rate: float | None, other: float | None) -> bool:
    """Return whether two rates differ by their last bits at most, or neither is there."""
    if rate is None or other is None:
        return rate is other
    return math.isclose(rate, other, rel_tol=2 * LAST_BITS)


def _next_rate(instance: Instance, throughput: float | None) -> float | None:
    """Return the lowest rate of any stage or link above the answer; None if there is none."""
    reached = -1 if throughput is None else instance.index_of(throughput)
    higher = instance.thresholds[reached + 1 :]
    return float(higher[0]) if len(higher) else None


class _StageUse(NamedTuple):
    """What a stage takes of each class, and the first layers that it may hold, by their number.

    First layers are the bits of a number, as in `most_held`.
    """

    taken: list[int]
    begins: dict[int, int]


def stages_of(problem: Problem, rate: float) -> list[_StageUse]:
    """List the stages of a rate, by class; the cost model is asked for each kind of span."""
    classes, spans = gpu_classes(problem.cluster), problem.model.spans
    layers = problem.model.layers
    kinds, stages = [classes.gpu(a) for a in range(len(classes))], []
    examples = [range(int(i), int(i + n)) for i, n in zip(*spans.examples, strict=True)]
    firsts = []
    for u, span in enumerate(examples):
        alike = np.flatnonzero(spans.kind[: layers - len(span) + 1, len(span) - 1] == u)
        firsts.append(sum(1 << i for i in alike.tolist()))
    for mixture in _mixtures(problem, kinds, classes.count.tolist(), len(examples)):
        gpus, begins = tuple(kinds[a] for a in mixture), dict[int, int]()
        for span, first in zip(examples, firsts, strict=True):
            if _throughput(problem, gpus, span) * (1 + LAST_BITS) >= rate:
                begins[len(span)] = begins.get(len(span), 0) | first
        if begins:
            stages.append(_StageUse([mixture.count(a) for a in range(len(kinds))], begins))
    return stages


def most_held(
    problem: Problem, stages: Sequence[_StageUse], rate: float, links: bool
) -> tuple[int, int]:
    """Return the most layers, from the first on, that stages of a rate can hold, and the number of cases looked at.

    A case is how many GPUs of each class are used so far, and which stages may follow the last one. For each, the
    layers that can be held are the bits of a number: bit l is set where stages with just these GPUs hold the
    first l layers.

    Parameters
    ----------
    stages : sequence
        See `stages_of`.
    links : bool
        Whether links between stages must reach the rate, too.
    """
    classes = gpu_classes(problem.cluster)
    count = classes.count.tolist()
    everything = tuple(range(len(stages)))
    follow = [everything] * len(stages)
    if links:
        reached = problem.link_throughput(classes.bandwidth_gb_per_s) * (1 + LAST_BITS) >= rate
        uses = [np.flatnonzero(stage.taken) for stage in stages]
        follow = [
            tuple(j for j in everything if reached[np.ix_(use, uses[j])].all()) for use in uses
        ]
    number, steps, every_end = 0, 0, 1
    waiting, cases = [(0,) * len(count)], {(0,) * len(count): {everything: 1}}
    while waiting:  # a stage leads to a later entry only, so each is complete when its turn comes
        used = heappop(waiting)
        for following, held in cases.pop(used).items():
            number, steps, every_end = number + 1, steps + len(following), every_end | held
            if steps > _MOST_CASE_STEPS:
                raise TooLarge(f"a proof without a solver would look at more than {number:,} cases")
            for i in following:
                taken, begins = stages[i]
                after = tuple(map(sum, zip(used, taken, strict=True)))
                if any(n > most for n, most in zip(after, count, strict=True)):
                    continue
                ends = 0
                for n, first in begins.items():
                    ends |= (held & first) << n
                if ends:
                    if after not in cases:
                        heappush(waiting, after)
                    classes_used = cases.setdefault(after, {})
                    classes_used[follow[i]] = classes_used.get(follow[i], 0) | ends
    return every_end.bit_length() - 1, number


def _throughput(problem: Problem, gpus: tuple[GPU, ...], layers: range) -> float:
    """Return the tokens/s of a stage; 0 where it does not fit."""
    cost = problem.stage_cost(gpus, layers)
    return cost.throughput if cost.fits(gpus) else 0.0


def _mixtures(
    problem: Problem, gpus: Sequence[GPU], count: Sequence[int], spans: int
) -> Iterator[tuple[int, ...]]:
    """Return what a stage may be made of: indices into `gpus`, as often as a stage has such a GPU.

    Raises
    ------
    TooLarge
        With so many spans each, there are more stages than anyone would wait for.
    """
    largest = min(problem.max_gpus_per_stage, len(problem.cluster))
    stages = spans * sum(math.comb(len(gpus) + k - 1, k) for k in range(1, largest + 1))
    if stages > _MOST_STAGES_CHECKED:
        raise TooLarge(f"the check would look at {stages:,} stages one by one")
    for number in range(1, largest + 1):
        for mixture in combinations_with_replacement(range(len(gpus)), number):
            allowed = not problem.same_type_stages or len({gpus[k].type for k in mixture}) == 1
            if allowed and all(mixture.count(k) <= count[k] for k in mixture):
                yield mixture


class DualPrices(NamedTuple):
    """Prices of one GPU of each of the cluster's kinds, and values of each layer, shape (M,), both in layers; exact."""

    gpus: tuple[Fraction, ...]
    layers: tuple[Fraction, ...]


class _Priced(NamedTuple):
    """Stages that reach the rate, as rows: what they draw, and how often each kind of layer is in them."""

    draws: list[list[tuple[int, np.ndarray]]]  # (GPUs, kinds that they may be of)
    holds: np.ndarray  # of each kind of layer; shape (rows, V)
    layers: np.ndarray  # which kind of layer each layer is; shape (M,)


def dual_prices(instance: Instance, threshold: float) -> DualPrices:
    """Find dual prices of layers and GPUs, the GPUs' as low as possible in total; most layers count as 1.

    Values are at least 0 if that is enough for a proof, and may be of any sign otherwise: a stage
    with more layers may be possible where one with fewer is not.
    """
    stages = _stages_at(instance, threshold)
    prices = _priced(instance, stages, signed=False)
    if not _enough(instance, prices):
        signed = _priced(instance, stages, signed=True)
        prices = signed if _enough(instance, signed) else prices
    return DualPrices(tuple(prices.gpus[k] for k in instance.type_of_kind), prices.layers)


def _enough(instance: Instance, prices: DualPrices) -> bool:
    cost = sum(n * u for n, u in zip(instance.count.tolist(), prices.gpus, strict=True))
    return cost < sum(prices.layers)


def _stages_at(instance: Instance, threshold: float) -> _Priced:
    """Return what reaches the rate; of runs of identical layers only the longest, which decides."""
    model = instance.problem.model
    groups, spans_of_kind = _positions(model.layers, model.spans)
    draws, holds = [], []
    reach = AtRate(instance, threshold)
    for parts, seconds in reach.choices + reach.in_nodes_by_type:
        spans = np.flatnonzero(np.isfinite(seconds)).tolist()
        kept = np.unique(np.concatenate([spans_of_kind[s] for s in spans]), axis=0)
        if groups.max() == 0:
            kept = kept[[kept.sum(axis=1).argmax()]]
        draws += [parts] * len(kept)
        holds += list(kept)
    rows = np.array(holds, dtype=int).reshape(len(draws), groups.max() + 1)
    return _Priced(draws=draws, holds=rows, layers=groups)


def _positions(layers: int, spans: Spans) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Return the kind of every layer; and, for every kind of span, how many layers of each kind its stages hold."""
    if spans.uniform:
        group = np.zeros(layers, dtype=int)
        return group, {n - 1: np.array([[n]]) for n in range(1, layers + 1)}
    inside = spans.alike_inside and layers > 2
    few = layers * (layers + 1) // 2 <= _MOST_PRICED_STAGES
    if inside:
        group = np.array([0, *[1] * (layers - 2), 2])
    else:  # every layer on its own, or all together where that would be too much
        group = np.arange(layers) if few else np.zeros(layers, dtype=int)
    held: dict[int, set] = {}
    for first in range(layers):
        for number in range(1, layers - first + 1):
            row = np.bincount(group[first : first + number], minlength=group.max() + 1)
            held.setdefault(int(spans.kind[first, number - 1]), set()).add(tuple(row.tolist()))
    return group, {kind: np.array(sorted(rows)) for kind, rows in held.items()}


def _priced(instance: Instance, stages: _Priced, signed: bool) -> DualPrices:
    """Solve the linear program of prices, and round its answer so that it holds exactly."""
    kinds, number = len(instance.types), np.bincount(stages.layers)  # of layers of each kind
    prices, values = np.zeros(kinds), np.ones(len(number))
    draws = [(i, n, may_be) for i, parts in enumerate(stages.draws) for n, may_be in parts]
    if not draws or len(draws) > _MOST_PRICED_STAGES:
        return _rounded(prices, values, stages)
    stage, gpus, possible = map(np.array, zip(*draws, strict=True))
    # Columns: the price u of each kind, the value y of each kind of layer, and the lowest price of
    # the kinds that each draw may take.
    columns = VariableGroups({"u": kinds, "y": len(number), "draw": len(draws)})
    draw, kind = np.nonzero(possible)
    each_draw, each_kind = (sp.eye_array(n, format="csr") for n in (len(draws), kinds))
    cost = incidence(stage, len(stages.draws)) * gpus
    lowest = {"draw": each_draw[draw], "u": -each_kind[kind]}
    blocks = {"lowest": columns.rows(lowest, upper=0)}
    blocks["enough"] = columns.rows({"y": stages.holds, "draw": -cost}, upper=0)
    blocks["average"] = columns.rows({"y": number[None]}, number.sum(), number.sum())
    lower = {"y": -np.inf if signed else 0}
    run = highs.run(columns.program({"u": -instance.count}, blocks, lower=lower))
    if run.x is not None:
        prices, values = run.x[columns.slices["u"]], run.x[columns.slices["y"]]
    return _rounded(prices, values, stages)


def _rounded(prices: np.ndarray, values: np.ndarray, stages: _Priced) -> DualPrices:
    """Return the fractions that a solver's decimals approximate; if none of them hold, raise prices until they do."""
    for most in _DENOMINATORS:
        exact = tuple(Fraction(v).limit_denominator(most) for v in values)
        simple = tuple(Fraction(max(0.0, u)).limit_denominator(most) for u in prices)
        if _missing(simple, exact, stages) == 0:
            return _of_layers(simple, exact, stages)
    # every stage has a GPU at least
    raised = tuple(u + _missing(simple, exact, stages) for u in simple)
    return _of_layers(raised, exact, stages)


def _of_layers(
    prices: tuple[Fraction, ...], values: tuple[Fraction, ...], stages: _Priced
) -> DualPrices:
    """Scale prices and values so that most layers have the value 1."""
    layers = [values[v] for v in stages.layers.tolist()]
    common = max(set(layers), key=layers.count)
    unit = common if common > 0 else Fraction(1)
    return DualPrices(tuple(u / unit for u in prices), tuple(v / unit for v in layers))


def _missing(
    prices: tuple[Fraction, ...], values: tuple[Fraction, ...], stages: _Priced
) -> Fraction:
    """Return the most by which the dual prices of a stage's layers exceed those of its GPUs; exact, at least 0."""
    most = Fraction(0)
    for parts, held in zip(stages.draws, stages.holds.tolist(), strict=True):
        paid = (n * min(prices[k] for k in np.flatnonzero(may_be)) for n, may_be in parts)
        cost = sum(paid, Fraction(0))
        value = sum((n * v for n, v in zip(held, values, strict=True)), Fraction(0))
        most = max(most, value - cost)
    return most
