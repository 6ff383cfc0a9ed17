"""Which entry of rope_parameters a layer has, found from configs in which entries are alike or differ."""

from areal.models.analysis.binding.fitting import Sample
from areal.models.analysis.binding.rotary import RotaryFit, has_type, rotary_changes, rotary_parts
from areal.models.analysis.binding.slots import LayerValues
from areal.models.analysis.family import Listed, PerLayer, RotaryField
from areal.models.analysis.spec import ArchitectureSpec

KINDS = ["sliding", "full", "sliding"]
FIT = RotaryFit(["kinds", "size"], {"sliding": ("default",), "full": ("default",)})


def sample(sliding, full):
    entries = {
        "sliding": {"rope_type": "default", "rope_theta": sliding},
        "full": {"rope_type": "default", "rope_theta": full},
    }
    thetas = [sliding if kind == "sliding" else full for kind in KINDS]
    tables = LayerValues({"theta": theta, "type": "default", "parameters": {}} for theta in thetas)
    return Sample({"rope_parameters": entries, "kinds": KINDS, "size": 3}, tables, 3)


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


def test_parts_and_types_of_entries():
    entries = {"full": {"rope_type": "yarn", "partial_rotary_factor": 0.25}, "sliding": {"rope_type": "default"}}
    assert rotary_parts(entries) == [0.25, 1.0]
    assert rotary_parts(entries["full"]) == [0.25]
    assert has_type(entries, "yarn")
    assert not has_type(entries["sliding"], "yarn")
