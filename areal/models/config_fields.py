"""Reads a config.json so that no field is overlooked: each is consumed, known to be harmless, or refused.

A field that changes the maths and is not read gives a model that loads and is silently wrong. So every family takes its
fields through `ConfigFields` and ends with `finish()`, which refuses whatever nobody asked for.
"""

from __future__ import annotations

import logging
import math
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

from areal.api import ModelError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

V = TypeVar("V", int, str)
T = TypeVar("T", int, float, bool, str)

logger = logging.getLogger(__name__)

HARMLESS_FIELDS: Final[dict[str, str]] = {
    "_attn_implementation_autoset": "which attention kernel transformers picks",
    "_name_or_path": "where the checkpoint came from",
    "architectures": "class name in transformers; model_type decides here",
    "attn_implementation": "which attention kernel transformers picks",
    "chunk_size_feed_forward": "memory chunking in transformers, same result",
    "dtype": "storage dtype; the caller decides the dtype",
    "id2label": "classification heads only",
    "ignore_index": "label of what a loss leaves out",
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
    "embeddings_scale_by_sqrt_dim": (True,),
    "is_decoder": (False, True),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "torchscript": (False,),
    "use_bfloat16": (False,),
    "use_mrope": (False,),
}
"""Fields of every family whose other values would need code we do not have, with the values that need none; a family
for which others are proven to be harmless says so to `finish`."""

TRAINING_NOISE: Final = re.compile(r".*(dropout|pdrop|drop_rate|layerdrop|jitter).*")
"""Names of fields that transformers reads while training only. Published configs switch some on; logits are the same,
but training here is not what it was there, which loading says."""

