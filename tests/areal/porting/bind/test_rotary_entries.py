"""Which entry of rope_parameters a layer has, found from configs in which entries are alike or differ."""

from dataclasses import replace

from areal.porting.bind.expressions import fields_of
from areal.porting.bind.observing import SlotSample
from areal.porting.bind.rotary import (
    RotaryFit,
    extra_names,
    filled_with_theta,
    has_type,
    rotary_changes,
    rotary_parts,
    rotated_by_table,
    thetas_of,
    with_rotary_values,
)
from areal.porting.bind.slots import LayerValues
from areal.porting.family import Constant, Field, First, Listed, PerLayer, Product, RotaryField
from areal.porting.spec import ArchitectureSpec, RotarySpec

KINDS = ["sliding", "full", "sliding"]
FIT = RotaryFit(["kinds", "size"], {"sliding": ("default",), "full": ("default",)})


def sample(sliding, full):
    entries = {
        "sliding": {"rope_type": "default", "rope_theta": sliding},
        "full": {"rope_type": "default", "rope_theta": full},
    }
    thetas = [sliding if kind == "sliding" else full for kind in KINDS]
    tables = LayerValues({"theta": theta, "type": "default", "parameters": {}} for theta in thetas)
    return SlotSample({"rope_parameters": entries, "kinds": KINDS, "size": 3}, tables, 3)


def test_entries_that_are_alike_say_nothing_about_layers():
    expected = PerLayer(
        Listed("kinds", ("sliding",)), RotaryField("sliding", ("default",)), RotaryField("full", ("default",))
    )
    assert FIT.fit([sample(500.0, 500.0), sample(350.0, 500.0), sample(500.0, 20.0)]) == expected


def test_entries_that_are_all_alike_are_one_table():
    alike = sample(500.0, 500.0)
    found = FIT.fit([alike])
    assert found is not None
    assert FIT.explains(found, alike)


def test_what_an_entry_cannot_say_is_not_tried():
    spec = ArchitectureSpec(vocab_size=8, hidden_size=8, layers=(), final_norm=None, tied=True)
    changes = [entries for _, _, entries in rotary_changes(sample(500.0, 20.0).config["rope_parameters"], spec)]
    assert any(entries["full"]["rope_type"] == "yarn" for entries in changes)
    assert not any("truncate" in entry for entries in changes for entry in entries.values())


def test_other_types_than_proportional_turn_whole_heads_and_say_so():
    spec = ArchitectureSpec(vocab_size=8, hidden_size=8, layers=(), final_norm=None, tied=True)
    entries = {"full": {"rope_type": "proportional", "rope_theta": 500.0, "partial_rotary_factor": 0.5}}
    changes = [(kind, found["full"]) for _, kind, found in rotary_changes(entries, spec)]
    assert {entry["partial_rotary_factor"] for kind, entry in changes if kind != "proportional"} == {1.0}
    assert len({entry["partial_rotary_factor"] for kind, entry in changes if kind == "proportional"}) > 1


def test_layers_that_only_let_queries_grow_say_nothing_of_the_size_of_tables():
    growing = RotarySpec(dim=0, theta=1.0, query_growth=0.1, growth_length=8)
    tables = (growing, RotarySpec(dim=24, theta=500.0))
    spec = ArchitectureSpec(vocab_size=8, hidden_size=8, layers=(), final_norm=None, tied=True, rotaries=tables)
    entries = {"sliding": {"rope_type": "default", "rope_theta": 500.0}, "full": None}
    longrope = [found["sliding"] for _, kind, found in rotary_changes(entries, spec) if kind == "longrope"]
    assert {len(entry["short_factor"]) for entry in longrope} == {12}


