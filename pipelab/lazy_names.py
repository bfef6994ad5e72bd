"""The public names of a package: listed in its stub, `__init__.pyi`, and imported when first used.

Type checkers and editors read the same stub.
"""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def public_names(
    package: str, file: str
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Read the stub beside a package's `__init__.py`.

    Parameters
    ----------
    package, file : str
        `__name__` and `__file__` of the package.

    Returns
    -------
    list of str
        Its names, in order.
    function of a name
        Imports what a name stands for; raises AttributeError for other names.
    function
        Lists its names, as `dir` asks for them.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes = {
        alias.name: "." * statement.level + (statement.module or "")
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == ".":  # a module
            return import_module(f".{name}", package)
        return getattr(import_module(homes[name], package), name)

    return list(homes), find, lambda: list(homes)
