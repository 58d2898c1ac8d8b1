"""Folders as transformers writes them, of networks that fit into a test: a config.json, and weights where wanted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY, TOKENS, SIDE = 20, 8, 16
_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_PIXELS = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": SIDE,
    "patch_size": 4,
    "num_channels": 3,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": _TEXT,
    "roberta": {**_TEXT, "pad_token_id": 1},
    "deberta": _TEXT,
    "deberta-v2": {
        **_TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False,
        "position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm",
    },
    "mpnet": _TEXT,
    "gpt2": {
        "vocab_size": VOCABULARY, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "llama": {**_TEXT, "num_key_value_heads": 1, "pad_token_id": None},
    "vit": _PIXELS,
    "beit": _PIXELS,
}  # fmt: skip
IMAGES = ("vit", "beit")
_HEADS = {"num_key_value_heads": 1, "head_dim": 8}
# Architectures that no test but the long one of the engine looks at, and the engine that takes all of their weights.
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "distilbert": ("BookKeeper", {"vocab_size": 20, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32,
                                  "max_position_embeddings": 16}),
    "albert": ("BookKeeper", {**_TEXT, "embedding_size": 8, "num_hidden_layers": 2}),
    "electra": ("BookKeeper", {**_TEXT, "embedding_size": 8}),
    "modernbert": ("BookKeeper", {**_TEXT, "num_hidden_layers": 2, "cls_token_id": 1, "sep_token_id": 2,
                                  "global_attn_every_n_layers": 2, "local_attention": 4}),
    "opt": ("BookKeeper", {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                           "ffn_dim": 32, "max_position_embeddings": 16, "word_embed_proj_dim": 16}),
    "gpt_neo": ("BookKeeper", {"vocab_size": 20, "hidden_size": 16, "num_layers": 2, "num_heads": 2,
                               "max_position_embeddings": 16, "attention_types": [[["global", "local"], 1]],
                               "bos_token_id": 1, "eos_token_id": 2}),
    "gpt_neox": ("BookKeeper", _TEXT),
    "mistral": ("BookKeeper", {**_TEXT, **_HEADS}),
    "qwen3": ("BookKeeper", {**_TEXT, **_HEADS}),
    "gemma": ("BookKeeper", {**_TEXT, **_HEADS}),
    "phi": ("BookKeeper", {**_TEXT, "num_key_value_heads": 2}),
    "bloom": ("BookKeeper", {"vocab_size": 20, "hidden_size": 16, "n_layer": 1, "n_head": 2, "pad_token_id": 3}),
    "xlnet": ("FunctionalGradients", {"vocab_size": 20, "d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 32}),
    "longformer": ("OneByOne", {**_TEXT, "attention_window": 4}),
    "dinov2": ("BookKeeper", _PIXELS | {"intermediate_size": None}),
    "convnext": ("BookKeeper", {"num_channels": 3, "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}),
}  # fmt: skip


def shape_of(kind: str) -> tuple[int, ...]:
    """Of a record that it takes."""
    return (3, SIDE, SIDE) if kind in (*IMAGES, "dinov2", "convnext") else (TOKENS,)


def write(kind: str, folder: Path, **more: object) -> Path:
    """A folder with the config alone."""
    folder.mkdir(parents=True, exist_ok=True)
    table = {"model_type": kind, **(CONFIGS[kind] if kind in CONFIGS else OTHERS[kind][1]), **more}
    (folder / "config.json").write_text(json.dumps(table), encoding="utf-8")
    return folder


def save(kind: str, folder: Path, classes: int = 3, seed: int = 5, **more: object) -> Path:
    """The same with weights, as `save_pretrained` leaves them."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    write(kind, folder, **more)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        config = AutoConfig.from_pretrained(folder, num_labels=classes, local_files_only=True)
        AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    return folder


def save_language(kind: str, folder: Path, seed: int = 5, **more: object) -> Path:
    """A causal language model with weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    write(kind, folder, **more)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder
