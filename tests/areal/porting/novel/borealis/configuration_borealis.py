"""Configuration of Borealis models."""

from transformers import PreTrainedConfig


class BorealisConfig(PreTrainedConfig):
    """Every `global_every`-th block sees all tokens and has no positions; the others see `span` tokens and rotate."""

    model_type = "borealis"

    vocab_size: int = 102400
    width: int = 2048
    num_blocks: int = 16
    n_heads: int = 16
    n_kv_heads: int = 4
    head_size: int = 96
    mlp_width: int = 8192
    expert_width: int = 1024
    shared_width: int = 1536
    experts_total: int = 64
    experts_active: int = 6
    expert_groups: int = 8
    expert_groups_kept: int = 4
    leading_dense_blocks: int = 1
    combine_scale: float = 2.5
    span: int = 1024
    global_every: int = 4
    rope_base: float = 100000.0
    epsilon: float = 1e-6
    max_positions: int = 16384
    tie_word_embeddings: bool = False
