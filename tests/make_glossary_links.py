"""Make again what the glossary takes from the notebooks: `python tests/make_glossary_links.py`.

Every entry leads to the place where its term is first met, and the list at the top has all terms. Where a word of
every day is a term, an entry says as what it is first met: *First met as “ideal time” in …*.
A term that no notebook uses is an error: the glossary has the course's words.
"""

import json
import re
from functools import cache
from pathlib import Path

from pipelab.files.bundled_folders import notebooks_dir

LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")
_ENTRY = re.compile(r"### (?P<term>.+)\n")
MET = re.compile(r"\*First met (?:as “(?P<words>.+)” )?in (?P<place>.*)\.\*$", flags=re.M)
_LIST = "**All terms**"
_PARTS = ("0-9", "A-B", "C-D", "E-H", "I-L", "M-O", "P-R", "S", "T-Z")


def texts(path: Path) -> list[tuple[str, str]]:
    """The (id, source) of a notebook's cells of text."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [(c["id"], "".join(c["source"])) for c in cells if c["cell_type"] == "markdown"]


@cache
def _said(path: Path) -> tuple[tuple[str, str, str], ...]:
    """(id, heading, line) of a notebook's own text: without title, minutes, links, programs and the list of sources.

    The id is that of the cell with the heading, "" under the notebook's title.
    """
    cell, heading, said = "", "", []
    for here, source in texts(path):
        for line in re.sub(r"```.*?```", "", source, flags=re.S).split("\n"):
            if found := re.match(r"(#{1,3}) (.*)", line):
                cell, heading = ("" if found[1] == "#" else here), found[2]
            source_of = heading == "Sources" and line.startswith("- ")
            if not source_of and not re.match(r"# |\*\d+ minutes", line):
                said.append((cell, heading, LINK.sub("", line).replace("*", "")))
    return tuple(said)


def _forms(term: str) -> re.Pattern[str]:
    """The term and its plural; capitals behind the first letter, as in ZeRO, are a part of it."""
    stem = (
        f"{re.escape(term[1:-1])}(?:y|ies)"
        if term.endswith("y")
        else f"{re.escape(term[1:])}(?:e?s)?"
    )
    return re.compile(rf"(?<![\w.-])(?i:{re.escape(term[0])}){stem}(?![\w-])")


def first_met(term: str) -> str:
    """A link to the first heading of the course under which a term, or its plural, occurs."""
    forms = _forms(term)
    for path in sorted(notebooks_dir().glob("[0-9][0-9]_*.ipynb")):
        for cell, heading, line in _said(path):
            if forms.search(line):
                at = f"#cell-id={cell}" if cell else ""
                return f"[{path.name[:2]} {heading}]({path.name}{at})"
    raise ValueError(f"glossary.ipynb: no notebook has the term {term!r}")


def terms_of(sources: list[str]) -> list[str]:
    """The terms of a glossary's cells, in their order."""
    return [found["term"] for source in sources if (found := _ENTRY.match(source))]


def listed(terms: list[str]) -> str:
    """All terms by their first letters, as a table of links to their headings."""
    rows: dict[str, list[str]] = {part: [] for part in _PARTS}
    for term in sorted(terms, key=str.casefold):
        part = next(p for p in _PARTS if p[0] <= term[0].upper() <= p[-1])
        rows[part].append(f"[{term}](#{term.replace(' ', '-')})")
    lines = (f"| {part.replace('-', '–')} | {' · '.join(row)} |" for part, row in rows.items())
    return "\n".join([f"{_LIST}\n\n| | |\n| --- | --- |", *lines])


def made(glossary: str) -> str:
    """The glossary's file with its links and its list made again."""
    notebook = json.loads(glossary)
    sources = ["".join(cell["source"]) for cell in notebook["cells"]]
    terms = terms_of(sources)
    for cell, source in zip(notebook["cells"], sources, strict=True):
        if found := _ENTRY.match(source):
            words = MET.search(source)["words"]
            place = first_met(words or found["term"])
            met = f"*First met {f'as “{words}” ' if words else ''}in {place}.*"
            source = MET.sub(lambda _, met=met: met, source)
        elif source.startswith(_LIST):
            source = listed(terms)
        cell["source"] = source.splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    path = notebooks_dir() / "glossary.ipynb"
    path.write_text(made(path.read_text(encoding="utf-8")), encoding="utf-8")
