"""jsonschema's grammar of IRIs: not built for a figure, there for whoever checks an IRI."""

import subprocess
import sys

_IS_BUILT = "print('rfc3987_syntax.syntax_helpers' in sys.modules)"


def _said(*lines):
    """What these lines print in a process of their own."""
    code = "\n".join(["import sys", "import pipelab as pl", *lines])
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()


def test_a_figure_is_shown_without_it():
    tiny = "tiny = pl.load_case('tiny')"
    figure = "figure = plot_placement(tiny, pl.Placement.of([(4, (0,))]))"
    said = _said(
        tiny, figure, "figure._repr_mimebundle_()", "print('nbformat' in sys.modules)", _IS_BUILT
    )
    assert said[-2:] == ["True", "False"]  # plotly 6.0 prints the figure, too


def test_iris_are_checked_as_ever():
    ask = [
        "import jsonschema",
        "for iri in ('https://example.org/größe', 'https://example.org/a b', 'größe'):",
        "    print(jsonschema.FormatChecker().conforms(iri, 'iri'))",
    ]
    put_off = "from pipelab.io.jsonschema_import import build_iri_grammar_when_asked; build_iri_grammar_when_asked()"
    assert _said(*ask, _IS_BUILT) == ["True", "False", "False", "True"]
    assert _said(put_off, _IS_BUILT, *ask, _IS_BUILT) == ["False", "True", "False", "False", "True"]
