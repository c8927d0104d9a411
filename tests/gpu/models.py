"""An 8B-shaped Llama and its EAGLE-3 draft: tiny on disk, real size on the GPU, known answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.lab.sglang.models import write_model

VOCABULARY = 32000


def write(folder: Path) -> tuple[Path, Path]:
    """Write target and draft and return their folders; ``target-short`` has a quarter of the layers."""
    target, draft = folder / "target", folder / "draft-eagle3"
    write_model(target, _config(32, architectures=["LlamaForCausalLM"]))
    write_model(folder / "target-short", _config(8, architectures=["LlamaForCausalLM"]))
    eagle = _config(1, architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=VOCABULARY)
    write_model(draft, eagle)
    return target, draft


def _config(layers: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        **more,
    }
