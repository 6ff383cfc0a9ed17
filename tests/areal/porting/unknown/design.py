"""What an invented architecture computes and how its code is written, drawn from a seed or chosen by hand.

    Design(name="quill", norms="sandwich", rotation="pairs")     # by hand
    draw(17)                                                     # the same design in every process

Two designs of one seed differ in nothing: the tests name the seeds that they use.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Final

CHOICES: Final[dict[str, tuple[Any, ...]]] = {
    "fields": ("usual", "own", "odd"),
    "config": ("signature", "keywords", "mapped", "nested", "property", "locals", "derived", "annotated"),
    "files": ("one", "two", "relative", "plain"),
    "names": ("model", "transformer", "net"),
    "norm": ("rms", "rms_plus_one", "layer", "layer_no_bias"),
    "norms": ("pre", "sandwich", "post", "parallel"),
    "projection": ("separate", "concat", "per_group", "transposed"),
    "bias": (False, False, True),
    "head_norm": ("none", "none", "head", "width"),
    "rotation": ("halves", "pairs", "complex", "partial", "some_layers", "two_bases", "learned", "alibi", "scaled"),
    "window": ("none", "none", "all", "list", "every"),
    "scale": ("root", "root", "field", "inverse"),
    "gate": ("none", "none", "none", "channels", "heads"),
    "attention": ("eager", "sdpa", "registry"),
    "feed_forward": ("gated", "gated", "fused", "plain", "squared", "experts"),
    "router": ("softmax", "softmax_after", "sigmoid_bias", "sigmoid_sum"),
    "experts": ("list", "stacked"),
    "shared_expert": (False, True),
    "dense_first": (0, 0, 1),
    "embedding_factor": (False, False, True),
    "residual_factor": (False, False, False, True),
    "logit_cap": (False, False, False, True),
    "logit_divisor": (False, False, True),
    "tied": (False, True),
    "older": (False, False, True),
}
"""Part of a design to its choices; what stands twice is drawn twice as often."""

POISONS: Final = (
    "batch_mean",
    "noise",
    "not_causal",
    "state",
    "recurrence",
    "hash_routing",
    "length",
    "sine",
    "talking_heads",
    "shifted_tokens",
)
"""What no family can say: each must be refused."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """An invented architecture."""

    name: str
    fields: str = "usual"
    """Names of config fields."""
    config: str = "signature"
    """Idiom of the config class."""
    files: str = "two"
    names: str = "model"
    """Names of modules."""
    norm: str = "rms"
    norms: str = "pre"
    projection: str = "separate"
    bias: bool = False
    head_norm: str = "none"
    rotation: str = "halves"
    window: str = "none"
    scale: str = "root"
    gate: str = "none"
    attention: str = "eager"
    feed_forward: str = "gated"
    router: str = "softmax"
    experts: str = "list"
    shared_expert: bool = False
    dense_first: int = 0
    embedding_factor: bool = False
    residual_factor: bool = False
    logit_cap: bool = False
    logit_divisor: bool = False
    tied: bool = False
    older: bool = False
    poison: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    """Role of a config field to a value in place of the usual one."""


def draw(seed: int, *, poison: bool = False) -> Design:
    """Return the design of a seed; with `poison` one that must be refused."""
    generator = random.Random(seed)
    parts = {name: generator.choice(choices) for name, choices in CHOICES.items()}
    if parts["rotation"] in ("learned", "alibi") and parts["config"] == "nested":
        parts["config"] = "signature"  # the inner object is about rotation
    if parts["projection"] == "transposed":
        parts["bias"] = True
    values = {"depth": generator.choice((2, 3, 4)), "theta": generator.choice((10000.0, 50000.0, 1234.5))}
    values["heads"], values["keys"] = generator.choice(((4, 2), (6, 2), (4, 4), (4, 1)))
    if parts["norms"] == "post":
        parts["residual_factor"] = False
    chosen = POISONS[seed % len(POISONS)] if poison else ""
    if chosen == "hash_routing":
        parts["feed_forward"] = "experts"
    return Design(name=f"seed{seed}{'x' if poison else ''}", poison=chosen, values=values, **parts)