def test_each_table_turns_its_own_part_of_a_head():
    def turned(kind):
        part = f"rope_parameters.{kind}.partial_rotary_factor"
        return Product(1.0, (("head_dim", 1.0), (part, 1.0)), integer=True)

    tables = PerLayer(Listed("kinds", ("full",)), RotaryField("full", ("default",)), RotaryField("near", ("yarn",)))
    expected = PerLayer(Listed("kinds", ("full",)), turned("full"), turned("near"))
    assert rotated_by_table(tables, Field("head_dim")) == expected
    some = PerLayer(First(), Constant(None), RotaryField("full", ("default",)))
    assert rotated_by_table(some, Field("head_dim")) == PerLayer(First(), Constant(None), turned("full"))
    assert rotated_by_table(RotaryField(None, ("default",)), Field("head_dim")) is None
    assert rotated_by_table(tables, Constant(24)) is None


def test_parts_and_types_of_entries():
    entries = {"full": {"rope_type": "yarn", "partial_rotary_factor": 0.25}, "sliding": {"rope_type": "default"}}
    assert rotary_parts(entries) == [0.25, 1.0]
    assert rotary_parts(entries["full"]) == [0.25]
    assert has_type(entries, "yarn")
    assert not has_type(entries["sliding"], "yarn")


def test_numbers_that_no_type_has_are_fields_of_their_own_and_are_varied():
    entries = {"rope_type": "default", "rope_theta": 500.0, "growth": 0.1, "original_max_position_embeddings": 16}
    assert extra_names(entries) == ("growth", "original_max_position_embeddings")
    completed = with_rotary_values({"rope_parameters": entries})
    assert completed["rope_parameters.growth"] == 0.1
    assert completed["rope_parameters.original_max_position_embeddings"] == 16
    spec = ArchitectureSpec(vocab_size=8, hidden_size=8, layers=(), final_norm=None, tied=True)
    changes = [each for _, _, each in rotary_changes(entries, spec)]
    assert all(each["original_max_position_embeddings"] == 16 for each in changes[:-1])
    assert {each["growth"] for each in changes} > {0.1}
    assert changes[-1]["original_max_position_embeddings"] != 16


def test_parameters_of_types_are_no_numbers_of_their_own():
    entries = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 2.0, "original_max_position_embeddings": 16}
    assert extra_names(entries) == ()
    assert extra_names({"full": entries, "sliding": None}) == ()


def listed(thetas, *, kind="default", theta=500.0):
    entries = {"rope_type": kind, "rope_theta": theta} | ({"factor": 2.0} if kind == "linear" else {})
    parameters = {"factor": 2.0} if kind == "linear" else {}
    tables = LayerValues((each and {"theta": each, "type": kind, "parameters": parameters}) or None for each in thetas)
    return SlotSample({"rope_parameters": entries, "bases": list(thetas), "size": 3}, tables, len(thetas))


def test_a_list_with_the_theta_of_each_layer_goes_before_rope_parameters():
    fit = RotaryFit(["bases", "size"], {None: ("default", "linear")})
    expected = RotaryField(None, ("default", "linear"), thetas="bases")
    samples = [listed([500.0] * 3), listed([500.0, 0.0, 80.0]), listed([500.0] * 3, kind="linear", theta=90.0)]
    assert fit.fit(samples) == expected
    assert fit.fit(samples[:1]) == RotaryField(None, ("default", "linear"))
    assert set(fields_of(expected)) == {"rope_parameters", "bases"}
    assert thetas_of([PerLayer(First(), Constant(None), expected)]) == {"bases"}
    swapped = replace(listed([500.0, 80.0]), value=listed([80.0, 500.0]).value)
    assert not fit.explains(expected, swapped)


class Written:
    """A reader of configs whose class fills a list in some way."""

    depth_field = "size"

    def __init__(self, fill):
        self.fill = fill

    def normal(self, config):
        bases = config.get("bases") or self.fill(config)
        return {**config, "bases": bases}


def test_what_a_list_of_thetas_is_filled_with_is_tried():
    base = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "bases": [500.0] * 3, "size": 3}
    by_theta = Written(lambda config: [config["rope_parameters"]["rope_theta"]] * config["size"])
    assert filled_with_theta(by_theta, base, "bases")
    assert not filled_with_theta(Written(lambda config: [500.0] * config["size"]), base, "bases")
    assert not filled_with_theta(Written(lambda config: None), base, "bases")
