"""Build the site: the gallery, every notebook as a page, the reference of the API, the ledger, a search.

    python docs/build.py FOLDER                         # everything; some minutes, most of them in the notebooks
    python docs/build.py FOLDER --pages COPY            # with the pages of an earlier `pipelab static COPY`

It needs the extras `lab` and `docs`, and Chromium for the pictures of the gallery. Nothing in the site is loaded
from elsewhere, so it reads from the folder as well as from a server.

Sphinx writes the frame, the reference and the search. Pages of notebooks and of the ledger stand in it as
`pipelab.io.static` and the ledger make them: Sphinx is given their text, which it indexes, and writes their HTML.
"""

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from html import escape, unescape
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import pipelab as pl
from pipelab.course import notebooks_of_the_course
from pipelab.course.ledger.book import Ledger
from pipelab.io.static import static_copy

ROOT = Path(__file__).resolve().parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Pages of the repository that stand in the site as they are, by the heading above them.
GUIDES = {
    "Use it": ["docs/using.md", "docs/installing.md", "docs/questions.md", "data/README.md"],
    "Teach with it": ["docs/instructors.md", "docs/sources.md"],
    "Build on it": [
        "docs/how_an_optimum_is_found.md",
        "CONTRIBUTING.md",
        "docs/adding.md",
        "docs/releasing.md",
        "docs/notes.md",
        "CHANGELOG.md",
    ],
}
# The gallery shows a notebook's first figure, or the first one below this heading.
PICTURES = {
    "02_exhaustive_search": "How good are the rules?",
    "04_a_failed_heuristic": "Many mixes",
    "05_joint_ilp": "Branch and bound",
    "07_pipeline_schedules": "1F1B saves memory",
    "09_real_gpus": "Predicted against measured",
    "10_from_placement_to_timeline": "Memory for all of them",
    "14_reading_other_schedulers": "Every fault",
}  # fmt: skip
_CSS = """
.doors, .gallery { display: grid; gap: 16px; grid-template-columns: repeat(auto-fill, minmax(250px, 1fr)); }
.doors { grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); }
.doors a, .gallery a { display: block; border: 1px solid var(--color-background-border); border-radius: 6px;
  padding: 10px 12px; text-decoration: none; color: var(--color-foreground-primary); }
.doors a:hover, .gallery a:hover { border-color: var(--color-link); }
.doors b, .gallery b { color: var(--color-link); display: block; line-height: 1.3; }
.gallery img { width: 100%; aspect-ratio: 16 / 10; object-fit: contain; object-position: top; background: #fff;
  display: block; margin-bottom: 8px; }
.gallery small { color: var(--color-foreground-secondary); }
.main { min-width: 0; }
.content { width: auto; flex: 1; min-width: 0; max-width: 60em; }
"""
_LEAD = """# Which GPUs should hold which layers?

pipelab lays out large language models over heterogeneous GPUs, with proofs: a course of Jupyter notebooks with a
thin Python package behind it, from rules of thumb to methods that prove the optimum for thousands of GPUs.
"""


def build(
    folder: Path,
    notebooks: Sequence[str] | None = None,
    *,
    pages: Path | None = None,
    ledger: Ledger | None = None,
) -> list[Path]:
    """Write the site into `folder`, which is new, empty or an earlier site.

    Parameters
    ----------
    folder : Path
    notebooks : sequence of str, optional
        By default all.
    pages : Path, optional
        An earlier copy by `pipelab static`, so that no notebook is run.
    ledger : Ledger, optional
        By default every claim, computed here.

    Returns
    -------
    list of Path
        The pages.

    Raises
    ------
    SystemExit
        The folder holds something else, there is no Chromium, or Sphinx has something to complain of.
    """
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()) and not (folder / "objects.inv").is_file():
        sys.exit(
            f"{folder} holds something else: give a new folder, an empty one or an earlier site"
        )
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("the gallery's pictures need Chromium: apt install chromium")
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        if pages is None:
            pages = scratch / "pages"
            static_copy(pages, notebooks, progress=True)
        source = scratch / "source"
        verbatim = _verbatim(pages, ledger or pl.reproduce(progress=True))
        for name, text in verbatim.items():
            _put(source / f"{name}.rst", _indexed(name, text))
        _reference(source)
        _guides(source)
        _start_page(source, pages, _pictures(pages, source / "_static", browser))
        _put(source / "_static" / "site.css", _CSS)
        made = scratch / "site"
        _sphinx(source, made, scratch / "trees", verbatim)
        shutil.copy(pages / "plotly.min.js", made / "notebooks")
        if folder.exists():
            shutil.rmtree(folder)
        shutil.copytree(made, folder)
    return sorted(folder.rglob("*.html"))


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _sphinx(source: Path, made: Path, trees: Path, verbatim: dict[str, str]) -> None:
    """Run Sphinx; its warnings end the build, since a broken link is one."""
    _put(source / "_templates" / "verbatim.html", "{{ verbatim }}")
    settings = {
        "project": "pipelab",
        "author": "the pipelab authors",
        "copyright": "the pipelab authors",
        "release": pl.__version__,
        "extensions": ["sphinx.ext.autodoc", "numpydoc", "myst_parser"],
        "html_theme": "furo",
        "html_title": f"pipelab {pl.__version__}",
        "html_static_path": ["_static"],
        "html_css_files": ["site.css"],
        "templates_path": ["_templates"],
        "html_show_search_summary": False,  # it is fetched, which a browser refuses in a folder
        "html_copy_source": False,
        "html_show_sphinx": False,
        "default_role": "py:obj",  # `solve` in a docstring links to it
        "numpydoc_show_class_members": False,
        "autodoc_member_order": "bysource",
        "autodoc_typehints": "none",
        "myst_heading_anchors": 3,
        "suppress_warnings": ["myst.header", "toc.not_included"],
    }
    with (trees.parent / "warnings.txt").open("w+", encoding="utf-8") as warnings:
        app = Sphinx(source, None, made, trees, "html", settings, status=None, warning=warnings)

        def page(_app: Any, name: str, _template: str, context: dict, _tree: Any) -> str | None:
            if name not in verbatim:
                return None
            context["verbatim"] = verbatim[name]
            return "verbatim.html"

        app.connect("html-page-context", page)
        app.build()
        warnings.seek(0)
        found = warnings.read()
    if found:
        sys.exit(f"Sphinx complains:\n{found}")


