"""Rotary settings are read as transformers reads them, and what it would read otherwise is refused."""

from __future__ import annotations

import pytest

from areal.api import ModelError
from areal.models.config_fields import ConfigFields
from areal.models.decoder_args import DEFAULT_ROTARY, RotaryArgs, rotary_to_hf, take_rotary

LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1],
    "long_factor": [2.0, 3.0],
    "original_max_position_embeddings": 16,
}
PHI3 = {
    "hidden_size": 32,
    "num_attention_heads": 8,
    "max_position_embeddings": 64,
    "original_max_position_embeddings": 16,
    "pad_token_id": 0,
}


def fields_of(**config):
    return ConfigFields({"model_type": "some", **config})


def read(config, *arguments, **options):
    fields = fields_of(**config)
    result = take_rotary(fields, *arguments, **options)
    fields.finish()
    return result


def test_both_spellings_mean_the_same():
    expected = RotaryArgs(theta=500.0, rotary_type="linear", parameters={"factor": 2.0}, partial_factor=0.5)
    inside = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    assert read({"rope_parameters": inside}, partial=True) == expected
    legacy = {"rope_theta": 500, "partial_rotary_factor": 0.5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert read(legacy, partial=True) == expected
    assert read({**expected.to_hf_config()}, partial=True) == expected
    assert expected.rotated_dim(24) == 12


def test_longrope_is_read_and_written_as_phi3_does():
    from transformers.models.phi3.configuration_phi3 import Phi3Config

    config = Phi3Config(**PHI3, rope_parameters={**LONGROPE, "rope_theta": 10000.0})
    written = config.to_dict()
    names = ("rope_parameters", "original_max_position_embeddings")
    args = read({name: written[name] for name in names}, 64, partial=True)
    assert args.parameters == {**{k: v for k, v in LONGROPE.items() if k != "rope_type"}, "factor": 4.0}
    sizes = {name: value for name, value in PHI3.items() if name != "original_max_position_embeddings"}
    again = Phi3Config(**sizes, **args.to_hf_config()).to_dict()
    assert read({name: again[name] for name in names}, 64, partial=True) == args


def test_a_proportional_part_is_one_of_angles_and_not_of_dimensions():
    entry = {"rope_type": "proportional", "rope_theta": 700.0, "partial_rotary_factor": 0.25}
    found = read({"rope_parameters": entry})
    assert found.parameters == {"partial_rotary_factor": 0.25}
    assert found.rotated_dim(64) == 64
    assert found.to_entry() == entry
    assert read(found.to_hf_config()) == found
    with pytest.raises(ModelError, match=r"partial_rotary_factor is 1\.5"):
        read({"rope_parameters": {**entry, "partial_rotary_factor": 1.5}})


def test_the_original_length_beside_the_parameters_counts_and_must_not_differ():
    inner = {name: value for name, value in LONGROPE.items() if name != "original_max_position_embeddings"}
    inner["rope_theta"] = 10000.0
    beside = {"rope_parameters": inner, "original_max_position_embeddings": 16}
    assert read(beside, 64).parameters["original_max_position_embeddings"] == 16
    assert read({"rope_parameters": inner}, 64, original_length=8).parameters["factor"] == 8.0
    with pytest.raises(ModelError, match=r"original_max_position_embeddings is 8, supported is the value of .*, 16"):
        read({"rope_parameters": {**inner, "original_max_position_embeddings": 16}}, 64, original_length=8)


def test_the_original_length_of_the_default_is_not_that_of_other_parameters():
    default = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 1e4}
    assert read({}, 64, default=default).parameters["original_max_position_embeddings"] == 8
    said = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}
    for length, entry in ((16, {**said, "original_max_position_embeddings": 16}), (64, said)):
        args = read({"rope_parameters": entry}, 64, default=default)
        assert args.parameters["original_max_position_embeddings"] == length


