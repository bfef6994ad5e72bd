"""The ledger as HTML: a table that is filtered by verdict and by document, in a notebook or as a page.

The filter is a row of radio buttons and a style sheet, without a script, so that it works with a
mouse and a keyboard, in JupyterLab, in a saved page and in a static copy of a notebook.
"""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import count
from typing import TYPE_CHECKING, Any

from pipelab.course.ledger.claims import KINDS, VERDICTS
from pipelab.figures.theme import VERDICT_COLOURS, ink_on

if TYPE_CHECKING:
    from pandas import DataFrame

    from pipelab.course.ledger.book import Ledger

_COLUMNS = ("row", "place", "it says", "printed or tested", "computed", "how", "verdict", "remark")
_WIDTHS = (7, 10, 19, 11, 12, 13, 9, 19)  # per cent
_NUMBER = count(1)  # so that two tables on one page filter themselves alone


def filtered_table(ledger: "Ledger", height: str = "640px") -> str:
    """The table with its filter, as a piece of HTML that scrolls where it is higher than `height`."""
    name = f"ledger{next(_NUMBER)}"
    entries = list(ledger)
    documents = list(dict.fromkeys(e.document for e in entries))
    verdicts = [
        v
        for v in [*VERDICTS, *{e.verdict for e in entries}]
        if any(e.verdict == v for e in entries)
    ]
    verdicts = list(dict.fromkeys(verdicts))
    heads = {
        next((v for v in verdicts if v in of_kind), ""): f"{kind}s:"
        for kind, of_kind in KINDS.items()
    }
    by_verdict = _buttons(
        name, "v", verdicts, [sum(e.verdict == v for e in entries) for v in verdicts], heads
    )
    by_document = _buttons(
        name, "d", documents, [sum(e.document == d for e in entries) for d in documents], {}
    )
    empty = [
        (verdicts.index(v) + 1, documents.index(d) + 1)
        for v in verdicts
        for d in documents
        if not any((e.verdict, e.document) == (v, d) for e in entries)
    ]
    rows = "".join(_row(e, verdicts.index(e.verdict), documents.index(e.document)) for e in entries)
    head = "".join(
        f"<th scope='col' style='width:{w}%'>{c}</th>"
        for c, w in zip(_COLUMNS, _WIDTHS, strict=True)
    )
    return (
        f"<div class='{name}'>{_style(name, verdicts, documents, empty, height)}{by_verdict}{by_document}"
        "<p>No claim of this document has this verdict.</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def page(ledger: "Ledger") -> str:
    """A whole HTML page: the sources with their addresses, what the verdicts say, how many there are, and the table."""
    from pipelab.course.ledger.documents import AUTHORS_CODE, DOCUMENTS
    from pipelab.display import table

    titles = "".join(
        f"<li><b>{escape(d)}</b>: {DOCUMENTS[d].source.html}, {escape(DOCUMENTS[d].about)}</li>"
        for d in ledger.counts
    )
    legend = "".join(
        f"<li><b>{escape(v)}</b> ({kind}): {escape(text)}</li>"
        for kind, of in KINDS.items()
        for v, text in of.items()
    )
    counted = ", ".join(f"{number} {kind}s" for kind, number in ledger.kinds.items())
    return (
        "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><title>pipelab: the ledger</title>"
        "<style>body {font-family: 'DejaVu Sans', Verdana, sans-serif; font-size: 13px; margin: 24px}</style></head>"
        f"<body><h1>Every claim, computed</h1><p>{counted} in {ledger.seconds:.0f} s; {ledger.state}.</p>"
        f"<ul>{titles}</ul><p>The author's code, configurations and solution files: {AUTHORS_CODE.html}. They say "
        "things of their own, which the write-up does not.</p>"
        f"<ul>{legend}</ul>{table(verdict_counts(ledger))}{filtered_table(ledger, 'none')}"
        "</body></html>\n"
    )


def verdict_counts(ledger: "Ledger") -> "DataFrame":
    """Verdicts down, by kind of row, and documents across, as a data frame; verdicts that do not occur are left out."""
    import pandas as pd

    counts = pd.DataFrame(ledger.counts)
    counts = counts[counts.sum(axis=1) > 0]
    counts["all"] = counts.sum(axis=1)
    counts = counts.rename_axis("verdict").reset_index()
    counts.insert(
        0,
        "kind",
        [next((kind for kind, of in KINDS.items() if v in of), "") for v in counts["verdict"]],
    )
    return counts


def _buttons(
    name: str, kind: str, labels: Sequence[str], numbers: Sequence[int], heads: Mapping[str, str]
) -> str:
    """One line of choices, a new one with its heading where there is one; none where there is nothing to choose."""
    if len(labels) < 2:
        return ""
    shown = [("all", sum(numbers)), *zip(labels, numbers, strict=True)]
    buttons = "".join(
        (f"<br><b>{heads[label]}</b> " if label in heads else "")
        + f"<input type='radio' name='{name}{kind}' id='{name}{kind}{i}'{' checked' * (i == 0)}>"
        f"<label for='{name}{kind}{i}'>{escape(label)} ({number})</label>"
        for i, (label, number) in enumerate(shown)
    )
    return f"{buttons}<br>"


def _row(entry: Any, verdict: int, document: int) -> str:
    told = entry.row()
    told["row"] = f"{told['document']} {told['row']}"
    colour = VERDICT_COLOURS.get(entry.verdict, "#FFFFFF")
    shown = {column: f"<td>{escape(str(told[column]))}</td>" for column in _COLUMNS}
    shown["verdict"] = (
        f"<td style='background:{colour};color:{ink_on(colour)}'>{escape(entry.verdict)}</td>"
    )
    if entry.claim.kind == "reading":  # nothing was compared: the answer has the room
        shown |= {
            "printed or tested": f"<td colspan='3'>{escape(str(told['remark']))}</td>",
            "remark": "<td></td>",
        }
        shown |= {"computed": "", "how": ""}
    return f"<tr class='v{verdict + 1} d{document + 1}'>{''.join(shown.values())}</tr>"


def _style(
    name: str, verdicts: list[str], documents: list[str], empty: list[tuple[int, int]], height: str
) -> str:
    hide = [
        f".{name} #{name}{kind}{i}:checked ~ table tbody tr:not(.{kind}{i}) {{display: none}}"
        for kind, labels in (("v", verdicts), ("d", documents))
        for i in range(1, len(labels) + 1)
    ]
    # The sentence that there is nothing to show, shown for the pairs of choices that leave nothing.
    hide += [
        f".{name} #{name}v{v}:checked ~ #{name}d{d}:checked ~ p {{display: block}}"
        for v, d in empty
    ]
    look = (
        f".{name} > p {{display: none; margin-top: 8px}}"
        f".{name} {{max-height: {height}; overflow: auto}}"
        f".{name} thead th {{position: sticky; top: 0; background: white}}"
        f".{name} table {{table-layout: fixed; width: 100%; border-collapse: collapse; margin-top: 8px}}"
        f".{name} th, .{name} td {{text-align: left !important; vertical-align: top; padding: 4px 6px; "
        "white-space: normal; overflow-wrap: anywhere; border-bottom: 1px solid #D0D0D0; font-size: 12px}"
        f".{name} label {{margin: 0 14px 0 3px}}"
    )
    return f"<style>{look}{' '.join(hide)}</style>"
