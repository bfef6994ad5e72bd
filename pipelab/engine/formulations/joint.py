"""The joint ILP: choose the layers and the GPUs of every stage at once, in three forms of one program.

Maximise t such that every layer is covered once, no GPU is used twice, chosen stages are linked in
order, and t is at most the rate of every chosen stage and link. Every candidate stage has a variable
z, every possible link a variable e, with rates computed beforehand; that is what makes the model
linear, and what makes it large (`count.py`).

A form is a list of families of rows. A family is explained, counted and built in one place: a
notebook shows its sentence, formula and row count; the solver gets its rows.

"written"
    The write-up's constraints 1 to 6.
"tight"
    Fewer rows, no big-M for stages, a better bound. Every layer is held by exactly one chosen stage,
    so t is at most the rate of that stage: one row per layer replaces one per allocation. A chosen
    stage has exactly one successor, so the link variables are a flow. At most one connection crosses
    each boundary, so one row per boundary bounds t by it. No placement is lost, and a placement's t is
    still its bottleneck. Where heavy layers force several stages on tiny, the LP bound is 13 % above
    the optimum instead of the write-up's 49 %.
"one GPU per stage"
    The tight form's logic with only those links that can be the bottleneck, and what holds where a
    stage is one GPU: see `single_gpu`.

Equals `pipelab.joint_ilp` on its domain; see tests/test_definitions_placement.py.

Source: the joint-ILP write-up, "Mathematical Formulation (Correct)", constraints 1 to 6.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from pipelab.display import breakable, table
from pipelab.engine.formulations.candidates import Candidates
from pipelab.engine.formulations.count import count_candidates
from pipelab.engine.solvers.linear_program import Columns, LinearProgram, RowBlock
from pipelab.errors import UnknownName, nearest
from pipelab.problem import Problem

if TYPE_CHECKING:
    from pandas import DataFrame

BIG_MS = ("valid", "as_written")
# the Ms in the code of the write-up's author are so many times the fastest rate; the text states
# none
MARGIN = 1.1


@dataclass(frozen=True)
class Symbol:
    """A symbol of the formulation and its name in code."""

    letter: str  # LaTeX
    code: str
    meaning: str
    unit: str


@dataclass(frozen=True)
class Family:
    """One family of constraints.

    Attributes
    ----------
    name : str
        Name of its rows: `layer_coverage[3]`.
    sentence : str
        One row read aloud.
    formula : str
        LaTeX.
    group : str
        "logic", "throughput" or "strengthening".
    count : function
        From the numbers of `count_candidates` to the number of rows.
    counted_as : str
        The same count in words.
    rows : function of (Incidence, Columns) to RowBlock
    """

    name: str
    sentence: str
    formula: str
    group: str
    counted_as: str
    count: Callable[[Mapping[str, int]], int]
    rows: Callable[[Any, Columns], RowBlock]  # of the formulation's own `Incidence`


@dataclass(frozen=True, eq=False)
class Incidence:
    """The candidates as 0–1 matrices, from which every family is one line.

    Attributes
    ----------
    candidates : Candidates
    big_m_stage, big_m_link : float
        The M of the two end-to-end families.
    cap_links : bool
        Count no link as faster than the fastest stage. No placement is, so nothing changes
        but the numbers: a link a million times as fast as a stage would make solvers, which
        compute to about 1e-9, take a tiny part of it for a whole stage.
    """

    candidates: Candidates
    big_m_stage: float
    big_m_link: float
    cap_links: bool = True

    @cached_property
    def covers(self) -> sp.csr_array:
        """Layer l is in allocation a; shape (M, A)."""
        c = self.candidates
        layer = np.arange(c.layers)[:, None]
        return sp.csr_array((c.start <= layer) & (layer < c.stop), dtype=float)

    @cached_property
    def uses(self) -> sp.csr_array:
        """GPU g is in allocation a; shape (N, A)."""
        return sp.csr_array(self.candidates.membership[self.candidates.set_of].T, dtype=float)

    @cached_property
    def first(self) -> sp.csr_array:
        """Allocation a starts at the first layer; shape (1, A)."""
        return sp.csr_array((self.candidates.start == 0)[None, :], dtype=float)

    @cached_property
    def last(self) -> sp.csr_array:
        """Allocation a ends at the last layer; shape (1, A)."""
        return sp.csr_array((self.candidates.stop == self.candidates.layers)[None, :], dtype=float)

    @cached_property
    def leaves(self) -> sp.csr_array:
        """Connection x leaves allocation a; shape (A, E)."""
        return self._ends_at(self.candidates.tail)

    @cached_property
    def enters(self) -> sp.csr_array:
        """Connection x enters allocation a; shape (A, E)."""
        return self._ends_at(self.candidates.head)

    @cached_property
    def crosses(self) -> sp.csr_array:
        """Connection x crosses the boundary after layer l = 1 … M-1; shape (M-1, E)."""
        c = self.candidates
        boundary = c.start[c.head] - 1
        ones = np.ones(len(boundary))
        return sp.csr_array(
            (ones, (boundary, np.arange(len(boundary)))), shape=(c.layers - 1, len(boundary))
        )

    @cached_property
    def followed(self) -> np.ndarray:
        """Numbers of the allocations that have a successor."""
        return np.unique(self.candidates.tail)

    @cached_property
    def preceded(self) -> np.ndarray:
        """Numbers of the allocations that have a predecessor."""
        return np.unique(self.candidates.head)

    @cached_property
    def theta(self) -> sp.dia_array:
        """θ on a diagonal; shape (A, A)."""
        return sp.diags_array(self.candidates.throughput)

    @cached_property
    def nu(self) -> sp.dia_array:
        """ν on a diagonal; shape (E, E)."""
        rates = self.candidates.link_throughput
        top = self.candidates.throughput.max(initial=0.0)
        return sp.diags_array(np.minimum(rates, top) if self.cap_links else rates)

    def each_allocation(self) -> sp.dia_array:
        """One row per allocation; shape (A, A)."""
        return sp.eye_array(len(self.candidates.start))

    def each_connection(self) -> sp.dia_array:
        """One row per connection; shape (E, E)."""
        return sp.eye_array(len(self.candidates.tail))

    def pick(self, allocations: np.ndarray) -> sp.csr_array:
        """One row per named allocation; shape (len(allocations), A)."""
        ones = np.ones(len(allocations))
        shape = (len(allocations), len(self.candidates.start))
        return sp.csr_array((ones, (np.arange(len(allocations)), allocations)), shape=shape)

    def _ends_at(self, end: np.ndarray) -> sp.csr_array:
        ones = np.ones(len(end))
        return sp.csr_array(
            (ones, (end, np.arange(len(end)))), shape=(len(self.candidates.start), len(end))
        )


SYMBOLS = (
    Symbol(r"\ell = 1 \dots L", "layers", "decoder layer; L of them", "–"),
    Symbol(r"g = 0 \dots N-1", "gpus", "GPU; N of them", "–"),
    Symbol(
        r"a \in \mathcal{A}",
        "start, size, set_of",
        "allocation: layers and a GPU set that fits; A of them",
        "–",
    ),
    Symbol(
        r"(a, b) \in \mathcal{E}",
        "tail, head",
        "connection: b starts where a ends, no GPU in common; E of them",
        "–",
    ),
    Symbol(r"\theta_a", "theta", "rate of allocation a", "tokens/s"),
    Symbol(r"\nu_{ab}", "nu", "rate of connection (a, b)", "transfers/s or tokens/s"),
    Symbol(
        r"M_{\mathrm{stage}}",
        "big_m_stage",
        "1.1 · max θ: switches off the row of an allocation not chosen",
        "tokens/s",
    ),
    Symbol(
        r"M_{\mathrm{link}}",
        "big_m_link",
        "max θ (the author's code: 1.1 · max ν): switches off the row of a connection not used",
        "tokens/s",
    ),
    Symbol(r"z_a \in \{0, 1\}", "z", "1 when allocation a is chosen", "–"),
    Symbol(r"e_{ab} \in \{0, 1\}", "e", "1 when a sends its activations to b", "–"),
    Symbol(r"\tau_a \ge 0", "tau", "rate of a if chosen, else 0", "tokens/s"),
    Symbol(r"\rho_{ab} \ge 0", "rho", "rate of (a, b) if used, else 0", "as ν"),
    Symbol(r"t \ge 0", "t", "rate of the whole pipeline", "tokens/s"),
)


def _ones(n: int) -> np.ndarray:
    return np.ones((n, 1))


LAYER_COVERAGE = Family(
    "layer_coverage",
    "Layer ℓ is in exactly one chosen allocation.",
    r"\sum_{a \ni \ell} z_a = 1 \quad \forall \ell",
    "logic",
    "L",
    lambda n: n["layers"],
    rows=lambda i, c: c.rows({"z": i.covers}, lower=1, upper=1),
)

GPU_EXCLUSIVITY = Family(
    "gpu_exclusivity",
    "GPU g is in at most one chosen allocation.",
    r"\sum_{a \ni g} z_a \le 1 \quad \forall g",
    "logic",
    "N",
    lambda n: n["gpus"],
    rows=lambda i, c: c.rows({"z": i.uses}, upper=1),
)

WRITTEN = (
    LAYER_COVERAGE,
    GPU_EXCLUSIVITY,
    Family(
        "pipeline_start",
        "Some chosen allocation starts at the first layer.",
        r"\sum_{a:\,\mathrm{first}(a) = 1} z_a \ge 1",
        "logic",
        "1",
        lambda n: 1,
        rows=lambda i, c: c.rows({"z": i.first}, lower=1),
    ),
    Family(
        "pipeline_end",
        "Some chosen allocation ends at the last layer.",
        r"\sum_{a:\,\mathrm{last}(a) = L} z_a \ge 1",
        "logic",
        "1",
        lambda n: 1,
        rows=lambda i, c: c.rows({"z": i.last}, lower=1),
    ),
    Family(
        "successor",
        "A chosen allocation that is not the last is followed by another.",
        r"\sum_{b} e_{ab} \ge z_a \quad \forall a \text{ with a successor}",
        "logic",
        "allocations with a successor",
        lambda n: n["with_successor"],
        rows=lambda i, c: c.rows({"e": i.leaves[i.followed], "z": -i.pick(i.followed)}, lower=0),
    ),
    Family(
        "predecessor",
        "A chosen allocation that is not the first follows another.",
        r"\sum_{a} e_{ab} \ge z_b \quad \forall b \text{ with a predecessor}",
        "logic",
        "allocations with a predecessor",
        lambda n: n["with_predecessor"],
        rows=lambda i, c: c.rows({"e": i.enters[i.preceded], "z": -i.pick(i.preceded)}, lower=0),
    ),
    Family(
        "link_needs_sender",
        "A used connection has its sender chosen.",
        r"e_{ab} \le z_a \quad \forall (a, b)",
        "logic",
        "E",
        lambda n: n["connections"],
        rows=lambda i, c: c.rows({"e": i.each_connection(), "z": -i.leaves.T}, upper=0),
    ),
    Family(
        "link_needs_receiver",
        "A used connection has its receiver chosen.",
        r"e_{ab} \le z_b \quad \forall (a, b)",
        "logic",
        "E",
        lambda n: n["connections"],
        rows=lambda i, c: c.rows({"e": i.each_connection(), "z": -i.enters.T}, upper=0),
    ),
    Family(
        "stage_rate",
        "τ is the rate of a chosen allocation and 0 otherwise.",
        r"\tau_a = \theta_a z_a \quad \forall a",
        "throughput",
        "A",
        lambda n: n["allocations"],
        rows=lambda i, c: c.rows({"tau": i.each_allocation(), "z": -i.theta}, lower=0, upper=0),
    ),
    Family(
        "link_rate",
        "ρ is the rate of a used connection and 0 otherwise.",
        r"\rho_{ab} = \nu_{ab} e_{ab} \quad \forall (a, b)",
        "throughput",
        "E",
        lambda n: n["connections"],
        rows=lambda i, c: c.rows({"rho": i.each_connection(), "e": -i.nu}, lower=0, upper=0),
    ),
    Family(
        "stage_bottleneck",
        "t is at most the rate of a chosen allocation; M makes any other row vacuous.",
        r"t \le \tau_a + M_{\mathrm{stage}} (1 - z_a) \quad \forall a",
        "throughput",
        "A",
        lambda n: n["allocations"],
        rows=lambda i, c: c.rows(
            {
                "t": _ones(c.sizes["z"]),
                "tau": -i.each_allocation(),
                "z": i.big_m_stage * i.each_allocation(),
            },
            upper=i.big_m_stage,
        ),
    ),
    Family(
        "link_bottleneck",
        "t is at most the rate of a used connection; a large enough M makes any other row vacuous.",
        r"t \le \rho_{ab} + M_{\mathrm{link}} (1 - e_{ab}) \quad \forall (a, b)",
        "throughput",
        "E",
        lambda n: n["connections"],
        rows=lambda i, c: c.rows(
            {
                "t": _ones(c.sizes["e"]),
                "rho": -i.each_connection(),
                "e": i.big_m_link * i.each_connection(),
            },
            upper=i.big_m_link,
        ),
    ),
)


TIGHT = (
    LAYER_COVERAGE,
    GPU_EXCLUSIVITY,
    Family(
        "flow_out",
        "A chosen allocation that is not the last has exactly one successor.",
        r"\sum_{b} e_{ab} = z_a \quad \forall a \text{ with a successor}",
        "logic",
        "allocations with a successor",
        lambda n: n["with_successor"],
        rows=lambda i, c: c.rows(
            {"e": i.leaves[i.followed], "z": -i.pick(i.followed)}, lower=0, upper=0
        ),
    ),
    Family(
        "flow_in",
        "A chosen allocation that is not the first receives exactly once.",
        r"\sum_{a} e_{ab} = z_b \quad \forall b \text{ with a predecessor}",
        "logic",
        "allocations with a predecessor",
        lambda n: n["with_predecessor"],
        rows=lambda i, c: c.rows(
            {"e": i.enters[i.preceded], "z": -i.pick(i.preceded)}, lower=0, upper=0
        ),
    ),
    Family(
        "layer_rate",
        "t is at most the rate of whichever allocation holds layer ℓ.",
        r"t \le \sum_{a \ni \ell} \theta_a z_a \quad \forall \ell",
        "throughput",
        "L",
        lambda n: n["layers"],
        rows=lambda i, c: c.rows(
            {"t": _ones(i.candidates.layers), "z": -(i.covers @ i.theta)}, upper=0
        ),
    ),
    Family(
        "boundary_rate",
        "t is at most the rate of the connection that crosses boundary ℓ, if one does.",
        r"t \le \sum_{(a,b) \text{ across } \ell} \nu_{ab} e_{ab} "
        r"+ M_{\mathrm{link}} \Big(1 - \sum_{(a,b) \text{ across } \ell} e_{ab}\Big) \quad \forall \ell < L",
        "throughput",
        "L − 1",
        lambda n: n["boundaries"],
        rows=lambda i, c: c.rows(
            {"t": _ones(i.candidates.layers - 1), "e": i.big_m_link * i.crosses - i.crosses @ i.nu},
            upper=i.big_m_link,
        ),
    ),
)


@dataclass(frozen=True)
class Form:
    """One form of the joint ILP.

    Attributes
    ----------
    families : tuple of Family
    groups : tuple of str
        The groups of columns it has: one for every allocation ("z", "tau"), for every connection ("e",
        "rho"), and "t".
    domains : tuple of str
        What values the variables may take, as LaTeX.
    """

    families: tuple[Family, ...]
    groups: tuple[str, ...]
    domains: tuple[str, ...]

    def size(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Variables and rows from the numbers of `count_candidates`, nothing built."""
        number = _in_group(counts["allocations"], counts["connections"])
        return {
            "variables": sum(number[group] for group in self.groups),
            "rows": sum(family.count(counts) for family in self.families),
        }

    def columns(self, candidates: Candidates) -> Columns:
        """The groups side by side."""
        number = _in_group(len(candidates.start), len(candidates.tail))
        return Columns({group: number[group] for group in self.groups})


