"""The dry run finds what makes a run impossible, all of it at once, and shows what the run would begin with."""

from __future__ import annotations

import json
import struct

import pytest
import runs
from safetensors.torch import load_file, save_file

from areal.api import ModelError
from areal.cli.main import main
from areal.models.loading import from_config
from areal.trainer.configuration import rehearsal as module
from areal.trainer.configuration.rehearsal import rehearse
from areal.trainer.configuration.source import load_config
from areal.trainer.configuration.validation import find_problems
from areal.trainer.configuration.weights import check_weights, read_header


def overrides(**changes):
    settings = runs.BASE | {key.replace("__", "."): value for key, value in changes.items()}
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]


def rehearsed(**changes):
    resolved = load_config(None, overrides(**changes))
    return rehearse(resolved.config, resolved.provenance)


def problems(**changes):
    return {problem.key: problem for problem in rehearsed(**changes).problems}


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "model"
    from_config(runs.BASE["model.init"], seed=1).save_pretrained(folder)
    return folder


def dry_run(tmp_path, capsys, **changes):
    config = tmp_path / "run.yaml"
    config.write_text("kind: rl\n")
    code = main(["train", str(config), *overrides(output_dir=str(tmp_path / "out"), **changes), "--dry-run", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_run_that_can_begin_shows_rows_prompt_reward_and_resolved_settings(tmp_path, capsys):
    rows = tmp_path / "train.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{'1+' * n}1=", "answer": "2"}) + "\n" for n in (1, 1, 1, 1, 40)))
    code, report = dry_run(tmp_path, capsys, train_dataset__path=str(rows), total_train_steps=None)
    assert code == 0
    facts = report["tried"]["rows"]["train_dataset"]
    assert (facts["read"], facts["used"], facts["too_long"], facts["limit"]) == (5, 4, 1, 60)
    assert report["derived"]["total_steps"] == 1, "steps count rows after filtering"
    assert report["tried"]["example"] == {"tokens": 4, "text": "1+1="}
    assert report["tried"]["reward"]["value"] == 1.0
    assert report["effective"]["objective.surrogate.clip_high"] == {"value": 0.28, "origin": "preset dapo"}
    assert report["effective"]["actor.dtype"]["value"] in ("float32", "bfloat16")
    assert report["hidden"]["vllm"] == "rollout.engine is embedded"
    assert not any(key.startswith("vllm.") for key in report["effective"])
    assert not (tmp_path / "out").exists()


def test_all_problems_are_listed_at_once_with_place_and_fix(tmp_path, capsys):
    code, report = dry_run(
        tmp_path, capsys, train_dataset__path=str(tmp_path / "no.jsonl"), reward="no_such_name",
        workflow_options={"max_turn": 3}, workflow="multi_turn", rollout__group_size=1,
    )  # fmt: skip
    assert code == 2
    found = {problem["key"]: problem for problem in report["problems"]}
    assert set(found) == {"reward", "rollout.group_size", "train_dataset"}
    assert "no dataset at" in found["train_dataset"]["message"]
    assert found["train_dataset"]["where"] == "command line"
    assert "3 problems in the configuration" in report["error"]


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"train_dataset.options": {"promt_column": "x"}}, "train_dataset.options", "did you mean 'prompt_column'"),
        ({"train_dataset.options": {"prompt_column": "x"}}, "train_dataset", "no column 'x'"),
        ({"workflow_options": {"enable_thinkin": True}}, "workflow", "did you mean 'enable_thinking'"),
        ({"reward": "json:no_such_function"}, "reward", "no_such_function"),
        ({"model.tokenizer_path": "characters:0123456789+-*/=abc"}, "model.tokenizer_path", "20 tokens but the model"),
        (
            {"rollout.batch_size": 65, "total_train_steps": None},
            "rollout.batch_size",
            "65 is more than the 64 training rows",
        ),
        (
            {"gconfig.max_new_tokens": 64, "engine.max_seq_len": 128, "objective.overlong_buffer": 0},
            "gconfig.max_new_tokens",
            "leaves no room for a prompt in the model's max_position_embeddings 64",
        ),
    ],
)
def test_what_makes_a_run_impossible_is_found(changes, key, message):
    found = problems(**changes)
    assert message in found[key].message