def _verbatim(pages: Path, ledger: Ledger) -> dict[str, str]:
    """Pages that are made already, by their names in the site: they get a way home."""
    found = {
        f"notebooks/{path.relative_to(pages).with_suffix('').as_posix()}": path.read_text("utf-8")
        for path in sorted(pages.rglob("*.html"))
    }
    found["ledger"] = ledger.html()
    return {name: _with_way_home(name, text) for name, text in found.items()}


def _with_way_home(name: str, text: str) -> str:
    up = "../" * name.count("/")
    links = f'<a href="{up}index.html"><b>pipelab</b></a> <a href="{up}search.html">search</a> '
    if "<nav>" in text:
        return text.replace("<nav>", f"<nav>{links}", 1)
    return re.sub(r"(<body[^>]*>)", rf"\1<nav>{links}</nav>", text, count=1)


def _indexed(name: str, text: str) -> str:
    """The title and the words of a page, for Sphinx's search and lists."""
    (title,) = re.findall(r"<title>(.*?)</title>", text, flags=re.S)
    digits = re.fullmatch(r"notebooks/(?:solutions/)?(\d\d)_.*", name)
    number = f"{digits[1]} " if digits else ""
    body = re.sub(
        r"<(style|script|math|nav)\b.*?</\1>", " ", text.partition("<body")[2], flags=re.S
    )
    words = " ".join(re.sub(r"<[^<>]*>", " ", body.partition(">")[2]).split())
    title = (number + unescape(title)).replace("*", "\\*").replace("`", "\\`")
    line = "=" * len(title)
    return f"{line}\n{title}\n{line}\n\n.. raw:: html\n\n   <p>{words}</p>\n"


def _reference(source: Path) -> None:
    """One page per group of public names, in the order and with the headings of `__init__.pyi`."""
    stub = (ROOT / "pipelab" / "__init__.pyi").read_text(encoding="utf-8")
    names: list[str] = []
    groups: dict[str, list[str]] = {}
    for line in stub.splitlines():
        if line.startswith("# ") and not line.startswith(("# The public", "# ruff")):
            names = groups.setdefault(line.removeprefix("# "), [])
        names += re.findall(r"\b(\w+) as \1\b", line)
    if sorted(name for group in groups.values() for name in group) != sorted(pl.__all__):
        sys.exit("pipelab/__init__.pyi: a public name stands under no heading")
    files = []
    for title, group in groups.items():
        files.append(re.sub(r"\W+", "-", title.lower()).strip("-"))
        _put(
            source / "api" / f"{files[-1]}.rst",
            f"{title}\n{'=' * len(title)}\n\n" + "\n".join(_entry(name) for name in group),
        )
    listed = "\n".join(f"   {name}" for name in files)
    text = "Every public name, as `import pipelab as pl` gives it."
    head = f"Reference\n=========\n\n{text.replace('`', '``')}\n\n.. toctree::\n   :maxdepth: 2\n\n"
    _put(source / "api" / "index.rst", f"{head}{listed}\n")


def _entry(name: str) -> str:
    value = getattr(pl, name)
    if not isinstance(value, type):
        return f".. autofunction:: pipelab.{name}\n"
    kind = "exception" if issubclass(value, BaseException) else "class"
    fields = ", ".join(getattr(value, "_fields", ()))  # of a named tuple; its docstring has them
    skipped = f"   :exclude-members: {fields}\n" if fields else ""
    return f".. auto{kind}:: pipelab.{name}\n   :members:\n{skipped}"