def test_a_null_factor_is_the_ratio_of_lengths():
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": None, "original_max_position_embeddings": 16}
    assert read({"rope_parameters": yarn}, 64).parameters["factor"] == 4.0
    with pytest.raises(ModelError, match=r"lacks \['factor'\]"):
        read({"rope_parameters": {name: value for name, value in yarn.items() if name != "factor"}}, 64)


GLM = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}


def test_what_is_not_said_is_what_the_family_means_by_that():
    assert read({}, default=DEFAULT_ROTARY) == RotaryArgs()
    assert read({}, default=GLM, partial=True) == RotaryArgs(theta=500.0, partial_factor=0.5)
    assert read({"rope_theta": 7.0}, default=GLM, partial=True) == RotaryArgs(theta=7.0, partial_factor=0.5)
    linear = {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}
    assert read(linear, default=GLM, partial=True).partial_factor == 0.5
    assert read(linear, default=GLM, partial=True).theta == 500.0


PARTIAL = "partial_rotary_factor"
LAYERED = {
    "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
    "no_attention": None,
}


def test_each_layer_type_has_its_own_entry():
    fields = fields_of(rope_parameters=LAYERED)
    full = take_rotary(fields, layer_type="full_attention")
    sliding = take_rotary(fields, layer_type="sliding_attention")
    fields.finish()
    assert full == RotaryArgs(theta=500.0, rotary_type="linear", parameters={"factor": 2.0})
    assert sliding == RotaryArgs(theta=10.0)
    tables = {"full_attention": full, "sliding_attention": sliding, "no_attention": None}
    fields = fields_of(**rotary_to_hf(tables))
    assert [take_rotary(fields, layer_type=name) for name in ("sliding_attention", "full_attention")] == [sliding, full]
    assert rotary_to_hf(tables)["rope_parameters"]["no_attention"] is None


def test_an_entry_without_a_part_is_refused_where_the_default_has_one():
    options = {"layer_type": "full_attention", "partial": True, "default": {**LAYERED["full_attention"], PARTIAL: 0.5}}
    said = {**LAYERED, "full_attention": {**LAYERED["full_attention"], PARTIAL: 0.25}}
    assert take_rotary(fields_of(rope_parameters=said), **options).partial_factor == 0.25
    assert take_rotary(fields_of(), **options).partial_factor == 0.5
    with pytest.raises(
        ModelError, match=r"rope_parameters\.full_attention\.partial_rotary_factor is None, supported is"
    ):
        take_rotary(fields_of(rope_parameters=LAYERED), **options)


def test_a_proportional_entry_without_a_part_is_not_given_that_of_the_default():
    """transformers turns all of a head then, and the default entry of LFM3 half of it."""
    half = {"rope_type": "proportional", "rope_theta": 500.0, PARTIAL: 0.5}
    options = {"layer_type": "full_attention", "default": half}
    said = {"full_attention": {"rope_type": "proportional", "rope_theta": 7.0}}
    with pytest.raises(ModelError, match=r"full_attention\.partial_rotary_factor is None, supported is"):
        take_rotary(fields_of(rope_parameters=said), **options)
    said["full_attention"][PARTIAL] = 1.0
    assert take_rotary(fields_of(rope_parameters=said), **options).theta == 7.0


def test_a_part_of_a_proportional_default_is_none_of_other_types_and_has_to_be_said():
    default = {"rope_type": "proportional", "rope_theta": 9.0, PARTIAL: 0.25}
    options = {"layer_type": "full_attention", "default": default}
    assert take_rotary(fields_of(), **options).parameters == {PARTIAL: 0.25}
    assert take_rotary(fields_of(rope_parameters=LAYERED), **options).partial_factor == 1.0
    silent = {"full_attention": {"rope_type": "proportional", "rope_theta": 9.0}}
    with pytest.raises(ModelError, match="partial_rotary_factor is None, supported is"):
        take_rotary(fields_of(rope_parameters=silent), **options)
    partial = {"full_attention": {**LAYERED["full_attention"], PARTIAL: 0.25}}
    with pytest.raises(ModelError, match=r"partial_rotary_factor is 0\.25, supported is 1\.0"):
        take_rotary(fields_of(rope_parameters=partial), **options)