def test_without_a_tokenizer_a_workflow_is_not_blamed_for_it(tmp_path, capsys):
    """`model.path` is missing, which is one problem: what a workflow makes of no tokenizer is none."""
    flow = {"workflow": "environment", "workflow_options": {"environment": "x:Y", "credits": "turn"}}
    code, report = dry_run(tmp_path, capsys, model__path="/no/such", model__init={}, model__tokenizer_path="", **flow)
    assert code == 2
    found = {problem["key"]: problem["message"] for problem in report["problems"]}
    assert set(found) == {"model.path", "workflow"}
    assert "did you mean 'credit'" in found["workflow"]
    flow["workflow_options"].pop("credits")
    _, report = dry_run(tmp_path, capsys, model__path="/no/such", model__init={}, model__tokenizer_path="", **flow)
    assert [problem["key"] for problem in report["problems"]] == ["model.path"]


def test_code_of_the_user_that_raises_is_found_with_its_line_and_row(tmp_path, monkeypatch):
    """Loader and constructor of a workflow; a loader that ends the program ends no dry run."""
    (tmp_path / "raising_code.py").write_text(
        "def load(path, split, tokenizer, max_length):\n"
        "    rows = [{'q': 1}, {}]\n"
        "    return [row['q'] for row in rows]\n"
        "def leave(path, split, tokenizer, max_length):\n"
        "    raise SystemExit(0)\n"
        "def flow(*, reward, gconfig, tokenizer):\n"
        "    return [][3]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = problems(train_dataset__name="raising_code:load", workflow="raising_code:flow")
    assert "KeyError: 'q' (at " in found["train_dataset"].message
    assert "raising_code.py:3: return [row['q'] for row in rows]) for row 1" in found["train_dataset"].message
    assert "IndexError: list index out of range" in found["workflow"].message
    assert "raising_code.py:7" in found["workflow"].message
    assert "it ended the program" in problems(train_dataset__name="raising_code:leave")["train_dataset"].message


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"output_dir": "/dev/null"}, "output_dir", "/dev/null is not a folder"),
        ({"output_dir": "/dev/null/run"}, "output_dir", "/dev/null is not a folder"),
        ({"output_dir": "runs/a\0b"}, "output_dir", "expected printable characters"),
        ({"output_dir": "", "experiment_name": "../.."}, "experiment_name", "a folder below runs/"),
        ({"output_dir": "", "experiment_name": "/etc"}, "experiment_name", "a folder below runs/"),
        ({"output_dir": "", "trial_name": ""}, "trial_name", "a folder below runs/"),
    ],
)
def test_a_folder_that_cannot_be_that_of_a_run_is_found(changes, key, message):
    found = {problem.key: problem for problem in find_problems(load_config(None, overrides(**changes)).config)}
    assert message in found[key].message


def test_a_folder_without_permission_is_found(monkeypatch, tmp_path):
    """Whoever runs the tests may write everywhere."""
    config = load_config(None, overrides(output_dir=str(tmp_path / "a/b"))).config
    assert find_problems(config) == []
    monkeypatch.setattr("areal.trainer.configuration.validation.os.access", lambda path, mode: path != tmp_path)
    (problem,) = find_problems(config)
    assert f"no permission in {tmp_path}" in problem.message


WORLD = """
class World:
    def create(self):
        raise AssertionError("nothing is played in a dry run")
"""


@pytest.mark.parametrize(
    ("workflow", "options", "tried"),
    [
        ("environment", {"environment": "quiet_world:World"}, False),
        ("environment", {"environment": "quiet_world:World", "with_reward": True}, True),
        ("rlvr", {}, True),
    ],
)
def test_a_reward_that_says_nothing_is_scored_is_asked_only_where_the_run_would(
    workflow, options, tried, tmp_path, monkeypatch
):
    (tmp_path / "quiet_world.py").write_text(WORLD)
    monkeypatch.syspath_prepend(tmp_path)
    found = problems(workflow=workflow, workflow_options=options, reward="unscored")
    assert ["gives no scores" in str(problem) for problem in found.values()] == [True] * tried


