"""Make `engine_options.json` again: `python make_engine_options.py --write`, with pip, which installs nothing.

It reads the options of engines in the source of the versions that launch scripts are written for. Without `--write` it
says whether the file is up to date. What no package on PyPI has (Megatron's `arguments.py`, TensorRT-LLM) is not in it.
"""

import ast
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

FILE = Path(__file__).with_name("engine_options.json")
# Of each engine the package, the files in which options stand as they are written, and the classes whose fields are
# options, with what stands before each.
PACKAGES = {
    "vLLM": ("vllm==0.33.0", ("vllm/engine/arg_utils.py", "vllm/entrypoints/common/cli_args.py", "vllm/envs.py"),
             {"vllm/entrypoints/common/cli_args.py": {"BaseFrontendArgs": "--", "FrontendArgs": "--"}}),
    "SGLang": ("sglang==0.5.23", ("sglang/srt/arg_groups/field_order.py", "sglang/srt/distributed/utils.py"), {}),
    "torchtitan": ("torchtitan==0.3.0", ("torchtitan/config/manager.py",),
                   {"torchtitan/config/configs.py": {"ParallelismConfig": "--parallelism.",
                                                     "TrainingConfig": "--training."}}),
    "llama.cpp": ("llama-cpp-python==0.3.36", ("common/arg.cpp", "tools/rpc/rpc-server.cpp"), {}),
}  # fmt: skip
OPTION = re.compile(r"""["'`](--?[a-zA-Z][\w.-]*|[A-Z]+_PP_LAYER_PARTITION)["'`=]|(--module)\b""")


def _fields(text: str, prefixes: dict[str, str]) -> set[str]:
    """Return the options that the fields of classes stand for; hyphens take the place of underscores."""
    classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    return {
        prefix + (field.target.id if "." in prefix else field.target.id.replace("_", "-"))
        for node in classes
        if (prefix := prefixes.get(node.name))
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def _options(name: str) -> list[str]:
    package, literal, classes = PACKAGES[name]
    kind = [] if name != "llama.cpp" else ["--no-binary", ":all:"]
    options: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            *kind,
            "-d",
            folder,
            package,
        ]
        subprocess.run(pip, check=True)
        (archive,) = Path(folder).iterdir()
        for path in {*literal, *classes}:
            if (text := _text(archive, path)) is None:
                continue
            if path.endswith("field_order.py"):  # names of fields, in which hyphens are underscores
                options |= {
                    "--" + name.replace("_", "-")
                    for name in re.findall(r'^    "(\w+)",$', text, re.M)
                }
            options |= (
                {match[1] or match[2] for match in OPTION.finditer(text)}
                if path in literal
                else set()
            )
            options |= _fields(text, classes[path]) if path in classes else set()
    return sorted(options)


def _text(archive: Path, path: str) -> str | None:
    """Return a file of a package; None if it is not there."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as whole:
            return whole.read(path).decode() if path in whole.namelist() else None
    with tarfile.open(archive) as whole:
        found = [name for name in whole.getnames() if name.endswith(f"llama.cpp/{path}")]
        return whole.extractfile(found[0]).read().decode() if found else None


def _version(name: str) -> str:
    """Return the engine's own version: the package of llama.cpp numbers itself otherwise."""
    return {"llama.cpp": "b10295"}.get(name, PACKAGES[name][0].split("==")[1])


def main() -> None:
    made = {
        name: {"package": PACKAGES[name][0], "version": _version(name), "options": _options(name)}
        for name in PACKAGES
    }
    text = json.dumps(made, indent=0) + "\n"
    if "--write" in sys.argv:
        FILE.write_text(text, encoding="utf-8")
    print("up to date" if FILE.exists() and FILE.read_text(encoding="utf-8") == text else "differs")


if __name__ == "__main__":
    main()
