"""The ledger: every verdict as recorded, every value computed, and a row that pretends is found out."""

import ast
import csv
import io
import re
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import pipelab as pl
from pipelab import scip, seeds, seeds_schedules
from pipelab.cli import app
from pipelab.ledger import VERDICTS, Claim, claims, clock, writeup_results
from pipelab.ledger.book import FAILED, enter
from pipelab.ledger.claims import shown
from pipelab.ledger.comparisons import ABOVE, EQUAL, NUMBERS, STOPPED, TEXT, UNLIKE, numbers_in
from pipelab.ledger.desk import Desk
from pipelab.linear import LinearThroughput

DESK = Desk()  # keeps what the honest ledger asked the solvers


@pytest.fixture(scope="module")
def ledger():
    return pl.reproduce(desk=DESK)


def test_every_verdict_is_as_recorded(ledger):
    assert [(e.document, e.number, e.claim.says, e.verdict, e.error) for e in ledger.changed] == []
    assert {d: sum(c.values()) for d, c in ledger.counts.items()} == {
        "pmetal": 14, "scheduler": 26, "boostr": 20, "write-up": 109,
    }  # fmt: skip
    assert set(ledger.totals) == set(VERDICTS)


def test_the_numbers_that_matter_are_there(ledger):
    """A few rows by their words, with what is known to come out: rows cannot silently change their subject."""
    wanted = {
        "Correct Joint ILP: 301.78": 301.784,
        "Heuristic Hybrid: 452.68": 452.676,
        "Demo: Variables: ~690K": 9_887_608_011,
        "1.7M constraints": 1_568_029,
        "Demo: Allocations: 345,465": 345_465,
        "H100 processes 100 samples": 810.424,
        "5,740 segments → 317,950": 317_950,
    }
    assert {says: ledger.find(says).value for says in wanted} == pytest.approx(wanted, rel=1e-6)


def test_an_entry_says_itself_in_a_notebook(ledger):
    shown = ledger.find("more nodes ({world_size}) than layers")._repr_html_()
    assert "so the verdict is: wrong." in shown
    entry = replace(ledger.entries[0], claim=replace(ledger.entries[0].claim, says="a < b"))
    assert "“a &lt; b”" in entry._repr_html_()


# Perturbations of what lies under the rows. Each must leave the honest rows computable, and none knows a row.


def _another_solver(monkeypatch):
    """One that answers half as much again, more of everything, and with other GPUs; it repeats honest answers so."""
    honest = pl.solve

    def solve(*arguments, **options):
        result = DESK.once(honest, *arguments, **options)
        details = {k: v * 1.5 if isinstance(v, float) else v for k, v in result.details.items()}
        details["solver_status"] = f"not {result.status}"
        details["stages"] = tuple(replace(s, number=s.number + 1) for s in result.details.get("stages", ()))
        more = {
            n: None if getattr(result, n) is None else 1.5 * getattr(result, n)
            for n in ("throughput", "bound", "seconds")
        }
        if result.placement:
            last = len(result.problem.cluster) - 1
            more["placement"] = pl.Placement.of([(result.problem.model.layers - 1, (last,)), (1, (last - 1,))])
        return replace(result, **more, details=details, size={k: v + 1 for k, v in result.size.items()})

    monkeypatch.setattr(pl, "solve", solve)


def _other_cases(monkeypatch, change):
    honest = pl.load_case
    monkeypatch.setattr(pl, "load_case", lambda name, **options: change(honest(name, **options)))


def _one_layer_more(monkeypatch):
    _other_cases(monkeypatch, lambda p: replace(p, model=replace(p.model, layers=p.model.layers + 1)))


def _faster_gpus(monkeypatch):
    honest = LinearThroughput.gpu_throughput
    monkeypatch.setattr(LinearThroughput, "gpu_throughput", lambda *a, **k: 1.25 * honest(*a, **k) + 3)


def _other_batch_and_factor(monkeypatch):
    def change(p):
        return replace(p, workload=replace(p.workload, batch_size=3), costs=replace(p.costs, efficiency=0.5))

    _other_cases(monkeypatch, change)


