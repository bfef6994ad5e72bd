"""The clone that tests and tools are about: where it lies, and what its files say."""

import ast
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pipelab"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


def text_of(path: str) -> str:
    """Read a file of the clone."""
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def parsed_package() -> dict[str, ast.Module]:
    """Parse every module of the package, and give each its path in the package."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }
