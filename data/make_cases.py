"""Write the bundled cases from the facts below: `python data/make_cases.py [FOLDER]`.

The numbers are those of the joint-ILP write-up and of the configurations that its author
published (gangmuk/LLM_placement_solver at commit 2efc2c6); `notebooks/data.md` tells which
are doubtful. The demo's configuration was never published: its model, memory and batch
are recovered from the write-up's count of 345,465 allocations, its bandwidth is assumed.
"""

import sys
from pathlib import Path

import numpy as np

# name: (model, L, B, layers, d_model, d_hidden, GB per layer, (MIP gap, time limit), pool)
CASES = {
    "tiny": ("llama-7b", 2048, 16, 4, 4096, 11008, 0.5, (0.01, 60), "A100×2 (80), V100×2 (32)"),
    "small": ("llama-7b", 2048, 16, 12, 4096, 11008, 0.5, (0.01, 60), "A100×4 (80), V100×4 (32), H100×2 (80)"),
    "medium_small": ("llama-13b", 2048, 16, 20, 4096, 11008, 2.0, (0.05, 120),
                     "A100×2 (48), L20×2 (48), A10×2 (24), A40×2 (48)"),
    "medium": ("llama-70b", 4096, 32, 80, 8192, 22016, 3.5, (0.05, 300),
               "A100×5 (48), L20×10 (48), A10×10 (24), A40×10 (48), RTX4090×10 (24), T4×10 (16), V100×10 (32)"),
    "large": ("llama-70b", 2048, 16, 80, 8192, 28672, 0.5, (0.01, 300),
              "A100×8 (80), V100×6 (32), H100×4 (80), RTX4090×10 (24)"),
    "demo": ("demo", 2048, 100, 14, 4096, 11008, 2.0, None, "H100×10 (80), A10×10 (24), T4×10 (16)"),
}  # fmt: skip

# Upper triangles by GPU type in pool order; a block is constant and symmetric.
BLOCKS = {
    "tiny": [[400, 200], [300]],
    "medium_small": [[600, 400, 300, 200], [500, 350, 250], [400, 300], [350]],
    "medium": [[600] * 7, [600] * 6, [600] * 5, [550] + [600] * 3, [600] * 3, [600] * 2, [600]],
    "large": [[400, 200, 100, 50], [300, 150, 75], [350, 100], [200]],
    "demo": [[400] * 3, [400] * 2, [400]],
}
# small's matrix matches its pool neither in its groups nor in symmetry: rows are senders.
SMALL_GROUPS = [4, 2, 2, 2]
SMALL = [[400, 200, 150, 100], [200, 300, 200, 150], [200, 300, 200, 150], [100, 150, 350, 300]]


def pool_of(text: str) -> list[tuple[str, int, int]]:
    """Read "A100×2 (80), …" as (type, count, memory in GB)."""
    parts = [
        part.replace("×", " ").replace("(", " ").replace(")", " ").split()
        for part in text.split(",")
    ]
    return [(name, int(count), int(memory)) for name, count, memory in parts]


def matrix_of(case: str, counts: list[int]) -> np.ndarray:
    """The bandwidth between all GPUs of a case, row = sender."""
    if case == "small":
        return np.repeat(np.repeat(SMALL, SMALL_GROUPS, axis=0), SMALL_GROUPS, axis=1)
    size = len(counts)
    block = np.zeros((size, size), dtype=int)
    for i, row in enumerate(BLOCKS[case]):
        block[i, i:] = block[i:, i] = row
    return np.repeat(np.repeat(block, counts, axis=0), counts, axis=1)


def files_of(case: str) -> dict[str, str]:
    """The three files of a case as text."""
    model, length, batch, layers, d_model, d_hidden, weight, solver, pool_text = CASES[case]
    config = {
        "model_name": model,
        "sequence_length": length,
        "batch_size": batch,
        "num_decoder_layers": layers,
        "d_model": d_model,
        "d_hidden": d_hidden,
        "vocab_size": 32000,
        "num_attention_heads": {4096: 32, 8192: 64}[d_model],
        "layer_weight_memory_gb": weight,
        "bytes_per_element": 2,
        "link_units": "transfers",  # as the write-up compares them with tokens/s, by mistake
    }
    if solver:
        config |= {"optimality_gap": solver[0], "time_limit_seconds": solver[1]}
    pool = pool_of(pool_text)
    matrix = matrix_of(case, [count for _, count, _ in pool])
    labels = [f"gpu_{i}" for i in range(len(matrix))]
    lines = [",".join(["", *labels])]
    lines += [",".join([label, *map(str, row)]) for label, row in zip(labels, matrix, strict=True)]
    return {
        "config.csv": _lines(["parameter,value", *(f"{k},{v}" for k, v in config.items())]),
        "gpu_pool.csv": _lines(["gpu_type,count,memory_gb", *(f"{t},{n},{m}" for t, n, m in pool)]),
        "network_bandwidth.csv": _lines(lines),
    }


def _lines(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def main(folder: Path) -> None:
    for case in CASES:
        for name, text in files_of(case).items():
            path = folder / case / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "cases")
