"""The project speaks the field's language: words that it once used instead do not come back."""

import io
import re
import tokenize
from pathlib import Path

import nbformat
import pytest

from pipelab.io.paths import in_clone

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(
    not in_clone(), reason="about the clone, and this is an installed package"
)

# A pattern, and what to write instead.
WORDS = {
    r"unlike": "heterogeneous, different",
    r"alike": "identical",
    r"judg(e|es|ed|ing|ment)": "evaluator, evaluated",
    r"mend(s|ed|ing)?": "fix, fixed",
    r"(?<!' )(?<!'s )worths?(?! knowing)": "dual price",
    r"rivals?": "baseline",
    r"promis(e|es|ed|ing)": "predicted",
    r"quickest": "lowest latency",
    r"the letters|write-up's letters?": "symbols",
    r"under way": "in flight",
    r"told(?! apart)": "say who knows, or what is known",
    r"asked (about|whether|with|at|as|for at)": "solved for, requested",
    r"hunt|desk|ounce|stands? there|how many-th|handing over|a hair": "say it plainly",
    r"what is given": "if … is not a …",
    r"recalled": "quoted from memory",
    r"nobody (holds|runs|has)": "is not assigned to any stage",
    r"house": "module, package",
    r"ways? to run": "execution mode",
    r"keeps? up": "is as fast as",
    r"of none": "for an empty array",
}
PATTERN = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.I)

# Where such a word is right, and the words around it that show it.
RIGHT: dict[str, list[str]] = {
    "pipelab/widgets/chart.py": ["new Promise(go"],  # of JavaScript
}


def _texts():
    """Every text that a person reads, by file: pages, cells, docstrings, comments, messages."""
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("data/*.md")]):
        yield path, path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "notebooks").rglob("*.ipynb")):
        if "checkpoint" not in str(path):
            cells = nbformat.read(path, as_version=4).cells
            yield path, "\n".join(cell.source for cell in cells)
    for path in sorted([*(ROOT / "pipelab").rglob("*.py"), *(ROOT / "data").glob("*.py")]):
        yield path, "\n".join(_words_of(path.read_text(encoding="utf-8")))


def _words_of(code):
    """Comments and strings of a module, its docstrings among them; names are code."""
    kinds = {tokenize.COMMENT, tokenize.STRING}
    kinds |= {getattr(tokenize, name, -1) for name in ("FSTRING_MIDDLE",)}
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type in kinds:
            yield (
                re.sub(r"{[^{}]*}", "{}", token.string) if token.string[0] in "fF" else token.string
            )


def _found(name, text):
    """Words to replace, each with the words around it."""
    plain = re.sub(r"https?://\S+", "", text)
    for right in RIGHT.get(name, []):
        assert right in plain, f"{name}: the exception {right!r} is no longer needed"
        plain = plain.replace(right, "")
    for match in PATTERN.finditer(plain):
        around = plain[max(0, match.start() - 40) : match.end() + 30].replace("\n", " ")
        instead = next(v for k, v in WORDS.items() if re.fullmatch(k, match[0], re.I))
        yield f"{name}: …{around}… : {match[0]!r} → {instead}"


def test_the_words_are_the_fields():
    found = [
        line for path, text in _texts() for line in _found(path.relative_to(ROOT).as_posix(), text)
    ]
    assert not found, f"{len(found)} words to replace:\n" + "\n".join(found)


def test_a_word_to_replace_is_found():
    assert [*_found("x.md", "Two unlike GPUs, judged\nby `told`.")] != []
    assert [*_found("x.md", "We recommend two heterogeneous GPUs.")] == []
    assert [*_words_of("asked = 'told'  # unlike\n")] == ["'told'", "# unlike"]
