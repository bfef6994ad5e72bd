"""What benchmarks print, as the fields of the JSON that they write.

llama-bench prints CSV and Markdown; vLLM, SGLang and TensorRT-LLM print tables with a label in each line.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from pipelab.files.bundled_folders import data_dir
from pipelab.files.csv_rows import read_rows

_SERVING, _TRTLLM = " Serving Benchmark Result ", "= PERFORMANCE OVERVIEW"
_MARKDOWN = re.compile(r"^\| *model *\|.*\| *test *\|.*$", re.MULTILINE)
_NUMBERS = {"model_n_params", "avg_ns", "n_prompt", "n_gen", "n_depth", "n_gpu_layers"}
# In llama-bench's CSV, where all is text.
_NUMBERS |= {"model_size", "n_cpu_moe", "no_kv_offload", "fit_target"}
_TEST = re.compile(r"(?:pp(\d+))?\+?(?:tg(\d+))?(?: @ d(\d+))?")


@cache
def _fields_of(*benchmarks: str) -> dict[str, str]:
    """Return the fields by what benchmarks print for them (`data/benchmark_labels.csv`)."""
    rows = read_rows(data_dir() / "benchmark_labels.csv", ("benchmark", "printed", "field"))
    cells = [row.cells for row in rows if {*benchmarks} & {*row.cells["benchmark"].split("; ")}]
    return {one["printed"]: one["field"] for one in cells}


def is_printed(text: str) -> bool:
    """Whether this is what a benchmark prints, or llama-bench's CSV."""
    return _is_csv(text) or _SERVING in text or _TRTLLM in text or bool(_MARKDOWN.search(text))


def _is_csv(text: str) -> bool:
    first = text.lstrip().partition("\n")[0]
    return "avg_ns," in first.replace('"', "") and not first.startswith(("[", "{"))


def printed_results(text: str) -> Iterator[dict[str, Any]]:
    """Read the results that are printed, as the fields that the JSON of the benchmark has."""
    if _is_csv(text):
        for row in csv.DictReader(text.lstrip().splitlines()):
            yield {
                key: _number(cell) if key in _NUMBERS else cell for key, cell in row.items() if key
            }
    elif header := _MARKDOWN.search(text):
        names = _cells(header[0])
        for line in text[header.end() :].splitlines():
            if line.startswith("|") and not set(line) <= set("|-: "):
                yield _of_markdown(dict(zip(names, _cells(line), strict=False)))
    else:
        heading = _SERVING if _SERVING in text else _TRTLLM
        for before, after in pairwise(text.split(heading)):
            # A serving benchmark says little before its table, and ends that with a line.
            said = before.rpartition("=" * 40 + "\n")[2] if heading == _SERVING else before
            yield _of_table(f"{said}\n{after}")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _number(cell: Any) -> Any:
    """Return a number where text is one."""
    if isinstance(cell, str) and re.fullmatch(r"-?\d{1,30}(\.\d{1,30})?", cell):
        return float(cell) if "." in cell else int(cell)
    return cell


def _of_markdown(row: Mapping[str, str]) -> dict[str, Any]:
    """Read one line of llama-bench's Markdown: sizes are rounded, and tokens/s stand for the time."""
    columns = _fields_of("llama-bench").items()
    fields = {field: _number(row[name]) for name, field in columns if name in row}
    size = re.fullmatch(r"(\d{1,6}\.\d\d) ([BMT])", row.get("params", ""))
    if size and float(size[1]):
        fields["model_n_params"] = round(float(size[1]) * {"M": 1e6, "B": 1e9, "T": 1e12}[size[2]])
        fields["rounding"] = 0.0051 / float(size[1])
    if stored := re.fullmatch(r"(\d{1,6}\.\d\d) ([MG])iB", row.get("size", "")):
        fields["model_size"] = float(stored[1]) * {"M": 2**20, "G": 2**30}[stored[2]]
    test = _TEST.fullmatch(row.get("test", ""))
    if test:
        counts = (int(count or 0) for count in test.groups())
        fields |= dict(zip(("n_prompt", "n_gen", "n_depth"), counts, strict=True))
    speed = _number(row.get("t/s", "").partition("±")[0].strip())
    if test and isinstance(speed, int | float) and speed:
        fields["avg_ns"] = 1e9 * (fields["n_prompt"] + fields["n_gen"]) / speed
    return {"avg_ns": row.get("t/s"), "model_n_params": row.get("params")} | fields


def _of_table(text: str) -> dict[str, Any]:
    """Read lines with a label and a value."""
    of_trtllm = _TRTLLM[2:] in text or "[TPOT]" in text
    fields: dict[str, Any] = {"backend": "trtllm"} if of_trtllm else {}
    labels = _fields_of("vLLM", "SGLang", "TensorRT-LLM")
    for line in text.splitlines():
        label, colon, value = line.partition(":")
        if colon and (field := labels.get(" ".join(label.split()))):
            fields[field] = _number(value.strip())
    if not fields.get("max_concurrency") or fields["max_concurrency"] == "not set":
        fields.pop("max_concurrency", None)
    return _with_totals(fields)


def _with_totals(fields: dict[str, Any]) -> dict[str, Any]:
    """Give whole tokens where means per request are stated, and whole requests at once."""
    completed = fields.get("completed")
    for kind in ("input", "output"):
        mean = fields.pop(f"mean_{kind}_tokens", None)
        if isinstance(mean, int | float) and isinstance(completed, int):
            fields[f"total_{kind}_tokens"] = mean * completed
    if isinstance(fields.get("max_concurrency"), float):
        fields["max_concurrency"] = max(1, round(fields["max_concurrency"]))
    return {"total_input_tokens": None} | fields


def in_vllm_names(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a report of trtllm-bench under the names that vLLM's has; others as they are."""
    objects = ("request_info", "streaming_metrics")
    if not all(isinstance(fields.get(name), dict) for name in objects):
        return fields
    renamed = {"backend": "trtllm"}
    for path, field in _fields_of("trtllm-bench").items():
        value: Any = fields
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            renamed[field] = value
    return _with_totals(renamed)
