"""Names of the hub, played with the real client against a hub on loopback."""

import json

import pytest

from areal.api import HubError, ModelError
from areal.dataset.reading import read_rows
from areal.hub import download
from areal.hub.download import METADATA, RemoteFile, local_folder, read_range, to_fetch
from areal.hub.names import HubName, find_name, pin
from areal.trainer.config import DatasetConfig, DPOConfig, ModelConfig, PPOConfig
from areal.trainer.configuration.weights import check_remote_weights
from areal.trainer.hub_sources import pin_sources, recorded_pins, write_pins

FILES = {"config.json": b'{"model_type": "qwen3"}', "tokenizer.json": b"{}", "pytorch_model.bin": b"pickle"}
WEIGHTS = bytes(range(256)) * 4000
MODEL = FILES | {"model.safetensors": WEIGHTS, "onnx/model.safetensors": b"other"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubName("org/name", "main")),
        ("Qwen/Qwen2.5-0.5B@v1.0", HubName("Qwen/Qwen2.5-0.5B", "v1.0")),
        ("org/name@refs/pr/4", HubName("org/name", "refs/pr/4")),
        ("/org/name", None),
        ("./org/name", None),
        ("data/train.jsonl", None),
        ("gpt2", None),
        ("a/b/c", None),
        ("org/name@", None),
        ("characters:0123/@x", None),
        ("", None),
    ],
)
def test_names_are_told_from_paths(text, expected):
    assert find_name(text) == expected


def test_what_exists_locally_wins(tmp_path, monkeypatch):
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_name("org/name") is None
    assert str(local_folder("org/name")) == "org/name"
    assert find_name("org/name@main") is not None


def test_only_files_that_are_needed_are_fetched_and_never_twice(hub):
    sha = hub.add("org/model", MODEL)
    folder = local_folder("org/model", METADATA)
    assert sorted(hub.downloads()) == ["config.json", "tokenizer.json"]
    assert folder.name == sha
    assert [file for file in to_fetch(HubName("org/model")) if not file.is_cached] == [
        RemoteFile("model.safetensors", len(WEIGHTS), is_cached=False)
    ]
    assert local_folder("org/model@main").joinpath("model.safetensors").read_bytes() == WEIGHTS
    assert not (folder / "onnx").exists()
    assert not (folder / "pytorch_model.bin").exists()
    assert all(file.is_cached for file in to_fetch(HubName("org/model")))
    assert hub.downloads().count("config.json") == 1


def test_a_range_of_a_file_is_read_and_no_more_is_sent(hub, monkeypatch):
    monkeypatch.setattr(download, "_PAUSES", (0.0,))
    hub.add("org/model", MODEL)
    assert read_range(HubName("org/model"), "model.safetensors", 300, 5) == WEIGHTS[300:305]
    assert read_range(HubName("org/model"), "model.safetensors", len(WEIGHTS) - 3, 100) == WEIGHTS[-3:]
    assert hub.sent_bytes < 4096
    hub.faults["ranges"] = 1  # a server that sends all of it is read as far as needed
    assert read_range(HubName("org/model"), "model.safetensors", 300, 5) == WEIGHTS[300:305]
    hub.faults["download"] = 1
    assert read_range(HubName("org/model"), "model.safetensors", 0, 1000) == WEIGHTS[:1000]
    with pytest.raises(HubError):
        read_range(HubName("org/model"), "absent.safetensors", 0, 8)


def sharded(folder):
    """Return the files of a tiny model in several shards."""
    from areal.models import from_config, save_pretrained
    from areal.trainer.demo import MODEL as ARCHITECTURE

    save_pretrained(from_config(ARCHITECTURE, seed=3), folder, max_shard_bytes=60_000)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.exhaustive
def test_the_dry_run_of_a_name_reads_headers_and_finds_what_loading_would_fail_on(hub, tmp_path):
    files = sharded(tmp_path / "model")
    config = json.loads(files["config.json"])
    shards = sorted(name for name in files if name.endswith(".safetensors"))
    assert len(shards) > 2

    def check(files):
        name = HubName("org/tiny", hub.add("org/tiny", files))
        return check_remote_weights(name, to_fetch(name), config, native=True)

    total = sum(len(files[name]) for name in shards)
    assert 0 < check(files) < total
    first, second = files[shards[0]], files[shards[1]]
    cut = files | {shards[0]: first[:-10], shards[1]: b"\x04" + bytes(7) + b"nope"}
    with pytest.raises(ModelError) as caught:
        check(cut)
    assert f"{shards[0]} is cut: 10 bytes are missing" in str(caught.value)
    assert f"{shards[1]} is damaged" in str(caught.value)
    with pytest.raises(ModelError, match=f"names files that it does not have: {shards[0]}"):
        check({name: data for name, data in files.items() if name != shards[0]})
    with pytest.raises(ModelError, match=r"names \d+ tensors that its files lack"):
        check(files | {shards[0]: second})
    with pytest.raises(ModelError, match="has no weights"):
        check({"config.json": files["config.json"]})
    other = {**config, "vocab_size": config["vocab_size"] + 1}
    name = HubName("org/tiny", hub.add("org/tiny", files))
    with pytest.raises(ModelError, match=r"org/tiny@.*embed_tokens"):
        check_remote_weights(name, to_fetch(name), other, native=True)


