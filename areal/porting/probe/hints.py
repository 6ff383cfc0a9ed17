"""Signs in source code of features that have no parameters. Each is a question for a probe, never an answer."""

from __future__ import annotations

import ast
import re
from typing import Any

HINTS: tuple[tuple[str, str], ...] = (
    ("logit or attention softcap", r"torch\.tanh\(|\.tanh\(\)|softcap"),
    ("interleaved rotary embedding", r"\[\.\.\., ?(0)?::2\]|\[\.\.\., ?1::2\]|view_as_complex|repeat_interleave\(2"),
    ("half-split rotary embedding", r"rotate_half|shape\[-1\] ?// ?2:?"),
    ("partial rotary embedding", r"partial_rotary|rotary_dim|rotary_ndims"),
    ("sliding window", r"sliding_window|window_size|\bwindow\b"),
    ("chunked attention", r"chunked|attention_chunk"),
    ("layers without positions", r"no_rope|nope_layer|use_rope|use_rotary"),
    ("norm weight + 1", r"1(\.0)? ?\+ ?self\.(weight|gain|scale)|self\.(weight|gain|scale) ?\+ ?1"),
    ("attention sinks", r"\bsinks?\b"),
    ("ALiBi", r"alibi"),
    ("router: sigmoid scores", r"\.sigmoid\(\)|torch\.sigmoid\("),
    ("router: top-k selection", r"topk\("),
    ("router: groups of experts", r"n_group|topk_group|num_groups"),
    ("router: selection bias", r"correction_bias|expert_bias|selection_bias"),
    ("clamped values", r"\.clamp\(|torch\.clamp\("),
    ("multiplier", r"multiplier|\bscaling\b|scale_emb|residual_scale"),
    ("latent attention", r"kv_lora|kv_a_proj|latent"),
    ("state space or convolution", r"conv1d|Conv1d|ssm|selective_scan"),
    ("recurrent or linear attention", r"linear_attention|delta_rule|recurrent"),
    ("hyper-connections or streams", r"hyper_conn|streams|sinkhorn"),
)


def find_hints(tree: ast.Module, file_name: str) -> list[dict[str, Any]]:
    """[{"feature", "where", "detail"}] for each feature of `HINTS`: the first line of each function that shows it."""
    found: list[dict[str, Any]] = []
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function]
        lines = [(node.lineno, ast.unparse(node)) for node in statements if not isinstance(node, (ast.If, ast.For))]
        for feature, pattern in HINTS:
            hit = next(((number, text) for number, text in lines if re.search(pattern, text)), None)
            if hit is not None:
                number, text = hit
                detail = text.splitlines()[0][:120]
                found.append({"feature": feature, "where": f"{file_name}:{number}", "detail": detail})
    return found
