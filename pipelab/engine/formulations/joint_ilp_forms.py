"""The joint ILP: choose the layers and the GPUs of every stage at once, in three forms of one program.

Maximise t such that every layer is covered once, no GPU is used twice, chosen stages are linked in
order, and t is at most the rate of every chosen stage and link. Every candidate stage has a variable
z, every possible link a variable e, with rates computed beforehand; that is what makes the model
linear, and what makes it large (`program_size.py`).

A form switches families of rows on and off. data/joint_ilp_families.csv explains and counts them: a notebook
shows sentence, formula and row count of each. `_TERMS` has their rows for the solver.

"written"
    The write-up's constraints 1 to 6.
"tight"
    Fewer rows, no big-M for stages, a better bound. Every layer is held by exactly one chosen stage,
    so t is at most the rate of that stage: one row per layer replaces one per allocation. A chosen
    stage has exactly one successor, so the link variables are a flow. At most one connection crosses
    each boundary, so one row per boundary bounds t by it. No placement is lost, and a placement's t is
    still its bottleneck. Where heavy layers force several stages on tiny, the LP bound is 13 % above
    the optimum instead of the write-up's 49 %.
`ONE_GPU`
    The original MILP, where a stage is one GPU: four more families then hold for every placement.

Equals `pipelab.joint_ilp` on its domain; see tests/equal/test_definitions_placement.py.

Source: the joint-ILP write-up, "Mathematical Formulation (Correct)", constraints 1 to 6, and
"Original Solver Analysis".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from pipelab.display import DataFrame, breakable, data_frame, table
from pipelab.engine.classes import gpu_classes
from pipelab.engine.formulations.candidates import StageCandidates
from pipelab.engine.formulations.program_size import count_candidates
from pipelab.engine.solvers.linear_program import LinearProgram, RowBlock, VariableGroups, incidence
from pipelab.errors import UnknownName, refuse_unknown
from pipelab.fields import Frozen
from pipelab.files.bundled_folders import data_dir
from pipelab.files.csv_rows import read_rows
from pipelab.problem import Problem

BIG_MS = ("valid", "as_written")
# the Ms in the code of the write-up's author are so many times the fastest rate; the text states
# none
MARGIN = 1.1

Parts = Mapping[str, sp.sparray | float]
Terms = tuple[Parts, float, float]
_FREE = np.inf


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
    counted : str
        Which number of `count_candidates` is the number of its rows, or "1".
    how_many : str
        That number in words.
    terms : function of Incidence
        What its rows have in each group of columns, a number standing for the same in every row, and
        their least and most.
    """

    name: str
    sentence: str
    formula: str
    group: str
    counted: str
    how_many: str
    terms: Callable[["Incidence"], Terms]

    def rows(self, matrices: "Incidence", columns: VariableGroups) -> RowBlock:
        """Return its rows over these columns."""
        parts, least, most = self.terms(matrices)
        height = next(part.shape[0] for part in parts.values() if not isinstance(part, float))
        full = {g: np.full((height, 1), p) if isinstance(p, float) else p for g, p in parts.items()}
        return columns.rows(full, least, most)

    def count(self, counts: Mapping[str, int]) -> int:
        """Number of rows from the numbers of `count_candidates`."""
        return 1 if self.counted == "1" else counts[self.counted]