def _in_group(allocations: int, connections: int) -> dict[str, int]:
    return {"z": allocations, "e": connections, "tau": allocations, "rho": connections, "t": 1}


FORMS = {
    "written": Form(
        WRITTEN,
        ("z", "e", "tau", "rho", "t"),
        (r"z_a, e_{ab} \in \{0, 1\}", r"\tau_a, \rho_{ab}, t \ge 0"),
    ),
    "tight": Form(
        TIGHT,
        ("z", "e", "t"),
        (
            r"z_a \in \{0, 1\}",
            r"z_a = 0 \text{ where nothing can follow or precede}",
            r"0 \le e_{ab} \le 1",
            r"t \ge 0",
        ),
    ),
}


def joint_form(form: str, big_m: str = "valid") -> Form:
    """A form of the joint ILP by name.

    Raises
    ------
    UnknownName
        No such form or big-M, or the M of the author's code for the tight form, which has
        none.
    """
    if not isinstance(form, str) or form not in FORMS:
        raise UnknownName(f"there is no form {form!r}; {nearest(form, FORMS)}")
    if not isinstance(big_m, str) or big_m not in BIG_MS:
        raise UnknownName(f"there is no big_m {big_m!r}; {nearest(big_m, BIG_MS)}")
    if big_m != "valid" and form != "written":
        raise UnknownName(f"form={form!r} has no big_m={big_m!r}; only form='written' has an M")
    return FORMS[form]


