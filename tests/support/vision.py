"""Tiny image-text models with random weights, and pictures."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

from areal.dataset.pixels import image_of

VOCAB = 32
_TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_IDS: dict[str, Any] = {
    "image_token_id": 27,
    "video_token_id": 28,
    "vision_start_token_id": 29,
    "vision_end_token_id": 30,
    "tie_word_embeddings": False,
}
_GRID: dict[str, Any] = {"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "initializer_range": 0.3}
_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 0]}
QWEN2_5_VL: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    **_IDS,
    "text_config": {**_TEXT, "rope_parameters": _ROPE},
    "vision_config": {
        **_GRID,
        "depth": 2,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_heads": 2,
        "out_hidden_size": 16,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    },
}
QWEN3_VL: dict[str, Any] = {
    "model_type": "qwen3_vl",
    **_IDS,
    "text_config": {**_TEXT, "head_dim": 8, "rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1]}},
    "vision_config": {
        **_GRID,
        "depth": 2,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_heads": 2,
        "out_hidden_size": 16,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
    },
}
LLAVA: dict[str, Any] = {
    "model_type": "llava",
    "image_token_index": 27,
    "tie_word_embeddings": False,
    "vision_feature_select_strategy": "default",
    "text_config": {**_TEXT, "model_type": "llama"},
    "vision_config": {
        "model_type": "clip_vision_model",
        "image_size": 8,
        "patch_size": 4,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "projection_dim": 16,
    },
}
MODELS = {config["model_type"]: config for config in (LLAVA, QWEN2_5_VL, QWEN3_VL)}


def noise(height: int, width: int, seed: int = 0) -> Any:
    """Random pixels uint8 [H, W, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def noisy_image(height: int, width: int, seed: int = 0) -> Any:
    """Random pixels as an `areal.api.Image`."""
    return image_of(noise(height, width, seed))


def encoded(picture: Any, form: str = "PNG", **options: Any) -> bytes:
    """File of a Pillow image, or of pixels."""
    stream = io.BytesIO()
    (picture if hasattr(picture, "save") else Image.fromarray(picture)).save(stream, form, **options)
    return stream.getvalue()
