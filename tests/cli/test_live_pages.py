"""Explorers as pages: every position shows what the explorer shows, in one file that asks nobody."""

import base64
import gzip
import json
import random
import re
from dataclasses import replace
from urllib.parse import quote

import pytest

import pipelab as pl
from lab_session import CHROMIUM
from pipelab.cli.live_pages import page
from pipelab.cli.live_pages.explorers import axis_of, mix_page, schedules_page
from pipelab.figures.html_charts import as_json
from pipelab.widgets.mix_values import beginning, problem_of
from pipelab.widgets.schedule_explorer import ScheduleValues, timeline_for

SCHEDULES = [axis_of("", text) for text in ("name=1F1B,ZBH1", "ranks=2..4", "microbatches=3,5,9")]


def _read(path):
    """What the page looks up: the values at every position, its drawing and its words."""
    packed = re.search(r'id="data">([^<]+)<', path.read_text(encoding="utf-8"))[1]
    data = json.loads(gzip.decompress(base64.b64decode(packed)))
    axes = [page.Axis(axis["name"], tuple(axis["values"])) for axis in data["axes"]]

    def whole(numbers):
        return json.loads("{" + ",".join(data["parts"][n] for n in numbers) + "}")

    shown = []
    for answer in data["answers"]:
        drawing = {"data": [*map(whole, answer["data"])], "layout": whole(answer["layout"])}
        shown.append((drawing, data["parts"][answer["words"]]))
    return list(zip(page.positions("", axes), shown, strict=True))


def test_every_chart_is_put_together_again_from_its_parts(tmp_path):
    draw = random.Random(7)

    def chart():
        trace = {"type": "bar", "y": [draw.random() for _ in range(3)], "name": draw.choice("ab")}
        return {
            "data": [trace] * draw.randint(0, 3),
            "layout": {"title": {"text": f"<{draw.random()}>"}},
        }

    charts = [chart() for _ in range(12)]
    answers = [page.Answer(chart, f"<b>{i % 3}</b>", "x") for i, chart in enumerate(charts)]
    axes = [page.Axis("a", (1, 2, 3)), page.Axis("b", tuple("wxyz"))]
    written = page.write_page(tmp_path / "a.html", "t", axes, answers, "me")
    shown = _read(written)
    assert [drawing for _, (drawing, _) in shown] == [json.loads(as_json(c)) for c in charts]
    assert [words for _, (_, words) in shown] == [a.words for a in answers]
    assert shown[5][0] == {"a": 2, "b": "x"}
    again = page.write_page(tmp_path / "b.html", "t", axes, answers, "me")
    assert again.read_bytes() == written.read_bytes()


@pytest.mark.slow
def test_looked_up_schedules_are_simulated_ones(tmp_path):
    for values, (drawing, _) in _read(schedules_page(tmp_path / "s.html", SCHEDULES, "")):
        timeline = timeline_for(replace(ScheduleValues(), **values))
        assert f"makespan {timeline.makespan:g}," in drawing["layout"]["title"]["text"]


@pytest.mark.slow
def test_looked_up_mixes_are_solved_ones_also_after_a_stop(tmp_path):
    counts = [axis_of("", "A100=0..2"), axis_of("", "V100=0..2")]
    values = [axis_of("", "gpus_per_stage=1,2")]
    quiet = {"jobs": 1, "progress": False}
    whole = mix_page(tmp_path / "whole.html", "tiny", counts, values, "", **quiet)
    for position, (drawing, words) in _read(whole):
        numbers = {name: position[name] for name in ("A100", "V100")}
        title = drawing["layout"]["title"]["text"]
        if not any(numbers.values()):
            assert "contradict" in title
            assert "GPU" in words
            continue
        problem = problem_of(beginning("tiny", numbers, gpus_per_stage=position["gpus_per_stage"]))
        best = pl.solve(problem)
        assert best.status == "optimal"
        assert f"{best.throughput:.1f} tokens/s" in title
        assert "proven optimal" in title
    # Rows that are there are not computed again, and a page from them has the same bytes.
    rows = (tmp_path / "whole.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "half.csv").write_text("".join(rows[:9]), encoding="utf-8")
    half = mix_page(tmp_path / "half.html", "tiny", counts, values, "", **quiet)
    assert half.read_bytes() == whole.read_bytes()
    assert (tmp_path / "half.csv").read_text(encoding="utf-8").startswith("".join(rows[:9]))
    with pytest.raises(pl.PipelabError, match="another sweep"):
        mix_page(tmp_path / "half.html", "small", counts, values, "", **quiet)


def test_a_page_that_is_too_large_is_refused_and_nothing_is_written(tmp_path, monkeypatch):
    with pytest.raises(
        pl.errors.InvalidValue, match="combinations = '1,201': expected at most 1,200"
    ):
        mix_page(tmp_path / "a.html", "tiny", [axis_of("", "A100=0..1200")], [], "")
    monkeypatch.setattr(page, "_MOST_BYTES", 5_000_000)
    noise = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=500_000))
    answers = [page.Answer({"data": [], "layout": {}}, noise, "")]
    with pytest.raises(pl.errors.InvalidValue, match=r"size = '5\.\d MB': expected at most 5 MB"):
        page.write_page(tmp_path / "a.html", "t", [page.Axis("a", (1,))], answers, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine: apt install chromium")
def test_sliders_keys_and_links_move_the_page_without_a_network(tmp_path):
    from playwright.sync_api import expect, sync_playwright

    address = schedules_page(tmp_path / "s.html", SCHEDULES, "me").as_uri()
    errors, asked = [], []
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_context(offline=True, viewport={"width": 390, "height": 800}).new_page()
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(f"{address}#name=ZBH1&ranks=4&microbatches=3&gone=1")
        title = tab.locator(".gtitle")
        expect(title).to_contain_text("ZBH1")
        expect(title).to_contain_text("4 ranks, 3 microbatches")
        tab.get_by_role("slider", name="microbatches").focus()
        tab.keyboard.press("ArrowRight")
        expect(title).to_contain_text("4 ranks, 5 microbatches")
        tab.get_by_role("slider", name="ranks").fill("0")
        expect(title).to_contain_text("2 ranks, 5 microbatches")
        tab.get_by_role("combobox", name="name").select_option("1F1B")
        expect(title).to_contain_text("1F1B")
        assert tab.url.endswith(f"#name=1F1B&ranks=2&microbatches={quote('5')}")
        expect(tab.locator("#words")).to_contain_text("makespan")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        browser.close()
    assert errors == []
    assert all(url.startswith(("file:", "blob:", "data:")) for url in asked)
