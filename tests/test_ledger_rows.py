"""Rows of the ledger one by one: what they quote, how they compare, which verdict follows.

The quotations are compared with their sources where `PIPELAB_SOURCES` names a folder that holds the
four texts.
"""

import os
import re
from pathlib import Path

import pytest

import pipelab as pl
from pipelab.course.ledger import AUTHORS_CODE, DOCUMENTS, Claim, claims
from pipelab.course.ledger.book import enter
from pipelab.course.ledger.claims import reading, shown
from pipelab.course.ledger.comparisons import (
    ABOVE,
    AT_LEAST,
    DIFFERENT,
    EQUAL,
    EVERY,
    NUMBERS,
    QUOTIENT,
    REPORTED,
    TEXT,
    Trial,
    numbers_in,
    tried,
)  # fmt: skip
from pipelab.course.ledger.shared_results import SharedResults


@pytest.mark.parametrize(
    ("stated", "computed", "verdict"),
    [
        ("301.784", 301.784, "exact"), ("301.784", 301.7841, "rounded"), ("301.78", 301.784, "rounded"),
        ("301.78", 301.774, "wrong"), ("200", 200.96, "rounded"), ("200", 201.0, "wrong"), ("200", 199.6, "rounded"),
        ("200", 199.4, "wrong"), ("~600K", 630_291, "rounded"), ("~600K", 700_000, "wrong"), ("600K", 630_291, "wrong"),
        ("1.7M", 1_568_029, "wrong"), ("~690K", 690_930, "rounded"), ("~1,041", 1041, "exact"),
        ("475K+", 475_125, "rounded"), ("475K+", 474_999, "wrong"), ("0.0", 0.25, "wrong"), ("0.0", 0.04, "rounded"),
        ("30 + 435 + 4060", (30, 435, 4060), "exact"), ("30 + 435", (30, 436), "wrong"),
        ("1.5 and 2", (1.52, 2), "rounded"),
    ],
)  # fmt: skip
def test_numbers_agree_by_their_printed_digits(stated, computed, verdict):
    assert NUMBERS.agrees(stated, computed) == verdict


def test_other_comparisons():
    assert [EQUAL.agrees("", x) for x in ((1, 1.0), (1, 1 + 1e-8), ("a", "a"))] == [
        "exact",
        "wrong",
        "exact",
    ]
    assert [ABOVE.agrees("", x) for x in ((2, 1), (1, 1), (1 + 1e-12, 1))] == [
        "exact",
        "wrong",
        "wrong",
    ]
    assert [DIFFERENT.agrees("", x) for x in ((2, 1), (1, 1))] == ["exact", "wrong"]
    assert [TEXT.agrees("A10", x) for x in ("A10", "T4")] == ["exact", "wrong"]
    assert [AT_LEAST.agrees("", x) for x in ((2, 1), (1, 1), (1, 2))] == ["exact", "exact", "wrong"]
    assert [QUOTIENT.agrees("3.0 / 18.0", x) for x in (1 / 6, 0.1667)] == ["exact", "wrong"]
    assert [REPORTED.agrees("217.52, says the file", x) for x in (217.52, 217.5)] == [
        "wrong",
        "machine-dependent",
    ]
    trials = [tried([("a", True), ("b", held)]) for held in (True, False)]
    assert [EVERY.agrees("", t) for t in (*trials, tried([]))] == ["exact", "wrong", "wrong"]
    assert [shown(t) for t in trials] == ["2 of 2", "1 of 2; not b"]
    with pytest.raises(ValueError, match="has 1 numbers, and 2 were computed"):
        NUMBERS.agrees("7", (7, 8))
    assert numbers_in("~2K")[0].step == 1000


def test_an_assumption_counts_only_where_it_is_needed():
    def verdict(stated, with_it, without):
        row = Claim(
            "",
            "",
            stated,
            lambda d: with_it,
            "",
            "exact",
            assuming="x",
            literally=lambda d: without,
        )
        return row.verdict(with_it, SharedResults())

    assert verdict("7", 7, 8) == "only under an unstated assumption"
    assert verdict("7", 7, 7) == "exact"
    assert verdict("7", 8, 7) == "wrong"
    with pytest.raises(pl.InvalidValue, match="expected the assumption"):
        Claim("", "", "7", lambda d: 7, "", "exact", literally=lambda d: 7)
    with pytest.raises(pl.InvalidValue, match="expected one of exact, rounded"):
        Claim("", "", "7", lambda d: 7, "", "right")
    with pytest.raises(pl.InvalidValue, match="expected none: this row is a statement"):
        Claim("", "", "7", lambda d: 7, "", "holds", assuming="x")
    with pytest.raises(pl.InvalidValue, match="expected a function, but none of a reading"):
        Claim("", "", "7", None, "", "exact")
    with pytest.raises(pl.InvalidValue, match="expected the answer of a reading"):
        reading("", "is it good?", "")


