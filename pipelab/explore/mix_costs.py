"""The cost models that the mix explorer offers, as objects and as code."""

from collections.abc import Iterable, Mapping
from typing import Any

from pipelab.data import load_coefficients
from pipelab.errors import InvalidValue
from pipelab.linear import LinearThroughput
from pipelab.roofline import Roofline

__all__ = ["LINEAR", "ROOFLINE", "code_of_costs", "costs_of"]

# What a cost model's name changes in it. Each asks one question: what if that were otherwise?
LINEAR: Mapping[str, Mapping[str, Any]] = {
    "linear": {},
    "linear, no loss": {"efficiency": 1.0},  # GPUs that share a stage lose nothing
}
ROOFLINE: Mapping[str, Mapping[str, Any]] = {
    "Roofline": {},
    "Roofline, eager": {"layer_overhead_s": 3e-4},  # launches without CUDA graphs
    "Roofline, no overlap": {"prefill_overlap": 0.0, "decode_overlap": 0.0},  # moving bytes hides behind nothing
}


def costs_of(name: str, gpu_types: Iterable[str]) -> Roofline | LinearThroughput:
    """The cost model of this name, for GPUs of which there are facts.

    The write-up has one set of coefficients for all A100; here they serve A100-SXM-40 and A100-SXM-80 alike.

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
    known = load_coefficients().coefficients
    strange = [t for t in gpu_types if t.split("-")[0] not in known]
    if strange:
        expected = f"without {', '.join(strange)}, or by Roofline: the write-up knows {', '.join(known)} alone"
        raise InvalidValue("explore_mix", [("cost model", name, expected)])
    return LinearThroughput({t: known[t.split("-")[0]] for t in gpu_types}, **LINEAR[name])


def code_of_costs(name: str, gpu_types: Iterable[str]) -> str:
    """`costs_of` as an expression, for whoever has said `import pipelab as pl`.

    Examples
    --------
    >>> code_of_costs("Roofline, eager", ["T4"])
    'pl.Roofline(layer_overhead_s=0.0003)'
    """
    changed = [f"{field}={value!r}" for field, value in {**LINEAR, **ROOFLINE}[name].items()]
    if name in ROOFLINE:
        return f"pl.Roofline({', '.join(changed)})"
    known = 'pl.load_coefficients().coefficients[t.split("-")[0]]'
    return f"pl.LinearThroughput({', '.join([f'{{t: {known} for t in {list(gpu_types)!r}}}', *changed])})"
