"""The notebooks as one course: one template through all of them, a glossary whose links lead somewhere."""

import itertools
import re
from functools import cache
from pathlib import Path

import make_glossary_links
import make_minutes
import make_solutions
import nbformat
import pandas as pd
import pytest

import pipelab as pl
from notebook_results import drawing_cells
from pipelab.course.ledger import DOCUMENTS
from pipelab.files.bundled_folders import notebooks_dir

COURSE = sorted(notebooks_dir().glob("[0-9][0-9]_*.ipynb"))
LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")

# Every notebook has these, in this order.
HEADINGS = ["Change it", "Where it fails", "Exercises", "Takeaways", "Sources"]


@cache
def _all_cells(path):
    return nbformat.read(path, as_version=4).cells


def _cells(path, kind):
    return [c for c in _all_cells(path) if c.cell_type == kind]


def _text(path):
    return "\n\n".join(c.source for c in _cells(path, "markdown"))


def _headings(path):
    return re.findall(r"^#{1,3} (.*)$", _text(path), flags=re.M)


def _name(path):
    return path.stem


@pytest.mark.parametrize("path", COURSE, ids=_name)
def test_a_notebook_opens_with_its_aim_its_minutes_and_its_neighbours(path):
    head, aims, *_ = (cell.source for cell in _cells(path, "markdown"))
    assert re.match(r"# .+\n\n.+", head)
    line = re.search(
        r"^\*(\d+) minutes(?:, in (?:two|three) sittings: .+?)?( · .*)\*$", head, flags=re.M
    )
    assert line, head
    place = COURSE.index(path)
    wanted = {"glossary": "glossary.ipynb"}
    for word, other in (("previous", place - 1), ("next", place + 1)):
        assert (f" · {word}: " in line[2]) == (0 <= other < len(COURSE))
        if 0 <= other < len(COURSE):
            target = COURSE[other]
            assert f"{word}: [{target.name[:2]} " in line[2]
            title = _text(target).split("\n")[0][2:].split(":")[0]
            wanted[f"{target.name[:2]} {title}"] = target.name
    assert dict(LINK.findall(line[2])) == wanted
    assert aims.startswith("**In this notebook you will**\n\n1. ")
    assert len(re.findall(r"^\d\. ", aims, flags=re.M)) >= 3


@pytest.mark.parametrize("path", COURSE, ids=_name)
def test_a_notebook_asks_shows_changes_fails_and_closes(path):
    """A sentence stands under every figure, and the takeaways are computed."""
    cells, code = _all_cells(path), [cell.source for cell in _cells(path, "code")]
    assert [heading for heading in _headings(path) if heading in HEADINGS] == HEADINGS
    drawing = drawing_cells(nbformat.read(path, as_version=4))
    assert drawing
    for place in drawing:
        assert cells[place + 1].cell_type == "markdown", cells[place].source
        assert not cells[place + 1].source.startswith("#"), cells[place].source
    begin = next(i for i, c in enumerate(cells) if c.source.startswith("## Change it"))
    widget = r"interact\b|interactive_output|pl\.(explore|watch)_"
    assert any(re.search(widget, c.source) for c in cells[begin : begin + 4]), "nothing to change"
    (last,) = (source for source in code if "Markdown(f" in source)
    assert len(re.findall(r"^- .*\{", last, flags=re.M)) >= 3, "takeaways without a number"


@pytest.mark.parametrize("path", COURSE, ids=_name)
def test_a_notebook_has_exercises_with_a_check_and_a_folded_solution(path):
    cells = _all_cells(path)
    begin = next(i for i, c in enumerate(cells) if "## Exercises" in c.source)
    after = "\n".join(c.source for c in cells[begin:])
    checks = re.findall(r'course\.check\("(\d\d)\.(\d)", (\w+)\)', after)
    assert [(book, number) for book, number, _ in checks] == [
        (path.name[:2], str(n + 1)) for n in range(len(checks))
    ]
    assert len(checks) >= 2
    assert after.count("<details><summary>Solution</summary>") == len(checks)
    for _, number, variable in checks:
        assert f"**{number}.** " in after
        # Run All says "not attempted yet", and goes on.
        assert f"{variable} = None\n" in f"{after}\n"
        solution = (notebooks_dir() / "solutions" / path.name).read_text(encoding="utf-8")
        assert f'course.check(\\"{path.name[:2]}.{number}\\", {variable})' in solution


