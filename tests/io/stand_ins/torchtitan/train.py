"""What torchtitan does with a script's options, in one step on CPUs: torch runs the schedule, and layers are small.

Each rank compares its gradients with those of one process.
"""

import argparse
import copy
import os
import re

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, schedules

WIDTH = 16


class Part(nn.Module):
    """One small layer for each module that the part has."""

    def __init__(self, names):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in names.split(","))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def _options():
    parser = argparse.ArgumentParser()
    for name in ("schedule", "schedule_csv", "microbatch_size"):
        parser.add_argument(f"--parallelism.pipeline_parallel_{name}", dest=name)
    parser.add_argument("--parallelism.module_fqns_per_model_part", dest="parts", nargs="+")
    parser.add_argument("--training.local_batch_size", dest="batch", type=int)
    return parser.parse_known_args()[0]


def _loss(y, wanted):
    return ((y - wanted) ** 2).mean()


options, rank, ranks = _options(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
distributed.init_process_group("gloo")
torch.manual_seed(0)
parts = [Part(names) for names in options.parts]
alone = copy.deepcopy(nn.Sequential(*parts))
rank_of = {part: part % ranks for part in range(len(parts))}
if options.schedule_csv:  # who runs a part's forward has it
    with open(options.schedule_csv, encoding="utf-8") as file:
        rank_of = {
            int(part): i for i, row in enumerate(file) for part in re.findall(r"\b(\d+)F", row)
        }
held = [part for part in range(len(parts)) if rank_of[part] == rank]
stages = [PipelineStage(parts[i], i, len(parts), torch.device("cpu")) for i in held]
count = options.batch // int(options.microbatch_size)
if options.schedule_csv:
    schedule = schedules._PipelineScheduleRuntime(stages, count, _loss)
    schedule._load_csv(options.schedule_csv)
else:
    kind = schedules.get_schedule_class(options.schedule)
    several = issubclass(kind, schedules.PipelineScheduleMulti)
    schedule = kind(stages if several else stages[0], count, loss_fn=_loss)
x, wanted = torch.randn(options.batch, WIDTH), torch.randn(options.batch, WIDTH)
last = {"target": wanted, "losses": []} if len(parts) - 1 in held else {}
schedule.step(*[x] * (rank == 0), **last)
_loss(alone(x), wanted).backward()
pairs = [
    (a.grad, b.grad)
    for i in held
    for a, b in zip(parts[i].parameters(), alone[i].parameters(), strict=True)
]
error = max(float((a - b).abs().max()) for a, b in pairs)
print(
    f"rank {rank}: {type(schedule).__name__} of {len(parts)} parts, {count} microbatches, error {error:.1e}"
)
assert error < 1e-6
distributed.destroy_process_group()
