"""The write-up's joint ILP: choose layers and specific GPUs of every stage at once.

Maximise t such that every layer is covered once, no GPU is used twice, chosen stages are
linked in order, and t is at most the rate of every chosen stage and link. Every candidate stage and
every possible link has a variable of its own, with its rate computed beforehand; that is what makes
the model linear, and what makes it large: 2(A + E) + 1 variables, see `count.py`. `joint_tight`
states the same with fewer rows and a better bound.

Equals `pipelab.joint_ilp` on its domain; see tests/test_definitions_placement.py.

Source: the joint-ILP write-up, "Mathematical Formulation (Correct)", constraints 1 to 6.
"""

from collections.abc import Mapping

import numpy as np

from pipelab.engine.formulations.candidates import Candidates
from pipelab.engine.formulations.families import Domain, Family, Incidence, Symbol, maximise_t
from pipelab.engine.solvers.linear_program import Columns, LinearProgram

BIG_MS = ("valid", "as_written")
# the Ms in the code of the write-up's author are so many times the fastest rate; the text states
# none
MARGIN = 1.1

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
    "layer_coverage", "Layer ℓ is in exactly one chosen allocation.",
    r"\sum_{a \ni \ell} z_a = 1 \quad \forall \ell", "logic", "L", lambda n: n["layers"],
    rows=lambda i, c: c.rows({"z": i.covers}, lower=1, upper=1),
)  # fmt: skip

GPU_EXCLUSIVITY = Family(
    "gpu_exclusivity", "GPU g is in at most one chosen allocation.",
    r"\sum_{a \ni g} z_a \le 1 \quad \forall g", "logic", "N", lambda n: n["gpus"],
    rows=lambda i, c: c.rows({"z": i.uses}, upper=1),
)  # fmt: skip

FAMILIES = (
    LAYER_COVERAGE,
    GPU_EXCLUSIVITY,
    Family(
        "pipeline_start", "Some chosen allocation starts at the first layer.",
        r"\sum_{a:\,\mathrm{first}(a) = 1} z_a \ge 1", "logic", "1", lambda n: 1,
        rows=lambda i, c: c.rows({"z": i.first}, lower=1),
    ),
    Family(
        "pipeline_end", "Some chosen allocation ends at the last layer.",
        r"\sum_{a:\,\mathrm{last}(a) = L} z_a \ge 1", "logic", "1", lambda n: 1,
        rows=lambda i, c: c.rows({"z": i.last}, lower=1),
    ),
    Family(
        "successor", "A chosen allocation that is not the last is followed by another.",
        r"\sum_{b} e_{ab} \ge z_a \quad \forall a \text{ with a successor}",
        "logic", "allocations with a successor", lambda n: n["with_successor"],
        rows=lambda i, c: c.rows({"e": i.leaves[i.followed], "z": -i.pick(i.followed)}, lower=0),
    ),
    Family(
        "predecessor", "A chosen allocation that is not the first follows another.",
        r"\sum_{a} e_{ab} \ge z_b \quad \forall b \text{ with a predecessor}",
        "logic", "allocations with a predecessor", lambda n: n["with_predecessor"],
        rows=lambda i, c: c.rows({"e": i.enters[i.preceded], "z": -i.pick(i.preceded)}, lower=0),
    ),
    Family(
        "link_needs_sender", "A used connection has its sender chosen.",
        r"e_{ab} \le z_a \quad \forall (a, b)", "logic", "E", lambda n: n["connections"],
        rows=lambda i, c: c.rows({"e": i.each_connection(), "z": -i.leaves.T}, upper=0),
    ),
    Family(
        "link_needs_receiver", "A used connection has its receiver chosen.",
        r"e_{ab} \le z_b \quad \forall (a, b)", "logic", "E", lambda n: n["connections"],
        rows=lambda i, c: c.rows({"e": i.each_connection(), "z": -i.enters.T}, upper=0),
    ),
    Family(
        "stage_rate", "τ is the rate of a chosen allocation and 0 otherwise.",
        r"\tau_a = \theta_a z_a \quad \forall a", "throughput", "A", lambda n: n["allocations"],
        rows=lambda i, c: c.rows({"tau": i.each_allocation(), "z": -i.theta}, lower=0, upper=0),
    ),
    Family(
        "link_rate", "ρ is the rate of a used connection and 0 otherwise.",
        r"\rho_{ab} = \nu_{ab} e_{ab} \quad \forall (a, b)", "throughput", "E", lambda n: n["connections"],
        rows=lambda i, c: c.rows({"rho": i.each_connection(), "e": -i.nu}, lower=0, upper=0),
    ),
    Family(
        "stage_bottleneck", "t is at most the rate of a chosen allocation; M makes any other row vacuous.",
        r"t \le \tau_a + M_{\mathrm{stage}} (1 - z_a) \quad \forall a",
        "throughput", "A", lambda n: n["allocations"],
        rows=lambda i, c: c.rows(
            {"t": _ones(c.sizes["z"]), "tau": -i.each_allocation(), "z": i.big_m_stage * i.each_allocation()},
            upper=i.big_m_stage,
        ),
    ),
    Family(
        "link_bottleneck", "t is at most the rate of a used connection; a large enough M makes any other row vacuous.",
        r"t \le \rho_{ab} + M_{\mathrm{link}} (1 - e_{ab}) \quad \forall (a, b)",
        "throughput", "E", lambda n: n["connections"],
        rows=lambda i, c: c.rows(
            {"t": _ones(c.sizes["e"]), "rho": -i.each_connection(), "e": i.big_m_link * i.each_connection()},
            upper=i.big_m_link,
        ),
    ),
)  # fmt: skip


def size(counts: Mapping[str, int]) -> dict[str, int]:
    """Variables and rows from the numbers of `count_candidates`, nothing built."""
    variables = 2 * (counts["allocations"] + counts["connections"]) + 1
    return {"variables": variables, "rows": sum(f.count(counts) for f in FAMILIES)}


def columns(candidates: Candidates) -> Columns:
    """z, e, τ, ρ and t side by side."""
    allocations, connections = len(candidates.start), len(candidates.tail)
    return Columns(
        {"z": allocations, "e": connections, "tau": allocations, "rho": connections, "t": 1}
    )


DOMAINS = (r"z_a, e_{ab} \in \{0, 1\}", r"\tau_a, \rho_{ab}, t \ge 0")


def domains(candidates: Candidates) -> dict[str, Domain]:
    """Upper bounds and whole-number demands by column group; lower bounds are 0."""
    binary, free = Domain(1.0, whole=True), Domain(np.inf, whole=False)
    return {"z": binary, "e": binary, "tau": free, "rho": free, "t": free}


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


def build(candidates: Candidates, big_m: str = "valid") -> LinearProgram:
    """The formulation as written, constraints 1 to 6, as arrays."""
    return maximise_t(
        columns(candidates), domains(candidates), FAMILIES, incidence(candidates, big_m)
    )


def fastest(rates: np.ndarray) -> float:
    """The largest of some rates; 0 for an empty array."""
    return float(rates.max(initial=0.0))