@pytest.mark.parametrize("path", COURSE, ids=_name)
def test_a_function_that_answers_an_exercise_is_written_once(path):
    """Otherwise: python tests/make_solutions.py."""
    wanted = make_solutions.folded_functions(path)
    assert wanted
    assert set(wanted) <= make_solutions.defined(make_solutions.solutions_of(path))
    assert [text for _, _, text in make_solutions.differing(path)] == []


@pytest.mark.parametrize("path", [*COURSE, *notebooks_dir().glob("solutions/*.ipynb")], ids=_name)
def test_what_a_reader_should_open_first_is_folded(path):
    """Predictions, and takeaways, which should show what they come to and not how it is written."""
    takeaways = False
    for cell in _all_cells(path):
        takeaways |= cell.source.startswith("## Takeaways")
        folded = bool(cell.metadata.get("jupyter", {}).get("source_hidden"))
        if cell.cell_type == "code" and takeaways:
            assert folded, cell.source
        elif cell.cell_type == "code":
            assert folded or "course.guess(" not in cell.source, cell.source


@pytest.mark.parametrize("path", COURSE, ids=_name)
def test_every_prediction_has_a_cell_of_its_own_to_type_into(path):
    """Its names differ, so that a cell that is run again asks its own question."""
    cells, names = _all_cells(path), []
    for cell, below in itertools.pairwise(cells):
        if "course.guess(" in cell.source:
            (name,) = re.findall(r"^(guess_\d+) = course\.guess\(", cell.source, flags=re.M)
            assert cell.source.endswith(f"\n{name}")
            assert (below.source, below.metadata) == (f'{name}("")', {"tags": ["remove-input"]})
            names.append(name)
    assert len(set(names)) == len(names) >= 1


@pytest.mark.parametrize("path", COURSE, ids=_name)
def test_a_notebook_takes_the_minutes_that_it_says_and_no_sitting_more_than_a_lecture(path):
    """Otherwise: python tests/make_minutes.py."""
    said = make_minutes.HEAD.search(_text(path))
    assert said[0] == make_minutes.head(path)
    total = int(re.search(r"\d+", said[0])[0])
    sittings = [int(n) for n in re.findall(r"(\d+) up to|then (\d+)", said[0]) for n in n if n]
    assert sum(sittings) == (total if sittings else 0)
    assert max(sittings, default=total) <= make_minutes.LECTURE


# the glossary

GLOSSARY = notebooks_dir() / "glossary.ipynb"
ENTRY = re.compile(r"### (.+)\n\n(.+)\n\n\*First met (?:as “(.+)” )?in \[(.+)\]\((.+)\)\.\*")
ENTRIES = [
    ENTRY.fullmatch(c.source) for c in _cells(GLOSSARY, "markdown") if c.source.startswith("###")
]


def test_terms_are_explained():
    assert None not in ENTRIES
    assert len({entry[1] for entry in ENTRIES}) == len(ENTRIES) > 45


def test_terms_are_listed_and_lead_to_where_they_are_first_met():
    now = GLOSSARY.read_text(encoding="utf-8")
    assert make_glossary_links.made(now) == now, "python tests/make_glossary_links.py"
    terms = [entry[1] for entry in ENTRIES]
    (listed,) = (c.source for c in _cells(GLOSSARY, "markdown") if "**All terms**" in c.source)
    assert [name for name, _ in LINK.findall(listed)] == sorted(terms, key=str.casefold)
    book, _, cell = make_glossary_links.first_met("makespan").partition("](")[2].partition("#")
    assert book == "07_pipeline_schedules.ipynb"
    (found,) = (c for c in _cells(COURSE[7], "markdown") if c.source.startswith("## Two measures"))
    assert cell == f"cell-id={found.id})"
    with pytest.raises(ValueError, match="no notebook has the term 'flux capacitor'"):
        make_glossary_links.first_met("flux capacitor")


