"""Nothing is lost by default: crashes, resumes, finished runs, edited code, starting over, and what is said of each."""

from __future__ import annotations

import functools
import itertools
import json
import shlex
from pathlib import Path

import pytest
import runs
import torch

from areal.api import ConfigError, FinishedError
from areal.cli.main import main
from areal.infra.checkpoint.schedule import SaveSchedule
from areal.infra.checkpoint.store import CheckpointStore
from areal.infra.diagnosis.record import load_record
from areal.infra.diagnosis.rules import diagnose
from areal.infra.diagnosis.summary import render, summarise
from areal.infra.metrics.attempts import read_attempts
from areal.infra.metrics.logger import read_metrics
from areal.infra.metrics.trackers import tracking
from areal.trainer import session as session_module
from areal.trainer.assembly import tokenizer_of
from areal.trainer.code_fingerprint import fingerprint_code
from areal.trainer.configuration.source import dump_yaml, load_config, to_mapping
from areal.trainer.recovery import refusal
from areal.trainer.session import open_session
from areal.trainer.sources import TrainingSources

SMALL = {"rollout__batch_size": 2, "rollout__group_size": 2}


def supervised(folder: Path, **changes):
    """A supervised run of two steps, which needs no reward process."""
    shared = {name: value for name, value in runs.BASE.items() if name.startswith(("model", "seed", "metrics"))}
    settings = shared | {
        "kind": "sft", "output_dir": str(folder), "train_dataset.name": "jsonl", "train_dataset.path": str(runs.ROWS),
        "batch_size": 4, "total_train_steps": 2,
    }  # fmt: skip
    settings |= {key.replace("__", "."): value for key, value in changes.items()}
    return load_config(None, [f"{key}={json.dumps(value)}" for key, value in settings.items()]).config