def build(candidates: Candidates, form: str = "written", big_m: str = "valid") -> LinearProgram:
    """The program of one form as arrays.

    In the tight form e need not be declared whole: once z is, nothing flows into a stage that is not
    chosen, so what leaves a chosen stage can only enter the one chosen stage that starts where it ends.
    """
    chosen = joint_form(form, big_m)
    columns = chosen.columns(candidates)
    whole: tuple[str, ...] = ("z", "e")
    upper: dict[str, Any] = {"z": 1.0, "e": 1.0}
    if form == "tight":
        whole, upper["z"] = ("z",), _can_be_chosen(candidates)
    return maximise_t(columns, upper, whole, chosen.families, incidence(candidates, big_m))


def incidence(candidates: Candidates, big_m: str = "valid") -> Incidence:
    """The matrices of the formulation, with its two big-Ms.

    The write-up states no value of either. `M_stage` is that of its author's code, 1.1 · max θ. It
    is valid: no t exceeds max θ.
    """
    big_m_stage = MARGIN * fastest(candidates.throughput)
    return Incidence(
        candidates, big_m_stage, link_big_m(candidates, big_m), cap_links=big_m == "valid"
    )


def link_big_m(candidates: Candidates, big_m: str) -> float:
    """The M of unused connections.

    "valid" is max θ: an unused connection must not hold t below what a stage can reach,
    and no placement is faster than its fastest stage. "as_written" is
    1.1 · max ν, as the code of the write-up's author has it: it cuts off the best placements
    wherever links are slow.
    """
    if big_m == "valid":
        return fastest(candidates.throughput)
    return MARGIN * fastest(candidates.link_throughput)


