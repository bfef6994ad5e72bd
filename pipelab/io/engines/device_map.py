"""Hugging Face transformers: `device_map`, one GPU per stage, in one process."""

import json

from pipelab.io.engines.deployment import EnginePlan
from pipelab.io.engines.launch_script import EngineSettings, finished, own_gpus

# Loads the model as the map says and answers the prompts that follow.
_PROGRAM = """\
import json, sys
from transformers import AutoModelForCausalLM, AutoTokenizer
name, placed, *prompts = sys.argv[1:]
with open(placed) as file:
    device_map = json.load(file)
model = AutoModelForCausalLM.from_pretrained(name, device_map=device_map, torch_dtype="{dtype}")
tokenizer = AutoTokenizer.from_pretrained(name)
for prompt in prompts:
    tokens = tokenizer(prompt, return_tensors="pt").to(model.device)
    written = model.generate(**tokens, max_length={context})
    print(tokenizer.decode(written[0], skip_special_tokens=True))"""


def transformers_launch(plan: EnginePlan) -> EngineSettings:
    """The plan for one process of transformers with accelerate.

    Notes
    -----
    `expand_device_map` (src/transformers/integrations/accelerate.py) gives a parameter to the device
    of the entry whose name is its own or is followed by a dot in it. Devices are counted among the
    visible GPUs, which are the plan's in the order of the stages. The embedding belongs to the first
    stage, norm and head to the last; the names are those of Llama, Mistral, Qwen, Gemma, Phi-3,
    OLMo 2, Granite and DeepSeek.
    """
    if plan.size > 1:
        expected = (
            "expected one GPU in every stage: a device map gives whole layers to a GPU; "
            "solve with max_gpus_per_stage=1"
        )
        raise plan.refuse("GPUs per stage", plan.size, expected)
    if len(plan.hosts) > 1:
        expected = "expected stages on one host: a device map is of one process"
        raise plan.refuse("hosts", len(plan.hosts), expected)
    placed = json.dumps(_map(plan.layers))
    dtype = plan.dtype("float16")
    commands = [
        own_gpus(plan),
        "PLACED=$(mktemp --suffix=.json)",
        'cat > "$PLACED" <<END',
        placed,
        "END",
        "PROGRAM=$(cat <<'END'",
        *_PROGRAM.format(dtype=dtype, context=plan.context).splitlines(),
        "END",
        ")",
        'exec python3 -c "$PROGRAM" "$MODEL" "$PLACED" "$@"',
    ]
    notes = ["the script's further arguments are prompts"]
    if len(plan.layers) > 1:
        notes.append(
            "transformers computes one stage at a time, and the plan's rate is not reached; for that "
            "take another engine"
        )
    return finished(plan, {}, ("device_map", placed), commands, notes=notes)


def _map(layers: tuple[int, ...]) -> dict[str, int]:
    last = len(layers) - 1
    owner = [stage for stage, count in enumerate(layers) for _ in range(count)]
    found = {"model.embed_tokens": 0, "model.rotary_emb": 0}
    found |= {f"model.layers.{i}": stage for i, stage in enumerate(owner)}
    return found | {"model.norm": last, "lm_head": last}
