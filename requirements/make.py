"""Make the requirement files anew from pyproject.toml; needs `pip install uv`.

    python requirements/make.py              # keeps what is locked already, adds what is new
    python requirements/make.py --upgrade    # the newest of everything

`locked.txt` holds what pipelab and its notebooks need to run and to be built, `locked-test.txt` what its tests need
too: exact versions, for every platform and every Python that pipelab supports, with a hash for every file.
`lowest.txt` holds the lowest versions that pyproject.toml allows, to be tested against. No file holds the address of
a registry.
"""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
PLAIN = ["--no-annotate", "--no-header", "--no-emit-index-url", "--no-emit-find-links", "--quiet"]
LOCK = ["--universal", "--generate-hashes"]
HEAD = "# {what}; made by requirements/make.py\n"


def compile_to(name: str, what: str, options: list[str], more: list[str]) -> None:
    """One file: uv reads pyproject.toml and the lines of `more`, and writes what they come to."""
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("uv is not there: pip install uv")
    target = HERE / name
    command = [
        uv,
        "pip",
        "compile",
        str(HERE.parent / "pyproject.toml"),
        "-",
        *options,
        *PLAIN,
        "-o",
        str(target),
    ]
    subprocess.run(command, input="\n".join(more), text=True, check=True, stdout=subprocess.DEVNULL)
    text = target.read_text(encoding="utf-8")
    if "://" in text:
        sys.exit(f"{target} holds an address")
    target.write_text(HEAD.format(what=what) + text, encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Make all three."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    build, lowest = (
        project["build-system"]["requires"],
        project["project"]["requires-python"].removeprefix(">="),
    )
    compile_to(
        "locked.txt",
        "What pipelab and its notebooks need",
        [*LOCK, "--extra", "lab", "--extra", "schedules", *arguments],
        build,
    )
    compile_to(
        "locked-test.txt",
        "The same, and what the tests need",
        [*LOCK, "--extra", "lab", "--extra", "test", *arguments],
        build,
    )
    options = [
        "--resolution",
        "lowest-direct",
        "--extra",
        "lab",
        "--extra",
        "test",
        "--python-version",
        lowest,
        "--upgrade",
    ]
    compile_to("lowest.txt", f"The lowest versions allowed, for Python {lowest}", options, [])


if __name__ == "__main__":
    main(sys.argv[1:])
