"""Rows of the ledger one by one: what they quote, how they compare, which verdict follows.

The quotations are compared with their sources where `PIPELAB_SOURCES` names a folder that holds the
four texts.
"""

import os
import re
from pathlib import Path

import pytest

import pipelab as pl
from pipelab.course.ledger import (
    AUTHORS_CODE,
    DOCUMENTS,
    Claim,
    agreement,
    claims,
)
from pipelab.course.ledger.claims import (
    ABOVE,
    AT_LEAST,
    DIFFERENT,
    EQUAL,
    EVERY,
    FAILED,
    REPORTED,
    TEXT,
    TIME,
    ComputedClaim,
    Trial,
    compared,
    numbers_in,
    shown,
    tried,
)


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
    assert agreement(stated, computed) == verdict


def test_other_comparisons():
    def all_by(rule, values, stated=""):
        return [compared(rule, stated, value) for value in values]

    assert all_by(EQUAL, ((1, 1.0), (1, 1 + 1e-8), ("a", "a"))) == ["exact", "wrong", "exact"]
    assert all_by(ABOVE, ((2, 1), (1, 1), (1 + 1e-12, 1))) == ["exact", "wrong", "wrong"]
    assert all_by(DIFFERENT, ((2, 1), (1, 1))) == ["exact", "wrong"]
    assert all_by(TEXT, ("A10", "T4"), "A10") == ["exact", "wrong"]
    assert all_by(AT_LEAST, ((2, 1), (1, 1), (1, 2))) == ["exact", "exact", "wrong"]
    assert all_by(TIME, (1, "long"), "0.34") == ["machine-dependent"] * 2
    says = "217.52, says the file"
    assert all_by(REPORTED, (217.52, 217.5), says) == ["wrong", "machine-dependent"]
    trials = [tried([("a", True), ("b", held)]) for held in (True, False)]
    assert all_by(EVERY, (*trials, tried([]))) == ["exact", "wrong", "wrong"]
    assert [shown(t) for t in trials] == ["2 of 2", "1 of 2; not b"]
    with pytest.raises(ValueError, match="has 1 numbers, and 2 were computed"):
        agreement("7", (7, 8))
    assert numbers_in("~2K")[0].step == 1000


def _row(value, expected="exact", stated="7", rule=""):
    fields = {"section": "none", "place": "", "recorded": expected, "rule": rule, "stated": stated}
    return Claim(**fields, compute=lambda: value).row()


def test_a_value_is_compared_as_its_type_suggests():
    assert _row((7, 7), stated="7 and 7")["computed"] == "7, 7"
    assert _row("T4", stated="T4")["compared"] == "word for word"
    assert _row((2, 1), "holds", rule=ABOVE)["computed"] == "2 and 1"
    assert _row((2, 1), "no verdict")["compared"] == ""


@pytest.mark.parametrize(
    ("value", "expected", "rule", "verdict", "compared_by"),
    [
        (7, "exact", "", "exact", "the numbers as printed"),
        # an assumption counts only where it is needed
        (ComputedClaim(7, literally=8), "exact", "", "only under an unstated assumption", None),
        (ComputedClaim(7, literally=7), "exact", "", "exact", None),
        (ComputedClaim(8, literally=7), "exact", "", "wrong", None),
        ((2, 1), "holds", ABOVE, "holds", "the first is larger"),
        ((1, 2), "holds", ABOVE, "does not hold", None),
        (Trial(9, 9), "holds", EVERY, "holds on what was tried", "every input tried"),
        (Trial(8, 9, "the ninth"), "holds", EVERY, "does not hold", None),
        (Trial(0, 0), "holds", EVERY, "does not hold", None),
    ],
)
def test_a_verdict_follows(value, expected, rule, verdict, compared_by):
    row = _row(value, expected, rule=rule)
    assert row["verdict"] == verdict
    assert compared_by in (None, row["compared"])


def test_a_row_that_cannot_be_computed_is_not_as_recorded():
    def broken():
        raise pl.errors.InvalidValue("here", [("x", 1, "expected 2")])

    row = Claim(section="none", place="", recorded="exact", compute=broken, stated="7").row()
    assert (row["verdict"], row["recorded"], row["computed"]) == (FAILED, "exact", "–")
    assert "expected 2" in row["remark"]


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


def test_numbers_are_printed_in_the_words_that_are_quoted():
    checked = 0
    for each in claims():
        if each.kind == "number" and not each.rule:
            printed = [n.strip(".,") for n in re.findall(r"~?\d[\d,.]*[KM]?\+?", each.stated)]
            assert [n for n in printed if n not in each.says] == [], each.says
            checked += len(printed)
    assert checked > 40


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
    for number, each in enumerate(claims([document]), 1):
        at = text.rfind(_plain(each.place))
        assert at >= 0, (number, each.place)
        for piece in _pieces(each):
            found = text.find(piece, at)
            assert found >= 0, (number, each.place, piece)
            at = found + len(piece)


def test_every_document_has_an_address():
    page = pl.course.reproduce(["boostr"]).html()
    text = (Path(__file__).parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")
    for document in (AUTHORS_CODE, *DOCUMENTS.values()):
        assert re.fullmatch(r"https://(docs\.rs|github\.com)/\S+", document.address)
        assert "latest" not in document.address  # what is published there must not change
        assert document.link in text
        link = f'<a href="{document.address}">{document.title}</a>'
        assert (link in page) == (document in (AUTHORS_CODE, DOCUMENTS["boostr"]))