@pytest.fixture
def command(tmp_path, capsys):
    """Run `areal train` on a configuration with further arguments; returns exit code and JSON object."""

    def run(config, *arguments):
        path = tmp_path / "config.yaml"
        path.write_text(dump_yaml(config))
        code = main(["train", str(path), *arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


class Crash(Exception):
    """What a run does not expect."""


@pytest.mark.fault(
    row=1,
    injected="a run with the default checkpoint settings, whose steps take a minute each, crashes in its fourth step",
    seen="the same command continues from the third one to the bits of a run that never saved; what was logged before "
    "the crash is still in the files",
)
def test_a_crash_with_default_settings_loses_minutes_and_no_line(tmp_path, monkeypatch):
    _, straight = runs.train(runs.tiny(tmp_path / "straight", **SMALL, checkpoint__every_seconds=0))
    # The only thing that is not real is the time that a step takes.
    clock = itertools.count(step=61).__next__
    monkeypatch.setattr(session_module, "SaveSchedule", functools.partial(SaveSchedule, clock=clock))
    config = runs.tiny(tmp_path / "run", **SMALL)

    def crash(step, trajectories):
        if step == 3:
            raise Crash
        return list(trajectories)

    with pytest.raises(Crash):
        runs.train(config, transform_rewards=crash)
    (newest, *_) = CheckpointStore(config.directory / "checkpoints", keep=2).steps()[::-1]
    assert newest in (2, 3)
    logged = (config.directory / "metrics.jsonl").read_bytes()
    summary, weights = runs.train(config)
    assert summary["finished"]
    assert [name for name in straight if not torch.equal(straight[name], weights[name])] == []
    assert (config.directory / "metrics.jsonl").read_bytes().startswith(logged)
    assert list(read_metrics(config.directory / "metrics.jsonl")) == [1, 2, 3, 4]
    assert [one.first_step for one in read_attempts(config.directory / "metrics.jsonl")] == [0, newest + 1]


def test_saves_by_time_that_fail_end_no_run_and_the_disk_is_used_when_it_has_room_again(tmp_path, caplog):
    config = runs.tiny(tmp_path / "run", checkpoint__every_seconds=1e-9, checkpoint__max_overhead=1)
    folder = config.directory / "checkpoints"
    with open_session(config) as session:
        for step in session.steps(12, lambda: {"state": {}}, lambda folder: None):
            if step == 1:
                folder.rename(tmp_path / "aside")
                folder.write_text("not a folder")
            if step == 10:
                folder.unlink()
                (tmp_path / "aside").rename(folder)
            session.finish_step({})
        assert session.saved == {"step": 12, "folder": str(folder / "step-00000012.000003")}
    assert caplog.text.count("training goes on (0 of 3 tolerated failures)") == 9


def test_a_finished_run_says_that_nothing_was_trained_until_it_is_to_go_on_or_start_over(tmp_path, command):
    config = supervised(tmp_path / "run")
    code, first = command(config)
    assert (code, first["ok"], first["summary"]["saved"]["step"]) == (0, True, 2)
    before = (config.directory / "metrics.jsonl").read_bytes()
    code, again = command(config)
    assert (code, again["ok"], again["code"]) == (24, False, "finished")
    assert again["error"].startswith("already finished: nothing trained. All 2 steps")
    assert "total_train_steps" in again["fix"]
    assert "--restart" in again["fix"]
    assert (config.directory / "metrics.jsonl").read_bytes() == before
    record = load_record(config.directory)
    assert (record.state, record.problem, diagnose(record)) == ("finished", "", [])
    code, plan = command(config, "--dry-run")
    assert (code, plan["recovery"]["finished_steps"], plan["recovery"]["begin"]) == (0, 2, "resume")
    code, longer = command(supervised(tmp_path / "run", total_train_steps=3))
    assert (code, longer["summary"]["steps"]) == (0, 3)

    code, plan = command(config, "--restart", "--dry-run")
    assert code == 0
    assert plan["recovery"]["archive"]["to"] == str(config.directory / "archived" / "0001")
    assert {"checkpoints", "final", "metrics.jsonl"} <= set(plan["recovery"]["archive"]["entries"])
    assert (config.directory / "final").is_dir(), "a dry run moves nothing"
    old = (config.directory / "metrics.jsonl").read_bytes()
    code, fresh = command(config, "--restart")
    assert (code, fresh["summary"]["steps"]) == (0, 2)
    assert (config.directory / "archived" / "0001" / "metrics.jsonl").read_bytes() == old
    (newest,) = read_attempts(config.directory / "metrics.jsonl")
    assert newest.run_id != read_attempts(config.directory / "archived" / "0001" / "metrics.jsonl")[0].run_id
    assert load_record(config.directory / "archived" / "0001").last_step == 3


def saving(config, step):
    """Open the run, say that it did `step` steps, and save."""
    with open_session(config) as session:
        session.finished_steps = step
        session.save_last(lambda: {"state": {"step": step}})


def test_trackers_and_attempts_share_one_id_which_a_run_that_begins_anew_does_not_keep(tmp_path, monkeypatch):
    config, tracked = runs.tiny(tmp_path / "run", metrics__trackers__samples_every_steps=3), []
    real = tracking.open_trackers
    monkeypatch.setattr(
        tracking, "open_trackers", lambda run, *more, **kept: tracked.append(run.id) or real(run, *more, **kept)
    )
    for saves in (False, True, True):
        with open_session(config) as session:
            session.finished_steps += 1
            session.metrics.log(session.finished_steps, {"a": 1.0})
            if saves:
                session.save_last(lambda: {"state": {}})
    assert [one.run_id for one in read_attempts(config.directory / "metrics.jsonl")] == tracked
    assert [tracked.index(one) for one in tracked] == [0, 1, 1]


def test_a_run_whose_model_was_not_written_is_not_finished(tmp_path):
    config = runs.tiny(tmp_path / "run")
    saving(config, 4)
    (config.directory / "final").mkdir()  # of an earlier, shorter run
    (config.directory / "finished.json").write_text('{"steps": 2}')
    with open_session(config) as session:
        session.check_unfinished(4)
        session.summary(total_steps=4, export=lambda folder: folder.mkdir(exist_ok=True))
    with open_session(config) as session, pytest.raises(FinishedError):
        session.check_unfinished(4)
    with open_session(config) as session:
        session.check_unfinished(5)


def test_a_reward_that_was_edited_is_refused_with_the_ways_out(tmp_path, monkeypatch):
    (tmp_path / "edited_reward.py").write_text("from edited_helper import ONE\ndef score(*a, **d):\n    return ONE\n")
    (tmp_path / "edited_helper.py").write_text("ONE = 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = runs.tiny(tmp_path / "run", reward="edited_reward:score")
    saving(config, 2)
    (tmp_path / "edited_helper.py").write_text("ONE = 1.0  # a comment\n")
    with open_session(config) as session:
        assert session.first_step == 2
    (tmp_path / "edited_helper.py").write_text("ONE = 2.0\n")
    with pytest.raises(
        ConfigError, match=r"reward edited_reward:score: edited_helper \(.*edited_helper\.py\)"
    ) as caught:
        saving(config, 3)
    for way_out in ("restore", "--restart", "checkpoint.allow_config_change=true"):
        assert way_out in caught.value.fix
    saving(runs.tiny(tmp_path / "run", reward="edited_reward:score", checkpoint__allow_config_change=True), 3)
    saving(config, 4)  # accepted once, the new code is that of the run


def test_not_to_resume_is_refused_with_the_way_to_start_over(tmp_path):
    saving(runs.tiny(tmp_path / "run"), 1)
    with pytest.raises(ConfigError, match="--restart, which archives") as caught:
        saving(runs.tiny(tmp_path / "run", checkpoint__resume=False), 1)
    assert "--restart" in caught.value.fix


def test_only_the_first_start_of_a_launch_starts_over(tmp_path, monkeypatch):
    config = runs.tiny(tmp_path / "run")
    saving(config, 3)
    monkeypatch.setenv("AREAL_LAUNCH_START", "1")
    with open_session(config, restart=True) as session:
        assert session.first_step == 3
    monkeypatch.setenv("AREAL_LAUNCH_START", "0")
    with open_session(config, restart=True) as session:
        assert session.first_step == 0
    assert (config.directory / "archived" / "0001" / "checkpoints").is_dir()


@pytest.mark.exhaustive
def test_a_stopped_run_says_what_is_saved_and_the_command_that_continues_it(tmp_path, command, monkeypatch, capsys):
    from areal.trainer.sft import SFTTrainer

    config = supervised(tmp_path / "run", total_train_steps=5)
    learn = SFTTrainer.learn

    def interrupted(self, ordinals):
        if ordinals.start == 4:
            self.session.stop._handle(2, None)  # as Ctrl-C does
        return learn(self, ordinals)

    monkeypatch.setattr(SFTTrainer, "learn", interrupted)
    code, stopped = command(config, "seed=4", "--restart")
    saved = stopped["summary"]["saved"]
    assert (code, saved["step"], stopped["summary"]["finished"]) == (130, 2, False)
    assert Path(saved["folder"], "manifest.json").is_file()
    text = stopped["next"][0]
    assert text.startswith(f"Stopped after step 2 of 5; the state after step 2 is saved in {saved['folder']}. ")
    assert "without --restart" in text
    assert text.endswith(f"`areal train {tmp_path}/config.yaml seed=4`")
    monkeypatch.undo()
    assert main([*shlex.split(text.rpartition("`areal")[2].rstrip("`")), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["steps"] == 5


@pytest.mark.exhaustive
def test_the_dry_run_says_when_a_run_saves_and_how_it_begins(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    config = supervised(tmp_path / "run")
    path.write_text(dump_yaml(config))
    assert main(["train", str(path), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "starts at step 0: there is no checkpoint" in text
    assert "more than 3 % of the time" in text
    assert "the newest 2 checkpoints, about " in text
    saving(config, 2)
    for arguments, expected in (
        ([], "continues from the checkpoint of step 2"),
        (["--no-resume"], "refused: there are checkpoints of steps [2]"),
        (["--restart"], f"into {config.directory / 'archived' / '0001'}"),
        (
            ["actor.lr=0.5"],
            "refused: the configuration differs from the one the checkpoint was made with:\n            actor.lr:",
        ),
        (["actor.lr=0.5", "checkpoint.allow_config_change=true"], "continues from the checkpoint of step 2"),
    ):
        is_refused = expected.startswith("refused")
        assert main(["train", str(path), "--dry-run", *arguments]) == (2 if is_refused else 0)
        output = capsys.readouterr()
        assert expected in output.out
        assert ("warning: the run would be refused" in output.err) == is_refused
        assert ("The run would be refused (exit code 2): " in output.out) == is_refused


@pytest.mark.exhaustive
def test_the_dry_run_ends_with_the_code_of_the_run_that_would_be_refused(tmp_path, command, monkeypatch):
    """Rows, code and settings that differ, and checkpoints that are all damaged: what the run itself raises."""
    rows, reward = tmp_path / "rows.jsonl", tmp_path / "watched_reward.py"
    rows.write_text('{"prompt": "1+1=", "answer": "2"}\n')
    reward.write_text("def score(*a, **d):\n    return 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = runs.tiny(
        tmp_path / "run", reward="watched_reward:score", train_dataset__path=str(rows), rollout__batch_size=1,
    )  # fmt: skip
    with open_session(config) as session:
        session.check_rows(dry_rows(config))
        session.finished_steps = 1
        session.save_last(lambda: {"state": {}})
    assert command(config, "--dry-run")[0] == 0, "nothing differs"
    code, found = command(config, "--dry-run", "seed=7")
    assert (code, found["ok"], found["code"]) == (2, False, "config")
    assert "seed: was 3, is 7" in found["error"]
    assert "--restart" in found["fix"]
    rows.write_text('{"prompt": "1+2=", "answer": "3"}\n')
    code, found = command(config, "--dry-run")
    assert (code, found["recovery"]["begin"]) == (2, "refused")
    assert "other rows than those the checkpoint of step 1 was trained on" in found["error"]
    assert command(config, "--dry-run", "checkpoint.allow_config_change=true")[0] == 0
    assert command(config, "--dry-run", "--restart")[0] == 0
    reward.write_text("def score(*a, **d):\n    return 0.5\n")
    code, found = command(config, "--dry-run")
    assert code == 2
    assert "reward watched_reward:score" in found["error"]
    for manifest in (tmp_path / "run" / "checkpoints").glob("*/manifest.json"):
        manifest.write_text("{")
    code, found = command(config, "--dry-run")
    assert (code, found["code"], found["error"]) == (21, "checkpoint", "all checkpoints are damaged")


def dry_rows(config):
    """Fingerprint of the rows as the run itself takes it."""
    return TrainingSources(config, tokenizer_of(config.model)).fingerprint()


def test_a_report_names_the_attempts_and_shows_older_ones_on_request(tmp_path, capsys):
    config = runs.tiny(tmp_path / "run")
    with open_session(config) as session:
        session.finished_steps = 1
        session.save_last(lambda: {"state": {}})
        for step in (1, 2, 3):
            session.metrics.log(step, {"reward/mean": 0.5})
    with open_session(config) as session:
        session.metrics.log(2, {"reward/mean": 0.75})
    content = summarise(load_record(config.directory), [])
    assert [(one["number"], one["first_step"]) for one in content["run"]["attempts"]] == [(1, 0), (2, 2)]
    assert "attempts     1 from step 0, 2 from step 2" in render(content)
    seen = {}
    for number in (1, 2):
        assert main(["report", str(config.directory), "--attempt", str(number), "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        page = Path(report["path"])
        assert page.name == f"report.attempt-{number}.html"
        assert f"as attempt {number} left them" in page.read_text()
        seen[number] = (report["run"]["steps"], report["metrics"]["reward/mean"]["last"])
    assert seen == {1: (3, 0.5), 2: (2, 0.75)}
    assert main(["report", str(config.directory), "--attempt", "3", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["fix"] == "name one of 1, 2"


@pytest.mark.exhaustive
def test_the_final_folder_keeps_the_generation_config_of_the_model_it_started_from(tmp_path, command):
    defaults = '{"temperature": 0.6, "eos_token_id": [7, 9], "_from_model_config": true}'
    source = supervised(tmp_path / "source", total_train_steps=1)
    assert command(source)[0] == 0
    written = source.directory / "final" / "generation_config.json"
    assert not written.exists()
    written.write_text(defaults)
    run = supervised(tmp_path / "run", total_train_steps=1, model__path=str(source.directory / "final"))
    assert command(run)[0] == 0
    assert (run.directory / "final" / "generation_config.json").read_text() == defaults


def test_a_checkpoint_from_before_a_key_existed_had_its_default(tmp_path):
    before = to_mapping(runs.tiny(tmp_path))
    del before["matrix_products"], before["actor"]["router_replay"]
    code = fingerprint_code(runs.tiny(tmp_path))
    meta = {"config": before, "code": code}
    assert refusal(runs.tiny(tmp_path), code, meta, step=2) == ""
    changed = refusal(runs.tiny(tmp_path, matrix_products="torch"), code, meta, step=2)
    assert "matrix_products: was 'auto', is 'torch'" in changed
