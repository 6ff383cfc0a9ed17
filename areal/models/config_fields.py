"""Reads a config.json so that no field is overlooked: each is consumed, known to be harmless, or refused.

A field that changes the maths and is not read gives a model that loads and is silently wrong. So every family takes its
fields through `ConfigFields` and ends with `finish()`, which refuses whatever nobody asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from areal.api import ModelError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

T = TypeVar("T", int, float, bool, str)

HARMLESS_FIELDS: Final[dict[str, str]] = {
    "_attn_implementation_autoset": "which attention kernel transformers picks",
    "_name_or_path": "where the checkpoint came from",
    "architectures": "class name in transformers; model_type decides here",
    "attn_implementation": "which attention kernel transformers picks",
    "chunk_size_feed_forward": "memory chunking in transformers, same result",
    "dtype": "storage dtype; the caller decides the dtype",
    "id2label": "classification heads only",
    "initializer_factor": "random initialisation only",
    "label2id": "classification heads only",
    "output_attentions": "what transformers returns",
    "output_hidden_states": "what transformers returns",
    "output_router_logits": "what transformers returns, and an auxiliary loss computed there",
    "problem_type": "classification heads only",
    "return_dict": "what transformers returns",
    "router_aux_loss_coef": "auxiliary training loss, not part of the forward",
    "tokenizer_class": "tokenizer only",
    "torch_dtype": "storage dtype; the caller decides the dtype",
    "transformers_version": "who wrote the file",
    "unsloth_fixed": "marker of another tool",
    "unsloth_version": "marker of another tool",
    "use_cache": "generation in transformers only",
}
"""Fields of every family that cannot change a logit, with the reason. A family passes its own to `finish`."""

MUST_BE_OFF: Final[dict[str, tuple[Any, ...]]] = {
    "add_cross_attention": (False,),
    "attention_dropout": (0, None),
    "auto_map": (None,),
    "is_decoder": (False, True),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "torchscript": (False,),
    "use_bfloat16": (False,),
    "use_mrope": (False,),
}
"""Fields of every family whose other values would need code we do not have, with the values that need none."""

TOKEN_FIELDS: Final = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Not part of the maths, but kept so that an exported model still stops where the original did."""


class ConfigFields:
    """The fields of one config.json, taken one by one. All errors are ModelError and name the field and its value."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._values = dict(config)
        self.model_type: str = self.text("model_type")

    def has(self, name: str) -> bool:
        """Whether the field is present and not null."""
        return self._values.get(name) is not None

    def is_null(self, name: str) -> bool:
        """Whether the field is present and null; consumes it if so."""
        if name in self._values and self._values[name] is None:
            del self._values[name]
            return True
        return False

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1) -> int:
        """A whole number of at least `minimum`; required when there is no default (null counts as absent)."""
        value = self._typed(name, default, int)
        if value < minimum:
            raise self.error(name, value, f"a whole number >= {minimum}")
        return value

    def number(self, name: str, default: float | None = None, *, above: float = 0.0) -> float:
        """A float greater than `above`; required when there is no default."""
        value = float(self._typed(name, default, float))
        if not value > above:
            raise self.error(name, value, f"a number > {above}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        return self._typed(name, default, bool)

    def text(self, name: str, default: str | None = None) -> str:
        """A string; required when there is no default."""
        return self._typed(name, default, str)

    def optional(self, name: str) -> Any:
        """The raw value, or None when it is absent or null."""
        return self._values.pop(name, None)

    def require(self, name: str, supported: Collection[Any]) -> None:
        """If the field is present, its value must be one of `supported`."""
        if name in self._values:
            value = self._values.pop(name)
            if not any(
                value == allowed and isinstance(value, bool) == isinstance(allowed, bool) for allowed in supported
            ):
                raise self.error(name, value, " or ".join(repr(allowed) for allowed in supported))

    def token_ids(self) -> dict[str, Any]:
        """The special token ids that are set, to be written back unchanged."""
        found = {name: self.optional(name) for name in TOKEN_FIELDS}
        return {name: value for name, value in found.items() if value is not None}

    def finish(self, harmless: Collection[str] = ()) -> None:
        """Refuse every field that was neither taken nor declared harmless."""
        for name, supported in MUST_BE_OFF.items():
            self.require(name, supported)
        unknown = {
            name: value for name, value in self._values.items() if name not in HARMLESS_FIELDS and name not in harmless
        }
        if unknown:
            listed = ", ".join(f"{name}={value!r}" for name, value in sorted(unknown.items()))
            raise ModelError(
                f"config of model_type {self.model_type!r} has fields this family does not implement: {listed}; "
                "a field that changes the maths must be implemented, one that cannot must be declared in "
                "areal/models/config_fields.py"
            )

    def error(self, name: str, value: object, expected: str) -> ModelError:
        """The error for a field with an unusable value."""
        return ModelError(f"config of model_type {self.model_type!r}: {name} is {value!r}, supported is {expected}")

    def _typed(self, name: str, default: T | None, kind: type[T]) -> T:
        value = self._values.pop(name, None)
        if value is None:
            if default is None:
                owner = getattr(self, "model_type", None)
                raise ModelError(
                    f"config{f' of model_type {owner!r}' if owner else ''} has no {name}, which is required"
                )
            return default
        accepted = (int, float) if kind is float else (kind,)
        # bool is an int in Python, but "hidden_size": true is a mistake.
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise self.error(name, value, f"of type {kind.__name__}")
        return value  # type: ignore[return-value]  # narrowed by `accepted`, which mypy cannot see
