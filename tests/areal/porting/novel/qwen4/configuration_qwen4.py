"""Configuration of Qwen4 models, which nobody has published."""

from transformers import PreTrainedConfig


class Qwen4Config(PreTrainedConfig):
    """Gated delta rules, and gated attention in every n-th layer."""

    model_type = "qwen4"

    def __init__(
        self,
        *,
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=48,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=256,
        attention_every=4,
        delta_key_heads=16,
        delta_value_heads=32,
        delta_key_dim=128,
        delta_value_dim=128,
        delta_kernel=4,
        rope_theta=10000000.0,
        rotary_fraction=0.25,
        rms_norm_eps=1e-6,
        max_position_embeddings=262144,
        tie_word_embeddings=False,
        **kwargs,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        self.attention_every = attention_every
        self.delta_key_heads = delta_key_heads
        self.delta_value_heads = delta_value_heads
        self.delta_key_dim = delta_key_dim
        self.delta_value_dim = delta_value_dim
        self.delta_kernel = delta_kernel
        self.rope_theta = rope_theta
        self.rotary_fraction = rotary_fraction
        self.rms_norm_eps = rms_norm_eps
        self.max_position_embeddings = max_position_embeddings
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)