def big_m_is_valid(candidates: Candidates, big_m: str) -> bool:
    """Whether an unused connection leaves every placement its full rate."""
    return not len(candidates.tail) or link_big_m(candidates, big_m) >= fastest(
        candidates.throughput
    )


def fastest(rates: np.ndarray) -> float:
    """The largest of some rates; 0 for an empty array."""
    return float(rates.max(initial=0.0))


def _can_be_chosen(candidates: Candidates) -> np.ndarray:
    """0 for an allocation that nothing can follow or precede though something must; shape (A,).

    Coverage and exclusivity forbid choosing it anyhow; the relaxation does not know that.
    """
    numbers = np.arange(len(candidates.start))
    follows = (candidates.stop == candidates.layers) | np.isin(numbers, candidates.tail)
    precedes = (candidates.start == 0) | np.isin(numbers, candidates.head)
    return (follows & precedes).astype(float)


def maximise_t(
    columns: Columns,
    upper: Mapping[str, Any],
    whole: Iterable[str],
    families: Iterable[Family],
    incidence: Incidence,
) -> LinearProgram:
    """The program: maximise t subject to these families.

    Parameters
    ----------
    columns : Columns
    upper : mapping
        Upper bounds by group of columns, one or one each; groups not named have none. Lower bounds are 0.
    whole : iterable of str
        Groups of whole numbers.
    families : iterable of Family
    incidence : Incidence
    """
    most, integer, objective = (
        np.empty(columns.total),
        np.zeros(columns.total, dtype=bool),
        np.zeros(columns.total),
    )
    for group, where in columns.slices.items():
        most[where], integer[where] = upper.get(group, np.inf), group in whole
    objective[columns.slices["t"]] = 1
    blocks = {}
    for family in families:
        incidence.candidates.deadline.check()
        blocks[family.name] = family.rows(incidence, columns)
    return LinearProgram(columns, np.zeros(columns.total), most, integer, objective, blocks)