def test_an_entry_that_nobody_reads_is_refused():
    fields = fields_of(rope_parameters=LAYERED)
    take_rotary(fields, layer_type="full_attention")
    with pytest.raises(ModelError, match=r"does not implement: rope_parameters=.*sliding_attention"):
        fields.finish()


DEFAULT = {"rope_type": "default", "rope_theta": 10.0}
REFUSED = {
    "nothing is said": ({}, {}, "does not say how positions are rotated"),
    "no theta": ({"rope_parameters": {"rope_type": "default"}}, {}, "has no rope_parameters.rope_theta"),
    "not proven": (
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10.0}},
        {"types": ("default", "yarn")},
        "rope_type is 'linear', supported is one of default, yarn",
    ),
    "partial": ({"rope_parameters": {**DEFAULT, "partial_rotary_factor": 0.5}}, {}, "factor is 0.5, supported is 1.0"),
    "partial beside": (
        {"rope_parameters": DEFAULT, "partial_rotary_factor": 0.5},
        {"default": DEFAULT_ROTARY},
        "factor is 0.5, supported is 1.0",
    ),
    "two parts": (
        {"rope_parameters": {**DEFAULT, "partial_rotary_factor": 0.5}, "partial_rotary_factor": 0.25},
        {"partial": True},
        "partial_rotary_factor is 0.25, supported is the value of rope_parameters.partial_rotary_factor",
    ),
    "all and more": (
        {"rope_parameters": {**DEFAULT, "partial_rotary_factor": 1.5}},
        {"partial": True},
        "above 0, at most 1",
    ),
    "flat for a layer type": ({"rope_parameters": DEFAULT}, {"layer_type": "full"}, "one entry per layer type"),
    "no such entry": ({"rope_parameters": LAYERED}, {"layer_type": "other"}, "does not say how positions"),
    "no rotation": ({"rope_parameters": LAYERED}, {"layer_type": "no_attention"}, "no_attention is None"),
    "layered, but one is wanted": ({"rope_parameters": LAYERED}, {"default": DEFAULT}, "unknown parameters"),
    "truncate of one layer type, which transformers overlooks": (
        {"rope_parameters": {"full_attention": {**LAYERED["full_attention"], "truncate": False}}},
        {"layer_type": "full_attention"},
        "full_attention.truncate is False",
    ),
    "older spelling of layers": (
        {"rope_parameters": LAYERED, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"layer_type": "full_attention"},
        "rope_scaling is",
    ),
    "no list": (
        {"rope_parameters": {**LONGROPE, "long_factor": 2.0, "rope_theta": 10.0, "factor": 2.0}},
        {},
        "long_factor is 2.0, supported is a list of numbers",
    ),
    "no number": (
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10.0, "factor": [2.0]}},
        {},
        "factor is .2.0., supported is a number",
    ),
}


