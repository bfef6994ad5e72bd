"""Refuse a model that would not fit in memory: with its counts, before anything is listed."""

from collections.abc import Mapping

from pipelab.errors import TooLarge

# Peak memory of building and solving, per variable and per row, by form; measured on small
# with two GPUs per stage (tests/benchmarks/joint_build.py) and rounded up.
BYTES = {"written": (2500, 2500), "tight": (15_000, 2500)}


def gigabytes(size: Mapping[str, int], form: str = "written") -> float:
    """Estimated peak memory of building and solving a model of this size."""
    per_variable, per_row = BYTES[form]
    return (size["variables"] * per_variable + size["rows"] * per_row) / 1e9


def free_gigabytes() -> float:
    """Memory that is free now."""
    import psutil

    return psutil.virtual_memory().available / 1e9


def rounded(amount: float) -> str:
    """Gigabytes as people say them."""
    return f"{amount:,.0f}" if amount >= 10 else f"{amount:.2g}"


def refuse(what: str, size: Mapping[str, int], need: float, have: float, advice: str) -> None:
    """Raise `TooLarge` with every count of `size`, the memory needed and there, and what would help."""
    counted = ", ".join(f"{number:,} {name}" for name, number in size.items() if name != "segments")
    raise TooLarge(
        f"{what} would have {counted}, about {rounded(need)} GB; {rounded(have)} GB may be used. {advice}",
        dict(size),
    )


def refuse_if_too_large(
    what: str, size: Mapping[str, int], smaller: str, limit_gb: float | None, links: str
) -> None:
    """The check of `single_gpu`: only the model with all links grows out of hand."""
    have = limit_gb if limit_gb is not None else free_gigabytes()
    need = (
        gigabytes(size) if links == "all" else gigabytes({"variables": size["segments"], "rows": 0})
    )
    if need > have:
        refuse(
            what,
            size,
            need,
            have,
            f"What may fit: {smaller}" if links == "all" else "Fewer layers or GPUs would",
        )
