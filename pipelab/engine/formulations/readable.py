"""A formulation as a page: symbols, and every family with formula and row count.

All of it is read from the registry and the problem; nothing is typed a second time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelab.display import breakable, table
from pipelab.engine.formulations.count import count_candidates
from pipelab.engine.formulations.families import Family, Symbol
from pipelab.engine.formulations.forms import joint_form
from pipelab.engine.formulations.joint import SYMBOLS
from pipelab.problem import Problem

if TYPE_CHECKING:
    from pandas import DataFrame


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
    module = joint_form(form)
    return Formulation(module.FAMILIES, module.DOMAINS, count_candidates(problem), Symbols(SYMBOLS))
