"""What `areal-new model` refuses before anything is rendered, and what it says about an architecture."""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import model_reports as reports
import pytest

from tooling.cli.errors import UnsupportedSourceError, UsageError
from tooling.kit.names import parse_name
from tooling.kit.receipts import read_receipt
from tooling.new.change import Change, UnitRequest
from tooling.new.generators.model import prepare

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {
    "model_type": "qwen9",
    "architectures": ["Qwen9ForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "use_mystery": True,
    "rope_theta": 10000.0,
}


def prepared(name="llama", answers=None, **options):
    given = {option.replace("_", "-").removesuffix("-"): value for option, value in options.items()}
    request = UnitRequest(kind="model", name=name, answers=answers or {}, options=given)
    change = Change(root=ROOT, python=Path(sys.executable), request=request, names=parse_name(name))
    answers = prepare(change)
    return SimpleNamespace(
        answers=answers, warnings=change.warnings, next_steps=change.next_steps, findings=change.findings
    )


def save(folder, content, name="report.json"):
    path = folder / name
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def refused(error=UsageError, name="llama", **options):
    with pytest.raises(error) as caught:
        prepared(name, **options)
    return caught.value


# ------------------------------------------------------------------------------------------------------ real analyses


@pytest.mark.exhaustive
def test_an_unknown_type_is_refused_with_the_nearest_proven_families_and_the_ways_on():
    error = refused(name="qwen4")
    assert error.exit_code == 2
    assert error.where == "NAME"
    assert "unknown model_type 'qwen4': none of the " in error.message
    assert "transformers 5." in error.message
    assert "no file or folder of that name" in error.message
    lines = error.text.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["qwen3", "qwen2", "qwen3_moe"]
    assert "qwen4_exp" in lines[4]
    assert "areal-new model qwen4 --from CHECKPOINT_FOLDER" in error.text
    assert "areal-new model qwen4 --from FOLDER --source modeling.py --trust-source" in error.text
    assert "areal-new model qwen4 --from config.json --like qwen3" in error.text
    assert len(error.details["ways"]) == 3
    assert "no proven family has a similar name" in refused(name="zzyzx").text


@pytest.mark.exhaustive
def test_a_type_that_cannot_be_expressed_is_refused_with_the_feature_and_where_it_is():
    error = refused(UnsupportedSourceError, name="rwkv")
    assert (error.exit_code, error.code) == (8, "unsupported")
    assert "rwkv needs what areal.models.blocks cannot express: " in error.message
    assert "not supported (what, where, evidence):" in error.text
    assert error.details["report"]["missing"]


def test_a_config_of_an_unknown_type_is_compared_with_the_nearest_family(tmp_path):
    source = save(tmp_path, CONFIG, "config.json")
    error = refused(name="qwen9", from_=source, analyze_only="")
    nearest = error.text.splitlines()[1]
    assert nearest.split()[0].startswith("qwen")
    assert "lacks use_mystery" in nearest
    assert f"areal-new model qwen9 --from {source} --like qwen" in error.text
    assert {"field": "use_mystery", "theirs": True, "ours": None} in error.details["nearest"][0]["differences"]
    assert error.exit_code == 2


def test_a_config_alone_gives_a_scaffold_that_says_what_is_known(tmp_path):
    index = {"weight_map": {f"model.layers.{layer}.mixer.dt_bias": "a" for layer in range(2)}}
    save(tmp_path, index, "model.safetensors.index.json")
    made = prepared(name="qwen9", from_=save(tmp_path, CONFIG, "config.json"))
    report, family = made.answers["report"], made.answers["family"]
    assert (report["status"], report["model_type"]) == ("scaffold", "qwen9")
    assert report["tensors"] == {
        "listed": 2,
        "layers": 2,
        "other_parts": [],
        "without_place": ["model.layers.*.mixer.dt_bias"],
    }
    findings = "\n".join(family["scaffold"])
    assert "| `use_mystery` | `True` | `None` |" in findings
    assert "`model.layers.*.mixer.dt_bias`" in findings
    assert "args" not in family, "nothing that could compute is written"
    assert "SCAFFOLD" in made.warnings[0]
    assert "areal-new update model qwen9 --from FOLDER --trust-source" in made.next_steps[0]
    again = prepared(name="qwen9", answers={"report": report})
    assert again.answers["family"] == family


def test_a_hostile_config_gives_no_scaffold_and_no_source(tmp_path):
    error = refused(name="qwen9", from_=save(tmp_path, {**CONFIG, "model_type": 'x"; import os #'}, "config.json"))
    assert error.where == "--from"
    hostile_config = {**CONFIG, "architectures": ['A"""\\'], 'b`|"""': "{{ 7 * 7 }}"}
    made = prepared(name="qwen9", from_=save(tmp_path, hostile_config, "config.json"))
    family = made.answers["family"]
    assert not {'"', "\\"} & {*family["sentence"], *family["title"]}
    assert '"""' not in "".join(family["scaffold"])


def test_a_misspelt_family_is_named_with_the_nearest_ones(tmp_path):
    error = refused(name="qwen9", from_=save(tmp_path, CONFIG, "config.json"), like="qwenn3")
    assert error.where == "--like"
    assert "unknown model_type 'qwenn3'" in error.message
    assert "qwen3" in error.fix


def test_code_of_a_stranger_is_not_run_unasked(tmp_path):
    folder = tmp_path / "stranger"
    folder.mkdir()
    save(folder, {**CONFIG, "auto_map": {"AutoModelForCausalLM": "modeling_qwen9.Qwen9ForCausalLM"}}, "config.json")
    ran = folder / "ran"
    (folder / "modeling_qwen9.py").write_text(f"open({str(ran)!r}, 'w')\nclass Qwen9ForCausalLM: pass\n")
    error = refused(name="qwen9", from_=str(folder))
    assert "--trust-source" in str(error)
    assert not ran.exists()


@pytest.mark.exhaustive
def test_the_checklist_of_a_real_type_says_how_each_thing_is_known(own_processes):
    findings = prepared("llama", analyze_only="").findings
    assert findings.text.startswith("llama (LlamaForCausalLM, transformers ")
    assert "proven configs (largest difference of a logit):" in findings.text
    report = findings.data["report"]
    assert report["status"] == "proven"
    for use in report["fields"]:
        assert use["name"] in findings.text
    assert {item["source"] for item in report["evidence"]} <= {"config", "parameters", "source", "probe", "parity"}


@pytest.mark.exhaustive
def test_like_writes_what_nobody_has_proven_and_says_so(tmp_path):
    found = prepared("qwen9", from_=save(tmp_path, CONFIG, "config.json"), like="llama")
    assert found.answers["report"]["status"] == "unproven"
    assert found.answers["report"]["model_type"] == "qwen9"
    assert found.warnings[0].startswith("UNPROVEN: ")
    assert "use_mystery" in found.warnings[1]
    assert "rope_theta" not in found.warnings[1]
    assert "do not register it before its logits are equal" in found.next_steps


# ------------------------------------------------------------------------------------------- what was made before


@pytest.fixture
def made(tmp_path):
    """Ask for a model again, in a repository whose receipt says what it was made with, without any interpreter."""

    def ask(name="qwen3", made_with=None, installed="", answers=None, **options):
        receipt = read_receipt(ROOT, "model", "qwen3")
        report = {**receipt.answers["report"], **({"source": made_with} if made_with else {})}
        receipt = replace(receipt, answers={**receipt.answers, "report": report})
        path = tmp_path / receipt.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(receipt.to_bytes())
        library = tmp_path / ".venv/lib/python3.11/site-packages" / f"transformers-{installed}.dist-info"
        library.mkdir(parents=True, exist_ok=True)
        (library / "METADATA").write_text(f"Name: transformers\nVersion: {installed}\n", encoding="utf-8")
        request = UnitRequest(kind="model", name=name, answers=answers or {}, options=options)
        python = tmp_path / ".venv/bin/python"  # does not exist: whoever analyses fails
        change = Change(root=tmp_path, python=python, request=request, names=parse_name(name))
        return prepare(change), change.warnings, receipt

    return ask


def test_a_family_that_was_made_already_is_not_analysed_again(made):
    for name, options in (("qwen3", {}), ("Qwen3", {}), ("qwen3", {"from": "qwen-3"}), ("qwen3", {"from": "qwen3"})):
        answers, warnings, receipt = made(name, **options)
        assert answers == {name: receipt.answers[name] for name in ("family", "report")}
        assert warnings == []


@pytest.mark.parametrize("options", [{"from": "llama"}, {"analyze-only": ""}, {"like": "llama"}])
def test_whatever_else_is_asked_for_is_analysed(made, own_processes, options):
    with pytest.raises(UsageError, match="could not run"):
        made(**options)


def test_another_version_of_transformers_is_said_and_how_to_analyse_with_it(made):
    assert made(made_with="transformers 5.1.0", installed="5.1.0")[1] == []
    answers, (warning,), receipt = made(made_with="transformers 5.0.0", installed="5.1.0")
    assert answers["report"] == receipt.answers["report"]
    assert "was made with transformers 5.0.0, and transformers 5.1.0 is installed" in warning
    assert "`areal-new update model qwen3 --from qwen3`" in warning


def test_a_report_remembers_its_version_of_transformers_but_no_path(tmp_path):
    report = reports.gemma2()
    sources = {"transformers 5.23.0": "transformers 5.23.0", str(tmp_path / "gemma2"): None}
    for source, kept in sources.items():
        found = prepared("gemma2", report=save(tmp_path, {**report, "source": source}))
        assert found.answers["report"].get("source") == kept


# ------------------------------------------------------------------------------------------------------ saved reports


def test_a_saved_checklist_is_a_report(tmp_path):
    report = reports.gemma2()
    plain = prepared("gemma2", report=save(tmp_path, report))
    wrapped = prepared("gemma2", report=save(tmp_path, {"ok": True, "report": report}))
    assert plain == wrapped
    assert plain.answers["report"]["variants"][0].keys() == {"name", "overrides"}


def test_an_update_makes_the_pieces_again_from_the_report_in_the_receipt(tmp_path):
    first = prepared("gemma2", report=save(tmp_path, reports.gemma2())).answers
    assert prepared("gemma2", answers={"report": first["report"], "family": {}}).answers["family"] == first["family"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "is not a report"),
        ({}, "no status"),
        ({"status": "guessed", "model_type": "x", "architecture": "X"}, "no known status"),
        ({"status": "proven", "model_type": "x", "architecture": "X"}, "no tiny_config"),
        ({"status": "unsupported", "model_type": "x", "architecture": "X"}, "no missing"),
        ({**reports.llama(), "fields": [1]}, "fields without name, status"),
        ({**reports.llama(), "layout": [{"kind": "renamed"}]}, "layout without kind, ours, on_disk"),
        ({**reports.llama(), "slots": []}, "slots that are not object"),
        ({**reports.llama(), "slots": {}}, "something that no analysis says"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path, content, message):
    assert message in refused(report=save(tmp_path, content)).message


def test_files_that_are_no_json_are_refused(tmp_path):
    (tmp_path / "report.json").write_text("{")
    assert "is not a report" in refused(report=str(tmp_path / "report.json")).message
    assert "is not a report" in refused(report=str(tmp_path / "none.json")).message


def test_code_that_was_only_read_proves_nothing(tmp_path):
    report = {"status": "static", "model_type": "novel", "architecture": "NovelForCausalLM", "source": "folder"}
    assert "--trust-source" in refused(name="novel", report=save(tmp_path, report)).fix


@pytest.mark.parametrize("option", ["from_", "source", "like", "trust_source"])
def test_a_finished_report_needs_no_source(tmp_path, option):
    error = refused(report=save(tmp_path, reports.llama()), **{option: "x"})
    assert error.where == f"--{option.strip('_').replace('_', '-')}"


def test_a_modeling_file_needs_its_config():
    error = refused(name="novel", source="modeling_novel.py")
    assert (error.where, error.fix) == ("--source", "add --from FOLDER")


@pytest.mark.exhaustive
def test_errors_of_the_analysis_name_options_of_this_command(tmp_path):
    folder = tmp_path / "novel"
    folder.mkdir()
    save(folder, {**CONFIG}, "config.json")
    missing = refused(name="novel", from_=str(folder), source=str(folder / "none.py"))
    assert (missing.where, missing.fix) == ("--source", "name the modeling file")
    (folder / "modeling_novel.py").write_text("class NovelForCausalLM: pass\n")
    code = refused(name="novel", from_=str(folder), like="llama")
    assert code.where == "--like"
    assert "--static" not in str(refused(name="novel", from_=str(folder)))


@pytest.mark.parametrize("option", ["source", "trust_source"])
def test_nothing_is_guessed_where_code_could_prove_it(option):
    assert "a proof possible" in refused(like="llama", **{option: "x.py"}).message


# ------------------------------------------------------------------------------------------------------- hostile names


def hostile(change):
    report = reports.llama()
    change(report)
    return report


HOSTILE = {
    "field": lambda report: report["fields"].append(reports.used("x = __import__('os')", "int", 1)),
    "alias": lambda report: report["fields"][0].update(aliases=["a b"]),
    "architecture": lambda report: report.update(architecture='X"""'),
    "model type": lambda report: report.update(model_type='x": "y'),
    "ours": lambda report: report["layout"].append(reports.renamed("a()", "b")),
    "on disk": lambda report: report["layout"].append(reports.renamed("embed_positions", "a b")),
    "layer type": lambda report: report["slots"].update({"layer.rotary": reports.rotary("default", layer_type="a b")}),
    "tiny field": lambda report: report["fields"].append(reports.fixed("a-b", "int", 1, 1)),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_names_of_strangers_never_reach_source_code(tmp_path, change):
    error = refused(report=save(tmp_path, hostile(change)))
    assert "cannot be written into source code" in error.message


def test_texts_of_strangers_stay_texts(tmp_path):
    report = reports.llama()
    end = '""" + exit() + """'
    report["fields"].append(reports.ignored("novel_field", end))
    report["variants"].append({"name": end + "\n", "overrides": {end: end}, "parity": 0.0, "tolerance": 1.0})
    report["tiny_config"]["note"] = end
    report["skipped"] = [end]
    pieces = prepared(report=save(tmp_path, report)).answers["family"]
    texts = (pieces["args"]["ignored"][0][1], *pieces["tests"]["variants"][-1], pieces["adapter"]["skipped"][0])
    assert all(ast.literal_eval(text) for text in texts)


@pytest.mark.parametrize(
    ("slot", "node"),
    [
        ("layer.attention.scale", {"kind": "call"}),
        ("layer.attention.scale", reports.field("nobody_described_this")),
        (
            "layer.norms.input_layernorm.kind",
            reports.when_equal("mlp_bias", True, *map(reports.constant, ("rms", "layer"))),
        ),
        ("layer.block", reports.per_layer(reports.at_least("head_dim"), *map(reports.constant, ("pre", "post")))),
    ],
)
def test_what_the_template_cannot_write_is_refused(tmp_path, slot, node):
    report = reports.llama()
    report["slots"][slot] = node
    assert refused(report=save(tmp_path, report)).exit_code == 2
