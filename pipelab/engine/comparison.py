"""Several methods on one problem, or on several: one table, one figure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipelab import display
from pipelab.engine.answers import Result
from pipelab.engine.solving import METHODS, method_of, options_of, solve
from pipelab.errors import InvalidValue, NotApplicable, TooLarge, UnknownName, nearest
from pipelab.fields import Frozen, is_list
from pipelab.interrupts import noted_interrupts
from pipelab.problem import Problem

_NOT_ASKED = "not asked, after an interrupt"
EVERY_METHOD = tuple(name for name in METHODS if name != "auto")


@dataclass(frozen=True, kw_only=True)
class Comparison(Frozen):
    """Answers of several methods to one problem.

    Attributes
    ----------
    problem : Problem
        The problem that all of them solved.
    results : mapping of method to Result
        In the order of the call.
    refused : mapping of method to str
        Methods whose program would be too large, or which do not apply to this problem, with the
        reason.
    """

    problem: Problem
    results: Mapping[str, Result]
    refused: Mapping[str, str]

    @property
    def optimum(self) -> float | None:
        """The proven optimum in tokens/s; None if no method proved it."""
        proven = [r.throughput for r in self.results.values() if r.status == "optimal"]
        return proven[0] if proven else None

    def shares(self) -> dict[str, float | None]:
        """Return each method's throughput as a share of the proven optimum.

        Returns
        -------
        dict of str to float or None
            By method; None if it has no placement, or if no method proved the optimum.
        """
        best = self.optimum
        return {
            m: r.throughput / best if best and r.throughput else None
            for m, r in self.results.items()
        }

    @property
    def outcomes(self) -> dict[str, display.Outcome]:
        """How each method ended: proven, not proven, stopped early, does not fit, or refused."""
        answered = {method: display.outcome_of(result) for method, result in self.results.items()}
        return answered | {
            m: display.STOPPED if why == _NOT_ASKED else display.REFUSED
            for m, why in self.refused.items()
        }

    def to_frame(self) -> display.DataFrame:
        """Return the comparison as a table, one row per method.

        Returns
        -------
        pandas.DataFrame
            Columns `method`, `outcome` (the word of `outcomes`), `throughput_tokens_per_s`,
            `share_of_optimum`, `stages`, `bottleneck`, `seconds` and `remark`.
        """
        shares, outcomes = self.shares(), self.outcomes
        rows = [
            {
                "method": method,
                "outcome": outcomes[method].word,
                "throughput_tokens_per_s": r.throughput,
                "share_of_optimum": shares[method],
                "stages": len(r.placement) if r.placement else None,
                "bottleneck": ", ".join(r.evaluation.bottlenecks[:2]) if r.evaluation else "",
                "seconds": round(r.seconds, 4),
                "remark": r.reason,
            }
            for method, r in self.results.items()
        ]
        rows += [
            {"method": m, "outcome": outcomes[m].word, "remark": reason}
            for m, reason in self.refused.items()
        ]
        return display.data_frame(rows)

    def _repr_html_(self) -> str:
        frame, outcomes, results = self.to_frame(), self.outcomes.items(), self.results.items()
        shown = {method: display.ended(result, html=True) for method, result in results}
        frame["outcome"] = [shown.get(method, outcome.html) for method, outcome in outcomes]
        return display.table(frame, html=("outcome",))


def compare(
    problem: Problem,
    methods: Iterable[str] = EVERY_METHOD,
    time_limit: float | None = 30,
    **options: Any,
) -> Comparison:
    """Solve one problem with several methods.

    Parameters
    ----------
    problem : Problem
        The problem that all methods solve.
    methods : iterable of str
        By default all except "auto", which chooses one of the others. "type_count" answers with a
        predicted rate, not with a placement.
    time_limit : float, optional
        Seconds for each method that takes a limit; 30 by default.
    **options
        Options by method: `joint={"form": "tight"}`.

    Returns
    -------
    Comparison
        Methods that refuse the problem are in it, with their reason; after Ctrl-C also those that
        were not asked.

    Raises
    ------
    InvalidValue
        `methods` is not a list, or an option's value does not fit.
    UnknownName
        The method or an option is unknown, or options are for a method that is not compared.

    Examples
    --------
    >>> import pipelab as pl
    >>> both = pl.compare(pl.load_case("tiny"), ["even", "exhaustive"])
    >>> {method: round(share, 3) for method, share in both.shares().items()}
    {'even': 0.612, 'exhaustive': 1.0}
    """
    given = tuple(methods) if is_list(methods) else ()
    if not is_list(methods) or not all(isinstance(method, str) for method in given):
        example = [methods] if isinstance(methods, str) else ["joint", "even"]
        expected = f"expected a list of methods, such as {example}"
        raise InvalidValue("compare", [("methods", methods, expected)])
    for name in options:
        if name not in given:
            known = nearest(name, given)
            raise UnknownName(f"there are options for {name!r}, which is not compared; {known}")
    results, refused = {}, {}
    with noted_interrupts(passed_on=False) as interrupted:
        for method in given:
            if interrupted():  # the method before took it for its own
                refused[method] = _NOT_ASKED
                continue
            method_options = dict(options.get(method, {}))
            if "time_limit" in options_of(method_of(method, method_options)):
                method_options.setdefault("time_limit", time_limit)
            try:
                results[method] = solve(problem, method, **method_options)
            except (TooLarge, NotApplicable) as error:
                refused[method] = str(error)
    return Comparison(problem=problem, results=results, refused=refused)