def _reversed_pool(monkeypatch):
    def change(p):
        gpus = (*p.cluster.gpus[::-1], p.cluster.gpus[0])
        return replace(p, cluster=pl.Cluster(gpus, np.full((len(gpus),) * 2, 250.0)))

    _other_cases(monkeypatch, change)


def _unlike_links(monkeypatch):
    def change(p):
        i, j = np.indices((len(p.cluster),) * 2)
        return replace(p, cluster=pl.Cluster(p.cluster.gpus, 30 + (i == 0) * j + 1.0))

    _other_cases(monkeypatch, change)


def _heavy_layers(monkeypatch):
    _other_cases(monkeypatch, lambda p: replace(p, model=replace(p.model, layer_weight_gb=1000)))


def _other_settings(monkeypatch):
    monkeypatch.setattr(writeup_results, "author_settings", lambda name: {"gap": 0.5, "seconds": 1.0})


def _slow_forwards(monkeypatch):
    honest = pl.simulate

    def slowed(schedule, costs, **options):
        twice = np.atleast_1d(costs.forward) * 2
        return honest(schedule, replace(costs, forward=tuple(twice) if len(twice) > 1 else float(twice[0])), **options)

    monkeypatch.setattr(pl, "simulate", slowed)


def _other_seeds(which):
    """Every published function gets one argument changed, a number more or a list without its end."""

    def sabotage(monkeypatch):
        def changed(function):
            def call(*arguments, **options):
                given = list(arguments)
                usable = [i for i, a in enumerate(given) if isinstance(a, int | list)]
                if usable:
                    i = usable[min(which, len(usable) - 1)]
                    given[i] = given[i][:-1] if isinstance(given[i], list) else given[i] + 1
                return function(*given, **options)

            return call

        for module in (seeds, seeds_schedules):
            for name in module.__all__:
                if name.startswith(("seed_", "scheduler_", "clock_")):
                    monkeypatch.setattr(module, name, changed(getattr(module, name)))

    return sabotage


def _other_schedules(monkeypatch):
    honest, stats = pl.schedule, pl.PipelineBubbleStats
    monkeypatch.setattr(pl, "schedule", lambda name, p, m, *rest: honest(name, 2 * p, 2 * m, *rest))
    monkeypatch.setattr(pl, "PipelineBubbleStats", lambda p, m, *rest: stats(p, 2 * m, *rest))


def _other_cuts(monkeypatch):
    monkeypatch.setattr(pl, "split_minmax", lambda costs, stages, **options: pl.split_even(len(costs), stages))


def _other_types(monkeypatch):
    other = {"V100": "H100", "H100": "V100", "T4": "A10"}

    def change(p):
        gpus = [replace(gpu, type=other.get(gpu.type, gpu.type)) for gpu in p.cluster.gpus]
        return replace(p, cluster=pl.Cluster(tuple(gpus), p.cluster.bandwidth_matrix()))

    _other_cases(monkeypatch, change)


SABOTAGES = [
    _another_solver, _other_seeds(0), _other_seeds(1), _other_seeds(2), _other_seeds(3),
    _one_layer_more, _faster_gpus, _other_batch_and_factor, _reversed_pool, _unlike_links, _heavy_layers,
    _other_settings, _slow_forwards, _other_schedules, _other_cuts, _other_types,
]  # fmt: skip


def _reacts(row, honest, desk) -> bool:
    """Whether another value comes out; an error is none."""
    try:
        return shown(row[2].compute(desk)) != shown(honest)
    except Exception:
        return False


def _rows_that_never_react(rows, honest, monkeypatch):
    """Rows whose value stays the same, or is none, whatever is perturbed."""
    left = list(rows)
    for sabotage in SABOTAGES:
        with monkeypatch.context() as patched:
            sabotage(patched)
            desk = Desk()
            left = [row for row in left if not _reacts(row, honest[row], desk)]
    return left


PRETENDERS = [
    Claim("", "a number typed in", "7", lambda desk: 7, "", "exact"),
    Claim("", "asks, and ignores the answer", "7", lambda desk: desk.size("tiny", 2) and 7, "", "exact"),
    Claim("", "asks, and mends the answer", "4", lambda desk: desk.case("tiny").model.layers * 0 + 4, "", "exact"),
]


