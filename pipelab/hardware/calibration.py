"""Fit the few constants of engines and GPUs to measured times, with the defaults as priors.

The fit is least squares in log space: a prediction off by a factor of 1.1 costs as much above as
below. Every constant may move, but pays for it, by how unsure its default is (`PRIORS`). So three
rows improve what they speak of, and leave the rest alone. A row that contradicts the others counts
less (soft L1).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipelab.display import DataFrame, data_frame, table
from pipelab.fields import Frozen
from pipelab.hardware.published_times import Measurement, Traversal
from pipelab.hardware.roofline import Roofline

# How unsure a default is: standard deviation of its logarithm. 0.1 is about 10%.
PRIORS = {
    "compute": 0.15,  # compute_efficiency of one GPU type
    "memory": 0.05,  # memory_factor of one GPU type
    "all_compute": 0.1,  # compute_efficiency of all types together
    "prefill_efficiency": 0.3,
    "memory_efficiency": 0.1,  # and hbm_efficiency with it
    "layer_overhead_us": 0.5,
    "step_overhead_us": 0.5,
    "allreduce_us": 0.5,  # and pcie_allreduce_us with it
    "link_efficiency": 0.5,
    "score_bytes": 0.5,
    "kv_efficiency": 0.3,
    "sequence_overhead_us": 0.5,
    "tensor_parallel_us": 0.5,
    "allreduce_hop_us": 0.5,
    "large_allreduce": 0.5,
}
SHARES = {
    "memory_efficiency",
    "hbm_efficiency",
    "link_efficiency",
    "kv_efficiency",
    "large_allreduce",
}
GPU_FIELDS = {"compute": "compute_efficiency", "memory": "memory_factor"}
TOGETHER = {"memory_efficiency": "hbm_efficiency", "allreduce_us": "pcie_allreduce_us"}
FOLDS = 10  # parts that are left out in turn; up to ten rows, that is each row
MEASURING = 0.1  # standard deviation of the logarithm of a measured time
_MOVED = 0.005  # a constant that moved by less is not shown
Constant = tuple[str, str]  # ("engine" or "gpu" names: whose it is; which)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Calibration(Frozen):
    """A cost model fitted to measurements, and how far off it was and is."""

    costs: Roofline
    table: DataFrame  # a row per measurement: errors "before", "after" and "left_out"
    constants: DataFrame  # a row per constant that was fitted: "default", "fitted"

    @property
    def sentence(self) -> str:
        """Median errors before and after, and with each row predicted from the others."""
        before, after, out = (self.table[c].abs().median() for c in ("before", "after", "left_out"))
        return (
            f"median error {before:.1%} before, {after:.1%} after, "
            f"{out:.1%} where a row is predicted from others"
        )

    @property
    def moved(self) -> DataFrame:
        """Constants that the measurements changed by more than half a percent."""
        change = self.constants["fitted"] / self.constants["default"] - 1
        return self.constants[change.abs() > _MOVED]

    def __str__(self) -> str:
        return self.sentence

    def __repr__(self) -> str:
        return f"<Calibration: {self}>"

    def _repr_html_(self) -> str:
        return f"<p>{self.sentence}</p>{table(self.moved, digits=4)}"


def fit_constants(costs: Roofline, rows: Sequence[Measurement]) -> Calibration:
    """Fit the constants of a cost model to these rows."""
    fit = ConstantsFit(costs, rows)
    best = fit.solved(range(len(rows)))
    folds = [str(i % FOLDS) for i in range(len(rows))]
    table = data_frame(
        {
            "what": [row.what for row in rows],
            "phase": [row.phase for row in rows],
            "tensor_parallel": [row.tensor_parallel for row in rows],
            "measured_ms": [row.milliseconds for row in rows],
            "before": fit.errors(fit.zero),
            "after": fit.errors(best),
            "left_out": fit.errors_from_others(folds),
        }
    )
    calibrated = fit.costs_with(best, costs.gpus)
    return Calibration(costs=calibrated, table=table, constants=fit.changes(calibrated))


class ConstantsFit:
    """Rows, and the logarithms of factors on the constants that they depend on."""

    def __init__(self, costs: Roofline, rows: Sequence[Measurement]) -> None:
        self.costs, self.rows = costs, rows
        self.passes = [Traversal(row, costs) for row in rows]
        self.log_measured = np.log([row.milliseconds for row in rows])
        self.engine_of = [one.engine for one in self.passes]
        self.constants: list[Constant] = [("", "all_compute")]
        for name in dict.fromkeys(self.engine_of):
            engine = costs.engines[name]
            self.constants += [(name, c) for c in PRIORS if getattr(engine, c, 0.0)]
        self.gpu_types = dict.fromkeys(row.gpu_type for row in rows)
        for gpu in self.gpu_types:
            self.constants += [(gpu, "compute"), (gpu, "memory")]
        self.sigma = np.array([PRIORS[c] for _, c in self.constants])
        self.zero = np.zeros(len(self.constants))

    def solved(self, chosen: Sequence[int]) -> np.ndarray:
        """Return the log factors that fit the chosen rows best."""
        from scipy.optimize import least_squares

        picked = list(chosen)

        def residuals(theta: np.ndarray) -> np.ndarray:
            off = (self.log_predicted(theta, picked) - self.log_measured[picked]) / MEASURING
            # Soft L1 by hand: it is for the rows, not for the priors.
            soft = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off**2) - 1))
            return np.concatenate([soft, theta / self.sigma])

        sparse = self._depends_on(picked)
        return least_squares(residuals, self.zero, jac_sparsity=sparse, ftol=1e-5, xtol=1e-5).x

    def _depends_on(self, picked: Sequence[int]) -> np.ndarray:
        """Say which residual depends on which constant: rows on those of their engine and GPU."""
        names = [("", self.engine_of[i], self.rows[i].gpu_type) for i in picked]
        rows = [[whose in of_row for whose, _ in self.constants] for of_row in names]
        return np.array([*rows, *np.eye(len(self.constants))], dtype=int)

    def log_predicted(self, theta: np.ndarray, picked: Sequence[int]) -> np.ndarray:
        """Predict the logarithms of the picked rows' times in milliseconds."""
        costs = self.costs_with(theta, self.gpu_types)
        running = {name: costs.running(name) for name in set(self.engine_of)}
        times = [self.passes[i].milliseconds(running[self.engine_of[i]]) for i in picked]
        return np.log(times)

    def errors(self, theta: np.ndarray) -> np.ndarray:
        """Return predicted time over measured time, less 1."""
        return np.exp(self.log_predicted(theta, range(len(self.rows))) - self.log_measured) - 1

    def errors_from_others(self, groups: Sequence[str]) -> np.ndarray:
        """Predict every row by constants fitted without its group; `groups` names one per row, such as its source."""
        errors = self.errors(self.zero)  # of a group that has no others
        for group in dict.fromkeys(groups):
            others = [i for i, name in enumerate(groups) if name != group]
            if others:
                inside = [i for i, name in enumerate(groups) if name == group]
                errors[inside] = self.errors(self.solved(others))[inside]
        return errors

    def costs_with(self, theta: np.ndarray, gpu_types: Iterable[str]) -> Roofline:
        """Return the cost model, of these types of GPUs alone, with its constants times these factors."""
        factor = dict(zip(self.constants, np.exp(theta).tolist(), strict=True))
        gpus = {name: self.costs.gpus[name] for name in gpu_types}
        engines = dict(self.costs.engines)
        for name, facts in gpus.items():
            compute = factor["", "all_compute"] * factor.get((name, "compute"), 1.0)
            gpus[name] = replace(
                facts,
                compute_efficiency=min(1.0, facts.compute_efficiency * compute),
                memory_factor=facts.memory_factor * factor.get((name, "memory"), 1.0),
            )
        for name in dict.fromkeys(self.engine_of):
            factors = {c: f for (whose, c), f in factor.items() if whose == name}
            factors |= {TOGETHER[c]: f for c, f in factors.items() if c in TOGETHER}
            changed = {c: getattr(engines[name], c) * f for c, f in factors.items()}
            limited = {c: min(1.0, v) if c in SHARES else v for c, v in changed.items()}
            engines[name] = replace(engines[name], **limited)
        return replace(self.costs, gpus=gpus, engines=engines)

    def changes(self, calibrated: Roofline) -> DataFrame:
        """Tabulate every constant that was fitted, as it was and as it is."""
        rows: list[tuple[str, str, float, float]] = []
        for whose, constant in self.constants:
            field = GPU_FIELDS.get(constant, constant)
            if whose:  # else it is part of every GPU's
                old, new = (
                    costs.gpus[whose] if constant in GPU_FIELDS else costs.engines[whose]
                    for costs in (self.costs, calibrated)
                )
                rows.append((whose, field, getattr(old, field), getattr(new, field)))
        return data_frame(rows, columns=["of", "constant", "default", "fitted"])