@pytest.mark.parametrize(("config", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_said_or_not_implemented_is_refused(config, options, message):
    with pytest.raises(ModelError, match=message):
        read(config, **options)


def test_a_number_of_rotated_dimensions_means_a_part_and_must_not_contradict_it():
    options = {"partial": True, "rotated": ("rotary_dim", 24), "default": {"rope_type": "default", "rope_theta": 500.0}}
    half = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    assert read({}, **options).partial_factor == 1.0
    assert read({"rotary_dim": None}, **options).partial_factor == 1.0
    assert read({"rotary_dim": 6}, **options).partial_factor == 0.25
    assert read({"rotary_dim": 12, "rope_parameters": half}, **options).partial_factor == 0.5
    for contradicting in ({"rope_parameters": half}, {"partial_rotary_factor": 0.5}):
        with pytest.raises(ModelError, match=r"partial_rotary_factor|rotary_dim"):
            read({"rotary_dim": 6, **contradicting}, **options)
    for wrong in (0, 48, 6.0, True):
        with pytest.raises(ModelError, match="rotary"):
            read({"rotary_dim": wrong}, **options)


def test_numbers_of_a_familys_own_are_kept_beside_those_of_the_type():
    entry = {
        "rope_type": "yarn",
        "rope_theta": 500.0,
        "factor": 2.0,
        "original_max_position_embeddings": 8,
        "growth": 0.1,
    }
    names = ("growth", "original_max_position_embeddings")
    args = read({"rope_parameters": entry}, extra=names)
    assert args.extra == {"growth": 0.1, "original_max_position_embeddings": 8}
    assert args.parameters == {"factor": 2.0, "original_max_position_embeddings": 8}
    assert read(args.to_hf_config(), extra=names) == args

    plain = {"rope_type": "default", "rope_theta": 500.0, "original_max_position_embeddings": 8, "growth": 0.1}
    args = read({"rope_parameters": plain}, extra=names)
    assert (args.parameters, args.extra["original_max_position_embeddings"]) == ({}, 8)
    assert read(args.to_hf_config(), extra=names) == args


def test_numbers_that_change_nothing_are_dropped_and_all_others_refused():
    entry = {"rope_type": "default", "rope_theta": 500.0, "growth": 0.1}
    assert read({"rope_parameters": entry}, unused=("growth",)) == RotaryArgs(theta=500.0)
    with pytest.raises(ModelError, match=r"unknown parameters .'growth'"):
        read({"rope_parameters": entry})
    for wrong in ({}, {"growth": None}, {"growth": "much"}, {"growth": True}):
        with pytest.raises(ModelError, match=r"rope_parameters\.growth"):
            read({"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, **wrong}}, extra=("growth",))


def test_older_spellings_that_transformers_overlooks_are_refused_rather_than_obeyed():
    linear = {"rope_type": "linear", "factor": 2.0}
    default = {"rope_type": "default", "rope_theta": 500.0}
    with pytest.raises(ModelError, match=r"rope_scaling is .* overlooked"):
        read({"rope_scaling": linear}, default=default, unread=("rope_scaling",))
    with pytest.raises(ModelError, match=r"rope_theta is 700\.0.* overlooked"):
        read({"rope_theta": 700.0}, default=default, unread=("rope_theta",))
    assert read({"rope_theta": 500.0}, default=default, unread=("rope_theta",)).theta == 500.0
    both = {"rope_theta": 700.0, "rope_scaling": linear}
    assert read(both, default=default, unread=("rope_theta",)).theta == 700.0
    with pytest.raises(ModelError, match=r"rope_theta is 700\.0.* overlooked"):
        read(both, default=default, unread=("rope_scaling+rope_theta",))
    inside = {"rope_parameters": {**linear, "rope_theta": 700.0}, "rope_scaling": linear, "rope_theta": 700.0}
    assert read(inside, default=default, unread=("rope_scaling",)).rotary_type == "linear"


def test_a_base_beside_rope_parameters_counts_only_where_transformers_does_not_write_stale_ones():
    stale = {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}, "rope_theta": 10000.0}
    assert read(stale, unread=("rope_parameters+rope_theta",)).theta == 700.0
    with pytest.raises(ModelError, match=r"rope_theta is 10000\.0"):
        read(stale)
    both = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 700.0}, "rope_theta": 10000.0}
    both["rope_scaling"] = {"rope_type": "linear", "factor": 2.0}
    assert read(both, unread=("rope_parameters+rope_theta",)).theta == 700.0
    silent = {"rope_parameters": {"rope_type": "default"}, "rope_theta": 900.0}
    assert read(silent, unread=("rope_parameters+rope_theta",)).theta == 900.0