def _own_words(path):
    """A notebook's text below its title, without programs, links, asterisks and the list of its sources."""
    text, sources = _text(path).split("\n", 1)[1].split("\n## Sources")
    text += re.sub(r"^- .*", "", sources, flags=re.M)
    text = re.sub(r"```.*?```|^\*\d+ minutes.*?$", "", text, flags=re.S | re.M)
    return LINK.sub("", text).replace("*", "")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry[1])
def test_a_term_occurs_where_it_is_first_met_and_in_no_earlier_notebook(entry):
    """Capitals behind the first letter count: ZeRO is not zero."""
    words = (entry[3] or entry[1]).removesuffix("y")
    first, rest = words[0], re.escape(words[1:])
    met = re.compile(rf"(?<![\w.-])[{first.lower()}{first.upper()}]{rest}(y|ies|e?s)?(?![\w-])")
    where = [path.name for path in COURSE if met.search(_own_words(path))]
    assert where[0] == entry[5].partition("#")[0]


@pytest.mark.parametrize("path", COURSE, ids=_name)
def test_a_word_in_bold_is_explained_in_the_glossary(path):
    """One to three words on the main line; what is only stressed is in italics."""
    main = re.sub(r"(?ms)^## Optional.*?(?=^## |\Z)", "", _text(path))
    bold = re.findall(r"\*\*([a-z][\w'-]*(?: [\w'-]+){0,2}|[A-Z][\w'/-]*[A-Z]\w*)\*\*", main)
    known = _text(GLOSSARY).casefold()
    assert [word for word in bold if word.casefold() not in known] == []


def _formulas(path):
    """Of every paragraph, without words; two prices in one paragraph do not make a formula."""
    found = []
    for paragraph in _text(path).split("\n\n"):
        plain = re.sub(r"\\(text|binom)(\{[^}]*\})+", "", paragraph)
        found += re.findall(r"\$+([^$]+)\$+", plain)
    return " ".join(f for f in found if not re.search(r"(?<![\\a-z])[a-z]{4,}", f))


_GREEK = "tau|phi|pi|eta|beta|kappa|lambda|ell|delta|theta|nu|omega"


def _letters(formulas):
    """Latin and Greek letters, without indices and commands."""
    without = re.sub(r"_(\{[^}]*\}|\\[a-z]+|[A-Za-z0-9])", "", formulas)
    without = re.sub(rf"\\(?!({_GREEK})\b)[A-Za-z]+", " ", without)
    return set(re.findall(r"\\[a-z]+|[A-Za-z]", without))


def _symbols():
    """Rows of both tables: (symbols, links)."""
    table = next(
        c.source for c in _cells(GLOSSARY, "markdown") if c.source.startswith("## Symbols")
    )
    for part in table.split("| from 07 on |"):
        rows = [row.split("|") for row in part.split("\n") if row.startswith("| $")]
        yield [
            (re.findall(r"\$([^$]+)\$", row[1]), [to for _, to in LINK.findall(row[4])])
            for row in rows
        ]


@pytest.mark.slow
def test_every_symbol_is_met_where_the_tables_say():
    general, from_07 = _symbols()
    assert len(general) > 20
    assert len(from_07) > 20
    formulas = {path.name: _formulas(path) for path in COURSE}
    for symbols, books in general + from_07:
        for symbol in symbols:
            alone = re.compile(rf"(?<![A-Za-z\\]){re.escape(symbol)}(?![A-Za-z])")
            where = [name for name, text in formulas.items() if alone.search(text)]
            assert {*books} <= {*where}, symbol
            if (symbols, books) in general:
                assert books == where[:1], symbol


