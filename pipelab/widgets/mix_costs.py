"""The cost models that the mix explorer offers, as objects and as code."""

from collections.abc import Iterable, Mapping
from typing import Any

from pipelab.display import listed
from pipelab.errors import InvalidValue
from pipelab.hardware.linear_rates import LinearThroughput
from pipelab.hardware.roofline import Roofline
from pipelab.io.cases_csv import load_coefficients

# What each named cost model changes in its class's defaults.
LINEAR: Mapping[str, Mapping[str, Any]] = {
    "linear": {},
    "linear, no loss": {"efficiency": 1.0},  # GPUs that share a stage lose nothing
}
ROOFLINE: Mapping[str, Mapping[str, Any]] = {
    "Roofline": {},
    "Roofline, eager": {"engine": "vLLM 0.2"},  # launches without CUDA graphs
    "Roofline, llama.cpp": {"engine": "llama.cpp"},
}


def knows(name: str, gpu_type: str) -> bool:
    """Whether the cost model of this name has numbers for a bundled GPU type.

    The write-up has one set of coefficients for all A100, one for all V100, and one for all H100.

    >>> knows("linear", "A100-SXM-40"), knows("linear", "L4"), knows("Roofline", "L4")
    (True, False, True)
    """
    return name in ROOFLINE or gpu_type.split("-")[0] in load_coefficients().coefficients


def costs_of(name: str, gpu_types: Iterable[str]) -> Roofline | LinearThroughput:
    """The cost model of this name, for bundled GPU types.

    Raises
    ------
    InvalidValue
        The write-up has no coefficients for one of the types.

    Examples
    --------
    >>> costs_of("linear, no loss", ["A100-SXM-40", "T4"]).gpu_types
    ('A100-SXM-40', 'T4')
    """
    if name in ROOFLINE:
        return Roofline(**ROOFLINE[name])
    strange = [t for t in gpu_types if not knows(name, t)]
    if strange:
        expected = f"the write-up has no coefficients for {listed(strange)}: set to 0, or choose a Roofline"
        raise InvalidValue("explore_mix", [("cost model", name, expected)])
    known = load_coefficients().coefficients
    return LinearThroughput({t: known[t.split("-")[0]] for t in gpu_types}, **LINEAR[name])


def code_of_costs(name: str, gpu_types: Iterable[str]) -> list[str]:
    """Lines that make `costs`, after `import pipelab as pl`.

    Examples
    --------
    >>> code_of_costs("Roofline, eager", ["T4"])
    ["costs = pl.Roofline(engine='vLLM 0.2')"]
    """
    changed = [f"{field}={value!r}" for field, value in {**LINEAR, **ROOFLINE}[name].items()]
    if name in ROOFLINE:
        return [f"costs = pl.Roofline({', '.join(changed)})"]
    family = 't.split("-")[0]'
    of_types = f"{{t: known[{family}] for t in {list(gpu_types)!r} if {family} in known}}"
    return [
        "known = pl.load_coefficients().coefficients",
        f"costs = pl.LinearThroughput({', '.join([of_types, *changed])})",
    ]
