"""Measure how long stages of Llama models take on this machine's GPU, with PyTorch.

    python tests/benchmarks/stage_times.py --gpu H100-SXM FOLDER

It writes FOLDER/stage_times.csv (serving) and FOLDER/layer_step_times.csv (training: forward of a layer,
backward of its input, backward of its weights), with the columns of the files in data/. It needs PyTorch
with CUDA, and not pipelab.

A stage is some decoder layers with weights of their own, so that no cache keeps them. Kernels are
compiled and replayed as a CUDA graph: what is timed is the GPU, without the time of Python. Every time is
the median of 30 replays, timed by CUDA events.
"""

import argparse
import csv
import statistics
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

MODELS = {  # d_model, d_ff, heads, key/value heads, width of a head
    "Llama-3-8B": (4096, 14336, 32, 8, 128),
    "Llama-3-70B": (8192, 28672, 64, 8, 128),
}
DECODE = [  # model, layers, batch, context
    *(("Llama-3-8B", layers, 32, 1024) for layers in (1, 2, 4, 8, 16, 30)),
    *(("Llama-3-8B", 8, batch, 1024) for batch in (1, 2, 4, 8, 16, 64, 128, 256)),
    *(("Llama-3-8B", 8, batch, 4096) for batch in (1, 8, 32, 64)),
    *(("Llama-3-70B", 8, batch, 1024) for batch in (1, 8, 32, 128)),
    *(("Llama-3-70B", layers, 32, 1024) for layers in (2, 4, 16)),
]
PREFILL = [  # model, layers, batch, prompt
    *(("Llama-3-8B", 8, 1, prompt) for prompt in (128, 256, 512, 1024, 2048, 4096, 8192)),
    *(("Llama-3-8B", layers, 1, 2048) for layers in (1, 2, 4, 16)),
    *(("Llama-3-8B", 8, batch, 1024) for batch in (2, 4, 8)),
    *(("Llama-3-70B", 8, 1, prompt) for prompt in (512, 1024, 2048, 4096, 8192)),
]
TRAINING = [  # model, layers, microbatch, sequence
    ("Llama-3-8B", 4, 1, 4096),
    ("Llama-3-8B", 4, 2, 4096),
    ("Llama-3-8B", 4, 1, 8192),
    ("Llama-3-70B", 2, 1, 4096),
]


class Layer(nn.Module):
    """A decoder layer of Llama: attention over a cache or over the prompt, and the gated feed-forward."""

    def __init__(self, model: str) -> None:
        super().__init__()
        d, ff, self.heads, self.kv_heads, self.width = MODELS[model]
        self.norms = nn.ModuleList(nn.RMSNorm(d) for _ in range(2))
        self.qkv = nn.Linear(d, (self.heads + 2 * self.kv_heads) * self.width, bias=False)
        self.out = nn.Linear(self.heads * self.width, d, bias=False)
        self.gate_up = nn.Linear(d, 2 * ff, bias=False)
        self.down = nn.Linear(ff, d, bias=False)

    def forward(self, x, cos, sin, cache=None):
        """`x` is (batch, tokens, d); `cache` are keys and values (batch, kv_heads, context, width)."""
        batch, tokens, _ = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, tokens, -1, self.width).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        if cache is None:
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            # The new token's key and value are not written: compiled, that copies the whole cache.
            keys, values = cache
            # Heads that share keys are so many queries of one head: else its keys are read for each.
            grouped = q.reshape(batch, self.kv_heads, -1, self.width)
            seen = functional.scaled_dot_product_attention(grouped, keys, values)
            seen = seen.reshape(batch, self.heads, 1, self.width)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, -1))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


def rotated(x, cos, sin):
    """Rotary embedding: pairs of halves turned by the angle of their position."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


def angles(tokens: int, width: int):
    """Cosines and sines, (tokens, width / 2)."""
    turns = torch.outer(
        torch.arange(tokens, device="cuda"), 5e5 ** -torch.linspace(0, 1, width // 2, device="cuda")
    )
    return turns.cos().bfloat16(), turns.sin().bfloat16()


def stage_of(model: str, layers: int) -> nn.ModuleList:
    """Layers with random weights in bf16."""
    with torch.device("cuda"):
        stage = nn.ModuleList(Layer(model) for _ in range(layers)).bfloat16()
    return stage.requires_grad_(False)


def milliseconds(step, repeats: int = 30) -> float:
    """Median time of a step, replayed as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return timed(graph.replay, repeats)


