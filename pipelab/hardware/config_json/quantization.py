"""In which precision a checkpoint keeps its weights, by the `quantization_config` of its `config.json`.

`Transformer` has one precision for all matrices of the layers, and 16 bits for all else. A
checkpoint that does it differently is refused; giving `precision` takes the nearest instead.
"""

from collections.abc import Mapping
from typing import Any

from pipelab.errors import InvalidData, shown
from pipelab.fields import is_list
from pipelab.hardware.config_json.fields import Config
from pipelab.hardware.layer_sizes import INT4_GROUP
from pipelab.io.whole_files import named

# Of what a list of modules that are not converted may name: all this has 16 bits anyway.
_PLAIN = ("lm_head", "embed_tokens", "gate", "shared_expert_gate", "router")
# Parts of their names that say a module is none of the text's.
_NOT_TEXT = ("vision", "visual", "multi_modal", "audio")
# Where the schemes list them.
_KEPT = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "bf16"}  # 32 bits are loaded in 16
_BITS = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4"}


def precision_of(c: Config) -> str:
    """Of the layers' matrices: that of `quantization_config`, without one that of the file's 16-bit type.

    Raises
    ------
    InvalidData
        `Transformer` has no such precision.
    """
    q = c.get("quantization_config")
    if q is None:
        key = "dtype" if c.get("torch_dtype") is None else "torch_dtype"
        kind = str(c.get(key, "bfloat16")).removeprefix("torch.")
        if kind not in _DTYPES:
            raise c.error(key, f"expected one of {', '.join(_DTYPES)}, or quantization_config")
        return _DTYPES[kind]
    if not isinstance(q, Mapping):
        raise c.error("quantization_config", "expected an object with quant_method")
    return _Scheme(c, q).precision()


class _Scheme:
    """A `quantization_config` and where it stands."""

    def __init__(self, config: Config, values: Mapping[str, Any]) -> None:
        self.config, self.values = config, values

    def error(self, key: str, value: Any, expected: str) -> InvalidData:
        remedy = 'or give precision="fp8", "int8" or "int4", the nearest, to load_model'
        place = f"{named(self.config.path)}, field 'quantization_config', {key}"
        return InvalidData(f"{place}: {shown(value)}: {expected}, {remedy}")

    def precision(self) -> str:
        method, get = self.values.get("quant_method"), self.values.get
        self._refuse_other_modules()
        if method in ("fp8", "fbgemm_fp8"):
            return "fp8"
        if method in ("awq", "gptq"):
            if get("lm_head") is True:
                raise self.error("lm_head", True, "expected a head of 16 bits")
            return self._of_bits("bits", "int", get("bits"), get("group_size"))
        if method == "compressed-tensors":
            return self._compressed()
        if method == "bitsandbytes" and get("load_in_8bit") is True:
            return "int8"
        if method == "modelopt" and get("quant_algo") == "FP8":
            return "fp8"
        known = "expected fp8, fbgemm_fp8, awq, gptq, compressed-tensors, modelopt's FP8, or 8 bits of bitsandbytes"
        raise self.error("quant_method", method, known)

    def _of_bits(self, key: str, kind: Any, bits: Any, group: Any) -> str:
        if not isinstance(kind, str) or type(bits) is not int or (kind, bits) not in _BITS:
            raise self.error(key, bits, "expected 4 or 8 bits as whole numbers, or 8 as float")
        if bits == 4 and (type(group) is not int or group != INT4_GROUP):
            raise self.error("group_size", group, f"expected {INT4_GROUP} weights with one scale")
        return _BITS[kind, bits]

    def _compressed(self) -> str:
        groups = self.values.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            raise self.error("config_groups", groups, "expected an object with groups")
        found = set()
        for name, group in groups.items():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            if not isinstance(weights, Mapping):
                raise self.error(f"config_groups.{name[:40]}", group, "expected one with weights")
            get = weights.get
            found.add(self._of_bits("num_bits", get("type"), get("num_bits"), get("group_size")))
        if len(found) > 1:
            raise self.error("config_groups", sorted(found), "expected one precision")
        return found.pop()

    def _refuse_other_modules(self) -> None:
        """All matrices of the layers are quantised, or the weights would be larger than computed."""
        for key in _KEPT:
            names = self.values.get(key) or []
            if not is_list(names):
                raise self.error(key, names, "expected a list of modules")
            for name in names:
                last = name.rpartition(".")[2] if isinstance(name, str) else ""
                if isinstance(name, str) and any(part in name for part in _NOT_TEXT):
                    continue
                if not (last.endswith(_PLAIN) or last.endswith("norm") or last.endswith("norm$")):
                    raise self.error(key, name, "expected every matrix of the layers in few bits")
