"""Good flows at once: blocks of a few stages in parallel or in series, chosen by one integer program.

A *block* holds m layers and lets r tokens/s pass. One stage is a block; two blocks of the same m layers side by side
are one of the sum of their rates; two blocks one behind the other are one of the sum of their layers and the lesser
rate. So a table over multisets of stages (`_Tables`) has the greatest rate of every block of up to `_MOST_STAGES`
stages and every m. At t tokens/s each multiset holds as many layers as its blocks of rate t do, and an integer program
chooses those that together hold most. If that is enough for the model, there is a flow of t tokens/s.

Where links between two parts of the cluster carry less than t, several stages share each crossing: the last block
of one part has x exits, the first block of the next e entries, and each of x · e links carries a share. The
program also chooses the order in which the parts are passed.

Such flows are a subset of all flows; what they yield is computed by `routing`.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations_with_replacement, product
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from pipelab.engine.deadline import Deadline
from pipelab.engine.flows.capacities import Capacities
from pipelab.engine.instance import Instance
from pipelab.engine.solvers.choice import run_program
from pipelab.engine.solvers.linear_program import RowBlock, VariableGroups
from pipelab.engine.stage_table import FreeGPUs
from pipelab.placement import Stage

_MOST_STAGES = 5  # of a block, at most
_MOST_BLOCKS = 1_500  # multisets of stages in one part of the cluster, or blocks are smaller
_MOST_PARTS = 8  # of a cluster between which crossings are planned
_MOST_CROSSING_STAGES = 4  # stages at most that share one side of a crossing
_PROGRAM_SECONDS = 10.0  # for one integer program
# Of the layers held: what is held beyond the last one leaves room where layers differ.
_LEAST_GAP = 0.01

Key = tuple[int, ...]  # how many of each unit a block has
Ends = tuple[int, int]  # entries and exits


class Unit(NamedTuple):
    """GPUs that hold a stage: `size` of one type in one part of the cluster, and what they let pass."""

    part: int
    type: int
    size: int
    rates: np.ndarray  # (L,) with 1 … L layers


class FlowBlock(NamedTuple):
    """A block of a solution: which units, entries and exits, and how many layers."""

    part: int
    key: Key
    ends: Ends
    layers: int


_Half = tuple[Key, Ends, np.ndarray]


class _Tables:
    """The greatest rate of every multiset of the units of one part, by entries, exits and layers."""

    def __init__(
        self, units: Sequence[Unit], counts: Sequence[int], crossings: bool, deadline: Deadline
    ) -> None:
        self.units, self.most = units, _MOST_CROSSING_STAGES if crossings else 1
        self.rates: dict[Key, dict[Ends, np.ndarray]] = {}
        number = 0
        for size in range(1, _MOST_STAGES + 1):
            number += math.comb(len(units) + size - 1, size)
            if size > 1 and number > _MOST_BLOCKS:
                break
            for chosen in combinations_with_replacement(range(len(units)), size):
                deadline.check()
                key = tuple(np.bincount(chosen, minlength=len(units)).tolist())
                if all(number <= most for number, most in zip(key, counts, strict=True)):
                    self.rates[key] = self._of(key)

    def _of(self, key: Key) -> dict[Ends, np.ndarray]:
        if sum(key) == 1:
            return {(1, 1): np.append(np.inf, self.units[key.index(1)].rates)}
        best: dict[Ends, np.ndarray] = {}
        for ends, (_, _, a), (_, _, b), series in self._halves(key):
            rates = _in_series(a, b) if series else _side_by_side(a, b)
            best[ends] = np.maximum(best[ends], rates) if ends in best else rates
        return best

    def _halves(self, key: Key) -> Iterator[tuple[Ends, _Half, _Half, bool]]:
        """Every way to put a block together from two: its ends, the two, and whether in series."""
        for first in product(*(range(n + 1) for n in key)):
            rest = tuple(n - m for n, m in zip(key, first, strict=True))
            if first not in self.rates or rest not in self.rates:
                continue
            for ends, a in self.rates[first].items():
                for other, b in self.rates[rest].items():
                    pair = (first, ends, a), (rest, other, b)
                    yield (ends[0], other[1]), *pair, True
                    if first <= rest:
                        both = zip(ends, other, strict=True)
                        enter, leave = (min(n + m, self.most) for n, m in both)
                        yield (enter, leave), *pair, False

    def spread(self, key: Key, ends: Ends, start: int, layers: int) -> Iterator[tuple[Unit, range]]:
        """The stages of a block whose first layer is `start`."""
        if sum(key) == 1:
            yield self.units[key.index(1)], range(start, start + layers)
            return
        wanted = self.rates[key][ends][layers]
        for found, (first, first_ends, a), (rest, other, b), series in self._halves(key):
            if found != ends:
                continue
            if not series and _side_by_side(a, b)[layers] == wanted:
                yield from self.spread(first, first_ends, start, layers)
                yield from self.spread(rest, other, start, layers)
                return
            if series:
                both = np.minimum(a[1:layers], b[layers - 1 : 0 : -1])
                if both.max(initial=-1.0) == wanted:
                    cut = 1 + int(both.argmax())
                    yield from self.spread(first, first_ends, start, cut)
                    yield from self.spread(rest, other, start + cut, layers - cut)
                    return
        raise AssertionError("the table of blocks has a rate that no two blocks have")


def _side_by_side(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sum of two blocks' rates, where both can hold so many layers."""
    return np.where((a > 0) & (b > 0), a + b, 0.0)


