"""Families that the template writes from reports written by hand, and what update, rename and undo make of them."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import model_reports as reports
import pytest

from tooling.cli.errors import ConflictError, NameRefusedError
from tooling.kit.receipts import read_receipt
from tooling.new.change import UnitRequest
from tooling.new.commands.rename import plan_rename
from tooling.new.commands.undo import plan_undo
from tooling.new.commands.update import plan_update
from tooling.new.matrix import Sandbox

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = ("llama", "gemma2", "gpt_neox", "deepseek_v3")


def save(report, path):
    path.write_text(json.dumps(report), encoding="utf-8")
    return str(path)


def request(name, report, folder):
    return UnitRequest(kind="model", name=name, options={"report": save(report, folder / f"{name}.json")})


@pytest.fixture(scope="module")
def generated(seed, tmp_path_factory):
    """Text of each changed file of each of FAMILIES, by path."""
    folder = tmp_path_factory.mktemp("families")
    plans = {name: Sandbox(seed).plan(request(name, reports.REPORTS[name](), folder)).plan for name in FAMILIES}
    return {name: {change.path: change.after.decode() for change in plan.changes} for name, plan in plans.items()}


def code(generated):
    """Path and text of every module and test."""
    for name, files in generated.items():
        yield from ((path, text) for path, text in files.items() if name in path and path.endswith(".py"))


def source(generated, name, file):
    return generated[name][f"areal/models/{name}/{file}.py"]


def test_documents_say_what_a_family_is_made_of(generated):
    assert "pre-norm blocks of grouped-query attention and SwiGLU" in generated["llama"]["docs/extensions.md"]


def test_functions_and_files_keep_to_the_limits_of_the_house(generated):
    for path, text in code(generated):
        assert len(text.splitlines()) <= 400, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name}"


def test_the_code_has_only_what_the_family_needs(generated):
    assert "softcap" in source(generated, "gemma2", "model")
    for word in ("softcap", "MixtureOfExperts", "scale=", "window", "residual_multiplier"):
        assert word not in source(generated, "llama", "model"), word
    assert "return self.query_pre_attn_scalar**-0.5" in source(generated, "gemma2", "args")
    assert "return layer >= self.first_k_dense_replace" in source(generated, "deepseek_v3", "args")
    assert "table" not in source(generated, "llama", "state_dict_adapter")
    assert 'arrangement="per_head"' in source(generated, "gpt_neox", "state_dict_adapter")


@pytest.mark.exhaustive
def test_what_few_families_have_is_written_where_it_is_needed(seed, tmp_path):
    report = reports.llama()
    report["layout"].append(reports.renamed("layers.*.mlp.activation", "model.layers.*.mlp.act_fn"))
    report["slots"]["layer.rotary"]["extra"] = ["growth", "idle"]
    report["slots"]["layer.rotary"]["thetas"] = "bases"
    bases = reports.used("bases", "list", default_rule=reports.field("rope_parameters.rope_theta"), nullable=True)
    report["fields"].append(bases)
    report["slots"]["layer.rotary.query_growth"] = reports.field("rope_parameters.growth")
    report["slots"]["layer.rotary.growth_length"] = reports.constant(8)
    plan = Sandbox(seed).plan(request("llama", report, tmp_path)).plan
    files = {change.path.rpartition("/")[2]: "".join(change.after.decode().split()) for change in plan.changes}
    assert "learned_activation=True" in files["model.py"]
    assert "args.rotary.with_theta(theta)" in files["model.py"]
    assert "returntables.get(theta)forthetainargs.bases" in files["model.py"].replace("[", "").replace("]", "")
    assert 'bases=fields.numbers_per_layer("bases",num_layers,null=rotary.theta)' in files["args.py"]
    assert 'query_growth=args.rotary.extra["growth"],growth_length=8' in files["model.py"]
    assert 'extra=("growth",),unused=("idle",)' in files["args.py"]


@pytest.mark.exhaustive
def test_choices_inside_choices_of_rotated_layers_become_one_question(seed, tmp_path):
    report = reports.llama()
    table, none = report["slots"]["layer.rotary"], reports.constant(None)
    conditions = [reports.per_layer(reports.multiple(of), table, none) for of in (2, 3)]
    report["slots"]["layer.rotary"] = reports.when_equal("tie_word_embeddings", True, *conditions)
    next(use for use in report["fields"] if use["name"] == "rope_parameters")["unread"] = ["rope_theta"]
    report["fields"].append(reports.used("plain", "list", default_rule=reports.constant([0, 1]), nullable=True))
    report["slots"]["layer.norms.input_layernorm.offset"] = reports.per_layer(
        reports.member("plain"), reports.constant(1.0), reports.constant(0.0)
    )
    plan = Sandbox(seed).plan(request("llama", report, tmp_path)).plan
    files = {change.path.rpartition("/")[2]: "".join(change.after.decode().split()) for change in plan.changes}
    assert "rotaryifargs.is_rotated(layer)elseNoneforlayerinrange" in files["model.py"]
    assert "returnlayer%2==0ifself.tie_word_embeddingselselayer%3==0" in files["args.py"]
    assert 'unread=("rope_theta",)' in files["args.py"]
    assert 'plain=fields.integers("plain",(0,1))' in files["args.py"]


@pytest.mark.exhaustive
def test_variants_that_are_left_out_are_not_reloaded_either(seed, tmp_path):
    report = reports.llama()
    report["variants"] = [
        {"name": name, "overrides": {"attention_bias": flag, "vocab_size": 64}, "parity": 1e-6, "tolerance": 5e-5}
        for name, flag in (("null", None), ("biased", True))
    ]
    plan = Sandbox(seed).plan(request("llama", report, tmp_path)).plan
    (test,) = [change.after.decode() for change in plan.changes if change.path.endswith("test_llama.py")]
    assert '"null"' not in test
    assert test.count('"biased"') == 2


def test_nothing_tells_where_the_code_came_from(generated):
    for path, text in code(generated):
        for word in ("generat", "areal-new", "template", "__family__", "jinja"):
            assert word not in text.lower(), f"{path}: {word}"


@pytest.mark.exhaustive
def test_a_renamed_family_is_renamed_everywhere(sandbox, tmp_path):
    sandbox.generate(request("gemma2", reports.gemma2(), tmp_path))
    sandbox.apply(plan_rename(sandbox.project, "model", "gemma2", "second-gemma"))
    model = (sandbox.root / "areal/models/second_gemma/model.py").read_text(encoding="utf-8")
    assert "def _norm(args: SecondGemmaArgs) -> RMSNorm:" in model
    assert '"gemma2": "areal.models.second_gemma:SPEC"' in (sandbox.root / "areal/models/registry.py").read_text()


@pytest.mark.exhaustive
def test_another_report_for_the_same_name_is_an_update(sandbox, tmp_path):
    sandbox.generate(request("llama", reports.llama(), tmp_path))
    sandbox.commit()
    changed = reports.llama()
    changed["slots"]["layer.attention.scale"] = reports.constant(0.5)
    with pytest.raises(ConflictError, match="exists with other answers"):
        sandbox.plan(request("llama", changed, tmp_path))
    path = save(changed, tmp_path / "changed.json")
    updated = plan_update(sandbox.project, "model", "llama", options={"report": path})
    (change,) = [change for change in updated.plan.changes if change.path.endswith("model.py")]
    assert b"scale=0.5" in change.after
    assert b"scale=" not in change.before


@pytest.mark.exhaustive
def test_a_second_family_for_a_type_is_refused(sandbox, tmp_path):
    sandbox.generate(request("llama", reports.llama(), tmp_path))
    with pytest.raises(NameRefusedError, match="the registry has 'llama'"):
        sandbox.plan(request("other", reports.llama(), tmp_path))


RECEIPTS = [path.stem for path in sorted((ROOT / ".areal/receipts/model").glob("*.json"))]


LONGEST = ("a" + "_long_type" * 20)[:90], ("A" + "LongArchitecture" * 10)[:90] + "ForCausalLM"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [("qwen9", "Qwen9ForCausalLM"), pytest.param(*LONGEST, marks=pytest.mark.exhaustive, id="longest")],
)
@pytest.mark.parametrize(
    "family", [*(pytest.param(name, marks=pytest.mark.exhaustive) for name in FAMILIES), *RECEIPTS]
)
def test_every_family_can_be_written_unproven_for_another_type(family, model_type, architecture, sandbox, tmp_path):
    """What `--like` makes of a proven report passes the gates of generated code, whatever the type is called."""
    proven = reports.REPORTS[family]() if family in FAMILIES else read_receipt(ROOT, "model", family).answers["report"]
    named = {"model_type": model_type, "architecture": architecture}
    config = {**proven["tiny_config"], "model_type": model_type, "architectures": [architecture]}
    nearest = [{"model_type": proven["model_type"], "differences": []}]
    unproven = {**proven, **named, "status": "unproven", "tiny_config": config, "nearest": nearest}
    unproven |= {"reference": {}, "evidence": []}
    change = sandbox.plan(request("another_one", unproven, tmp_path))
    assert all(check.ok for check in change.checks)
    assert change.receipt.entries == ()
    test = change.plan.read("tests/areal/models/test_another_one.py").decode()
    assert "is UNPROVEN" in " ".join(test.split())


@pytest.fixture(scope="module")
def emptied(copied, tmp_path_factory):
    """A repository without the families that it has receipts of."""
    sandbox = copied(tmp_path_factory.mktemp("emptied"))
    for name in RECEIPTS:
        sandbox.apply(plan_undo(sandbox.project, "model", name))
    return sandbox


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", RECEIPTS)
def test_the_families_of_this_repository_are_what_is_written_for_their_reports_now(name, emptied, tmp_path):
    receipt = read_receipt(ROOT, "model", name)
    made = emptied.plan(request(name, {**receipt.answers["report"], "evidence": []}, tmp_path))
    for change in made.plan.changes:
        if change.path.startswith(("areal/models/", "tests/")) and not change.path.endswith("registry.py"):
            assert change.after == (ROOT / change.path).read_bytes(), change.path
