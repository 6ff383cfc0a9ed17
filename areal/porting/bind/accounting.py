"""What becomes of every field of a config class: used, fixed to proven values, or ignored with the reason."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from transformers import configuration_utils

from areal.models.config_fields import HARMLESS_FIELDS, MUST_BE_OFF, TOKEN_FIELDS, TRAINING_NOISE
from areal.porting.bind.expressions import (
    ROTARY_FIELD,
    conditions_of,
    fields_of,
    look_up,
    same,
    walk,
)
from areal.porting.bind.legacy_rope import LEGACY_ROPE_FIELDS, unread_spellings
from areal.porting.bind.mentions import mentions, only_initialising
from areal.porting.bind.partial_rotary import rotated_fields
from areal.porting.bind.rotary import PARTIAL, THETA, filled_with_theta, is_layered, thetas_of
from areal.porting.bind.variations import MISSING, alternatives, changed
from areal.porting.family import Cycled, FieldUse, Length, Listed, WhenEqual
from areal.porting.probe.instance import read
from areal.porting.probe.layer_values import layer_values
from areal.porting.records import SubjectError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.porting.bind.binder import Binder
    from areal.porting.probe.subject import Subject

SKIPPED: Final = frozenset(
    name
    for name in (*HARMLESS_FIELDS, *MUST_BE_OFF, *TOKEN_FIELDS, "model_type", "architectures")
    if not TRAINING_NOISE.fullmatch(name)  # code may apply it in evaluation too: that is seen by trying
)
"""Fields that are not varied: what they do is known for all types."""

LENGTHS: Final = re.compile(
    r"(original_)?(max|n|num|model_max)_?(position|seq|context|ctx|length|len|positions).*|n_ctx|seq_length"
)
"""Names of the longest sequence that a model is meant for."""

TRAINING: Final = {
    TRAINING_NOISE: "noise while training in transformers, never applied here",
    re.compile(r".*(aux|z_loss|loss_coef|router_z|mtp_loss|loss_).*"): "a term of a training loss, not of the forward",
    re.compile(r".*(initializer|init_std|init_method|init_range|init_scale).*"): "random initialisation only",
    re.compile(r"(use_cache|cache_implementation|output_.*|return_.*|summary_.*)"): "what transformers returns",
    re.compile(r".*_token_id|.*_token_index"): "special tokens; not part of the forward",
}
"""Names of fields that may be read without any effect on logits, with the reason. Counts only without an effect."""

KINDS: Final = {bool: "bool", int: "int", float: "float", str: "str", list: "list", tuple: "list", dict: "dict"}


@dataclass(frozen=True)
class Accounts:
    """Builds the `FieldUse` of every field from what a binder found."""

    subject: Subject
    binder: Binder

    def uses(self) -> list[FieldUse]:
        """Return one account for each field, sorted by name."""
        reader = self.binder.reader
        used = self._used()
        mentioned, drawn = mentions(self.subject), only_initialising(self.subject)
        aliases = self._aliases()
        names = {*reader.names, *(name for name in reader.defaults if "." not in name and name in SKIPPED)}
        names |= {name for name in self.binder.observer.base if name in SKIPPED} - {"model_type", "architectures"}
        found = []
        for name in sorted(names):
            if name == ROTARY_FIELD:
                found.append(self._rotary(aliases.get(name, ()), used=name in used))
            elif name in used:
                found.append(self._used_field(name, aliases.get(name, ())))
            else:
                last = name.rpartition(".")[2]
                found.append(self._unused_field(name, aliases.get(name, ()), mentioned.get(last), drawn.get(last)))
        return found + self._only_written(names, mentioned)

    def _only_written(self, names: set[str], mentioned: Mapping[str, str]) -> list[FieldUse]:
        """Return the fields that the class writes into every config.json though it does not declare them. Each keeps
        the value it has, unless nothing reads it."""
        reader, aliases = self.binder.reader, self._aliases()
        known = names | {alias for each in aliases.values() for alias in each}
        known |= {name.partition(".")[0] for name in names}
        # What says who wrote the file, and what is refused or harmless for all families, is nothing of this one.
        known |= {"model_type", "architectures", ROTARY_FIELD, *LEGACY_ROPE_FIELDS, *SKIPPED}
        written = reader.normal(self.binder.observer.base) or {}
        found = []
        for name, value in sorted((name, value) for name, value in written.items() if name not in known):
            places = [mentioned[each] for each in (name, *aliases.get(name, ())) if each in mentioned]
            status: Literal["fixed", "ignored"] = "fixed" if places else "ignored"
            reason = (
                f"read at {places[0]}" if places else "written by its config class; not read by the modeling source"
            )
            allowed = (value,) if places else ()
            found.append(
                FieldUse(name=name, status=status, allowed=allowed, reason=reason, default=value, example=value)
            )
        return found

    def _used(self) -> set[str]:
        used = {name for each in self.binder.expressions.values() for name in fields_of(each)}
        used = {name if not name.startswith(ROTARY_FIELD) else ROTARY_FIELD for name in used}
        while True:
            more = {
                name
                for rule_of, rule in self.binder.reader.rules.items()
                if rule_of in used
                for name in fields_of(rule)
            }
            if more <= used:
                return used
            used |= more

    def _aliases(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for alias, name in sorted((getattr(self.subject.config_class, "attribute_map", None) or {}).items()):
            found[name] = (*found.get(name, ()), alias)
        return found

    # ------------------------------------------------------------------------------------------------------- one field

    def _rotary(self, aliases: tuple[str, ...], *, used: bool) -> FieldUse:
        """Raise UnsupportedError where only some of its values are proven, which args cannot say."""
        base = look_up(self.binder.observer.base, ROTARY_FIELD)
        read = {name for each in self.binder.expressions.values() for name in fields_of(each)}
        for name, reason in self.binder.restricted.items():
            whole = name.endswith(f".{PARTIAL}") and self._base(name) == 1.0
            # A part that no expression reads is 1.0 for the reader of args, which refuses all others.
            if name == ROTARY_FIELD or (name.startswith(ROTARY_FIELD + ".") and (name in read or not whole)):
                raise UnsupportedError("rotary settings that no expression explains", where=name, detail=reason)
        folded = [each for each in rotated_fields(self.subject, self.binder.observer.base) if each.size] if used else []
        # What the class makes of a config that says nothing about rotary positions.
        reader = self.binder.reader
        bare = {name: value for name, value in self.binder.observer.base.items() if name != ROTARY_FIELD}
        default = (reader.normal(bare) or {}).get(ROTARY_FIELD)
        return FieldUse(
            name=ROTARY_FIELD,
            status="used" if used else "ignored",
            type="dict",
            nullable=True,
            required=used and not default,
            default=default,
            aliases=aliases,
            reason="" if used else "no layer has rotary positions",
            example=base,
            rotated=(folded[0].name, str(folded[0].size)) if len(folded) == 1 else (),
            unread=unread_spellings(self.subject, self.binder.observer.base) if used and not is_layered(base) else (),
        )

    def _common(self, name: str, aliases: tuple[str, ...]) -> dict[str, Any]:
        reader = self.binder.reader
        default = reader.defaults.get(name, MISSING)
        value = self._base(name)
        rule = reader.rules.get(name)
        required = default is MISSING or (default is None and name in reader.unfilled | self.binder.no_nulls)
        if name in thetas_of(self.binder.expressions.values()):
            # A rule that was learned while nothing else changed does not know the theta of rope_parameters.
            rule = THETA if filled_with_theta(reader, self.binder.observer.base, name) else None
            required = required or rule is None
        proven = self._proven(name)
        # Counts that may be 0, and numbers that the class sets to 0 where a flag makes them meaningless.
        normals = [reader.normal(changed(self.binder.observer.base, each.changes)) for each in self.binder.observations]
        counts = [*proven, *(look_up(normal or {}, name) for normal in normals)]
        kinds = {KINDS[type(each)] for each in (value, default, *proven) if type(each) in KINDS}
        written = self.binder.reader.annotations.get(name, "")
        if kinds:
            kind = "float" if kinds == {"int", "float"} else next(iter(kinds)) if len(kinds) == 1 else "any"
        else:
            kind = next((each for each in ("bool", "float", "int", "str", "list") if each in written), "any")
        smallest = min((value for value in counts if type(value) is int), default=1)
        counts_layers = self.binder.expressions["num_layers"] == Length(name)
        return {
            "name": name,
            "type": kind,
            "nullable": rule is not None or value is None or any(entry is None for entry in proven),
            "required": required,
            "default": None if default is MISSING else default,
            "default_rule": rule,
            "minimum": smallest if smallest < 1 else None,
            "aliases": aliases,
            "example": value,
            "placeholder": reader.placeholders.get(name, ""),
            "layered": next((each.as_said() for each in layer_values(self.subject) if each.field == name), {}),
            "words": older_words(self.subject, self.binder.observer.base, name),
            **(restatements(self.subject, self.binder.observer.base, name) if counts_layers else {}),
        }

    def _is_checked(self, name: str) -> bool:
        """Return whether the class takes no other value of a number beside the base config's other fields."""
        reader, base, value = self.binder.reader, self.binder.observer.base, self._base(name)
        if type(value) is not int or name in SKIPPED or name not in base:
            return False
        others = alternatives(value, reader.annotations.get(name, ""))
        return all(reader.normal(changed(base, {name: other})) is None for other in others)

    def _base(self, name: str) -> Any:
        """Return the value of a field in the base config, nulls filled."""
        return look_up(self.binder.observations[0].config, name)

    def _proven(self, name: str) -> list[Any]:
        """Return the values of the field in proven configs."""
        found: list[Any] = []
        for each in self.binder.observations:
            value = look_up(each.changes, name) if name in each.changes else look_up(each.config, name)
            value = None if value is MISSING else value
            if not any(same(value, other) for other in found):
                found.append(value)
        return found

    def _used_field(self, name: str, aliases: tuple[str, ...]) -> FieldUse:
        common = self._common(name, aliases)
        refused = [
            each
            for each in self.binder.outcomes
            if each.kind == "unsupported"
            and not each.loud
            and name in each.changes
            # Lists over layers go along with a number of layers.
            and all(key == name or isinstance(value, list) for key, value in each.changes.items())
        ]
        reason = "; ".join(sorted({f"{name}={each.changes[name]!r}: {each.detail}" for each in refused}))
        if name in self.binder.restricted:
            # Expressions read the field, but hold only for the values that were proven; refused where args cannot
            # say so.
            reason = self.binder.restricted[name]
            values = self._proven(name)
            if any(value is None or isinstance(value, list | tuple | dict) for value in values):
                raise UnsupportedError("a choice that no config field explains", where=name, detail=reason)
            return FieldUse(status="used", allowed=tuple(values), reason=reason, **common)
        # Where texts of this field, or of its entries, choose between expressions, others were never seen.
        expressions = [*self.binder.expressions.values(), *self.binder.reader.rules.values()]
        parts = [part for each in expressions for part in walk(each)]
        conditions = [condition for part in parts for condition in conditions_of(part)]
        is_text = isinstance(self._base(name), str)
        decides = any(isinstance(each, Listed | Cycled) and each.field == name for each in conditions) or (
            is_text and any(isinstance(part, WhenEqual) and part.field == name for part in parts)
        )
        if decides or common["type"] == "bool":
            found: list[Any] = []
            for value in self._proven(name):
                for entry in value if isinstance(value, list | tuple) else [value]:
                    if entry is not None and entry not in found:
                        found.append(entry)
            values = sorted(found, key=str)
            if common["type"] != "bool" or len(values) < 2:
                return FieldUse(status="used", allowed=tuple(values), reason=reason, **common)
        values = []
        for value in (each.changes[name] for each in refused):
            if value is not None and value not in values:
                values.append(value)
        if values:
            return FieldUse(status="used", refused=tuple(values), reason=reason, **common)
        return FieldUse(status="used", reason=reason, **common)

    def _unused_field(self, name: str, aliases: tuple[str, ...], mentioned: str | None, drawn: str | None) -> FieldUse:
        """mentioned: where the source reads it; drawn: the same, where that is only for the weights of new models."""
        if name in self.binder.reader.names:
            common = self._common(name, aliases)
        else:  # a field that all types have
            default = self.binder.reader.defaults.get(name)
            common = {"name": name, "default": None if default is MISSING else default}
            common["example"] = look_up(self.binder.observer.base, name)
        if name in MUST_BE_OFF and name in SKIPPED:
            return FieldUse(status="fixed", allowed=MUST_BE_OFF[name], reason="refused for all families", **common)
        proven = self._proven(name)
        reason = self._ignored(name, proven, mentioned, drawn)
        if reason is not None and self._is_checked(name):
            # Kept only to be written back: the class refuses others with its default.
            return FieldUse(status="used", reason=f"its class checks it against other fields; {reason}", **common)
        if reason is not None:
            return FieldUse(status="ignored", reason=reason, **common)
        reason = self.binder.restricted.get(name, f"read at {mentioned}, but no other value could be proven to matter")
        if name in self.binder.reader.rules and not isinstance(self._base(name), list):
            # The class writes out what it computes: that is the one value which is proven for all configs.
            return FieldUse(status="fixed", reason=reason, **common)
        # Whether other values, though without effect alone, change something beside other changes.
        if len(self._proven(name)) > 1 and self._num_without_effect(name) == 0:
            proven = [self._base(name)]
        return FieldUse(status="fixed", allowed=tuple(proven), reason=reason, **common)

    def _ignored(self, name: str, proven: list[Any], mentioned: str | None, drawn: str | None) -> str | None:
        """Return why the field may have any value, if it may."""
        if name in self.binder.restricted:
            return None
        if name in HARMLESS_FIELDS:
            return HARMLESS_FIELDS[name]
        if name in TOKEN_FIELDS:
            return "special tokens; kept, but not part of the forward"
        for pattern, reason in TRAINING.items():
            if pattern.fullmatch(name):
                return reason
        seen = [value for value in proven if not same(value, self._base(name))]
        equal = f"logits are equal bit for bit for {', '.join(map(repr, proven))}"
        if mentioned is None:
            return f"not read by the modeling source; {equal}" if seen else "not read by the modeling source"
        if seen and drawn is not None:
            return f"read for random initialisation only, at {drawn}; {equal}"
        if seen and LENGTHS.fullmatch(name):
            return f"read at {mentioned}, but {equal}"
        beside = self._num_without_effect(name) if len(seen) > 1 else 0
        return f"logits are the same for {len(proven)} values, also beside {beside} other changes" if beside else None

    def _num_without_effect(self, name: str) -> int:
        """In how many configs that turn another switch of the base it makes no difference either; 0 where it does."""
        binder, count = self.binder, 0
        own = binder.choices.get(name, ())
        switches = [
            changes
            for other, each in binder.choices.items()
            for changes in each
            if other != name and (isinstance(changes[other], bool | str | list | None) or not self._base(other))
        ]
        for number, switch in enumerate(switches if own else ()):
            changes = {**own[number % len(own)], **switch}
            if binder.reader.normal(changed(binder.observer.base, changes)) is None:
                continue
            outcome = binder.observer.observe(changes, binder.predict, may_infer=False)
            if outcome.kind == "unsupported":
                return 0
            count += outcome.kind != "refused"
        return count


