"""Count again the lines of the modules in `docs/the_thin_part.md`: `python tests/make_thin_part.py`."""

import ast
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "the_thin_part.md"
ROW = re.compile(r"^(\| `(pipelab/\S+\.py)` \|.*\| )([\d,]+)( \|)$", re.M)
SUM = re.compile(r"(?<=All modules of this page have )[\d,]+")

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
WITH_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(path: Path) -> int:
    """Count the lines of a module that have code: no docstrings, comments or empty lines."""
    code: set[int] = set()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type not in LAYOUT | {tokenize.ENCODING}:
                code |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, WITH_DOCSTRINGS) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            code -= set(range(docstring.lineno, docstring.end_lineno + 1))
    return len(code)


def made(page: str) -> str:
    """Return the page with the lines of its modules, rounded to ten."""
    lines = {path: code_lines(ROOT / path) for _, path, *_ in ROW.findall(page)}
    page = ROW.sub(lambda row: f"{row[1]}{round(lines[row[2]], -1):,}{row[4]}", page)
    return SUM.sub(f"{round(sum(lines.values()), -2):,}", page)


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text("utf-8")), "utf-8")
