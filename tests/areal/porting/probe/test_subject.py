"""What a source names: installed types by any spelling, folders with code, and everything that is no decoder."""

import json
import shutil

import pytest

from areal.porting.probe.lookup import UnknownConfigError, UnknownTypeError, UntrustedSourceError
from areal.porting.probe.subject import resolve
from areal.porting.probe.tiny import complete
from areal.porting.records import SubjectError


@pytest.mark.parametrize("spelling", ["gpt_oss", "gpt-oss", "GPT-OSS", "GptOssForCausalLM"])
def test_a_type_is_found_by_any_spelling(spelling):
    assert resolve(spelling).architecture == "GptOssForCausalLM"


def test_an_installed_type_knows_its_flattened_files():
    names = [file.name for file in resolve("qwen3").source_files]
    assert names == ["modeling_qwen3.py", "configuration_qwen3.py"]


def test_an_unknown_type_names_the_nearest():
    with pytest.raises(UnknownTypeError) as caught:
        resolve("qwen4")
    assert "unknown model_type 'qwen4'" in str(caught.value)
    assert [near["model_type"] for near in caught.value.nearest] == ["qwen3", "qwen2", "qwen3_moe"]
    assert any(name.startswith("qwen4_exp") for name in caught.value.others)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("gemma3", "gemma3_text"), ("qwen3_5", "qwen3_5_text"), ("bart", "encoder-decoder"), ("vit", "no causal")],
)
def test_what_is_no_decoder_is_refused_with_the_reason(name, reason):
    with pytest.raises(SubjectError, match=reason):
        resolve(name)


def test_a_checkpoint_folder_of_an_installed_type_keeps_its_config(tmp_path):
    content = {"model_type": "llama", "hidden_size": 512, "attention_bias": True}
    (tmp_path / "config.json").write_text(json.dumps(content), encoding="utf-8")
    for source in (tmp_path, tmp_path / "config.json"):
        subject = resolve(str(source))
        assert subject.architecture == "LlamaForCausalLM"
        assert subject.raw_config == content


def test_a_bare_config_of_an_unknown_type_is_compared_with_the_nearest_family(tmp_path):
    content = {
        "model_type": "qwen4",
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_experts": 64,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 512,
        "norm_topk_prob": True,
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
        "rms_norm_eps": 1e-6,
        "ngram_tables": 3,
    }
    (tmp_path / "config.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UnknownConfigError) as caught:
        resolve(str(tmp_path))
    best = caught.value.nearest[0]
    assert best["model_type"] == "qwen3_moe"
    rows = {row["field"]: row for row in best["differences"]}
    assert rows["ngram_tables"] == {"field": "ngram_tables", "theirs": 3, "ours": None}
    assert rows["num_experts_per_tok"]["theirs"] == 4
    assert "lacks ngram_tables" in best["reason"]


def test_a_broken_config_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(SubjectError, match="not a readable"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("model_type", [None, 5])
def test_a_config_without_code_names_its_type(tmp_path, model_type):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
    with pytest.raises(SubjectError, match=f"has model_type {model_type} instead of a name"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("source", ["/nowhere/at/all", "./nowhere", "nowhere/config.json"])
def test_a_path_that_is_not_there_is_no_unknown_type(source):
    with pytest.raises(SubjectError, match=r"is neither a folder|file not found") as caught:
        resolve(source)
    assert not isinstance(caught.value, UnknownTypeError)


def test_a_model_without_embeddings_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bare", "hidden_size": 8}', encoding="utf-8")
    (tmp_path / "modeling_bare.py").write_text(
        "import torch\nfrom transformers import PreTrainedModel\n"
        "class BareForCausalLM(PreTrainedModel):\n"
        "    def __init__(self, config):\n"
        "        super().__init__(config)\n"
        "        self.linear = torch.nn.Linear(8, 8)\n",
        encoding="utf-8",
    )
    with pytest.raises(SubjectError, match="get_input_embeddings"):
        complete(resolve(str(tmp_path), trust=True), {})


def test_foreign_code_runs_only_when_trusted(tmp_path, novel):
    folder = shutil.copytree(novel("cirrus"), tmp_path / "cirrus")
    ran = tmp_path / "ran"
    modeling = folder / "modeling_cirrus.py"
    marked = modeling.read_text(encoding="utf-8") + f"\nopen({str(ran)!r}, 'w').close()\n"
    modeling.write_text(marked, encoding="utf-8")
    with pytest.raises(UntrustedSourceError, match="not declared to be trusted: read the code"):
        resolve(str(folder))
    assert not ran.exists()
    resolve(str(folder), trust=True)
    assert ran.exists()


@pytest.mark.parametrize(
    ("name", "architecture", "config_class"),
    [
        ("aster", "AsterForCausalLM", "AsterConfig"),
        ("borealis", "BorealisForCausalLM", "BorealisConfig"),
        ("cirrus", "CirrusLM", "CirrusConfig"),
        ("deltamix", "DeltaMixForCausalLM", "ConfigOfFile"),
    ],
)
def test_folders_with_code_are_resolved(novel, name, architecture, config_class):
    subject = resolve(str(novel(name)), trust=True)
    assert (subject.architecture, subject.config_class.__name__) == (architecture, config_class)
    assert not subject.installed


def test_modeling_code_may_lie_elsewhere(tmp_path, novel):
    shutil.copy(novel("cirrus") / "config.json", tmp_path)
    code = tmp_path / "code" / "anything.py"
    code.parent.mkdir()
    shutil.copy(novel("cirrus") / "modeling_cirrus.py", code)
    assert resolve(str(tmp_path), modeling=code, trust=True).architecture == "CirrusLM"
    with pytest.raises(SubjectError, match="file not found"):
        resolve(str(tmp_path), modeling=tmp_path / "missing.py", trust=True)


def test_the_model_class_is_found_without_being_named(tmp_path, novel):
    folder = shutil.copytree(novel("aster"), tmp_path / "aster")
    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del content["architectures"], content["auto_map"]
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    assert resolve(str(folder), trust=True).architecture == "AsterForCausalLM"


def test_code_that_does_not_import_is_reported_with_its_file(tmp_path, novel):
    folder = shutil.copytree(novel("cirrus"), tmp_path / "cirrus")
    (folder / "modeling_cirrus.py").write_text("import no_such_module\n", encoding="utf-8")
    with pytest.raises(SubjectError, match=r"modeling_cirrus\.py needs the package no_such_module"):
        resolve(str(folder), trust=True)
