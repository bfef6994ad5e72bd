"""The five folders of gangmuk/LLM_placement_solver at commit 1221697, written again from their facts.

Lengths, widths, counts, memory and links were read in that repository (config/NAME); it has no
licence, so no file of it is here. Pools of medium and hal, and medium's links, are those of the same
folders in its other commits and in Tandemn-Labs/LLM_placement_solver.
"""

from pipelab.files.bundled_folders import data_dir

# L, batch, name, layers, d_model, d_hidden, heads, GB per layer, seconds, gap, least layers, priority
CONFIGS = {
    "tiny": (2048, 16, "llama-7b", 4, 4096, 11008, 32, 0.5, 60, 0.01, 1, "throughput_first"),
    "small": (2048, 16, "llama-7b", 12, 4096, 11008, 32, 0.5, 60, 0.01, 1, "throughput_first"),
    "medium": (4096, 64, "llama-8b", 32, 8192, 22016, 64, 3.5, 300, 0.05, 5, "cost_first"),
    "large": (2048, 64, "llama-70b", 80, 8192, 28672, 64, 0.5, 300, 0.01, 5, "cost_first"),
    "hal": (4096, 64, "llama-70b", 80, 8192, 22016, 64, 3.5, 300, 0.05, 5, "cost_first"),
}
_COLUMNS = (
    *(
        "sequence_length",
        "min_batch_size",
        "model_name",
        "num_decoder_layers",
        "d_model",
        "d_hidden",
    ),
    *("num_attention_heads", "layer_weight_memory_gb", "time_limit_seconds", "optimality_gap"),
    *("min_layers_per_stage", "optimization_priority"),
)
_SAME = {
    "vocab_size": 32000, "bytes_per_element": 2, "enable_segment_quantization": "true",
    "max_pipeline_stages": 8, "min_memory_utilization": 0.5,
    "network_bandwidth_percentile_threshold": 0.1, "max_hourly_cost": 999.0,
    "max_cost_per_million_token": 100, "max_total_cost": 999999.0,
    "max_total_runtime_hours": 999999.0, "throughput_normalization": 10000.0,
    "cost_normalization": 1.0, "total_tokens_to_process": 1000000,
}  # fmt: skip
# type, count, GB and, of large, $ per hour
POOLS = {
    "tiny": [("A100", 2, 80), ("V100", 2, 32)],
    "small": [("A100", 4, 80), ("V100", 4, 32), ("H100", 2, 80)],
    "medium": [("A100", 8, 80), ("L40", 12, 48), ("A10", 12, 24), ("V100", 12, 32)],
    "large": [
        ("A100", 8, 80, 3.0), ("V100", 8, 32, 1.0), ("H100", 4, 80, 4.2),
        ("T4", 20, 16, 0.4), ("L20", 20, 48, 0.9), ("A10", 20, 24, 1.0),
    ],
    "hal": [("V100", 64, 16)],
}  # fmt: skip
# Some rows of its list of prices.
PRICES = """\
Cloud Provider,Instance Name,GPU Model,GPU Count,GPU Memory per GPU,Price per Hour USD
AWS,p6-b200.48xlarge,NVIDIA B200,8,192 GB HBM3e,$140-160 (estimated)
AWS,p4de.24xlarge,NVIDIA A100,8,80 GB HBM2e,$40.96
AWS,p4d.24xlarge,NVIDIA A100,8,40 GB HBM2e,$32.77
AWS,p3dn.24xlarge,NVIDIA V100,8,32 GB HBM2,$31.21
AWS,g6e.4xlarge,NVIDIA L40S,1,48 GB GDDR6,$3.42
AWS,g5.xlarge,NVIDIA A10G,1,24 GB GDDR6,$1.01
AWS,p3.8xlarge,NVIDIA V100,4,16 GB HBM2,$12.24
AWS,p3.2xlarge,NVIDIA V100,1,16 GB HBM2,$3.06
GCP,a2-ultragpu-16g,NVIDIA A100,16,80 GB HBM2e,$62.70
GCP,a2-ultragpu-8g,NVIDIA A100,8,80 GB HBM2e,$33.14
GCP,a2-highgpu-8g,NVIDIA A100,8,40 GB HBM2e,$24.48
Nebius,GB300 NVL72 (4 GPUs),NVIDIA GB300,4,279 GB HBM3e,Contact for pricing
CoreWeave,A100 80GB NVLink,NVIDIA A100,1-8,80 GB HBM2e,$2.21 per GPU (plus CPU/RAM)
Lambda,H100 8-GPU,NVIDIA H100,8,80 GB HBM3,$2.99 per GPU
Lambda,A100 80GB 8-GPU,NVIDIA A100,8,80 GB HBM2e,$1.79 per GPU
Lambda,A10,NVIDIA A10,1,24 GB GDDR6,$0.75 per GPU
Lambda,V100 8-GPU,NVIDIA V100,8,16 GB HBM2,$0.55 per GPU
"""


def write_folder(name, folder, **changes):
    """One of the five in a folder; `changes` are other parameters, None for none."""
    folder.mkdir(parents=True, exist_ok=True)
    given = dict(zip(_COLUMNS, CONFIGS[name], strict=True)) | _SAME
    given |= {"max_batch_size": given["min_batch_size"]} | changes
    lines = [f"{key},{value}" for key, value in given.items() if value is not None]
    (folder / "config.csv").write_text("\n".join(["parameter,value", *lines]))
    columns = ("gpu_type", "count", "memory_gb", "dollar_per_hour")[: len(POOLS[name][0])]
    rows = [columns, *POOLS[name]]
    (folder / "gpu_pool.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))
    (folder / "network_bandwidth.csv").write_text(_network(name))
    return folder


def _network(name):
    """The published links; large has those of its former 28 GPUs, which the write-up's case has too."""
    if name in ("tiny", "small", "large"):
        return (data_dir() / "cases" / name / "network_bandwidth.csv").read_text()
    kind = [t for t, count, *_ in POOLS[name] for _ in range(count)]
    n = len(kind)
    if name == "hal":  # nodes of four
        kind = [i // 4 for i in range(n)]
    labels = [f"gpu_{i}" for i in range(n)]
    rows = [[300.0 if kind[i] == kind[j] else 100.0 for j in range(n)] for i in range(n)]
    return "\n".join(
        [f",{','.join(labels)}"]
        + [f"{label},{','.join(map(str, row))}" for label, row in zip(labels, rows, strict=True)]
    )