@dataclass(frozen=True, eq=False)
class Incidence:
    """The candidates as 0–1 matrices, from which every family is one line.

    Attributes
    ----------
    candidates : StageCandidates
    big_m_stage, big_m_link : float
        The M of the two end-to-end families.
    cap_links : bool
        Count no link as faster than the fastest stage. No placement is, so nothing changes
        but the numbers: a link a million times as fast as a stage would make solvers, which
        compute to about 1e-9, take a tiny part of it for a whole stage.
    """

    candidates: StageCandidates
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
    def leaves(self) -> sp.csr_array:
        """Connection x leaves allocation a; shape (A, E)."""
        return incidence(self.candidates.tail, len(self.candidates.start))

    @cached_property
    def enters(self) -> sp.csr_array:
        """Connection x enters allocation a; shape (A, E)."""
        return incidence(self.candidates.head, len(self.candidates.start))

    @cached_property
    def crosses(self) -> sp.csr_array:
        """Connection x crosses the boundary after layer l = 1 … M-1; shape (M-1, E)."""
        c = self.candidates
        return incidence(c.start[c.head] - 1, c.layers - 1)

    @property
    def onward(self) -> Parts:
        """The connections that leave each allocation with a successor, less the allocation."""
        with_successor = np.unique(self.candidates.tail)
        return {"e": self.leaves[with_successor], "z": -self.each_allocation[with_successor]}

    @property
    def inward(self) -> Parts:
        """The connections that enter each allocation with a predecessor, less the allocation."""
        with_predecessor = np.unique(self.candidates.head)
        return {"e": self.enters[with_predecessor], "z": -self.each_allocation[with_predecessor]}

    @cached_property
    def each_allocation(self) -> sp.csr_array:
        """One row per allocation; shape (A, A)."""
        return sp.eye_array(len(self.candidates.start), format="csr")

    @cached_property
    def each_connection(self) -> sp.csr_array:
        """One row per connection; shape (E, E)."""
        return sp.eye_array(len(self.candidates.tail), format="csr")

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

    @cached_property
    def balance(self) -> sp.csr_array:
        """Per first layer but the first: +1 for allocations that start there, -1 for those that end before it."""
        c = self.candidates
        at = np.unique(c.start[c.start > 0])[:, None]
        return sp.csr_array((c.start == at).astype(float) - (c.stop == at).astype(float))

    @cached_property
    def first_twin_less_second(self) -> sp.csr_array:
        """Per pair of neighbouring identical GPUs: allocations of the first, less those of the second; shape (P, A)."""
        first, second = twins(self.candidates.problem).T
        return self.uses[first] - self.uses[second]


def twins(problem: Problem) -> np.ndarray:
    """Return pairs of neighbouring GPU ids that are interchangeable; shape (P, 2)."""
    of = gpu_classes(problem.cluster).of
    first = np.flatnonzero(of[:-1] == of[1:])
    return np.stack([first, first + 1], axis=1)


# What the rows of each family have in each group of columns, and their least and most.
_TERMS: dict[str, Callable[[Incidence], Terms]] = {
    "layer_coverage": lambda i: ({"z": i.covers}, 1, 1),
    "gpu_exclusivity": lambda i: ({"z": i.uses}, -_FREE, 1),
    "pipeline_start": lambda i: ({"z": i.covers[[0]]}, 1, _FREE),
    "pipeline_end": lambda i: ({"z": i.covers[[-1]]}, 1, _FREE),
    "successor": lambda i: (i.onward, 0, _FREE),
    "predecessor": lambda i: (i.inward, 0, _FREE),
    "link_needs_sender": lambda i: ({"e": i.each_connection, "z": -i.leaves.T}, -_FREE, 0),
    "link_needs_receiver": lambda i: ({"e": i.each_connection, "z": -i.enters.T}, -_FREE, 0),
    "stage_rate": lambda i: ({"tau": i.each_allocation, "z": -i.theta}, 0, 0),
    "link_rate": lambda i: ({"rho": i.each_connection, "e": -i.nu}, 0, 0),
    "stage_bottleneck": lambda i: (
        {"t": 1.0, "tau": -i.each_allocation, "z": i.big_m_stage * i.each_allocation},
        -_FREE,
        i.big_m_stage,
    ),
    "link_bottleneck": lambda i: (
        {"t": 1.0, "rho": -i.each_connection, "e": i.big_m_link * i.each_connection},
        -_FREE,
        i.big_m_link,
    ),
    "flow_out": lambda i: (i.onward, 0, 0),
    "flow_in": lambda i: (i.inward, 0, 0),
    "layer_rate": lambda i: ({"t": 1.0, "z": -(i.covers @ i.theta)}, -_FREE, 0),
    "boundary_rate": lambda i: (
        {"t": 1.0, "e": i.big_m_link * i.crosses - i.crosses @ i.nu},
        -_FREE,
        i.big_m_link,
    ),
    "link_forced": lambda i: ({"e": i.each_connection, "z": -i.leaves.T - i.enters.T}, -1, _FREE),
    "gpu_bottleneck": lambda i: (
        {"t": 1.0, "z": i.big_m_stage * i.uses - i.uses @ i.theta},
        -_FREE,
        i.big_m_stage,
    ),
    "twins_in_order": lambda i: ({"z": i.first_twin_less_second}, 0, _FREE),
    "boundary_balance": lambda i: ({"z": i.balance}, 0, 0),
}
FAMILIES = {
    row.cells["name"]: Family(**row.cells, terms=_TERMS[row.cells["name"]])
    for row in read_rows(data_dir() / "joint_ilp_families.csv", ["name"])
}