def test_every_value_follows_from_what_is_computed(ledger, monkeypatch):
    pretenders = [("none", i, claim) for i, claim in enumerate(PRETENDERS)]
    honest = {(e.document, e.number, e.claim): e.value for e in ledger}
    honest |= {row: row[2].compute(Desk()) for row in pretenders}
    still = _rows_that_never_react(honest, honest, monkeypatch)
    assert [(d, n, c.says) for d, n, c in still if d != "none"] == []
    assert [c.says for d, _, c in still if d == "none"] == [c.says for c in PRETENDERS]  # and they are found out


def _digits(constant):
    """Significant digits of a number, or of the longest one in a text."""
    if isinstance(constant, str):
        return max((len(d.replace(".", "").strip("0")) for d in re.findall(r"\d[\d.]*", constant)), default=0)
    if isinstance(constant, int | float) and not isinstance(constant, bool):
        return len(re.sub(r"e.*|[-.]", "", repr(constant)).strip("0"))
    return 0


def _constants(tree):
    """Numbers anywhere in a module, and texts in its functions and lambdas but for docstrings."""
    texts = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            body = node.body if isinstance(node.body, list) else [node.body]
            documented = isinstance(node, ast.FunctionDef) and ast.get_docstring(node)
            own = body[1:] if documented else body
            texts |= {n for part in own for n in ast.walk(part) if isinstance(n, ast.Constant)}
    return [
        n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and (n in texts or not isinstance(n.value, str))
    ]


def test_no_computation_holds_a_long_number():
    """Inputs have up to three digits; what is claimed is text of its row, which no computation gets to see."""
    checked = 0
    for path in Path(clock.__file__).parent.glob("*.py"):
        found = _constants(ast.parse(path.read_text(encoding="utf-8")))
        assert [c for c in found if _digits(c) > 3] == [], path
        checked += len(found)
    assert checked > 500
    assert [_digits(x) for x in (301.784, 9_887_608_011, "317950", 60_000, 1e-9, 0.85)] == [6, 10, 5, 1, 1, 2]


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
    assert [EQUAL.agrees("", x) for x in ((1, 1.0), (1, 1 + 1e-8), ("a", "a"))] == ["exact", "wrong", "exact"]
    assert [ABOVE.agrees("", x) for x in ((2, 1), (1, 1), (1 + 1e-12, 1))] == ["exact", "wrong", "wrong"]
    assert [UNLIKE.agrees("", x) for x in ((2, 1), (1, 1))] == ["exact", "wrong"]
    assert [TEXT.agrees("A10", x) for x in ("A10", "T4")] == ["exact", "wrong"]
    runs = [("optimal", 5.9, 60), ("optimal", 6.1, 60), ("feasible", 1, 60)]
    assert [STOPPED.agrees("", x) for x in runs] == ["wrong", "machine-dependent", "machine-dependent"]
    with pytest.raises(ValueError, match="has 1 numbers, and 2 were computed"):
        NUMBERS.agrees("7", (7, 8))
    assert numbers_in("~2K")[0].step == 1000


def test_an_assumption_counts_only_where_it_is_needed():
    def verdict(stated, with_it, without):
        row = Claim("", "", stated, lambda d: with_it, "", "exact", assuming="x", literally=lambda d: without)
        return row.verdict(with_it, Desk())

    assert verdict("7", 7, 8) == "only under an unstated assumption"
    assert verdict("7", 7, 7) == "exact"
    assert verdict("7", 8, 7) == "wrong"
    with pytest.raises(pl.InvalidValue, match="expected the assumption"):
        Claim("", "", "7", lambda d: 7, "", "exact", literally=lambda d: 7)
    with pytest.raises(pl.InvalidValue, match="expected one of exact, rounded"):
        Claim("", "", "7", lambda d: 7, "", "right")


def test_undecided_rows_and_assumptions_give_their_reasons(ledger):
    for entry in ledger:
        if entry.verdict in ("cannot be decided", "only under an unstated assumption"):
            assert len(entry.claim.remark.split()) >= 4, entry.claim.says
        assert entry.claim.says
        assert entry.claim.place
        assert entry.claim.how


