"""A real run with a trace, a profile and FLOPs: what everybody did in the chosen steps is in one file."""

from __future__ import annotations

import gzip
import json
from types import SimpleNamespace

import pytest
import runs
import torch
from traces import check_trace

from areal.api import ConfigError
from areal.infra.metrics import names
from areal.infra.metrics.config import MetricsConfig, ProfileConfig, TraceConfig
from areal.infra.metrics.logger import read_metrics
from areal.infra.metrics.windows import StepWindows
from areal.models import from_config
from areal.models.flops import forward_flops
from areal.trainer.utilisation import Utilisation
from areal.utils import tracing
from areal.utils.accelerators import peak_tflops

SMALL = {"total_train_steps": 3, "rollout__batch_size": 2, "rollout__group_size": 2, "gconfig__max_new_tokens": 3}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of three steps; the second and third are traced, the second is profiled."""
    folder = tmp_path_factory.mktemp("recorded") / "run"
    changes = {"metrics__trace__steps": [2, 3], "metrics__profile__start_step": 2, "metrics__trackers__tensorboard": {}}
    changes["metrics__trackers__samples_every_steps"] = 2
    changes["reward"] = "areal.reward.exact:exact_reward"  # by its path: in a process
    config = runs.tiny(folder, **SMALL, **changes)
    runs.train(config)
    return config, folder


@pytest.mark.exhaustive
def test_a_trace_shows_trainer_rollouts_and_rewards_of_the_chosen_steps(recorded):
    _, folder = recorded
    assert not tracing.active()
    events = check_trace(folder / "trace" / "step-000002.json")
    slices = {event["name"] for event in events if event["ph"] == "X"}
    assert {"step 2", "step 3", "rollout_wait", "prepare", "update", "publish"} <= slices
    assert "step 1" not in slices
    assert {"episode", "generate", "reward"} <= {event["name"] for event in events if event["ph"] == "b"}
    processes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert "trainer" in processes
    assert any(name.startswith("reward ") for name in processes)
    scored = [event for event in events if event["ph"] == "X" and event["name"] == "value"]
    assert len({event["pid"] for event in scored}) >= 1


def test_every_sample_leads_to_the_step_that_trained_on_it(recorded):
    _, folder = recorded
    events = check_trace(folder / "trace" / "step-000002.json")
    trained = [event["id"] for event in events if event["ph"] == "f"]
    assert len(trained) == len(set(trained)) == 8  # two steps of two prompts with two samples
    finished = {event["id"] for event in events if event["ph"] == "s"}
    assert set(trained[4:]) <= finished  # those of the first of the two steps may be older than the recording


def test_a_tracker_gets_the_configuration_the_steps_the_samples_and_the_end(recorded):
    module = pytest.importorskip("tensorboard.backend.event_processing.plugin_event_accumulator")
    _, folder = recorded
    events = module.EventAccumulator(str(folder / "tensorboard")).Reload()
    text = {tag: events.Tensors(tag) for tag in ("config", "samples", "summary")}
    assert json.loads(text["config"][0].tensor_proto.string_val[0].decode()[7:-3])["seed"] == 3
    assert [item.step for item in events.Tensors(names.REWARD_MEAN)] == [1, 2, 3]
    assert [item.step for item in text["samples"]] == [2]
    summary = json.loads(text["summary"][0].tensor_proto.string_val[0].decode()[7:-3])
    assert (summary["state"], summary["exit_code"], summary["steps"]) == ("finished", 0, 3)
    assert json.loads((folder / "trackers.json").read_text())["sent"]["step"] == 3


def test_a_profile_names_operations_of_the_trainer(recorded):
    _, folder = recorded
    with gzip.open(folder / "profile" / "steps-000002-000002.json.gz", "rt") as file:
        found = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert "aten::mm" in found
    assert "Self CPU" in (folder / "profile" / "steps-000002-000002.txt").read_text()
    assert {item.name for item in (folder / "profile").iterdir()} == {
        "steps-000002-000002.json.gz", "steps-000002-000002.txt",
    }  # fmt: skip


def test_flops_per_token_are_those_of_the_model_and_there_is_no_mfu_on_cpus(recorded):
    config, folder = recorded
    steps = read_metrics(folder / "metrics.jsonl")
    model = from_config(config.model.init, seed=0)
    per_token = forward_flops(model, [1]) * 3
    for step in (1, 2, 3):
        # Prompt tokens need no projection to the vocabulary, longer sequences attend to more.
        assert 0.3 * per_token < steps[step][names.FLOPS_PER_TOKEN] < 2 * per_token
        assert names.MFU not in steps[step]


def test_mfu_is_needed_operations_over_possible_ones(recorded, monkeypatch):
    config, folder = recorded
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    config = runs.tiny(folder, **SMALL, actor__dtype="bfloat16")
    ranks = SimpleNamespace(device=torch.device("cuda", 0), size=2)
    found = Utilisation(config, ranks).metrics([5, 7], 0.5)
    needed = 3 * forward_flops(from_config(config.model.init, seed=0), [5, 7])
    assert found[names.MFU] == pytest.approx(needed / 0.5 / (2 * 989e12))
    assert found[names.FLOPS_PER_TOKEN] == needed / 12
    adapted = Utilisation(runs.tiny(folder, **SMALL, actor__lora__rank=2), ranks).metrics([5, 7], 0.5)
    assert adapted[names.FLOPS_PER_TOKEN] == needed / 12 * 2 / 3
    assert names.MFU not in adapted  # float32, for which the table has no peak


def test_a_model_that_cannot_be_counted_has_no_flops(recorded):
    config, _ = recorded
    init = {**config.model.init, "model_type": "unheard_of"}
    unknown = SimpleNamespace(model=SimpleNamespace(path="", init=init), actor=config.actor)
    ranks = SimpleNamespace(device=torch.device("cpu"), size=1)
    assert Utilisation(unknown, ranks).metrics([5, 7], 0.5) == {}
    assert Utilisation(config, ranks).metrics([], 0.5) == {}


def test_peaks_are_found_by_the_longest_name_that_fits():
    assert peak_tflops("NVIDIA H200") == 989.0
    assert peak_tflops("NVIDIA H100 PCIe") == 756.0
    assert peak_tflops("NVIDIA H20") == 148.0
    assert peak_tflops("Some CPU") is None


def test_steps_of_a_trace_are_an_ordered_pair_from_1_on():
    for steps in ((0, 2), (3, 2)):
        with pytest.raises(ConfigError, match="expected the first and the last step"):
            TraceConfig(steps=steps)


def test_a_step_that_is_recorded_again_gets_a_file_of_its_own(tmp_path):
    config = MetricsConfig(trace=TraceConfig(steps=(2, 2)))
    for _ in range(2):
        windows = StepWindows(config, tmp_path)
        for step in range(1, 4):
            windows.begin(step)
            windows.end(step)
        windows.close()
    assert sorted(item.name for item in (tmp_path / "trace").iterdir()) == ["step-000002-2.json", "step-000002.json"]


def test_a_folder_that_cannot_be_written_costs_the_recording_and_not_the_run(tmp_path, caplog):
    (tmp_path / "trace").write_text("in the way")
    windows = StepWindows(MetricsConfig(trace=TraceConfig(steps=(1, 2))), tmp_path)
    for step in (1, 2):
        windows.begin(step)
        windows.end(step)
    windows.close()
    assert not tracing.active()
    assert caplog.text.count("nothing is recorded") == 1


def test_a_run_that_stops_inside_a_window_keeps_what_was_recorded(tmp_path):
    config = MetricsConfig(trace=TraceConfig(steps=(1, 9)), profile=ProfileConfig(start_step=1, steps=9))
    windows = StepWindows(config, tmp_path)
    windows.begin(1)
    torch.ones(3).sum()
    windows.close()
    check_trace(tmp_path / "trace" / "step-000001.json")
    assert (tmp_path / "profile" / "steps-000001-000001.json.gz").exists()