def test_headers_of_a_large_file_are_all_that_is_sent(hub, monkeypatch):
    from areal.trainer.configuration import weights

    header = json.dumps({"a": {"dtype": "F32", "shape": [4_000_000], "data_offsets": [0, 16_000_000]}}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(16_000_000)
    name = HubName("org/large", hub.add("org/large", {"config.json": b"{}", "model.safetensors": content}))
    monkeypatch.setattr(weights, "_FIRST_READ", 64)  # as with a header that is longer than the first read
    assert check_remote_weights(name, to_fetch(name), {}, native=False) == 16_000_000
    assert hub.sent_bytes < 20_000


def test_one_process_reads_one_commit_of_a_branch_that_moves(hub):
    first = hub.add("org/model", MODEL)
    assert pin("org/model") == f"org/model@{first}"
    hub.add("org/model", MODEL | {"config.json": b'{"model_type": "llama"}'})
    assert (local_folder("org/model", METADATA) / "config.json").read_bytes() == FILES["config.json"]


def test_a_download_that_is_cut_goes_on(hub):
    hub.add("org/model", MODEL)
    hub.faults["download"] = 1
    assert (local_folder("org/model") / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.faults["download"] == 0


def test_what_the_hub_refuses_is_said_with_the_way_out(hub):
    hub.add("org/gated", MODEL, gated=True)
    hub.add("org/private", MODEL, private=True)
    hub.add("org/model", MODEL)
    with pytest.raises(HubError, match="is gated") as refused:
        local_folder("org/gated")
    assert f"{hub.url}/org/gated" in refused.value.fix
    for name in ("org/private", "org/absent"):
        with pytest.raises(HubError, match=f"no such folder '{name}', and the hub shows no model") as refused:
            pin(name)
        assert "hf auth login" in refused.value.fix
    with pytest.raises(HubError, match="org/model has no revision 'v9'"):
        pin("org/model@v9")
    with pytest.raises(HubError, match="has no revision"):
        local_folder("org/model@" + "0" * 40)


def test_a_token_of_the_environment_opens_private_ones(hub, monkeypatch):
    sha = hub.add("org/private", MODEL, private=True)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert local_folder("org/private", METADATA).name == sha


def test_offline_the_cache_is_used_or_the_command_named(hub, offline):
    sha = hub.add("org/model", MODEL)
    local_folder("org/model", METADATA)
    seen = len(hub.requests)
    offline()
    assert pin("org/model") == f"org/model@{sha}"
    assert local_folder("org/model", METADATA).name == sha
    for path in ("org/other@v1", f"org/model@{sha}"):
        with pytest.raises(HubError, match="HF_HUB_OFFLINE=1 forbids") as refused:
            local_folder(path)
        assert f"hf download {path.partition('@')[0]} --revision" in refused.value.fix
    assert len(hub.requests) == seen


def test_a_hub_that_does_not_answer_is_named(hub, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match=r"could not be fetched from http://127\.0\.0\.1:9") as refused:
        pin("org/model")
    assert "hf download org/model" in refused.value.fix


def test_rows_of_a_dataset_come_from_the_files_of_the_split(hub, offline):
    rows = b'{"question": "1+1", "answer": "2"}\n'
    first = hub.add("org/rows", {"train.jsonl": rows, "test.jsonl": b"", "image.bin": b"x"}, kind="dataset")
    read = read_rows("org/rows@main", "train")
    assert (read.rows, read.where(0)) == ([{"question": "1+1", "answer": "2"}], "line 1")
    assert hub.downloads() == ["train.jsonl"]
    hub.add("org/rows", {"train.jsonl": rows * 2}, kind="dataset")
    assert len(read_rows(f"org/rows@{first}", "train").rows) == 1
    offline()
    assert len(read_rows(f"org/rows@{first}", "train").rows) == 1


def test_every_name_of_a_run_is_pinned_and_stays_so_when_it_goes_on(hub, tmp_path):
    model = hub.add("org/model", MODEL)
    rows = hub.add("org/rows", {"train.jsonl": b"{}\n"}, kind="dataset")
    judge = {"areal.engine.train.model_reward:ModelReward": {"options": {"path": "org/model"}}}
    asked = PPOConfig(
        model=ModelConfig(path="org/model@main", tokenizer_path="characters:ab"),
        train_dataset=DatasetConfig(name="jsonl", path="org/rows"),
        reward=judge,
    )
    begun = pin_sources(asked, {})
    assert begun.config.model == ModelConfig(path=f"org/model@{model}", tokenizer_path="characters:ab")
    assert begun.config.train_dataset.path == f"org/rows@{rows}"
    assert begun.config.reward == {next(iter(judge)): {"options": {"path": f"org/model@{model}"}}}
    write_pins(tmp_path, begun.pins)
    assert json.loads((tmp_path / "hub.json").read_text())["commits"]["model org/model@main"] == model

    hub.add("org/model", MODEL | {"config.json": b"{}"})
    seen = len(hub.requests)
    assert pin_sources(asked, recorded_pins(tmp_path)).config == begun.config
    assert len(hub.requests) == seen
    assert pin_sources(begun.config, {}).config == begun.config


def test_the_reference_of_dpo_is_pinned_too(hub):
    sha = hub.add("org/model", MODEL)
    config = DPOConfig(model=ModelConfig(path="/somewhere"), reference_path="org/model")
    assert pin_sources(config, {}).config.reference_path == f"org/model@{sha}"


def test_teachers_are_pinned_too(hub):
    from areal.trainer.distillation_config import TeacherConfig

    sha = hub.add("org/model", MODEL)
    assert pin_sources({"main": TeacherConfig(path="org/model")}, {}).config["main"].path == f"org/model@{sha}"


def test_a_loader_of_the_users_own_means_what_it_likes_by_its_path(hub):
    config = PPOConfig(train_dataset=DatasetConfig(name="my_module:rows", path="some/thing"))
    assert pin_sources(config, {}).config is config


@pytest.mark.exhaustive
def test_a_run_on_names_of_the_hub_is_continued_with_its_commits(hub, tmp_path):
    import os
    import subprocess
    import sys

    from areal.models import from_config, save_pretrained
    from areal.trainer.demo import MODEL as ARCHITECTURE

    save_pretrained(from_config(ARCHITECTURE, seed=3), tmp_path / "model")
    model = {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()}
    rows = b'{"prompt": "1+1=", "answer": "2"}\n' * 8
    first = hub.add("org/tiny", model)
    hub.add("org/rows", {"train.jsonl": rows}, kind="dataset")
    config = tmp_path / "sft.yaml"
    config.write_text(
        "kind: sft\nbatch_size: 2\nmodel: {path: org/tiny, tokenizer_path: 'characters:0123456789+-*/='}\n"
        f"train_dataset: {{name: jsonl, path: org/rows@main}}\noutput_dir: {tmp_path / 'run'}\n"
        "actor: {dtype: float32}\nmetrics: {progress: false}\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "own"), "HF_HUB_DISABLE_XET": "1"}

    def train(*overrides):
        command = [sys.executable, "-m", "areal", "train", str(config), *overrides, "--json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    dry = train("--dry-run")
    assert dry["tried"]["downloads"]["model.path"]["files"] == 1
    assert not list((tmp_path / "own").rglob("*.safetensors"))
    train("total_train_steps=1")
    hub.add("org/tiny", {"config.json": b"{}"})
    again = train("total_train_steps=2")
    assert again["summary"]["steps"] == 2
    assert f"org/tiny@{first}" in (tmp_path / "run" / "config.yaml").read_text()
    assert json.loads((tmp_path / "run" / "hub.json").read_text())["commits"]["model org/tiny@main"] == first


def test_a_model_of_the_hub_is_evaluated_by_its_name(hub, tmp_path):
    from areal.trainer.evaluation.targets import resolve_target

    sha = hub.add("org/model", MODEL)
    config = tmp_path / "rl.yaml"
    config.write_text(
        "kind: rl\nreward: gsm8k\nmodel: {path: elsewhere, tokenizer_path: 'bytes:'}\n"
        "eval_sets: {test: {dataset: {name: gsm8k}}}\n"
    )
    target = resolve_target("org/model", config_file=config)
    assert target.name == target.config.model.path == f"org/model@{sha}"
    assert target.config.model.tokenizer_path == ""
    assert str(target.output) == f"runs/eval/org--model@{sha}"
    assert "model.safetensors" not in hub.downloads()
