"""Models of runs published with the real client on a hub on loopback."""

import hashlib
import json

import pytest
import yaml

from areal.api import HubError, UsageError
from areal.cli.main import main
from areal.hub import publishing
from areal.hub.names import HubName, pin
from areal.hub.publishing import publish, repository_name
from areal.infra.checkpoint.store import Manifest
from areal.trainer.config import PPOConfig
from areal.trainer.model_card import build_card
from areal.trainer.python.arguments import RunSettings
from areal.trainer.python.result import TrainResult

CONFIG = {
    "kind": "rl",
    "model": {"path": "org/base@" + "1" * 40, "tokenizer_path": "/srv/someone/secret-project/tokenizer"},
    "output_dir": "/srv/someone/run",
    "objective": {"preset": "grpo"},
    "reward": {"judge": {"options": {"api_key": "sk-123"}}},
    "train_dataset": {"name": "gsm8k", "path": "openai/gsm8k@" + "2" * 40, "split": "train"},
    "eval_sets": {"test": {"dataset": {"name": "gsm8k", "path": "", "split": "test"}}},
}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    lines = [{"step": step, "reward/mean": step / 10, "eval/test/avg@1": step / 20} for step in range(1, 11)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    manifest = folder / "checkpoints" / "step-00000010.000001" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_bytes(Manifest(step=10, created_unix=0.0, files={}, meta={"rows": "abc123"}).to_bytes())
    model = folder / "final"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen3"}')
    (model / "model.safetensors").write_bytes(b"weights" * 1000)
    return folder


@pytest.fixture
def logged_in(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", hub.token)
    monkeypatch.setattr(publishing, "_PAUSES", (0.0, 0.0))
    return hub


def push(run, name="org/mine", **changes):
    card = build_card(run, HubName(name), step=10)
    return publish(run / "final", HubName(name, changes.pop("revision", "main")), card=card, message="m", **changes)


def test_the_card_is_read_by_the_hubs_own_client_and_tells_nothing_of_the_machine(run):
    from huggingface_hub import ModelCard

    text = build_card(run, HubName("org/mine"), step=5)
    card = ModelCard(text)
    assert card.data.base_model == "org/base"
    assert card.data.datasets == ["openai/gsm8k"]
    [result] = card.data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_split) == ("avg@1", 0.25, "test")
    for secret in ("someone", "sk-123", "secret-project"):
        assert secret not in text
    assert "`abc123`" in text
    assert "| reward | 0.1 |" in text
    assert 'from_pretrained("org/mine")' in text


def test_a_folder_becomes_a_repository_in_one_commit(run, logged_in):
    done = push(run, private=True)
    files = logged_in.files("org/mine")
    assert files["model.safetensors"] == b"weights" * 1000
    assert files["README.md"].startswith(b"---\n")
    assert logged_in.repositories["model", "org/mine"].private
    assert logged_in.repositories["model", "org/mine"].refs["main"] == done.commit
    assert sum("/commit/" in line for line in logged_in.requests) == 1
    assert done.url == f"{logged_in.url}/org/mine"


def test_old_shards_go_and_foreign_files_stay(run, logged_in):
    logged_in.add("org/mine", {"model-00001-of-00002.safetensors": b"old", "notes.txt": b"mine"})
    push(run, private=False)
    assert sorted(logged_in.files("org/mine")) == ["README.md", "config.json", "model.safetensors", "notes.txt"]


def test_a_branch_is_made_and_main_stays(run, logged_in):
    push(run, private=False, revision="step-10")
    assert "model.safetensors" in logged_in.files("org/mine", "step-10")
    assert "model.safetensors" not in logged_in.files("org/mine", "main")


def test_a_commit_that_fails_is_sent_again_without_the_files_that_arrived(run, logged_in):
    logged_in.faults["commit"] = 2
    push(run, private=False)
    assert "model.safetensors" in logged_in.files("org/mine")
    assert sum(line.startswith("PUT ") for line in logged_in.requests) == 1


def test_a_hub_that_keeps_failing_is_an_error_and_leaves_the_old_version(run, logged_in):
    logged_in.add("org/mine", {"README.md": b"old"})
    logged_in.faults["commit"] = 99
    with pytest.raises(HubError, match=r"failed \(503\)") as failed:
        push(run, private=False)
    assert "same command again" in failed.value.fix
    assert logged_in.files("org/mine") == {"README.md": b"old"}


@pytest.fixture
def large(run):
    """Weights in two files, each larger than what fits into the buffers of a connection."""
    (run / "final" / "model.safetensors").unlink()
    weights = {f"model-0000{n}-of-00002.safetensors": bytes([n]) * (6 << 20) for n in (1, 2)}
    for name, content in weights.items():
        (run / "final" / name).write_bytes(content)
    return weights


@pytest.fixture
def impatient(monkeypatch):
    """The client waits longer after each failed attempt; here it does not wait."""
    from huggingface_hub.utils import _http

    monkeypatch.setattr(_http.time, "sleep", lambda seconds: None)


def test_an_upload_whose_connection_is_reset_in_the_middle_goes_on(run, logged_in, large, impatient):
    logged_in.faults["reset"] = 2
    done = push(run, private=False)
    files = logged_in.files("org/mine")
    assert {name: files[name] for name in large} == large
    assert logged_in.repositories["model", "org/mine"].refs["main"] == done.commit
    assert sum("/commit/" in line for line in logged_in.requests) == 1


def test_an_upload_that_is_always_reset_publishes_nothing_and_the_same_call_goes_on(run, logged_in, large, impatient):
    old = logged_in.add("org/mine", {"README.md": b"old", "model.safetensors": b"old weights"})
    first = next(iter(large))
    logged_in.stored[hashlib.sha256(large[first]).hexdigest()] = large[first]  # what arrived before it broke
    logged_in.faults["reset"] = 10_000
    with pytest.raises(HubError, match=r"publishing org/mine at .* failed \(\w+Error\)") as failed:
        push(run, private=False)
    assert "same command again" in failed.value.fix
    assert logged_in.repositories["model", "org/mine"].refs["main"] == old
    assert logged_in.files("org/mine") == {"README.md": b"old", "model.safetensors": b"old weights"}
    assert not any("/commit/" in line for line in logged_in.requests)
    logged_in.faults.clear()
    logged_in.requests.clear()
    push(run, private=False)
    files = logged_in.files("org/mine")
    assert {name: files[name] for name in large} == large
    assert "model.safetensors" not in files, "the weights of the older version"
    assert sum(line.startswith("PUT ") for line in logged_in.requests) == 1, "only what was missing"


def test_what_this_process_published_is_what_it_reads_next(run, logged_in):
    """Else a model that is trained further, published and evaluated in one program would be the old one."""
    old = logged_in.add("org/mine", {"README.md": b"old"})
    assert pin("org/mine") == f"org/mine@{old}"
    done = push(run, private=False)
    assert done.commit != old
    assert pin("org/mine") == f"org/mine@{done.commit}"


def test_without_a_token_or_with_a_wrong_one_nothing_is_sent(run, hub, monkeypatch, caplog):
    with pytest.raises(HubError, match="needs a token") as failed:
        push(run, private=False)
    assert "hf auth login" in failed.value.fix
    monkeypatch.setenv("HF_TOKEN", "hf_wrong_one")
    with pytest.raises(HubError, match=r"does not let this token write to org/mine \(HTTP 401\)") as failed:
        push(run, private=False)
    assert "hf_wrong_one" not in f"{failed.value} {failed.value.fix} {caplog.text}"
    assert not hub.repositories


def result_of(run, **changes):
    """What training from Python returns, of this run."""
    summary = {"directory": str(run), "steps": 10, "total_steps": 10, "checkpoint": str(run / "final"), "exports": None}
    values = PPOConfig(output_dir=str(run.parent))
    return TrainResult(config=RunSettings(values=values), summary=summary | changes)


def test_a_result_publishes_its_model_with_the_numbers_of_its_step(run, logged_in):
    done = result_of(run).push("org/mine", private=True)
    assert logged_in.repositories["model", "org/mine"].private
    assert logged_in.repositories["model", "org/mine"].refs["main"] == done.commit
    assert b"after 10 steps" in logged_in.files("org/mine")["README.md"]
    best = {"best": {"folder": str(run / "final"), "step": 4}}
    assert result_of(run, exports=best).push("org/mine@best").revision == "best"
    assert b"after 4 steps" in logged_in.files("org/mine", "best")["README.md"]


def test_a_result_without_model_token_or_name_publishes_nothing(run, hub):
    with pytest.raises(HubError, match="needs a token"):
        result_of(run).push("org/mine")
    with pytest.raises(HubError, match="expected org/name"):
        result_of(run).push("mine")
    with pytest.raises(UsageError, match="stopped after step 10"):
        result_of(run, checkpoint=None).push("org/mine")
    assert not hub.repositories


@pytest.mark.parametrize("text", ["mine", "a/b/c", "org/name@" + "0" * 40, "", "/org/name"])
def test_what_is_not_a_name_is_refused(text):
    with pytest.raises(HubError, match="expected org/name"):
        repository_name(text)


def test_the_dry_run_shows_the_card_and_sends_nothing(run, hub, capsys):
    arguments = ["export", str(run), "--push-to-hub", "org/mine", "--dry-run", "--json", "--revision", "next"]
    code = main(arguments)
    found = json.loads(capsys.readouterr().out)
    assert code == 0, found
    assert found["hub"]["revision"] == "next"
    assert found["hub"]["card"].startswith("---\nlibrary_name: transformers")
    assert hub.requests == []
