"""Write the tiny target and EAGLE-3 draft that ``--load-format dummy`` fills with lab weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 1024
CONTEXT = 4096
LAYERS = 2
TARGET = "tiny-llama"
DRAFT = "tiny-llama-eagle3"
# One word a token: "t5" is token 5. Texts of a tiny model are readable that way, and chat works.
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def write(folder: Path) -> tuple[Path, Path]:
    """Write both models into ``folder`` and return their paths, target first."""
    target, draft = folder / TARGET, folder / DRAFT
    write_model(target, _config(LAYERS, architectures=["LlamaForCausalLM"]))
    eagle = _config(1, architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=VOCABULARY)
    write_model(draft, eagle)
    return target, draft


def expected(token: int, count: int) -> list[int]:
    """Return what the target with known weights answers after a prompt that ends in ``token``."""
    found = []
    for _ in range(count):
        token = (token * 17 + 3) % VOCABULARY
        found.append(token)
    return found


def _config(layers: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        **more,
    }


def write_model(folder: Path, config: dict[str, Any]) -> None:
    """Write a model's config and a tokenizer with one word per token: ``t5`` is token 5."""
    folder.mkdir(parents=True, exist_ok=True)
    special = [
        {
            "id": number,
            "content": f"t{number}",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number in range(3)
    ]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {f"t{number}": number for number in range(config["vocab_size"])},
            "unk_token": "t0",
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "t1",
        "eos_token": "t2",
        "unk_token": "t0",
        "pad_token": "t0",
        "model_max_length": config["max_position_embeddings"],
        "chat_template": CHAT_TEMPLATE,
    }
    files = {
        "config.json": config,
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2},
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": settings,
    }
    for name, content in files.items():
        text = json.dumps(content, indent=1) + "\n"
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
