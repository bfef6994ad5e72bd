"""Seconds and peak memory of building and of solving the joint ILP, side by side.

`python tests/benchmarks/joint_build.py [SECONDS]` runs small with one and two GPUs per stage
in both forms, each in a process of its own so that its peak memory is its own, and gives
SCIP SECONDS (default 300) for each. Prints one line per run.
"""

import json
import resource
import subprocess
import sys
import time

RUNS = [("small", gpus, form) for gpus in (1, 2) for form in ("tight", "written")]


def measure(case: str, gpus: int, form: str, limit: float) -> dict:
    """Build and solve one model in this process."""
    import pipelab as pl
    from pipelab.engine.methods import joint
    from pipelab.engine.methods.joint import joint_program

    joint.free_gigabytes = lambda: 1000.0  # what is too large is to be tried
    began = time.perf_counter()
    problem = pl.load_case(case, max_gpus_per_stage=gpus)
    joint_program(problem, form)
    arrays = time.perf_counter() - began
    result = pl.solve(problem, "joint", form=form, time_limit=limit)
    build, solve = (result.details[f"{what}_seconds"] for what in ("build", "solve"))
    return {
        "case": case,
        "gpus_per_stage": gpus,
        "form": form,
        **{name: result.size[name] for name in ("variables", "rows")},
        "arrays_s": round(arrays, 2),
        "build_s": round(build, 2),
        "solve_s": round(solve, 2),
        "solve_over_build": round(solve / build, 1),
        "status": result.status,
        "throughput": result.throughput,
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
    }


def main() -> None:
    """Run every measurement in a process of its own."""
    if len(sys.argv) == 5:
        case, gpus, form, limit = sys.argv[1:]
        print(json.dumps(measure(case, int(gpus), form, float(limit))))
        return
    limit = sys.argv[1] if len(sys.argv) > 1 else "300"
    for case, gpus, form in RUNS:
        subprocess.run([sys.executable, __file__, case, str(gpus), form, limit], check=True)


if __name__ == "__main__":
    main()