@dataclass(frozen=True)
class Form:
    """One form of the joint ILP.

    Attributes
    ----------
    names : tuple of str
        Of the families that are switched on.
    groups : tuple of str
        The groups of columns it has: one for every allocation ("z", "tau"), for every connection ("e",
        "rho"), and "t".
    whole : tuple of str
        The groups that must be declared whole.
    domains : tuple of str
        What values the variables may take, as LaTeX, to be shown.
    margin : float
        M_stage is so many times the fastest rate.
    """

    names: tuple[str, ...]
    groups: tuple[str, ...]
    whole: tuple[str, ...]
    domains: tuple[str, ...] = ()
    margin: float = 1.0

    @property
    def families(self) -> tuple[Family, ...]:
        """The families, in order."""
        return tuple(FAMILIES[name] for name in self.names)

    def size(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Compute variables and rows from the numbers of `count_candidates`, nothing built."""
        number = _in_group(counts["allocations"], counts["connections"])
        return {
            "variables": sum(number[group] for group in self.groups),
            "rows": sum(family.count(counts) for family in self.families),
        }

    def columns(self, candidates: StageCandidates) -> VariableGroups:
        """Return the groups side by side."""
        number = _in_group(len(candidates.start), len(candidates.tail))
        return VariableGroups({group: number[group] for group in self.groups})


def _in_group(allocations: int, connections: int) -> dict[str, int]:
    return {"z": allocations, "e": connections, "tau": allocations, "rho": connections, "t": 1}


FORMS = {
    "written": Form(
        names=(
            *("layer_coverage", "gpu_exclusivity", "pipeline_start", "pipeline_end"),
            *("successor", "predecessor", "link_needs_sender", "link_needs_receiver"),
            *("stage_rate", "link_rate", "stage_bottleneck", "link_bottleneck"),
        ),
        groups=("z", "e", "tau", "rho", "t"),
        whole=("z", "e"),
        domains=(r"z_a, e_{ab} \in \{0, 1\}", r"\tau_a, \rho_{ab}, t \ge 0"),
        margin=MARGIN,
    ),
    # e need not be declared whole: once z is, nothing flows into a stage that is not chosen, so
    # what leaves a chosen stage can only enter the one chosen stage that starts where it ends.
    "tight": Form(
        names=(
            *("layer_coverage", "gpu_exclusivity", "flow_out", "flow_in"),
            *("layer_rate", "boundary_rate"),
        ),
        groups=("z", "e", "t"),
        whole=("z",),
        domains=(
            r"z_a \in \{0, 1\}",
            r"z_a = 0 \text{ where nothing can follow or precede}",
            r"0 \le e_{ab} \le 1",
            r"t \ge 0",
        ),
    ),
}
ONE_GPU = Form(
    names=(
        *("layer_coverage", "gpu_exclusivity", "link_forced", "gpu_bottleneck", "boundary_rate"),
        *("twins_in_order", "boundary_balance"),
    ),
    groups=("z", "e", "t"),
    whole=("z",),
)


def joint_form(form: str, big_m: str = "valid") -> Form:
    """Return a form of the joint ILP by name.

    Raises
    ------
    UnknownName
        No such form or big-M, or the M of the author's code for the tight form, which has
        none.
    """
    refuse_unknown("form", form, FORMS)
    refuse_unknown("big_m", big_m, BIG_MS)
    if big_m != "valid" and form != "written":
        raise UnknownName(f"form={form!r} has no big_m={big_m!r}; only form='written' has an M")
    return FORMS[form]


def build(
    candidates: StageCandidates, form: Form, big_m: str = "valid", most: float = np.inf
) -> LinearProgram:
    """Build the program of one form as arrays: maximise t subject to its families.

    Parameters
    ----------
    candidates : StageCandidates
    form : Form
    big_m : {"valid", "as_written"}
    most : float
        A rate that no placement exceeds: connections at least as fast are left out, since they are
        never the bottleneck.
    """
    slow = candidates.link_throughput < most
    if not slow.all():
        candidates = candidates.connected_by(slow)
    columns = form.columns(candidates)
    matrices = incidence_of(candidates, form, big_m)
    chosen = _can_be_chosen(candidates) if form is FORMS["tight"] else 1
    upper = {"z": chosen, "e": 1, "t": most}
    blocks = {}
    for family in form.families:
        candidates.deadline.check()
        blocks[family.name] = family.rows(matrices, columns)
    return columns.program({"t": 1}, blocks, upper=upper, integer=form.whole)


def incidence_of(candidates: StageCandidates, form: Form, big_m: str = "valid") -> Incidence:
    """Return the matrices of the formulation, with its two big-Ms.

    The write-up states no value of either. `M_stage` of its form is that of its author's code,
    1.1 · max θ. It is valid: no t exceeds max θ. `M_link` is max θ, too, if it is to be valid: an unused
    connection must not hold t below what a stage can reach. "as_written" is 1.1 · max ν, as the
    author's code has it: it cuts off the best placements wherever links are slow.
    """
    fastest = float(candidates.throughput.max(initial=0.0))
    link = MARGIN * float(candidates.link_throughput.max(initial=0.0))
    valid = big_m == "valid"
    return Incidence(
        candidates=candidates,
        big_m_stage=form.margin * fastest,
        big_m_link=fastest if valid else link,
        cap_links=valid,
    )


def big_m_is_valid(candidates: StageCandidates, big_m: str) -> bool:
    """Return whether an unused connection leaves every placement its full rate."""
    link_m = incidence_of(candidates, FORMS["written"], big_m).big_m_link
    return not len(candidates.tail) or link_m >= candidates.throughput.max(initial=0.0)


def _can_be_chosen(candidates: StageCandidates) -> np.ndarray:
    """Return 0 for each allocation that nothing can follow or precede though something must, else 1; shape (A,).

    Coverage and exclusivity forbid choosing it anyhow; the relaxation does not know that.
    """
    numbers = np.arange(len(candidates.start))
    follows = (candidates.stop == candidates.layers) | np.isin(numbers, candidates.tail)
    precedes = (candidates.start == 0) | np.isin(numbers, candidates.head)
    return (follows & precedes).astype(float)


@dataclass(frozen=True)
class Formulation(Frozen):
    """A form for one problem.

    Attributes
    ----------
    form : Form
    counts : mapping
        The numbers of `count_candidates`, from which every family counts its rows.
    """

    form: Form
    counts: Mapping[str, int]

    def to_frame(self) -> DataFrame:
        """Return one row per family: name, group, sentence, formula, rows."""
        families = self.form.families
        return data_frame(
            {
                "family": [f.name for f in families],
                "group": [f.group for f in families],
                "one row says": [f.sentence for f in families],
                "formula": [f"$\\displaystyle {f.formula}$" for f in families],
                "how many rows": [f.how_many for f in families],
                "rows here": [f.count(self.counts) for f in families],
            }
        )

    def _repr_html_(self) -> str:
        frame = self.to_frame()
        frame["family"] = [f"<code>{breakable(name)}</code>" for name in frame["family"]]
        frame["rows here"] = [f"{n:,}" for n in frame["rows here"]]
        rows = self.form.size(self.counts)["rows"]
        total = f"<p>maximise <b>t</b> subject to {rows:,} rows:</p>"
        domains = ", &nbsp; ".join(f"${d}$" for d in self.form.domains)
        return f"{total}{table(frame, raw=True, narrow=True)}<p>{domains}</p>"


def joint_formulation(problem: Problem, form: str = "written") -> Formulation:
    """Return the joint ILP of a problem, to be read.

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
    TooLarge
        There are too many GPU sets even to count.

    References
    ----------
    The write-up, "Correct Joint ILP Formulation", constraints 1 to 6.
    """
    return Formulation(joint_form(form), count_candidates(problem))
