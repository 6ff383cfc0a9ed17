"""Varies the fields of a config, one at a time and then many at once, until expressions predict what every config does.

An expression is only believed while no observation contradicts it. What cannot be explained is taken out: the fields
that are involved keep the values that were proven.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from areal.porting.bind.expressions import (
    ROTARY_FIELD,
    SCORE_FACTOR,
    conditions_of,
    fields_of,
    look_up,
    same,
    walk,
)
from areal.porting.bind.fitting import explains, fit
from areal.porting.bind.guessing import first_guesses, nearby, value_guess
from areal.porting.bind.observing import Observation, SlotSample, one_cause, readable, same_value
from areal.porting.bind.reading import branches, filled, filling_rules
from areal.porting.bind.rotary import (
    RotaryFit,
    extra_names,
    has_type,
    is_layered,
    rotary_changes,
    rotary_kind,
    rotary_parts,
    rotated_by_table,
    with_rotary_values,
    without_score_factor,
)
from areal.porting.bind.slots import ABSENT, HEAD_SLOT, ROTARY_SLOT, ROTATED_SLOT, LayerValues, predict
from areal.porting.bind.spellings import Spellings
from areal.porting.bind.variations import MISSING, alternatives, changed, resized
from areal.porting.family import Constant, Field, FromEnd, Product, RotaryScaled
from areal.porting.records import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from areal.porting.bind.observing import ConfigOutcome, Observer
    from areal.porting.bind.reading import ConfigReader
    from areal.porting.family import Expression
    from areal.porting.spec import ArchitectureSpec

WANTED: Final = {"bool": 1, "int": 2, "float": 1, "str": 2, "list": 3, "null": 2}
"""Values of a field that are looked at, by the kind of its base value."""


@dataclass
class Binder:
    """Binds the slots of an observer's base config to fields: `vary`, then `Predictions`, then `fill_nulls`."""

    observer: Observer
    reader: ConfigReader
    leave: frozenset[str] = frozenset()
    """Fields that are not varied."""
    expressions: dict[str, Expression] = field(default_factory=dict)
    observations: list[Observation] = field(default_factory=list)
    outcomes: list[ConfigOutcome] = field(default_factory=list)
    restricted: dict[str, str] = field(default_factory=dict)
    """Fields that keep proven values, with the reason."""
    choices: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Field to changes of it that were proven or without effect."""
    rotary_types: dict[str | None, set[str]] = field(default_factory=dict)
    """Layer type (None: all layers alike) to the rotary types that were proven."""
    joint_outcomes: list[ConfigOutcome] = field(default_factory=list)
    stuck: set[str] = field(default_factory=set)
    """Slots that no expression explains so far: searching again takes long, so only `_settle` does."""
    no_nulls: set[str] = field(default_factory=set)
    """Fields without which no model builds or runs, though their class lets them be null."""
    rotary_refused: set[tuple[str | None, str]] = field(default_factory=set)
    _held: dict[str, tuple[Expression, dict[int, Observation]]] = field(default_factory=dict)
    """Slot to an expression and the observations, by identity, that agree with it."""

    def vary(self) -> None:
        """Observe one change after another until `expressions` hold. Raises UnsupportedError where even the base is
        not explained."""
        self.observe_base()
        for name in self.reader.names:
            if name not in self.leave and name != ROTARY_FIELD:
                self._vary(name)
        self._vary_quotients()
        self._vary_rotary()
        self._vary_beside_new_parts()
        self._vary_without_layer_embeddings()
        self.settle()

    def observe_base(self) -> None:
        """Find first expressions, from the base config alone. Raises UnsupportedError where no field holds its
        rotations."""
        self._add(self.observer.base, self.observer.values, {})
        # Find first expressions by equal values in the base config alone: predictions that save inferences.
        base = self.observations[0]
        entries = look_up(self.observer.base, ROTARY_FIELD)
        if isinstance(entries, dict):
            layered = is_layered(entries)
            for name, entry in entries.items() if layered else [(None, entries)]:
                if entry is not None:
                    self.rotary_types[name] = {str(entry.get("rope_type", "default"))}
        samples = {slot: SlotSample(base.config, value, base.depth) for slot, value in base.values.items()}
        self.expressions = first_guesses(samples, self._names())
        if ROTARY_SLOT not in samples:  # no layer attends
            return
        rotary = self._rotary_fit().fit([samples[ROTARY_SLOT]])
        if rotary is None:
            detail = f"its values are {base.values[ROTARY_SLOT]}"
            raise UnsupportedError("rotary settings that no field holds", where=ROTARY_SLOT, detail=detail)
        self.expressions[ROTARY_SLOT] = rotary

    def predict(self, config: dict[str, Any]) -> ArchitectureSpec:
        """Return the spec of a config.json by the expressions so far. Raises EvaluationError."""
        return predict(self.expressions, self._completed(config))

    def _predict_by(self, expressions: Mapping[str, Expression], config: dict[str, Any]) -> ArchitectureSpec:
        return predict(expressions, self._completed(config))

    def _completed(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return with_rotary_values(self.reader.complete(config))

    def _add(self, config: Mapping[str, Any], values: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
        self.observations.append(Observation(self._completed(config), values, changes))

    # -------------------------------------------------------------------------------------------------------- guessing

    def _names(self) -> list[str]:
        names = [
            *self.reader.names,
            *(
                name
                for name in self.observations[0].config
                if name.startswith(ROTARY_FIELD + ".") and name != SCORE_FACTOR
            ),
        ]
        return readable(names, self.observations)

    def _rotary_fit(self) -> RotaryFit:
        types = {name: tuple(types) for name, types in self.rotary_types.items()}
        return RotaryFit(self._names(), types, extra_names(look_up(self.observer.base, ROTARY_FIELD)))

    # -------------------------------------------------------------------------------------------------- one at a time

    def _vary(self, name: str) -> None:
        base = self.observer.base
        value = look_up(self.observations[0].config, name)
        kind = "null" if value is None else type(value).__name__
        wanted = WANTED.get(kind, 2)
        for other in alternatives(value, self.reader.annotations.get(name, "")):
            if other is None:
                # Nulls that the class fills are its business, by a rule that is known or not; others are looked at in
                # addition.
                if name not in self.reader.rules and name not in self.reader.unfilled:
                    self._probe(name, {name: None}, other)
                continue
            if wanted and self._probe(name, resized(base, name, other, self.reader.depth_field), other):
                wanted -= 1
        if not self.reader.depth_field and isinstance(value, list) and value and isinstance(value[0], str):
            # The list of the kinds of all layers may be what counts them.
            self._probe(name, {name: [*value, *value[:2]]}, value)
        default = self.reader.defaults.get(name)
        if type(default) is int and default <= 0 and default != value:
            # What a config without the field means: such a number stands for something else, or for nothing at all.
            self._probe(name, {name: default}, default)

    def _vary_beside_new_parts(self) -> None:
        """Look at flags without effect again, beside each flag that adds a part which the base has not: what a norm
        comes before means nothing where there is no norm (Falcon-H1). So is the width of the model, and every number
        that the part seems to be made of: experts that are off in the base (Gemma 4)."""
        base = self.observations[0]
        adding = [
            dict(each.changes)
            for each in self.observations[1:]
            if len(each.changes) == 1
            and isinstance(next(iter(each.changes.values())), bool)
            and each.values.keys() - base.values.keys()
        ]
        silent = [
            dict(each.changes)
            for each in self.outcomes
            if each.kind == "no_effect"
            and len(each.changes) == 1
            and isinstance(next(iter(each.changes.values())), bool)
        ]
        for switch, flag in itertools.product(adding, silent):
            name = next(iter(flag))
            if name not in switch:
                self._probe(name, {**switch, **flag}, flag[name])
        for switch in adding:
            found = next(each for each in self.observations if dict(each.changes) == switch)
            parts = [slot for slot in found.values if slot not in base.values and isinstance(found.values[slot], tuple)]
            if not any(f"{slot}.router.top_k" in parts for slot in ("layer.feed_forward", "layer.experts_beside")):
                continue  # few numbers, which are looked at beside each other anyway
            slots = ["hidden_size", *parts]
            names = {name for slot in slots for name in fields_of(self.expressions.get(slot, Constant(None)))}
            for name in sorted(names - switch.keys()):
                value = look_up(base.config, name)
                others = alternatives(value, self.reader.annotations.get(name, ""))
                other = next((each for each in others if type(each) is type(value) is not bool), None)
                if other is not None:
                    self._probe(name, {**switch, name: other}, other)

    def _vary_without_layer_embeddings(self) -> None:
        """Look at a config whose layers get nothing of their tokens, alone and beside layers that share nothing: sizes
        may be 0, and code may hand on what is not there."""
        size = self.expressions.get("layer_embeddings.size")
        shared = self.expressions.get("layer.attention.shares_keys", Constant(False))
        counts = {
            condition.field: 0
            for part in walk(shared)
            for condition in conditions_of(part)
            if isinstance(condition, FromEnd) and isinstance(condition.field, str)
        }
        if isinstance(size, Field):
            _ = self._probe(size.name, {size.name: 0}, 0) or self._probe(size.name, {size.name: 0, **counts}, 0)

    def probe_without(self, name: str) -> bool:
        """Look at the base config without a field; whether it builds."""
        return self._probe(name, {name: MISSING}, None)

    def _vary_quotients(self) -> None:
        """Look at configs in which a division leaves a rest, where fields are divided by each other.

        Example: a scale of 4 / 96 may be num_heads / hidden_size or 1 / (hidden_size // num_heads). Only a config such
        as 97 channels of 4 heads tells.
        """
        divided: dict[str, int] = {}
        for part in (part for each in self.expressions.values() for part in walk(each)):
            if isinstance(part, Product) and not part.integer:
                over = [name for name, power in part.powers if power > 0]
                under = [name for name, power in part.powers if power < 0]
                values = [look_up(self.observer.base, name) for name in (*over, *under)]
                if over and under and all(type(value) is int for value in values):
                    divided |= {name: value + 1 for name, value in zip((*over, *under), values, strict=True)}
        for name, value in divided.items():
            if not any(change.get(name) == value for change in self.choices.get(name, ())):
                self._probe(name, resized(self.observer.base, name, value, self.reader.depth_field), value)

    def _probe(self, name: str, changes: dict[str, Any], value: Any) -> bool:
        """Look at one config; whether it was one that builds."""
        outcome = None
        for attempt in _attempts(self.reader, name, changes, value):
            if self.reader.normal(changed(self.observer.base, attempt)) is None:
                continue
            near = nearby(self.expressions, self.observations[0], attempt)
            guesses = (partial(self._predict_by, expressions) for expressions in near)
            found = self.observer.observe(attempt, self.predict, nearby=guesses)
            if found.kind != "refused":
                outcome = found
            if found.kind in ("proven", "no_effect"):
                break
        if outcome is None:
            if value is None:
                self.no_nulls.add(name)
            return False
        changes = dict(outcome.changes)
        if outcome.kind == "no_effect" and self._is_beyond_all_layers(name, value):
            return True
        self.outcomes.append(outcome)
        if outcome.kind == "unsupported":
            return True
        if self.accept(outcome):
            self.choices.setdefault(name, []).append(changes)
        return True

    def _is_beyond_all_layers(self, name: str, value: Any) -> bool:
        """Return whether a number of layers is larger than that of all, and was not before. Where it changes nothing,
        indices below zero may have counted from the end: it says nothing of what the field means."""
        depth = self.observations[0].depth
        before = look_up(self.observations[0].config, name)
        return "layers" in name and type(value) is type(before) is int and value > depth > before > 0

    def accept(self, outcome: ConfigOutcome) -> bool:
        """Add an observation, unless no expressions explain it and those that there are refuse it: that is safe."""
        before, stuck = dict(self.expressions), set(self.stuck)
        outcome = Spellings(self.observer, self.observations[0], before, self._predict_by).likeliest(outcome)
        self._add(outcome.config, outcome.values, outcome.changes)
        if outcome.kind == "proven" and not outcome.inferred:
            return True
        unresolved = self._refit()
        if outcome.loud and (unresolved or self._is_far_fetched(outcome, before)):
            self.observations.pop()
            self.expressions, self.stuck = before, stuck
            return False
        return True

    def _is_far_fetched(self, outcome: ConfigOutcome, before: Mapping[str, Expression]) -> bool:
        """Return whether a config of many changes made an expression one of three fields or more: chance finds these,
        too.

        Example: one config with 12 changes makes a scale of 0.0417 equal to 1.0 * hidden_size / (vocab_size *
        num_heads). Among thousands of such products one fits by chance, so the config is refused instead of the
        expression accepted.
        """
        if len(outcome.changes) < 2:
            return False
        new = (each for slot, each in self.expressions.items() if each != before.get(slot))
        return any(isinstance(part, Product) and len(part.powers) > 2 for each in new for part in walk(each))

    def _vary_rotary(self) -> None:
        base = look_up(self.observer.base, ROTARY_FIELD)
        if not isinstance(base, dict) or ROTARY_SLOT not in self.expressions:
            return
        proven: list[tuple[str | None, str, dict[str, Any]]] = []
        partial_refused = False
        for layer_type, rotary_type, entries in rotary_changes(base, self.observer.inference.spec):
            types = self.rotary_types.setdefault(layer_type, set())
            if (layer_type, rotary_type) in self.rotary_refused:
                continue
            known = rotary_type in types
            types.add(rotary_type)
            self._retype()
            outcome = self.observer.observe({ROTARY_FIELD: entries}, self.predict)
            self.outcomes.append(outcome)
            if outcome.kind in ("proven", "no_effect"):
                self._add(outcome.config, outcome.values, outcome.changes)
            if outcome.kind == "proven" and outcome.inferred and self._refit():
                # Nothing says what this changes: it is refused, and what was seen of it is left out. Another part of
                # the head is refused by families in which no expression reads it.
                if rotary_parts(entries) != rotary_parts(base):
                    partial_refused = True
                    self._forget(lambda changes: rotary_parts(changes) != rotary_parts(base))
                elif rotary_type == rotary_kind(base, layer_type):
                    self._restrict_entries(entries, base, "nothing says what another value of it changes")
                else:
                    self._forget(partial(has_type, rotary_type=rotary_type))
                    types.discard(rotary_type)
                self._refit()
            elif outcome.kind == "unsupported" and rotary_type == rotary_kind(base, layer_type):
                # The base is proven: what was refused is only what differs from it.
                self._restrict_entries(entries, base, outcome.detail)
            elif outcome.kind in ("unsupported", "refused") and (outcome.kind == "unsupported" or not known):
                types.discard(rotary_type)
                self._forget(partial(has_type, rotary_type=rotary_type))
            self._retype()
            self.rotary_refused |= {(layer_type, rotary_type)} - {(layer_type, each) for each in types}
            if outcome.kind == "proven":
                proven.append((layer_type, rotary_type, {ROTARY_FIELD: entries}))
        self.choices[ROTARY_FIELD] = [
            changes
            for *kind, changes in proven
            if tuple(kind) not in self.rotary_refused
            and not (partial_refused and rotary_parts(changes[ROTARY_FIELD]) != rotary_parts(base))
        ]

    def _restrict_entries(self, entries: Mapping[str, Any], base: Mapping[str, Any], reason: str) -> None:
        """Restrict the entries of rope_parameters that a refused variation of the base's own type has changed."""
        self._forget(lambda changes: changes == entries)
        for name in sorted(entries.keys() | base.keys()):
            if not same(entries.get(name), base.get(name)):
                self.restricted[f"{ROTARY_FIELD}.{name}"] = reason

    def _forget(self, unwanted: Callable[[Any], bool]) -> None:
        """Take out the observations of rotary settings that are unwanted."""
        self.observations = [
            each
            for each in self.observations
            if ROTARY_FIELD not in each.changes or not unwanted(each.changes[ROTARY_FIELD])
        ]

    def _retype(self) -> None:
        if ROTARY_SLOT in self.expressions:
            self.expressions[ROTARY_SLOT] = self._rotary_fit().retyped(self.expressions[ROTARY_SLOT])

    # --------------------------------------------------------------------------------------------------------- fitting

    def _samples(self, slot: str, observations: Iterable[Observation] | None = None) -> list[SlotSample]:
        samples = []
        for each in self.observations if observations is None else observations:
            value = each.values.get(slot, ABSENT)
            if value is ABSENT or (isinstance(value, LayerValues) and all(entry is ABSENT for entry in value)):
                continue
            samples.append(SlotSample(each.config, value, each.depth))
        return samples

    def _refit(self, *, again: bool = False) -> list[str]:
        """Return the new expressions for slots that an observation contradicts; those that have none any more are
        returned.

        again: also try those for which nothing was found before.
        """
        unresolved: list[str] = []
        self.stuck = set() if again else self.stuck
        slots = {slot for each in self.observations for slot in each.values}
        for slot in sorted(slots - self.stuck):
            known = self.expressions.get(slot)
            if slot == ROTATED_SLOT:
                # Tables know their part of a head, whatever else would explain the sizes that were seen.
                by_table = rotated_by_table(self.expressions.get(ROTARY_SLOT), self.expressions.get(HEAD_SLOT))
                if by_table is not None and all(explains(by_table, sample) for sample in self._samples(slot)):
                    self.expressions[slot] = by_table
                    continue
            if known is not None and self._holds(slot, known):
                continue
            found = self._fit(slot, self._samples(slot))
            if found is None:
                unresolved.append(slot)
            else:
                self.expressions[slot] = found
        self.stuck |= set(unresolved)
        return unresolved

    def _holds(self, slot: str, known: Expression) -> bool:
        """Return whether no observation contradicts an expression. Neither of them changes once it is made, so an
        observation that was seen to agree is not asked again."""
        expression, held = self._held.get(slot, (known, {}))
        if expression is not known:
            held = {}
        self._held[slot] = known, held
        for each in self.observations:
            if id(each) not in held:
                if not all(self._explains(slot, known, sample) for sample in self._samples(slot, [each])):
                    return False
                held[id(each)] = each  # kept, so that its id becomes no other's
        return True

    def _explains(self, slot: str, expression: Expression, sample: SlotSample) -> bool:
        return (RotaryFit.explains if slot == ROTARY_SLOT else explains)(expression, sample)

    def _fit(self, slot: str, samples: list[SlotSample]) -> Expression | None:
        if not samples:
            return None
        if slot == ROTARY_SLOT:
            return self._rotary_fit().fit(samples)
        budget = self.observer.budget
        alone, together = self._causes(slot, single=True), self._causes(slot, single=False)
        for names in dict.fromkeys(map(frozenset, (alone, together, together | self._contradicting(slot)))):
            found = fit(slot, samples, names, budget=budget)
            if isinstance(found, Constant) and slot not in self.observations[0].values:
                # Seen with one value only: a field that has it is the likelier explanation, and will be tested.
                return value_guess(slot, samples, self._names())
            if found is not None:
                return found
        plain = without_score_factor(samples) if slot.endswith(".scale") else None
        found = None if plain is None else fit(slot, plain, self._causes(slot, single=True), budget=budget)
        return None if found is None else RotaryScaled(found)

    def _causes(self, slot: str, *, single: bool) -> set[str]:
        """Return the fields that differ from the base config in configs for which the slot does, too."""
        base = self.observations[0]
        found: set[str] = set()
        for each in self.observations[1:]:
            if single and len(each.changes) > 1 and not one_cause(each):
                continue
            if not same_value(each.values.get(slot, ABSENT), base.values.get(slot, ABSENT)):
                found |= {
                    name for name in self._names() if not same(look_up(each.config, name), look_up(base.config, name))
                }
        return found - self.restricted.keys()

    def _contradicting(self, slot: str) -> set[str]:
        """Return the two fields that together make the slot what it is not expected to be, if only that of the base
        config: a bias that a flag brings, but for one kind of projection."""
        known, found = self.expressions.get(slot), set[str]()
        if known is None:
            return found
        for each in (each for each in self.observations[1:] if len(each.changes) == 2):
            if not all(self._explains(slot, known, sample) for sample in self._samples(slot, [each])):
                found |= set(each.changes) & set(self._names())
        return found - self.restricted.keys()

    # ----------------------------------------------------------------------------------------------------- restricting

    def settle(self) -> None:
        """Take observations out until all slots are explained, and restrict the fields that these varied."""
        for _ in range(len(self.reader.names)):
            unresolved = self._refit(again=True)
            if not unresolved:
                return
            slot = unresolved[0]
            causes = sorted(self._causes(slot, single=False))
            given_up = self.observer.budget.gave_up.get(slot)
            reason = f"no expression explains {slot} for all of its values"
            reason += f": {given_up}" if given_up else ""
            for name in causes:
                kept = [each for each in self.observations if name not in each.changes]
                if self._fit(slot, self._samples(slot, kept)) is not None:
                    self.restrict(name, reason)
                    break
            else:
                for name in causes:
                    self.restrict(name, reason)
                if not causes:
                    raise UnsupportedError("a value that no config field explains", where=slot, detail=given_up or "")
        unresolved = self._refit(again=True)
        if unresolved:
            detail = self.observer.budget.gave_up.get(unresolved[0], "")
            raise UnsupportedError("values that no config field explains", where=unresolved[0], detail=detail)

    def narrow(self, name: str, reason: str) -> None:
        """Keep the values of a field that were proven, and refuse all others."""
        self.restricted[name] = reason
        self.choices.pop(name, None)

    def restrict(self, name: str, reason: str) -> None:
        self.restricted[name] = reason
        self.choices.pop(name, None)
        # Without configs in which the field has another value, unless the class computed that, which is proven.
        base, readable_field = look_up(self.observations[0].config, name), name in self._names()
        computed = name in self.reader.rules
        self.observations = [
            each
            for each in self.observations
            if name not in each.changes and (computed or not readable_field or same(look_up(each.config, name), base))
        ]

    # --------------------------------------------------------------------------------------------------- filling nulls

    def fill_nulls(self) -> None:
        """Make rules of nulls that the modeling code fills, so that everything else reads the filled value."""
        for name, rule in filling_rules(self.expressions, self.reader.rules).items():
            before = self.observations, dict(self.expressions)
            self.observations = [replace(each, config=filled(each.config, name, rule)) for each in self.observations]
            readers = [slot for slot, each in self.expressions.items() if name in fields_of(each)]
            for slot in readers:
                del self.expressions[slot]
            if self._refit() or any(branches({slot: self.expressions[slot]}) for slot in readers):
                self.observations, self.expressions = before
            else:
                self.reader.rules[name] = rule


def _attempts(reader: ConfigReader, name: str, changes: dict[str, Any], value: Any) -> list[dict[str, Any]]:
    """Return the changes, and others that may go with the value where these are refused: lists over layers that were
    resized with it stay as they are, or are left to the class to fill."""
    found = [changes]
    if len(changes) > 1:
        found.append({name: value})
    filled = {other: None for other in reader.per_layer & reader.rules.keys() if other != name}
    if filled and all(reader.defaults.get(other) is None for other in filled):
        found.append({name: value, **filled})
    if reader.normal(changed(reader.base, changes)) is None:
        found += in_proportion(reader, name, changes)
    if value is None:
        # Layers of some kinds cannot do without it: then all layers are of another kind.
        for other in sorted(reader.per_layer - {name}):
            entries = look_up(reader.base, other)
            if isinstance(entries, list):
                kinds = dict.fromkeys(entry for entry in entries if isinstance(entry, str))
                found += [{name: None, other: [kind] * len(entries)} for kind in kinds]
    return found


def in_proportion(reader: ConfigReader, name: str, changes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the changes beside that of another whole number by the same factor, or by its inverse, where that makes a
    class take what it refuses alone: the number of heads and their size, whose product it checks."""
    before, value = look_up(reader.base, name), changes[name]
    found: list[dict[str, Any]] = []
    if type(before) is not int or type(value) is not int or not before or not value:
        return found
    for other in reader.names:
        size = look_up(reader.base, other)
        if type(size) is not int or other in changes or size < 2:
            continue
        for part, whole in ((size * value, before), (size * before, value)):
            together = {**changes, other: part // whole}
            if part % whole == 0 and reader.normal(changed(reader.base, together)) is not None:
                found.append(together)
    return found