TOKEN_FIELDS: Final = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Not part of the maths, but kept so that an exported model still stops where the original did."""


class ConfigFields:
    """The fields of one config.json, taken one by one. All errors are ModelError and name the field and its value.

    Everywhere `default` is what an absent field means, `null` what an explicit null means, and an absent one without a
    default. Without them it is refused: null rarely means the default, and often that something is switched off.
    """

    def __init__(self, config: Mapping[str, Any], *, aliases: Mapping[str, str] | None = None) -> None:
        """aliases: further spelling of a field to the one that is taken, e.g. {"n_embd": "hidden_size"}."""
        self._values = dict(config)
        self._prefix = ""
        self.model_type: str = self.text("model_type")
        for other, name in (aliases or {}).items():
            self._take_alias(other, name)

    def _take_alias(self, other: str, name: str) -> None:
        if other not in self._values:
            return
        value = self._values.pop(other)
        if self._values.setdefault(name, value) != value:
            raise self.error(other, value, f"the same as {name}, which is {self._values[name]!r}")

    def has(self, name: str) -> bool:
        """Return whether the field is present and not null."""
        return self._values.get(name) is not None

    def spelled(self, name: str, spelling: str, letters: Mapping[str, str]) -> None:
        """Take a text of one letter for each layer, such as "M-M*", for the list that it spells."""
        text = self._values.pop(spelling, None)
        if text is None:
            return
        if not isinstance(text, str) or not set(text) <= letters.keys():
            raise self.error(spelling, text, f"a text of the letters {_alternatives(letters)}")
        values = [letters[letter] for letter in text]
        if self._values.get(name) not in (None, values):
            raise self.error(spelling, text, f"the same as {name}, which is {self._values[name]!r}")
        self._values[name] = values

    def values_of_kind(
        self, kinds: str, kind: str, values: Mapping[str, str], *, optional: Mapping[str, str] | None = None
    ) -> None:
        """Take `per_layer_config`, as transformers writes it, for the fields that say it for layers of one kind.

        kinds: the list that says the kind of each layer. values: such a field to the one that other layers have in its
        place, {"global_head_dim": "head_dim"}. optional: those that may be null, where all layers have the same, with a
        flag without which they always have ("": no flag).

        Raises ModelError where layers of that kind differ from each other, or others have values of their own.
        """
        name = "per_layer_config"
        if name not in self._values:
            return
        written, listed = self._values.pop(name) or {}, self._values.get(kinds)
        if not isinstance(written, dict) or not all(
            str(layer).isdecimal() and isinstance(inner, dict) for layer, inner in written.items()
        ):
            raise self.error(name, written, "an object with an object for the number of each of some layers")
        if not isinstance(listed, (list, tuple)):
            raise self.error(kinds, listed, f"the kinds of all layers, beside a {name}")
        by_layer = {int(layer): inner for layer, inner in written.items()}
        own_layers = [layer for layer, each in enumerate(listed) if each == kind]
        others = {(layer, field) for layer, inner in by_layer.items() for field in inner}
        if others - {(layer, usual) for layer in own_layers for usual in values.values()}:
            said = ", ".join(values.values())
            raise self.error(name, written, f"values of {said} for layers of kind {kind!r} only")
        for own, usual in values.items():
            found = [by_layer.get(layer, {}).get(usual) for layer in own_layers]
            if any(value != found[0] for value in found):
                raise self.error(name, written, f"the same {usual} for all layers of kind {kind!r}")
            value, flag = next(iter(found), None), (optional or {}).get(own, "")
            if value is not None and flag and self._values.get(flag) is not True:
                raise self.error(name, written, f"no {usual} of single layers without {flag}")
            if value is None and own not in (optional or {}):
                value = self._values.get(usual)
                if value is None:
                    raise self._absent(usual)
            if self._values.setdefault(own, value) != value:
                raise self.error(own, self._values[own], f"the same as in {name}, which is {value!r}")

    def respell(self, name: str, words: Mapping[str, str]) -> None:
        """Take older words in a list, such as "mamba", for those of today."""
        values = self._values.get(name)
        if isinstance(values, (list, tuple)):
            self._values[name] = [words.get(value, value) if isinstance(value, str) else value for value in values]

    def omit(self, name: str, text: str) -> None:
        """Take a field with this text, such as "auto", for absent."""
        if self._values.get(name) == text:
            del self._values[name]

    def is_null(self, name: str) -> bool:
        """Return whether the field is present and null; consumes it if so."""
        if name in self._values and self._values[name] is None:
            del self._values[name]
            return True
        return False

    def integer(
        self,
        name: str,
        default: int | None = None,
        *,
        null: int | None = None,
        minimum: int = 1,
        allowed: Collection[int] = (),
        refused: Collection[int] = (),
    ) -> int:
        """Return a whole number of at least `minimum`; one of `allowed` if that says anything, and none of
        `refused`."""
        value = self._typed(name, default, int, null)
        if value < minimum:
            raise self.error(name, value, f"a whole number >= {minimum}")
        return self._checked(name, value, allowed, refused)

    def number(
        self,
        name: str,
        default: float | None = None,
        *,
        null: float | None = None,
        above: float = 0.0,
        allowed: Collection[float] = (),
        refused: Collection[float] = (),
    ) -> float:
        """Return a float greater than `above`; one of `allowed` if that says anything, and none of `refused`."""
        value = float(self._typed(name, default, float, null))
        if not value > above:
            raise self.error(name, value, f"a number > {above}")
        return self._checked(name, value, allowed, refused)

    def flag(self, name: str, default: bool | None = None, *, null: bool | None = None) -> bool:
        """Take a flag."""
        return self._typed(name, default, bool, null)

    def text(
        self, name: str, default: str | None = None, *, null: str | None = None, allowed: Collection[str] = ()
    ) -> str:
        """Return a string; one of `allowed` if that says anything."""
        return self._checked(name, self._typed(name, default, str, null), allowed)

    def optional_integer(
        self,
        name: str,
        default: int | None = None,
        *,
        minimum: int = 1,
        allowed: Collection[int] = (),
        refused: Collection[int] = (),
    ) -> int | None:
        """As `integer`, or None where the field is null."""
        if self._is_missing(name, default):
            return None
        return self.integer(name, default, minimum=minimum, allowed=allowed, refused=refused)

    def optional_number(
        self,
        name: str,
        default: float | None = None,
        *,
        above: float = 0.0,
        allowed: Collection[float] = (),
        refused: Collection[float] = (),
    ) -> float | None:
        """As `number`, or None where the field is null."""
        if self._is_missing(name, default):
            return None
        return self.number(name, default, above=above, allowed=allowed, refused=refused)

    def optional_flag(self, name: str, default: bool | None = None) -> bool | None:
        """Take a flag, or None where the field is null."""
        return None if self._is_missing(name, default) else self.flag(name, default)

    def optional_text(self, name: str, default: str | None = None, *, allowed: Collection[str] = ()) -> str | None:
        """Return a string, or None where the field is null."""
        return None if self._is_missing(name, default) else self.text(name, default, allowed=allowed)

    def per_layer(
        self, name: str, num_layers: int | None, default: Sequence[V] | None = None, *, allowed: Collection[V]
    ) -> tuple[V, ...]:
        """Return one of `allowed` for each layer; null means absent. num_layers: None where this list counts them."""
        values = self._values.pop(name, None)
        if values is None:
            if default is None:
                raise self._absent(name)
            return tuple(default)
        is_list = isinstance(values, (list, tuple))
        if not is_list or not values or len(values) != (num_layers or len(values)):
            raise self.error(name, values, f"a list of {num_layers or 'some'} entries, one per layer")
        unknown = [value for value in values if not any(_same(value, known) for known in allowed)]
        if unknown:
            raise self.error(name, list(dict.fromkeys(map(str, unknown))), _alternatives(allowed, quoted=False))
        return tuple(values)

    def numbers_per_layer(self, name: str, num_layers: int, null: float | None = None) -> tuple[float, ...]:
        """Return a number of at least 0 for each layer. null: that of all layers where the list is null or absent."""
        values = self._values.pop(name, None)
        if values is None:
            if null is None:
                raise self._absent(name)
            return (null,) * num_layers
        numbers = isinstance(values, (list, tuple)) and all(
            isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 for value in values
        )
        if not numbers or len(values) != num_layers:
            raise self.error(name, values, f"a list of {num_layers} numbers of at least 0, one per layer")
        return tuple(float(value) for value in values)

    def sizes_per_layer(self, name: str, num_layers: int, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return a whole number of at least 1 for each layer; null means absent."""
        values = self._values.pop(name, None)
        values = default if values is None else values
        if values is None:
            raise self._absent(name)
        whole = isinstance(values, (list, tuple)) and all(type(value) is int and value >= 1 for value in values)
        if not whole or len(values) != num_layers:
            raise self.error(name, values, f"a list of {num_layers} whole numbers of at least 1, one per layer")
        return tuple(values)

    def bounds(self, name: str, default: tuple[float, float] | None = None) -> tuple[float, float]:
        """Return a pair of numbers, the second at least the first and possibly infinite."""
        values = self._values.pop(name, default)
        if values is None:
            raise self._absent(name)
        numbers = isinstance(values, (list, tuple)) and len(values) == 2 and all(map(_is_number, values))
        if not numbers or not values[0] <= values[1]:
            raise self.error(name, values, "a list of two numbers, the smaller one first")
        return float(values[0]), float(values[1])

    def factors(self, name: str, number: int, default: Collection[float] | None = None) -> tuple[float, ...]:
        """Return a list of so many finite numbers; null means absent."""
        values = self._values.pop(name, None)
        if values is None:
            values = default
        if values is None:
            raise self._absent(name)
        numbers = isinstance(values, (list, tuple)) and len(values) == number and all(map(_is_number, values))
        if not numbers or not all(map(math.isfinite, values)):
            raise self.error(name, values, f"a list of {number} numbers")
        return tuple(map(float, values))

    def integers(self, name: str, default: Collection[int] | None = ()) -> tuple[int, ...]:
        """Return a list of whole numbers, e.g. of layers; null means absent."""
        values = self._values.pop(name, None)
        if values is None:
            values = default
        if values is None:
            raise self._absent(name)
        if not isinstance(values, (list, tuple)) or not all(type(value) is int for value in values):
            raise self.error(name, values, "a list of whole numbers")
        return tuple(values)

    def optional(self, name: str) -> Any:
        """Return the raw value, or None when it is absent or null."""
        return self._values.pop(name, None)

    def put_back(self, name: str, value: Any) -> None:
        """Leave a field, or what is left of it, for somebody else to take."""
        self._values[name] = value

    def section(self, name: str) -> ConfigFields:
        """Return the fields of an object inside the config, which need a `finish` of their own. Absent means empty."""
        values = self._values.pop(name, None)
        if values is not None and not isinstance(values, dict):
            raise self.error(name, values, "an object")
        inner = ConfigFields({"model_type": self.model_type})
        # What transformers adds to the configs inside another says nothing about the computation.
        inner._values = {key: value for key, value in (values or {}).items() if key != "model_type"}
        inner._prefix = f"{self._prefix}{name}."
        return inner

    def require(self, name: str, supported: Collection[Any], *, default: Any = None) -> None:
        """Check that the value is one of `supported`. default: what transformers takes when the field is absent, needed
        only where that is not supported either."""
        if name in self._values or default is not None:
            value = self._values.pop(name, default)
            if not any(_same(value, allowed) for allowed in supported):
                raise self.error(name, value, _alternatives(supported))

    def token_ids(self) -> dict[str, Any]:
        """Return the special token ids that are set or explicitly null, to be written back unchanged: where one is
        absent, `transformers` takes a default that may be no token of this vocabulary."""
        return {name: self._values.pop(name) for name in TOKEN_FIELDS if name in self._values}

    def remote_code(self, analysed: Mapping[str, str]) -> dict[str, Any]:
        """Return auto_map, to be written back unchanged; {} where there is none.

        analysed: names of the classes that the family was made from. Those in the config must be the same, but for a
        repository in front ("org/name--modeling.Class"): other code computes something else. Names of other classes, of
        a tokenizer say, are nothing to the model.
        """
        found = self._values.pop("auto_map", None)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise self.error("auto_map", found, "an object")
        for name, expected in analysed.items():
            if name in found and str(found[name]).rpartition("--")[2] != expected:
                raise self.error(f"auto_map.{name}", found[name], f"{expected!r}, the code this family was made from")
        return found

    def finish(self, harmless: Collection[str] = ()) -> None:
        """Refuse every field that was neither taken nor declared harmless; warn of noise that training leaves out."""
        noise = {name: value for name, value in self._values.items() if value and TRAINING_NOISE.fullmatch(name)}
        for name, supported in MUST_BE_OFF.items():
            if name not in harmless:
                self.require(name, supported)
        unknown = {
            name: value for name, value in self._values.items() if name not in HARMLESS_FIELDS and name not in harmless
        }
        if unknown:
            listed = ", ".join(f"{self._prefix}{name}={value!r}" for name, value in sorted(unknown.items()))
            raise ModelError(
                f"config of model_type {self.model_type!r} has fields this family does not implement: {listed}; "
                "a field that changes the maths must be implemented, one that cannot must be declared in "
                "areal/models/config_fields.py"
            )
        if noise:
            listed = ", ".join(f"{self._prefix}{name}={value!r}" for name, value in sorted(noise.items()))
            logger.warning("config of model_type %r asks for %s: training runs without it", self.model_type, listed)

    def error(self, name: str, value: object, expected: str) -> ModelError:
        """Return the error for a field with an unusable value."""
        return ModelError(
            f"config of model_type {self.model_type!r}: {self._prefix}{name} is {value!r}, supported is {expected}"
        )

    def _checked(self, name: str, value: T, allowed: Collection[T], refused: Collection[T] = ()) -> T:
        if allowed and not any(_same(value, known) for known in allowed):
            raise self.error(name, value, _alternatives(allowed))
        if any(_same(value, known) for known in refused):
            raise self.error(name, value, f"anything but {_alternatives(refused)}")
        return value

    def _absent(self, name: str) -> ModelError:
        owner = getattr(self, "model_type", None)
        return ModelError(
            f"config{f' of model_type {owner!r}' if owner else ''} has no {self._prefix}{name}, which is required"
        )

    def _is_missing(self, name: str, default: object) -> bool:
        """Return whether the field says None; consumes it if it is an explicit null."""
        return self.is_null(name) or (default is None and not self.has(name))

    def _typed(self, name: str, default: T | None, kind: type[T], null: T | None = None) -> T:
        if self._values.get(name, default) is None:
            is_written = self._values.pop(name, name) is None
            if null is None and is_written and default is not None:
                raise self.error(name, None, f"of type {kind.__name__}")
            if null is None:
                raise self._absent(name)
            return null
        value = self._values.pop(name, default)
        accepted = (int, float) if kind is float else (kind,)
        # bool is an int in Python, but "hidden_size": true is a mistake.
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise self.error(name, value, f"of type {kind.__name__}")
        return value  # type: ignore[return-value]  # narrowed by `accepted`, which mypy cannot see


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _same(value: Any, allowed: Any) -> bool:
    """Return whether they are equal; true is not 1."""
    return bool(value == allowed) and isinstance(value, bool) == isinstance(allowed, bool)


def _alternatives(values: Collection[Any], *, quoted: bool = True) -> str:
    return " or ".join(repr(value) if quoted else str(value) for value in values)