@dataclass(frozen=True)
class Symbols:
    """The symbols of a formulation: what each means, its unit, its name in code."""

    symbols: tuple[Symbol, ...]

    def to_frame(self) -> "DataFrame":
        """One row per symbol."""
        import pandas as pd

        rows = [(f"${s.letter}$", s.code, s.meaning, s.unit) for s in self.symbols]
        return pd.DataFrame(rows, columns=["symbol", "in code", "meaning", "unit"])

    def _repr_html_(self) -> str:
        return table(self.to_frame(), raw=True)


@dataclass(frozen=True)
class Formulation:
    """One formulation for one problem.

    Attributes
    ----------
    families : tuple of Family
    domains : tuple of str
        What values the variables may take, as LaTeX.
    counts : mapping
        The numbers of `count_candidates`, from which every family counts its rows.
    symbols : Symbols
    """

    families: tuple[Family, ...]
    domains: tuple[str, ...]
    counts: Mapping[str, int]
    symbols: Symbols

    def to_frame(self) -> "DataFrame":
        """One row per family: name, group, sentence, formula, rows."""
        import pandas as pd

        return pd.DataFrame(
            {
                "family": [f.name for f in self.families],
                "group": [f.group for f in self.families],
                "one row says": [f.sentence for f in self.families],
                "formula": [f"$\\displaystyle {f.formula}$" for f in self.families],
                "how many rows": [f.counted_as for f in self.families],
                "rows here": [f.count(self.counts) for f in self.families],
            }
        )

    def _repr_html_(self) -> str:
        frame = self.to_frame()
        frame["family"] = [f"<code>{breakable(name)}</code>" for name in frame["family"]]
        frame["rows here"] = [f"{n:,}" for n in frame["rows here"]]
        total = f"<p>maximise <b>t</b> subject to {sum(f.count(self.counts) for f in self.families):,} rows:</p>"
        domains = ", &nbsp; ".join(f"${d}$" for d in self.domains)
        return f"{total}{table(frame, raw=True, narrow=True)}<p>{domains}</p>"


def joint_formulation(problem: Problem, form: str = "written") -> Formulation:
    """The joint ILP of a problem, to be read.

    Parameters
    ----------
    problem : Problem
        Any size: rows are counted, not listed.
    form : {"written", "tight"}
        The write-up's constraints, or the equivalent form with the better bound.

    Returns
    -------
    Formulation
        Every family with sentence, formula and number of rows; shows itself in a
        notebook.

    Raises
    ------
    UnknownName
        The form is unknown.

    References
    ----------
    The write-up, "Correct Joint ILP Formulation", constraints 1 to 6.
    """
    chosen = joint_form(form)
    return Formulation(chosen.families, chosen.domains, count_candidates(problem), Symbols(SYMBOLS))
