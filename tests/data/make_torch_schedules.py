"""Make `torch_schedules.json` again from an installed torch: `pip install -e '.[torch]'`, then run this file.

Every schedule class is given stages that hold nothing but their numbers, in a process group of one that
nothing is sent through. Writes beside itself with `--write`; otherwise says whether the file is up to date.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

FILE = Path(__file__).with_name("torch_schedules.json")
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
SINGLE = ("GPipe", "1F1B")


def stand_in(index: int, rank: int, ranks: int, stages: int):
    """What a schedule's constructor asks of a stage."""
    return SimpleNamespace(
        group_size=ranks, group_rank=rank, num_stages=stages, stage_index=index, is_first=index == 0,
        is_last=index == stages - 1, has_backward=True, submod=None, group=None, device="cpu",
        stage_index_to_group_rank={s: s % ranks for s in range(stages)}, _configure_data_parallel_mode=lambda *_: None,
    )  # fmt: skip


def executed(name: str, rank: int, ranks: int, microbatches: int) -> list[str]:
    """What torch's single-stage schedules run; their pipeline_order is absent or, for 1F1B's last rank, faulty."""
    every = range(microbatches)
    if name == "GPipe":
        return [f"{rank}F{m}" for m in every] + [f"{rank}B{m}" for m in every]
    ahead = min(microbatches, ranks - rank)  # warm-up of _step_microbatches, the first of 1F1B included
    row = [f"{rank}F{m}" for m in range(ahead)]
    for m in range(microbatches - ahead):
        row += [f"{rank}B{m}", f"{rank}F{ahead + m}"]
    return row + [f"{rank}B{m}" for m in range(microbatches - ahead, microbatches)]


def order(name: str, ranks: int, microbatches: int, chunks: int) -> list[list[str]]:
    """Every rank's actions, idle steps left out."""
    if name in SINGLE:
        return [executed(name, rank, ranks, microbatches) for rank in range(ranks)]
    from torch.distributed.pipelining import schedules

    stages = ranks * chunks
    mine = (0, stages - 1) if name in V_SHAPED else range(0, stages, ranks)
    made = getattr(schedules, f"Schedule{name}")(
        [stand_in(index, 0, ranks, stages) for index in mine], microbatches, loss_fn=lambda *_: None
    )
    rows = (made.pipeline_order[rank] for rank in range(ranks))
    return [[str(action) for action in row if action is not None] for row in rows]


def main() -> None:
    """Compare, or write with `--write`."""
    import torch

    stored = json.loads(FILE.read_text(encoding="utf-8"))
    for case in stored["cases"]:
        case["actions"] = order(case["schedule"], case["pp"], case["m"], case["v"])
    stored["source"] = f"torch {torch.__version__.partition('+')[0]}"
    text = json.dumps(stored)
    if "--write" in sys.argv:
        FILE.write_text(text + "\n", encoding="utf-8")
        return
    same = json.loads(text)["cases"] == json.loads(FILE.read_text(encoding="utf-8"))["cases"]
    print("the same" if same else "torch's orders have changed: look, then run with --write")


if __name__ == "__main__":
    main()
