"""A list over all layers that counts them, and what configs of older versions say in its place."""

from __future__ import annotations

import copy
from typing import Any

from areal.porting.bind.accounting import older_words, restatements
from areal.porting.bind.base_config import depth_field, with_undeclared
from areal.porting.probe.instance import read
from areal.porting.probe.source import config_reads
from areal.porting.probe.subject import resolve

KINDS = ["linear_attention", "mlp", "full_attention", "linear_attention"]
LETTERS = {"M": "linear_attention", "-": "mlp", "*": "full_attention"}
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 128, "num_attention_heads": 4}


def test_no_field_counts_layers_that_a_list_counts() -> None:
    base = {**SIZES, "layers_block_type": KINDS}
    assert depth_field(resolve("nemotron_h"), base, len(KINDS)) == ""
    base = {**SIZES, "num_key_value_heads": 4, "num_hidden_layers": 4, "layer_types": ["full_attention"] * 4}
    assert depth_field(resolve("qwen2"), base, 4) == "num_hidden_layers"


def test_its_length_and_its_letters_are_known_by_what_the_class_makes_of_them() -> None:
    subject, base = resolve("nemotron_h"), {"layers_block_type": KINDS}
    found = restatements(subject, copy.deepcopy(base), "layers_block_type")
    assert found == {"count": "num_hidden_layers", "letters": {"hybrid_override_pattern": LETTERS}}
    assert read(subject, {"hybrid_override_pattern": "M-*M"}).layers_block_type == KINDS


def test_an_older_spelling_that_no_config_keeps_is_no_undeclared_field() -> None:
    subject, spelling = resolve("nemotron_h"), "mamba_d_conv"
    base = {**SIZES, "layers_block_type": KINDS[:1], "mamba_num_heads": 4, "mamba_head_dim": 32, "n_groups": 2}
    others = config_reads(subject).keys() - {spelling}
    assert spelling in config_reads(subject)
    assert read(subject, {**base, spelling: 3}).conv_kernel == 3

    assert with_undeclared(subject, base, others) == base


def test_older_words_are_known_by_what_the_class_makes_of_them() -> None:
    base = {**SIZES, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    words = {"mamba": "linear_attention", "attention": "full_attention"}
    assert older_words(resolve("granitemoehybrid"), base, "layer_types") == words
    assert older_words(resolve("granitemoehybrid"), base, "num_hidden_layers") == {}
    names = {"layer_types": ["mamba", "attention"]}
    assert read(resolve("granitemoehybrid"), {**base, **names}).layer_types == base["layer_types"]