def _guides(source: Path) -> None:
    for name in (name for group in GUIDES.values() for name in group):
        _put(source / name, (ROOT / name).read_text(encoding="utf-8"))
    shutil.copytree(ROOT / "docs" / "img", source / "docs" / "img")


def _tree(caption: str, names: Iterable[str], hidden: bool = True) -> str:
    options = f"---\ncaption: {caption}\nmaxdepth: 1\n{'hidden:' if hidden else ''}\n---\n"
    return "```{toctree}\n" + options + "\n".join(names) + "\n```\n"


def _start_page(source: Path, pages: Path, said: dict[str, str]) -> None:
    """What it is, four doors, and a picture per notebook, with what it says."""
    doors = {
        "Learn": ("#the-course", "From one cut to proven layouts of thousands of GPUs"),
        "Decide": ("docs/using.html", "Your model on your GPUs, as settings for your engine"),
        "Reproduce": ("ledger.html", "Every claim of a write-up and three programs, computed"),
        "Build on it": ("api/index.html", "Every public function, with examples that run"),
    }
    shown = "".join(
        f'<a href="{to}"><b>{name}</b>{escape(text)}</a>' for name, (to, text) in doors.items()
    )
    cards, numbered = [], []
    for notebook in notebooks_of_the_course():
        stem = Path(notebook.file).stem
        if not (pages / f"{stem}.html").is_file():
            continue
        numbered.append(stem)
        cards.append(
            f'<a href="notebooks/{stem}.html"><img src="_static/{stem}.png" loading="lazy" '
            f'alt="{escape(said[stem], quote=True)}">'
            f"<b>{notebook.number} {escape(notebook.title)}</b><small>{notebook.minutes} minutes</small></a>"
        )
    others = sorted(p.stem for p in pages.glob("*.html") if p.stem not in [*numbered, "index"])
    text = f'{_LEAD}\n<div class="doors">{shown}</div>\n\n'
    text += f'## The course\n\n<div class="gallery">{"".join(cards)}</div>\n\n'
    text += "The [ledger](ledger.rst), the [reference](api/index.rst) and a "
    text += '<a href="search.html">search</a> over all pages are in this site, too.\n\n'
    text += _tree("The course", [f"notebooks/{name}" for name in [*numbered, *others]])
    text += _tree("Reproduce", ["ledger"]) + _tree("Reference", ["api/index"])
    for caption, names in GUIDES.items():
        text += _tree(caption, [name.removesuffix(".md") for name in names])
    _put(source / "index.md", text)


# A picture is shown at a third of a page's width: its title, in small print there, is its text instead.
_FIGURE = """heading => {
  const at = heading && [...document.querySelectorAll("main h2, main h3")].find(h => h.textContent.trim() === heading);
  if (heading && !at) throw new Error(`there is no heading ${heading}`);
  const drawn = [...document.querySelectorAll("main .figure:has(.main-svg)")];
  return drawn.find(f => !at || at.compareDocumentPosition(f) & Node.DOCUMENT_POSITION_FOLLOWING) || null;
}"""
_UNTITLED = """async figure => {
  const said = figure.layout.title?.text || "";
  await Plotly.relayout(figure, {"title.text": "", "margin.t": Math.min(figure.layout.margin?.t ?? 60, 60)});
  return said;
}"""


def _pictures(pages: Path, target: Path, browser: str) -> dict[str, str]:
    """A figure of every notebook of the course, and its title; or what it opens with where there is none."""
    from playwright.sync_api import sync_playwright

    target.mkdir(parents=True, exist_ok=True)
    said = {}
    with sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = chromium.new_page(viewport={"width": 720, "height": 700})
        for notebook in notebooks_of_the_course():
            stem = Path(notebook.file).stem
            if not (pages / f"{stem}.html").is_file():
                continue
            tab.goto((pages / f"{stem}.html").as_uri())
            tab.add_style_tag(content="nav { display: none }")  # it sticks to the top of the page
            figure = tab.evaluate_handle(_FIGURE, PICTURES.get(stem, "")).as_element()
            shown = figure or tab.query_selector("main")
            title = figure.evaluate(_UNTITLED) if figure else ""
            said[stem] = unescape(re.sub(r"<br>.*|<[^>]*>", "", title, flags=re.S))
            tab.wait_for_timeout(300)  # plotly moves what it draws once it knows the fonts
            shown.scroll_into_view_if_needed()
            box = shown.bounding_box()
            if box is None:
                sys.exit(f"{stem}: its figure is not visible")
            tab.screenshot(
                path=target / f"{stem}.png",
                full_page=True,
                clip={
                    **box,
                    "y": box["y"] + tab.evaluate("scrollY"),
                    "height": min(box["height"], 560),
                },
            )
        chromium.close()
    return said


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "notebooks", nargs="*", help="such as 00_start_here; all of them without it"
    )
    parser.add_argument("--pages", type=Path, help="an earlier copy by `pipelab static`")
    given = parser.parse_args()
    made = build(given.folder, given.notebooks or None, pages=given.pages)
    print(f"{len(made)} pages; begin with {given.folder / 'index.html'}")
