"""The image-text model and prompts of grpo_vs_trl.py: random weights, drawn pictures, answers of one length."""

from __future__ import annotations

import base64
import io
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

SIDE = 64
TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
TEXT: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
TOWER = {
    "model_type": "clip_vision_model",
    "image_size": SIDE,
    "patch_size": 8,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "projection_dim": 128,
}
_CONSTANT, _NEVER = 4.0, -100.0


def image_model(folder: Path) -> str:
    """Write a LLaVA of random weights with its processor, 64 tokens per picture.

    It never samples the end token, which would make answers shorter on one side than on the other, nor the placeholder
    of images, which no side can go on from.
    """
    import torch
    from transformers import CLIPImageProcessor, LlavaProcessor

    from areal.dataset.encoding import byte_tokenizer
    from areal.engine.hf import loading

    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.chat_template = TEMPLATE
    placeholder = tokenizer.convert_tokens_to_ids("<image>")
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = {
        "model_type": "llava",
        "image_token_index": placeholder,
        "vision_feature_select_strategy": "default",
        "tie_word_embeddings": False,
        "text_config": TEXT | ends | {"vocab_size": len(tokenizer)},
        "vision_config": TOWER,
    }
    model = loading.from_config(config, seed=1)
    inner: Any = model.inner
    with torch.no_grad():
        # The first value of every state is a constant, to which the head answers for these tokens alone.
        inner.get_input_embeddings().weight[:, 0] = _CONSTANT
        projection = inner.base_model.multi_modal_projector.linear_2
        projection.weight[0], projection.bias[0] = 0, _CONSTANT
        for layer in inner.base_model.language_model.layers:
            layer.self_attn.o_proj.weight[0], layer.mlp.down_proj.weight[0] = 0, 0
        head = inner.get_output_embeddings().weight
        head[:, 0] = 0
        for token in (placeholder, tokenizer.eos_token_id, tokenizer.pad_token_id):
            head[token] = 0
            head[token, 0] = _NEVER
    model.save_pretrained(folder)
    size = {"height": SIDE, "width": SIDE}
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=size),
        tokenizer=tokenizer,
        patch_size=TOWER["patch_size"],
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    )
    processor.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def image_rows(count: int) -> list[dict[str, Any]]:
    """Return prompts with one picture each, no two of them equal."""
    from PIL import Image

    draw = random.Random(1)
    rows = []
    for number in range(count):
        image = Image.new("RGB", (SIDE, SIDE), tuple(draw.randrange(256) for _ in range(3)))
        for _ in range(6):
            x, y = draw.randrange(SIDE - 12), draw.randrange(SIDE - 12)
            image.paste(tuple(draw.randrange(256) for _ in range(3)), (x, y, x + 12, y + 12))
        stream = io.BytesIO()
        image.save(stream, "PNG")
        question = f"<image>In picture {number:04d}, how many squares are brighter than what is behind them?"
        row = {"messages": [{"role": "user", "content": question}], "answer": "72"}
        rows.append(row | {"images": [base64.b64encode(stream.getvalue()).decode()]})
    return rows
