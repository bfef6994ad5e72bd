"""Make `torch_schedules.json` again from an installed torch: `pip install -e '.[torch]'`, then run this file.

Every schedule class is given stages that hold nothing but their numbers, in a process group of one
that nothing is sent through. Writes beside itself with `--write`; otherwise says whether the file
is up to date.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

FILE = Path(__file__).with_name("torch_schedules.json")
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
SINGLE = ("GPipe", "1F1B")
# Microbatches that the ranks do not divide, or fewer than there are ranks.
UNEVEN = [
    *((name, p, m, v) for name in ("Interleaved1F1B", "InterleavedZeroBubble")
      for p, m, v in ((4, 3, 2), (4, 6, 2), (4, 10, 2), (3, 5, 1), (3, 8, 3), (5, 14, 2))),
    *(("LoopedBFS", p, m, 2) for p, m in ((4, 3), (3, 7))),
    *(("ZBVZeroBubble", p, m, 2) for p, m in ((4, 2), (3, 7), (4, 5))),
    *(("DualPipeV", p, m, 2) for p, m in ((1, 3), (3, 7), (3, 11))),
]  # fmt: skip


def stand_in(index: int, rank: int, ranks: int, stages: int):
    """What a schedule's constructor asks of a stage."""
    return SimpleNamespace(
        group_size=ranks, group_rank=rank, num_stages=stages, stage_index=index, is_first=index == 0,
        is_last=index == stages - 1, has_backward=True, submod=None, group=None, device="cpu",
        stage_index_to_group_rank={s: s % ranks for s in range(stages)}, _configure_data_parallel_mode=lambda *_: None,
    )  # fmt: skip


def single_stage(name: str, ranks: int, microbatches: int) -> list[list[str]]:
    """torch's schedules of one stage per rank.

    1F1B's order for its last rank starts at microbatch 1 and ends at one that does not exist; what
    that rank runs (`Schedule1F1B._step_microbatches`) is a forward and a backward of every
    microbatch in turn.
    """
    from torch.distributed.pipelining import schedules

    make = getattr(schedules, f"Schedule{name}")
    rows = []
    for rank in range(ranks):
        made = make(stand_in(rank, rank, ranks, ranks), microbatches, loss_fn=lambda *_: None)
        row = [str(action) for action in made._get_pipeline_order()[rank] if action is not None]
        rows.append([text for text in row if "REDUCE_GRAD" not in text])
    if name == "1F1B":
        rows[-1] = [f"{ranks - 1}{kind}{m}" for m in range(microbatches) for kind in "FB"]
    return rows


def order(name: str, ranks: int, microbatches: int, chunks: int) -> list[list[str]]:
    """Every rank's actions, idle steps left out."""
    if name in SINGLE:
        return single_stage(name, ranks, microbatches)
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
    known = {(case["schedule"], case["pp"], case["m"], case["v"]) for case in stored["cases"]}
    stored["cases"] += [
        {"schedule": name, "kind": "ir", "pp": ranks, "m": microbatches, "v": chunks}
        for name, ranks, microbatches, chunks in UNEVEN
        if (name, ranks, microbatches, chunks) not in known
    ]
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