def test_a_row_that_cannot_be_computed_is_not_as_recorded():
    def broken(desk):
        raise pl.InvalidValue("here", [("x", 1, "expected 2")])

    entry = enter("none", 1, Claim("", "", "7", broken, "", "exact"), Desk())
    assert (entry.verdict, entry.changed, entry.row()["computed"]) == (FAILED, True, "–")
    assert "expected 2" in entry.row()["remark"]


def test_filters(ledger):
    wrong = ledger.only("wrong", "boostr")
    assert {(e.verdict, e.document) for e in wrong} == {("wrong", "boostr")}
    assert 0 < len(wrong) < len(ledger.only("wrong")) < len(ledger)
    with pytest.raises(pl.UnknownName, match="did you mean 'wrong'"):
        ledger.only("wrng")
    with pytest.raises(pl.UnknownName, match="no entry says"):
        ledger.find("nothing of the kind")
    with pytest.raises(pl.UnknownName, match="did you mean 'boostr'"):
        claims(["bostr"])


def test_csv_and_html_hold_every_row(ledger):
    rows = list(csv.DictReader(io.StringIO(ledger.csv())))
    assert [row["it says"] for row in rows] == [e.claim.says for e in ledger]
    page = ledger.html()
    assert page.count("<tr class=") == len(ledger)
    assert "{num_stages}" in page
    assert "<script" not in page
    markup = replace(ledger.entries[0], claim=replace(ledger.entries[0].claim, says="a <b> & c"))
    assert "a &lt;b&gt; &amp; c" in replace(ledger, entries=(markup,)).html()
    filters = re.findall(r"<label for='[^']*'>([^<(]*) \((\d+)\)</label>", page)
    assert ("wrong", str(ledger.totals["wrong"])) in filters
    ids = re.findall(r" id='([^']*)'", page)
    assert len(ids) == len(set(ids))


def test_every_document_has_its_bar(ledger):
    figure = pl.plot_verdicts(ledger)
    assert sum(sum(trace.x) for trace in figure.data) == len(ledger)
    assert figure.layout.title.text.startswith(f"{ledger.totals['wrong']} of {len(ledger)} claims are wrong")


def _cli(*arguments):
    return CliRunner().invoke(app, ["reproduce", *arguments])


def test_the_command_ends_in_1_when_a_verdict_changes(monkeypatch):
    assert _cli("boostr").exit_code == 0
    first, *rest = clock.CLAIMS
    monkeypatch.setattr(clock, "CLAIMS", (replace(first, expected="exact"), *rest))
    done = _cli("boostr")
    assert done.exit_code == 1
    assert "CHANGED boostr 1" in done.stdout
    assert "recorded exact, now wrong" in done.stdout
    assert f"1 of {len(clock.CLAIMS)} verdicts not as recorded" in done.stdout


def test_the_command_writes_files_and_standard_output(tmp_path):
    done = _cli("boostr", "--csv", "-", "--html", str(tmp_path / "page.html"))
    assert done.exit_code == 0
    assert len(list(csv.DictReader(io.StringIO(done.stdout)))) == len(clock.CLAIMS)
    assert "every verdict is as recorded" in done.stderr
    assert "100%" in done.stderr  # the progress bar
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert _cli("boostr", "--html", "-").stdout.startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bostr",), "did you mean 'boostr'"),
        (("boostr", "--csv", "-", "--html", "-"), "at most one on standard output"),
        (("boostr", "--csv", "."), "expected a file to write"),
    ],
)
def test_what_the_command_refuses(arguments, message):
    done = _cli(*arguments)
    assert isinstance(done.exception, pl.PipelabError)  # main() makes one sentence and status 2 of it
    assert message in str(done.exception)


def test_an_interrupt_in_a_solve_ends_the_ledger(monkeypatch):
    """The solve itself ends calmly; its row must not be called changed, nor the next one begun."""
    real, entered = scip.run, []

    def pressed(*args, **options):
        signal.raise_signal(signal.SIGINT)
        return real(*args, **options)

    monkeypatch.setattr(scip, "run", pressed)
    with pytest.raises(KeyboardInterrupt):
        pl.reproduce(["write-up"], desk=Desk(), on_entry=entered.append)
    assert not any(entry.changed for entry in entered)