@pytest.mark.parametrize("path", COURSE, ids=_name)
def test_every_letter_of_a_formula_is_in_the_tables(path):
    """Of 00 to 06 in the first, wherever it is met first; from 07 on under this very notebook."""
    general, from_07 = _symbols()
    early = int(path.name[:2]) < 7
    rows = general if early else [row for row in from_07 if path.name in row[1]]
    known = _letters(" ".join(symbol for symbols, _ in rows for symbol in symbols))
    assert _letters(_formulas(path)) <= known


# Where a notebook rests on one of the four sources, it links to it: what its text names, and the
# document.
NAMED = {
    "pmetal": r"layer_assignment\.rs",
    "scheduler": r"PipelineScheduler|partition_layers_(evenly|by_flops)",
    "boostr": r"PipelineClock",
    "write-up": r"[Tt]he write-up",
}


@pytest.mark.parametrize("path", COURSE, ids=_name)
def test_a_notebook_links_the_sources_that_it_names(path):
    linked = {target for _, target in LINK.findall(_text(path))}
    for document, name in NAMED.items():
        if re.search(name, _text(path)):
            assert DOCUMENTS[document].address in linked, (
                f"{path.name} names {document} and does not link it"
            )


def test_links_inside_the_glossary_lead_to_its_own_headings():
    anchors = {heading.replace(" ", "-") for heading in _headings(GLOSSARY)}
    inside = [target for _, target in LINK.findall(_text(GLOSSARY)) if target.startswith("#")]
    assert len(inside) > 8
    assert {target[1:] for target in inside} <= anchors


@pytest.mark.parametrize(
    "path", [*COURSE, GLOSSARY, *notebooks_dir().glob("solutions/*.ipynb")], ids=_name
)
def test_links_into_another_notebook_name_a_cell_with_a_heading(path):
    """JupyterLab scrolls to a heading only once it is drawn, which at the first click it is not; to a cell at once."""
    for _, target in LINK.findall(_text(path)):
        assert not target.startswith("../.."), target  # `pipelab lab` serves this folder alone
        book, hash_, anchor = target.partition("#")
        if hash_ and book:
            cells = {f"cell-id={c.id}": c.source for c in _cells(path.parent / book, "markdown")}
            assert re.search(r"^#{1,3} ", cells[anchor], flags=re.M), target


@pytest.mark.parametrize("path", sorted(notebooks_dir().glob("[0-9]*.ipynb")), ids=lambda p: p.name)
def test_notebooks_import_the_front_and_the_course_alone(path):
    code = [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    found = set(re.findall(r"(?:from|import) (pipelab[.\w]*)", "\n".join(code)))
    front = {"pipelab", *(f"pipelab.{p.stem}" for p in Path(pl.__file__).parent.glob("*.py"))}
    assert {name for name in found if not name.startswith("pipelab.course")} <= front


def test_what_05_says_of_the_drawn_problems_is_in_their_table():
    """Of `tests/benchmarks/joint_choice.py`."""
    drawn = pd.read_csv(Path(__file__).parents[1] / "benchmarks" / "joint_choice.csv")
    gain, band = drawn["over_one_gpu"], drawn["band"]
    assert (len(drawn), gain.isna().sum()) == (2000, 15)
    nothing = [(drawn[name] < 1e-3).mean() for name in ("over_one_gpu", "over_one_type")]
    more = [(gain > times * band).mean() for times in (1, 2)]
    shares = [f"{share:.0%}" for share in (nothing[0], *more, nothing[1])]
    source = (notebooks_dir() / "05_joint_ilp.ipynb").read_text(encoding="utf-8")
    said = source[source.index("We drew 2,000 problems") :].partition("So sharing pays")[0]
    assert re.findall(r"\d+%", said) == shares
    assert "In 15 problems" in said