def timed(step, repeats: int = 30) -> float:
    """Median time of a step by CUDA events, in ms."""
    times = []
    for turn in range(repeats + 5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        end.synchronize()
        if turn >= 5:
            times.append(start.elapsed_time(end))
    return statistics.median(times)


def serving(phase: str, model: str, layers: int, batch: int, tokens: int, run) -> float:
    """Time one pass of a batch through a stage."""
    d, _, _, kv_heads, width = MODELS[model]
    stage = stage_of(model, layers)
    new = 1 if phase == "decode" else tokens
    x = torch.randn(batch, new, d, device="cuda", dtype=torch.bfloat16)
    cos, sin = angles(new, width)
    caches = [None] * layers
    if phase == "decode":
        shape = 2, batch, kv_heads, tokens, width
        caches = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in stage]

    @torch.no_grad()
    def step():
        y = x
        for layer, cache in zip(stage, caches, strict=True):
            y = run(layer, y, cos, sin, cache)
        return y

    return milliseconds(step)


def training(model: str, layers: int, batch: int, tokens: int, run) -> tuple[float, float, float]:
    """Time the forward of a layer, the backward of its input, and that of its weights, each in ms."""
    d, _, _, _, width = MODELS[model]
    stage = stage_of(model, layers)
    x = torch.randn(batch, tokens, d, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    cos, sin = angles(tokens, width)
    gradient = torch.randn_like(x)

    def forward():
        y = x
        for layer in stage:
            y = run(layer, y, cos, sin)
        return y

    def both():
        y = forward()
        wanted = [x, *(p for p in stage.parameters() if p.requires_grad)]
        torch.autograd.grad(y, wanted, gradient)

    with torch.no_grad():
        first = timed(forward)
    torch.compiler.reset()  # what needs a gradient is compiled anew
    without_weights = timed(both)
    stage.requires_grad_(True)
    torch.compiler.reset()
    whole = timed(both)
    torch.compiler.reset()
    return first / layers, (without_weights - first) / layers, (whole - without_weights) / layers


SOURCE = "measured for pipelab by tests/benchmarks/stage_times.py"
STAGE = (
    "what,model,gpu_type,engine,precision,phase,batch,tokens,layers,measured,unit,source,collected"
)
STEP = "model,gpu_type,precision,microbatch,sequence,forward_ms,backward_input_ms,backward_weight_ms,source,collected"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", required=True, help="its name in data/gpus.csv")
    given = parser.parse_args()
    torch._dynamo.config.cache_size_limit = 1000
    torch.manual_seed(0)
    source = f"{SOURCE}; PyTorch {torch.__version__}, {torch.cuda.get_device_name()}"
    month = time.strftime("%Y-%m")

    def plain(layer, *arguments):
        return layer(*arguments)

    run = torch.compile(plain, dynamic=False)
    given.folder.mkdir(parents=True, exist_ok=True)
    with open(given.folder / "stage_times.csv", "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(STAGE.split(","))
        for phase, rows in (("decode", DECODE), ("prefill", PREFILL)):
            for model, layers, batch, tokens in rows:
                ms = f"{serving(phase, model, layers, batch, tokens, run):.4g}"
                some = f"{layers} layer{'s' * (layers > 1)}"
                what = f"{model}, {some}, {phase} of {batch} x {tokens}: {given.gpu}"
                row = [what, model, given.gpu, "kernels", "bf16", phase, batch, tokens, layers, ms]
                table.writerow([*row, "ms", source, month])
                torch.cuda.empty_cache()
    with open(given.folder / "layer_step_times.csv", "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(STEP.split(","))
        for model, layers, batch, tokens in TRAINING:
            times = [f"{ms:.4g}" for ms in training(model, layers, batch, tokens, run)]
            table.writerow([model, given.gpu, "bf16", batch, tokens, *times, source, month])
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