def test_a_reward_that_raises_on_the_first_row_is_shown_with_its_line(tmp_path, monkeypatch):
    source = "def reward(*_, **row):\n    return row['gold']\nclass Reward:\n    def __init__(self, *, scale=1): pass\n"
    (tmp_path / "raising_reward.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    wrong = problems(reward={"own": {"path": "raising_reward:Reward", "options": {"no_such_option": 1}}})["reward"]
    assert "no_such_option" in wrong.message
    found = problems(reward="raising_reward:reward")["reward"]
    assert "called with completion" in found.message
    assert "KeyError: 'gold'" in found.message
    assert "raising_reward.py:2" in found.message


def test_more_than_the_machine_has_is_refused_with_figures(monkeypatch):
    monkeypatch.setattr(module, "host_memory", lambda: 100_000)
    monkeypatch.setattr(module, "accelerator", lambda: "")
    found = problems(actor__device="cpu")["model"]
    assert "this machine's memory has 0.0 GiB (actor weights" in found.message
    assert "actor.lora" in found.fix
    # What rarely becomes full is a note.
    monkeypatch.setattr(module, "host_memory", lambda: 2_000_000)
    light = rehearsed(actor__device="cpu")
    assert not light.problems
    assert any("full micro-batches may not fit" in note for note in light.notes)


def test_rows_of_sft_show_what_is_learned(tmp_path):
    resolved = load_config(
        None, [f"{key}={json.dumps(value)}" for key, value in {
            "kind": "sft", "batch_size": 4, "train_dataset.name": "jsonl", "train_dataset.path": str(runs.ROWS),
            "model.init": runs.BASE["model.init"], "model.tokenizer_path": runs.BASE["model.tokenizer_path"],
        }.items()]
    )  # fmt: skip
    found = rehearse(resolved.config, resolved.provenance)
    assert not found.problems
    example = found.facts["example"]
    assert example["text"].endswith(example["learned"])
    assert example["learned"].endswith("<eos>")


def test_whole_weights_pass(checkpoint):
    config = json.loads((checkpoint / "config.json").read_text())
    assert check_weights(checkpoint, config, native=True) > 0


def test_damaged_weights_are_found_by_their_headers(checkpoint):
    config = json.loads((checkpoint / "config.json").read_text())
    file = checkpoint / "model.safetensors"
    whole = file.read_bytes()
    # Copies: the file is mapped, and about to be written.
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}

    def refusal():
        with pytest.raises(ModelError) as caught:
            check_weights(checkpoint, config, native=True)
        return str(caught.value)

    file.write_bytes(whole[:-10])
    assert "is cut: 10 bytes are missing" in refusal()
    file.write_bytes(whole[:40])
    assert "cut inside its header" in refusal()
    file.write_bytes(struct.pack("<Q", 4) + b"nope")
    assert "its header is not that of a safetensors file" in refusal()
    name = "model.layers.0.mlp.up_proj.weight"
    save_file({key: value for key, value in tensors.items() if key != name}, file)
    assert name in refusal()
    save_file(tensors | {name: tensors[name][:-1].contiguous()}, file)
    assert name in refusal()


def test_a_missing_shard_is_named(tmp_path):
    folder = tmp_path / "sharded"
    from areal.models.saving import save_pretrained

    save_pretrained(from_config(runs.BASE["model.init"], seed=1), folder, max_shard_bytes=20_000)
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) > 1
    config = json.loads((folder / "config.json").read_text())
    check_weights(folder, config, native=True)
    assert read_header(shards[0]).tensors
    shards[0].rename(folder / "elsewhere")
    with pytest.raises(ModelError, match=f"names files that are not in its folder: .*{shards[0].name}"):
        check_weights(folder, config, native=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "computes on 'cpu' here"),
        ({"actor__device": "cuda", "engine__device": "cpu"}, "computes on 'cpu' here"),
        ({"actor__device": "cuda:1", "actor__router_replay": True}, "token by token"),
        ({"actor__device": "cuda:1"}, ""),
        ({"engine__cuda_graphs": "auto"}, ""),
    ],
)
def test_captured_decode_steps_are_refused_where_there_are_none(monkeypatch, changes, said):
    monkeypatch.setattr(module, "accelerator", lambda: "")
    found = problems(**{"engine__cuda_graphs": "on"} | changes).get("engine.cuda_graphs")
    assert (said in found.message) if said else found is None
