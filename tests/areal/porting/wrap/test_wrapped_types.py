"""A text model inside a whole: what is found out about it, and what a model that is loaded by it computes and saves."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from areal.api import CheckpointError, FaultError, GenerationConfig, ModelError, ModelRequest
from areal.engine.config import EmbeddedEngineConfig
from areal.engine.embedded.engine import EmbeddedEngine
from areal.engine.train.loading import ShardSource
from areal.models import from_config, from_pretrained
from areal.models.adapter import TableAdapter
from areal.models.registry import get_spec
from areal.models.wrapping import NameLayout, Wrapper, whole_config
from areal.porting.records import SubjectError, UnsupportedError
from areal.porting.wrap.analyse import prove_wrapper
from areal.porting.wrap.proof import find_layouts
from areal.porting.wrap.whole import build_pair, find_wrapped, with_small_parts
from areal.testing import wrapped
from areal.trainer.configuration.weights import check_weights

TEXT = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 2e-3,
    "layer_types": ["full_attention", "full_attention"],
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def found():
    """What the analysis says of a type with towers, two layouts of names, and a text model that is registered."""
    return prove_wrapper(find_wrapped("internvl"), {**TEXT, "model_type": "qwen2"})


@pytest.fixture(scope="module")
def wrapper(found):
    layouts = tuple(
        NameLayout(prefixes=tuple(map(tuple, each["prefixes"])), kept=tuple(each["kept"])) for each in found["layouts"]
    )
    return Wrapper(
        model_type=found["model_type"],
        inner_types=tuple(found["inner_types"]),
        layouts=layouts,
        tied=tuple(map(tuple, found["tied"])),
        placeholders=found["placeholders"],
        sections=tuple(found["sections"]),
        idle=tuple(found["idle"]),
    )


@pytest.fixture(autouse=True)
def registered(wrapper, monkeypatch):
    monkeypatch.setattr("areal.models.loading.get_wrapper", {"internvl": wrapper}.get)


@pytest.fixture(scope="module")
def theirs(found):
    return wrapped.reference(found["tiny_config"])


@pytest.fixture(scope="module")
def folder(theirs, tmp_path_factory):
    """The whole checkpoint, as transformers writes it."""
    folder = tmp_path_factory.mktemp("whole")
    theirs.model.save_pretrained(folder)
    return folder


def changed(folder, target, **fields):
    """A copy of a checkpoint with other fields in its config.json."""
    shutil.copytree(folder, target)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (target / "config.json").write_text(json.dumps({**config, **fields}), encoding="utf-8")
    return target


# ---------------------------------------------------------------------------------------------------- what is found


@pytest.mark.exhaustive
def test_names_of_both_layouts_are_found(found):
    written, held = ({tuple(pair) for pair in each["prefixes"]} for each in found["layouts"])
    assert written == {("", "language_model.")}
    assert held == {("lm_head.", "lm_head."), ("model.", "model.language_model.")}
    assert [each["kept"] for each in found["layouts"]] == [
        ["multi_modal_projector", "vision_tower"],
        ["model.multi_modal_projector", "model.vision_tower"],
    ]


@pytest.mark.exhaustive
def test_the_head_is_tied_by_the_outer_field_or_else_by_default(found):
    assert [True, None, True] in found["tied"]
    assert [False, None, False] in found["tied"]
    assert [None, False, True] in found["tied"], "the inner field alone does nothing, which loading refuses"


def test_fields_of_other_parts_change_no_text(found):
    assert found["placeholders"] == {"image_token_id": 151667}
    assert {"downsample_ratio", "projector_hidden_act", "vision_feature_layer"} <= {*found["idle"]}
    assert found["fixed"] == {}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("model_type", "said"),
    [
        ("blip-2", "pixel_values"),
        ("paligemma", "computes something else"),
        ("perception_lm", "timm"),
    ],
)
def test_what_is_no_text_model_by_itself_is_refused_with_the_reason(model_type, said):
    whole = find_wrapped(model_type)
    with pytest.raises((SubjectError, UnsupportedError), match=said):
        prove_wrapper(whole, small_text(whole))


def small_text(whole):
    sizes = {"opt": {"ffn_dim": 48, "word_embed_proj_dim": 32}, "gemma": {"head_dim": 8}, "llama": {}}
    inner = whole.inner.model_type
    kept = {name: value for name, value in TEXT.items() if name != "layer_types"}
    return {**kept, **sizes[inner], "model_type": inner}


QWEN3 = {**TEXT, "model_type": "qwen3", "head_dim": 8}


@pytest.mark.exhaustive
def test_parts_that_hold_a_quarter_of_the_width_of_the_text_are_made_to_fit():
    small = with_small_parts(find_wrapped("fun_asr_nano"), QWEN3).sections["adaptor_config"]
    assert (small["hidden_size"], small["intermediate_size"]) == (32, 8)


@pytest.mark.exhaustive
def test_a_whole_with_such_a_part_is_proven():
    found = prove_wrapper(find_wrapped("fun_asr_nano"), QWEN3)
    assert found["placeholders"] == {"audio_token_id": 151646}
    assert found["sections"] == ["adaptor_config", "audio_config"]


def test_a_plain_text_model_is_no_wrapper():
    assert find_wrapped("qwen3") is None


@pytest.mark.exhaustive
def test_a_scale_that_the_whole_leaves_out_is_found_and_kept_in_the_config():
    whole = find_wrapped("granite_speech")
    text = {
        **{name: value for name, value in TEXT.items() if name != "layer_types"},
        **{"model_type": "granite", "logits_scaling": 4.0, "embedding_multiplier": 3.0},
    }
    assert prove_wrapper(whole, text)["replaced"] == {"logits_scaling": 1.0}


@pytest.mark.exhaustive
def test_names_that_are_written_and_not_read_are_refused(monkeypatch):
    whole = with_small_parts(find_wrapped("internvl"), {**TEXT, "model_type": "qwen2"})
    pairs = [build_pair(whole, TEXT, tie_word_embeddings=False)]

    def renamed(instance):
        names = {name: name.replace("vision_tower", "model.eyes") for name in instance.model.state_dict()}
        return {names[name]: tensor for name, tensor in instance.model.state_dict().items()}

    monkeypatch.setattr("areal.porting.wrap.proof.export", renamed)
    with pytest.raises(UnsupportedError, match="writes and does not read"):
        find_layouts(pairs)


# ------------------------------------------------------------------------------------------------- what is computed


def test_text_logits_equal_those_of_the_whole(folder, theirs):
    wrapped.assert_same_text(from_pretrained(folder), theirs)


def test_what_is_saved_is_the_whole_checkpoint(folder, theirs, tmp_path):
    wrapped.assert_whole_checkpoint(from_pretrained(folder), theirs, folder, tmp_path / "ours")


def test_other_names_are_read_and_written_back(wrapper, theirs, tmp_path):
    wrapped.assert_layout(wrapper, wrapper.layouts[1], theirs, tmp_path)


def test_images_and_positions_of_images_are_refused(wrapper, theirs, tmp_path):
    wrapped.assert_text_only(wrapper, theirs, tmp_path)


def test_configs_that_were_not_compared_are_refused(wrapper, found):
    wrapped.assert_refusals(wrapper, found["tiny_config"])


def test_only_the_trained_tensors_change(folder, tmp_path):
    ours = from_pretrained(folder)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(1.0)
    ours.save_pretrained(tmp_path / "out")
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    kept = {name for name in before if torch.equal(before[name], after[name])}
    assert kept == {name for name in before if not name.startswith("language_model.")}


def test_kept_tensors_stay_in_their_dtype(folder, tmp_path):
    stored = load_file(folder / "model.safetensors")
    source = changed(folder, tmp_path / "half")
    halved = {name: tensor.bfloat16() for name, tensor in stored.items()}
    save_file(halved, source / "model.safetensors", metadata={"format": "pt"})
    from_pretrained(source).save_pretrained(tmp_path / "out")
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for name, tensor in written.items() if "vision" in name} == {torch.bfloat16}
    assert all(torch.equal(written[name], halved[name]) for name in written if "vision" in name)


def test_a_checkpoint_that_is_gone_cannot_be_saved(folder, tmp_path):
    ours = from_pretrained(changed(folder, tmp_path / "moved"))
    shutil.rmtree(tmp_path / "moved")
    with pytest.raises(CheckpointError, match="more than its text model"):
        ours.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_saving_over_the_source_keeps_the_towers(folder, tmp_path):
    source = changed(folder, tmp_path / "own")
    ours = from_pretrained(source)
    for _ in range(2):
        ours.save_pretrained(source)
    before, after = load_file(folder / "model.safetensors"), load_file(source / "model.safetensors")
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_an_unknown_tensor_is_not_passed_over(folder, tmp_path):
    source = changed(folder, tmp_path / "extra")
    tensors = load_file(source / "model.safetensors")
    save_file({**tensors, "audio_tower.weight": torch.ones(2)}, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"unexpected audio_tower\.weight"):
        from_pretrained(source)


def test_random_weights_are_refused(found):
    with pytest.raises(ModelError, match="parts that are not trained"):
        from_config(found["tiny_config"])


# ------------------------------------------------------------------------------------------------ training, serving


def test_shards_are_read_from_prefixed_names(folder):
    source = ShardSource(folder, torch.device("cpu"))
    model = source.blank()
    assert model.args.wrapping.source == folder
    adapter = get_spec(model.args.model_type).state_dict_adapter(model.args)
    assert isinstance(adapter, TableAdapter)
    assert "language_model.model.embed_tokens.weight" in adapter.names_on_disk()
    assert model.args.wrapping.kept


def test_headers_are_checked_before_a_run(folder):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert check_weights(folder, config, native=True) > 0


def test_servers_get_the_names_and_the_config_of_the_whole(folder):
    ours = from_pretrained(folder)
    sent = get_spec(ours.args.model_type).state_dict_adapter(ours.args).to_hf(ours.state_dict())
    assert sent.keys() == {name for name in load_file(folder / "model.safetensors") if name.startswith("language")}
    content = whole_config(ours.args)
    assert content["model_type"] == "internvl"
    assert content["vision_config"]["hidden_size"]
    assert content["text_config"]["hidden_size"] == TEXT["hidden_size"]


async def test_a_prompt_with_an_image_is_a_fault_and_others_go_on(folder, tmp_path):
    ours = from_pretrained(changed(folder, tmp_path / "marked", image_token_id=5))
    engine = EmbeddedEngine(ours, config=EmbeddedEngineConfig(max_seq_len=32), eos_token_id=None)
    with pytest.raises(FaultError, match="token 5 is image_token_id"):
        await engine.agenerate(ModelRequest(input_ids=[7, 5, 9], gconfig=GenerationConfig(max_new_tokens=2)))
    done = await engine.agenerate(ModelRequest(input_ids=[7, 8, 9], gconfig=GenerationConfig(max_new_tokens=2)))
    assert len(done.output_tokens) == 2
    engine.close()


async def test_a_sampled_image_token_is_a_fault_not_an_answer(folder, tmp_path):
    plain = from_pretrained(folder)
    engine = EmbeddedEngine(plain, config=EmbeddedEngineConfig(max_seq_len=32), eos_token_id=None)
    greedy = GenerationConfig(max_new_tokens=3, greedy=True)
    likely = (await engine.agenerate(ModelRequest(input_ids=[7, 8, 9], gconfig=greedy))).output_tokens[0]
    engine.close()
    marked = from_pretrained(changed(folder, tmp_path / "marked", image_token_id=likely))
    engine = EmbeddedEngine(marked, config=EmbeddedEngineConfig(max_seq_len=32), eos_token_id=None)
    with pytest.raises(FaultError, match="stands for something other than text"):
        await engine.agenerate(ModelRequest(input_ids=[7, 8, 9], gconfig=greedy))
    engine.close()


@pytest.mark.exhaustive
@pytest.mark.parametrize("model_type", ["gemma4", "gemma4_unified"])
def test_towers_that_are_null_by_default_are_kept_where_they_are_there(model_type) -> None:
    whole = find_wrapped(model_type)
    assert whole.optional == {"vision_config", "audio_config"}

    report = prove_wrapper(whole)

    assert report["sections"] == ["audio_config", "vision_config"]
    assert not report["fixed"]
    assert {"model.embed_audio", "model.embed_vision"} <= set(report["layouts"][0]["kept"])
    assert report["tiny_config"]["text_config"]["pad_token_id"] == 0