def _in_series(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The greatest rate of two blocks, one behind the other, for every number of layers."""
    out = np.zeros(len(a))
    for j in range(1, len(a) - 1):
        np.maximum(out[j + 1 :], np.minimum(a[j], b[1 : len(b) - j]), out=out[j + 1 :])
    out[0] = np.inf
    return out


@dataclass(frozen=True, eq=False)
class Blocks:
    """All blocks of a cluster whose links carry `within` tokens/s inside each of its parts.

    Attributes
    ----------
    instance : Instance
    capacities : Capacities
    within : float
    deadline : Deadline
    """

    instance: Instance
    capacities: Capacities
    within: float
    deadline: Deadline

    @cached_property
    def part_of(self) -> np.ndarray:
        """The part of each class; (A,). One part where there would be too many."""
        carries = self.instance.link >= self.within
        number, part = connected_components(sp.csr_array(carries & carries.T), directed=False)
        alone = (self.instance.classes.count > 1) & ~np.diagonal(carries)
        return np.zeros_like(part) if number > _MOST_PARTS or alone.any() else part

    @cached_property
    def pools(self) -> dict[tuple[int, int], list[list[int]]]:
        """GPU ids by part and type, those of one node together."""
        out: dict[tuple[int, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        gpus = self.instance.problem.cluster.gpus
        for a, members in enumerate(self.instance.classes.members):
            for g in members.tolist():
                nodes = out[int(self.part_of[a]), int(self.instance.type_of[a])]
                nodes[gpus[g].node or f"GPU {g}"].append(g)
        return {key: list(nodes.values()) for key, nodes in sorted(out.items())}

    @cached_property
    def units(self) -> list[Unit]:
        """Every sort of stage: one GPU, or 2, 4, … of one node."""
        out, of = [], self.capacities
        for (part, kind), nodes in self.pools.items():
            largest = min(max(map(len, nodes)), self.instance.largest)
            for size in (2**i for i in range(largest.bit_length())):
                rows = (of.usage[:, kind] == size) & (of.usage.sum(axis=1) == size)
                rates = of.most[rows].max(axis=0)
                if rates.any():
                    out.append(Unit(part=part, type=kind, size=size, rates=rates))
        return out

    @cached_property
    def tables(self) -> dict[int, _Tables]:
        """Of each part."""
        out = {}
        for part in range(self.parts):
            units = [unit for unit in self.units if unit.part == part]
            counts = [self.room(unit) for unit in units]
            out[part] = _Tables(units, counts, self.parts > 1, self.deadline)
        return out

    @property
    def parts(self) -> int:
        """How many there are."""
        return int(self.part_of.max()) + 1

    def room(self, unit: Unit) -> int:
        """How many such units the nodes have room for."""
        return sum(len(node) // unit.size for node in self.pools[unit.part, unit.type])

    @cached_property
    def between(self) -> np.ndarray:
        """Tokens/s of the mean link from part to part."""
        link, count = self.instance.link, self.instance.classes.count
        member = (self.part_of[None] == np.arange(self.parts)[:, None]) * count
        with np.errstate(invalid="ignore"):
            pairs = np.outer(member.sum(axis=1), member.sum(axis=1))
            return member @ np.where(np.isfinite(link), link, 0.0) @ member.T / pairs

    def at(self, t: float) -> list[Stage] | None:
        """Stages of blocks that together let t tokens/s pass, by the table; None if there are none."""
        blocks = self._chosen(t)
        if blocks is None:
            return None
        layers, start = self.capacities.most.shape[1], 0
        spread: list[tuple[Unit, range]] = []
        for block in blocks:
            spread += self.tables[block.part].spread(block.key, block.ends, start, block.layers)
            start += block.layers
        # What is held beyond the last layer is not needed.
        kept = [(unit, range(span.start, min(span.stop, layers))) for unit, span in spread]
        return self.on_gpus([(unit, span) for unit, span in kept if span])

    def on_gpus(self, spread: Sequence[tuple[Unit, range]]) -> list[Stage]:
        """Each stage on GPUs of its own, the largest first."""
        free, pools = FreeGPUs(self.pools.values()), list(self.pools)
        out = []
        for unit, layers in sorted(spread, key=lambda one: -one[0].size):
            gpus = free.take_of(pools.index((unit.part, unit.type)), unit.size)
            out.append(Stage(layers, tuple(gpus)))
        return sorted(out, key=lambda stage: (stage.layers.start, stage.layers.stop))

    def _chosen(self, t: float) -> list[FlowBlock] | None:
        """The blocks of the integer program, in order; None where they hold too few layers."""
        blocks = []
        for part, tables in self.tables.items():
            for key, of in tables.rates.items():
                for ends, rates in of.items():
                    if layers := int(np.flatnonzero(rates >= t).max(initial=0)):
                        blocks.append(FlowBlock(part=part, key=key, ends=ends, layers=layers))
        if not blocks:
            return None
        found = _BlockProgram(self, blocks, t).solved(self.deadline)
        layers = self.capacities.most.shape[1]
        return found if found and sum(b.layers for b in found) >= layers else None


class _BlockProgram:
    """The integer program: how often each block is used, and where several parts are passed, in which order.

    Columns: `middle`, `first`, `last`, `both` (first and last at once): blocks by their place in their part; where
    there is one part all are in the middle. `hops`: from a part with x exits to another with e entries. `begin`,
    `end`: the part of the first layer and of the last. `place`: of a part in the order.
    """

    def __init__(self, of: Blocks, blocks: Sequence[FlowBlock], t: float) -> None:
        self.of, self.blocks, self.t = of, blocks, t
        self.part = np.array([block.part for block in blocks])
        self.ends = np.array([block.ends for block in blocks])
        self.hops = list(self._crossings()) if of.parts > 1 else []
        roles = ("middle", "first", "last", "both") if of.parts > 1 else ("middle",)
        walk = dict.fromkeys(("begin", "end", "place"), of.parts) | {"hops": len(self.hops)}
        sizes = dict.fromkeys(roles, len(blocks)) | (walk if of.parts > 1 else {})
        self.roles, self.columns = roles, VariableGroups(sizes)

    def _crossings(self) -> Iterator[tuple[int, int, int, int]]:
        """From part, to part, the fewest exits and entries whose links carry t together."""
        for a, b in product(range(self.of.parts), repeat=2):
            pairs = math.ceil(self.t / self.of.between[a, b]) if a != b else math.inf
            for exits in range(1, _MOST_CROSSING_STAGES + 1):
                if (entries := -(-pairs // exits)) <= _MOST_CROSSING_STAGES:
                    yield a, b, exits, int(entries)

    def solved(self, deadline: Deadline) -> list[FlowBlock] | None:
        """The blocks that hold most layers, in the order of the parts; None if time was too short."""
        columns, layers = self.columns, np.array([block.layers for block in self.blocks], float)
        objective = dict.fromkeys(self.roles, layers)
        upper = dict.fromkeys(columns.sizes, 1.0) | {"middle": np.inf}
        if self.of.parts > 1:
            upper["place"] = self.of.parts
        rows = {"GPUs": self._gpus()} | (self._walk() if self.of.parts > 1 else {})
        needed = float(self.of.capacities.most.shape[1])
        rows["layers"] = columns.rows(dict.fromkeys(self.roles, layers[None]), needed)
        whole = columns.sizes.keys() - {"place"}
        program = columns.program(objective, rows, upper=upper, integer=whole)
        run = run_program(program, gap=_LEAST_GAP, deadline=deadline.within(_PROGRAM_SECONDS))
        if run.x is None:
            return None
        chosen: list[tuple[float, int, FlowBlock]] = []
        for order, role in enumerate(("first", "both", "middle", "last")):
            if role not in self.roles:
                continue
            times = np.rint(run.x[columns.slices[role]]).astype(int)
            for i in np.flatnonzero(times).tolist():
                block = self.blocks[i]
                place = run.x[columns.slices["place"]][block.part] if self.of.parts > 1 else 0.0
                chosen += [(float(place), order, block)] * int(times[i])
        return [block for _, _, block in sorted(chosen, key=lambda one: one[:2])]

    def _gpus(self) -> RowBlock:
        """GPUs of each part and type; of stages of at least each size, those that the nodes have room for."""
        rows, most = [], []
        for (part, kind), nodes in self.of.pools.items():
            for size in sorted({u.size for u in self.of.units if (u.part, u.type) == (part, kind)}):
                rows.append([self._uses(block, part, kind, size) for block in self.blocks])
                most.append(sum(len(node) // size * size for node in nodes))
        parts = dict.fromkeys(self.roles, np.array(rows, float))
        return self.columns.rows(parts, upper=np.array(most, float))

    def _uses(self, block: FlowBlock, part: int, kind: int, size: int) -> int:
        """GPUs of a type that a block takes in stages of at least this size."""
        if block.part != part:
            return 0
        units = zip(self.of.tables[part].units, block.key, strict=True)
        return sum(n * unit.size for unit, n in units if unit.type == kind and unit.size >= size)

    def _walk(self) -> dict[str, RowBlock]:
        """One order of the parts that are used, each with a first and a last block that suit the crossings."""
        columns, parts = self.columns, self.of.parts
        balanced = partial(columns.rows, lower=0.0, upper=0.0)
        here = (self.part == np.arange(parts)[:, None]).astype(float)
        hops = np.array(self.hops)
        leaves, enters = (np.array(hops[:, i] == np.arange(parts)[:, None], float) for i in (0, 1))
        eye, number = np.eye(parts), len(self.of.instance.problem.cluster)
        exits = (self.ends[:, 1] >= hops[:, 2:3]) & (self.part == hops[:, 0:1])
        entries = (self.ends[:, 0] >= hops[:, 3:4]) & (self.part == hops[:, 1:2])
        minus, later = -np.eye(len(hops)), (enters - leaves).T
        return {
            "one begins": columns.rows({"begin": np.ones((1, parts))}, 1.0, 1.0),
            "one ends": columns.rows({"end": np.ones((1, parts))}, 1.0, 1.0),
            "a first block": balanced(
                {"first": here, "both": here, "begin": -eye, "hops": -enters}
            ),
            "a last block": balanced({"last": here, "both": here, "end": -eye, "hops": -leaves}),
            "left as entered": balanced({"begin": eye, "hops": enters - leaves, "end": -eye}),
            "blocks between": columns.rows({"middle": here, "first": -here * number}, upper=0.0),
            "exits": columns.rows({"last": exits, "both": exits, "hops": minus}, 0.0),
            "entries": columns.rows({"first": entries, "both": entries, "hops": minus}, 0.0),
            "in order": columns.rows({"place": later, "hops": minus * parts}, 1.0 - parts),
        }