def older_words(subject: Subject, base: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return the words that the class takes for an entry of a list of texts, as configs of older versions have them:
    "mamba" for "linear_attention". The library names words; what the class makes of each decides."""
    entries = base.get(name)
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        return {}
    found = {}
    for word, entry in getattr(configuration_utils, "_LEGACY_LAYER_TYPE_REMAP", {}).items():
        older = [word if each == entry else each for each in entries]
        if older == entries or word in entries:
            continue
        try:
            taken = read(subject, {**base, name: older}).to_dict().get(name)
        except SubjectError:
            continue
        if taken is not None and list(taken) == entries:
            found[word] = entry
    return found


def restatements(subject: Subject, base: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the undeclared fields that say a list over all layers once more, as configs of older versions do: its
    length, and a text with one letter for each entry. What the class makes of the text decides."""
    entries = look_up(base, name)
    config = read(subject, dict(base))
    found: dict[str, Any] = {"count": "", "letters": {}}
    aliases = getattr(subject.config_class, "attribute_map", None) or {}
    for other in sorted(each for each in dir(subject.config_class) if not each.startswith("_")):
        if other in {*base, *aliases, name} or not isinstance(getattr(subject.config_class, other), property):
            continue
        try:
            value = getattr(config, other)
        except Exception:  # noqa: BLE001 - foreign code; a property without a value says nothing
            continue
        if type(value) is int and value == len(entries):
            found["count"] = other
        elif isinstance(value, str) and len(value) == len(entries):
            letters = dict(zip(value, entries, strict=True))
            text = value + value[::-1]
            spelled = {each: content for each, content in base.items() if each != name} | {other: text}
            if look_up(read(subject, spelled).to_dict(), name) == [letters[letter] for letter in text]:
                found["letters"][other] = letters
    return found
