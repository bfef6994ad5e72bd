"""How long `import pipelab` takes, and the first names that are used; least of several fresh interpreters.

    python tests/benchmarks/imports.py       # fails where the import alone takes more than 0.3 s

`python -X importtime -c "import pipelab"` says where the time goes.
"""

import subprocess
import sys
import time

LINES = {
    "nothing": "pass",
    "import pipelab": "import pipelab",
    "… and load_case": "import pipelab as pl; pl.load_case('tiny')",
    "… and solve": "import pipelab as pl; pl.solve(pl.load_case('tiny'), 'aggregated')",
    "… and a figure": "import pipelab as pl; pl.plot(pl.load_case('tiny'), pl.Placement.of([(4, (0,))]))",
}
MOST_SECONDS = 0.3


def seconds(code: str, runs: int = 7) -> float:
    """From the start of a fresh interpreter to its end, the least of several."""
    found = []
    for _ in range(runs):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        found.append(time.perf_counter() - began)
    return min(found)


def main() -> None:
    """Print the times."""
    times = {name: seconds(code) for name, code in LINES.items()}
    for name, taken in times.items():
        print(f"{name:<16} {taken:6.3f} s")
    if times["import pipelab"] - times["nothing"] > MOST_SECONDS:
        sys.exit(f"import pipelab takes more than {MOST_SECONDS} s")


if __name__ == "__main__":
    main()
