"""Configuration of Aster models."""

from transformers import PreTrainedConfig


class AsterConfig(PreTrainedConfig):
    """Field names are those of the original training code."""

    model_type = "aster"

    def __init__(
        self,
        *,
        token_count=50304,
        d_model=2048,
        depth=24,
        query_heads=16,
        key_heads=4,
        channels_per_head=128,
        feedforward_width=5632,
        rotated_fraction=0.5,
        rotation_base=50000.0,
        norm_eps=1e-5,
        embedding_gain=8.0,
        residual_gain=0.35,
        logit_divisor=5.0,
        context_length=4096,
        tie_word_embeddings=True,
        **kwargs,
    ):
        self.token_count = token_count
        self.d_model = d_model
        self.depth = depth
        self.query_heads = query_heads
        self.key_heads = key_heads
        self.channels_per_head = channels_per_head
        self.feedforward_width = feedforward_width
        self.rotated_fraction = rotated_fraction
        self.rotation_base = rotation_base
        self.norm_eps = norm_eps
        self.embedding_gain = embedding_gain
        self.residual_gain = residual_gain
        self.logit_divisor = logit_divisor
        self.context_length = context_length
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)