def test_a_statement_holds_fails_or_holds_on_what_was_tried():
    def verdict(compare, value):
        return Claim("", "", "", lambda d: value, "", "holds", compare).verdict(
            value, SharedResults()
        )

    assert verdict(ABOVE, (2, 1)) == "holds"
    assert verdict(ABOVE, (1, 2)) == "does not hold"
    assert verdict(EVERY, Trial(9, 9)) == "holds on what was tried"
    assert verdict(EVERY, Trial(9, 9, whole=True)) == "holds"
    assert verdict(EVERY, Trial(8, 9, "the ninth")) == "does not hold"
    assert verdict(EVERY, Trial(0, 0)) == "does not hold"


def _pieces(claim):
    return [_plain(piece) for piece in claim.says.split("…")]


def _without_line_numbers(text):
    """A page of source, each of whose lines begins with its number."""
    lines, number = [], 1
    for line in text.splitlines():
        numbered = line.startswith(str(number))
        lines.append(line.removeprefix(str(number)) if numbered else line)
        number += numbered
    return "\n".join(lines)


def _plain(text):
    """Without line numbers, comment marks, Markdown and typographic quotes; white space as one blank."""
    text = re.sub(r"(?m)^\s*//[/!]?", " ", _without_line_numbers(text))
    text = re.sub("[*`]", "", text).translate(str.maketrans("“”’#|", '""\'  '))
    return " ".join(text.replace("//", " ").split())


@pytest.mark.parametrize("paraphrase", [False, True])
def test_a_row_says_whether_it_quotes(paraphrase):
    told = enter(
        "none",
        1,
        reading("Heading", "it is good", "Is it?", paraphrase=paraphrase),
        SharedResults(),
    ).row()
    assert told["words"] == ("paraphrase" if paraphrase else "quotation")
    assert told["it says"] == ("it is good" if paraphrase else "“it is good”")


def test_numbers_are_printed_in_the_words_that_are_quoted():
    checked = 0
    for _, _, claim in claims():
        if claim.kind == "number" and claim.compare in (NUMBERS, TEXT, QUOTIENT):
            printed = [n.strip(".,") for n in re.findall(r"~?\d[\d,.]*[KM]?\+?", claim.stated)]
            assert [n for n in printed if n not in claim.says] == [], claim.says
            checked += len(printed)
    assert checked > 80


KNOWN_BY = {
    "pmetal": "pub fn assign_layers_bandwidth_aware", "scheduler": "pub fn partition_layers_by_flops",
    "boostr": "pub struct PipelineClock", "write-up": "# Joint ILP Formulation for LLM Hybrid Parallelism Placement",
}  # fmt: skip


@pytest.mark.skipif(
    "PIPELAB_SOURCES" not in os.environ,
    reason="PIPELAB_SOURCES names no folder with the four texts",
)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_quotation_is_in_its_source(document):
    """Word for word, under its heading, and in this order where words are left out."""
    texts = [
        path.read_text(encoding="utf-8")
        for path in sorted(Path(os.environ["PIPELAB_SOURCES"]).iterdir())
    ]
    (text,) = (_plain(text) for text in texts if KNOWN_BY[document] in text)
    for _, number, claim in claims([document]):
        at = text.rfind(_plain(claim.place))
        assert at >= 0, (number, claim.place)
        for piece in [] if claim.paraphrase else _pieces(claim):
            found = text.find(piece, at)
            assert found >= 0, (number, claim.place, piece)
            at = found + len(piece)


def test_the_words_of_a_quotation_are_compared_without_marks():
    assert (
        _plain("page\n1/// Divide `n` **layers**\n2///  evenly.\n4 * p")
        == "page Divide n layers evenly. 4 p"
    )
    assert _plain("    /// - Warmup: stage `k`\n    // and so on") == "- Warmup: stage k and so on"
    assert _plain("| **A** | “b” |\n  let x = 3;") == 'A "b" let x = 3;'
    assert _pieces(Claim("", "a | b … c", "", lambda d: 7, "", "exact")) == ["a b", "c"]


def test_every_document_has_an_address():
    page = pl.reproduce(["pmetal", "boostr"]).html()
    for name, document in DOCUMENTS.items():
        assert re.fullmatch(r"https://(docs\.rs|github\.com)/\S+", document.source.address)
        assert "latest" not in document.source.address  # what is published there must not change
        assert (document.source.html in page) == (name in ("pmetal", "boostr"))
    assert AUTHORS_CODE.address.endswith("2efc2c6")
    assert AUTHORS_CODE.html in page
    titles = [document.source.title for document in DOCUMENTS.values()]
    assert all(title.split(",")[0] in pl.reproduce.__doc__ for title in titles)


def test_the_page_of_sources_links_every_source():
    text = (Path(__file__).parent.parent / "docs" / "sources.md").read_text(encoding="utf-8")
    for source in (AUTHORS_CODE, *(document.source for document in DOCUMENTS.values())):
        assert source.link in text


# Notebook: the documents that it takes apart.
