"""jsonschema's grammar of IRIs: not built for a figure, there for whoever checks an IRI."""

import subprocess
import sys

import pytest

_IS_BUILT = "print('rfc3987_syntax.syntax_helpers' in sys.modules)"


def _said(*lines):
    """What these lines print in a process of their own."""
    code = "\n".join(["import sys", "import pipelab as pl", *lines])
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_a_figure_is_shown_without_it():
    tiny = "tiny = pl.load_case('tiny')"
    figure = "figure = pl.plot_placement(tiny, pl.Placement.of([(4, (0,))]))"
    assert _said(tiny, figure, "figure._repr_mimebundle_()", "print('nbformat' in sys.modules)", _IS_BUILT) == [
        "True", "False",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("iri", "is_one"), [("https://example.org/größe", True), ("https://example.org/a b", False), ("größe", False)]
)
def test_iris_are_checked_as_ever(iri, is_one):
    ask = f"import jsonschema; print(jsonschema.FormatChecker().conforms({iri!r}, 'iri'))"
    put_off = "from pipelab.iri_grammar import build_iri_grammar_when_asked; build_iri_grammar_when_asked()"
    assert _said(ask, _IS_BUILT) == [str(is_one), "True"]
    assert _said(put_off, _IS_BUILT, ask, _IS_BUILT) == ["False", str(is_one), "True"]
