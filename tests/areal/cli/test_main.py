"""The command line as a program: what it prints where, how it exits, and what it does not import."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from areal.api import BusyError, CheckpointError, DataError, NumericsError, RolloutError
from areal.cli import main as cli
from areal.cli.commands import version
from areal.cli.output import CommandReport, print_report

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("torch", "transformers", "datasets", "numpy", "rich", "pydantic", "yaml")


@pytest.fixture
def good(tmp_path):
    """A configuration file that passes every check of the dry run."""
    rows = tmp_path / "train.jsonl"
    rows.write_text('{"prompt": "1+1=", "answer": "2"}\n' * 64)
    path = tmp_path / "run.yaml"
    path.write_text(
        f"""
model:
  tokenizer_path: "characters:0123456789+="
  init: {{model_type: qwen3, vocab_size: 96, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2,
          num_attention_heads: 4, num_key_value_heads: 2, head_dim: 8, tie_word_embeddings: true}}
train_dataset: {{name: jsonl, path: {rows}}}
reward: exact
"""
    )
    return path


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("command", [["--help"], ["train", "--help"], ["report", "--help"], ["list"], ["version"]])
def test_light_commands_import_nothing_heavy(command):
    code = (
        "import sys; from areal.cli.main import main; code = main(sys.argv[1:]); "
        f"print('HEAVY', [name for name in {HEAVY} if name in sys.modules]); sys.exit(code)"
    )
    done = run_python(code, *command)
    assert done.returncode == 0, done.stderr
    assert "HEAVY []" in done.stdout


def test_a_dry_run_shows_what_it_tried_and_starts_nothing(good, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", str(good), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    for part in (
        "Memory estimate for", "run.yaml:", "preset grpo", "not shown, since rollout.engine is embedded: servers,",
        "train_dataset: 64 of 64 used; 0 too long", "  | 1+1=", "Reward for completion '2' of this row: 1 (",
    ):  # fmt: skip
        assert part in shown
    assert not (tmp_path / "runs").exists()


def test_python_m_runs_the_same_program():
    done = subprocess.run(
        [sys.executable, "-m", "areal", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "areal")


def test_json_mode_keeps_stdout_for_one_object_even_when_a_child_process_prints(good):
    code = (
        "import sys, subprocess; from areal.cli import main as cli; from areal.cli.commands import version; "
        "from areal.cli.output import CommandReport\n"
        "def noisy(arguments):\n"
        "    print('from python'); subprocess.run(['echo', 'from a child'], check=True)\n"
        "    return CommandReport(text='x', data={'value': float('nan')})\n"
        "version.run = noisy\n"
        "sys.exit(cli.main(['version', '--json']))"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "ok": True, "command": "version", "exit_code": 0, "next": [], "warnings": [], "value": None,
    }  # fmt: skip
    assert "from python" in done.stderr
    assert "from a child" in done.stderr


def test_a_reader_that_goes_away_is_no_error(good):
    script = f"{sys.executable} -m areal config reference | head -1; echo status ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert "status 0" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["trian"], "no command 'trian'; did you mean 'train'?"),
        ([], "no command given; commands are config, demo"),
        (["--nonsense"], "unknown option '--nonsense' and no command given; commands are config"),
        (["--vresion"], "unknown option '--vresion' and no command given; did you mean '--version'?"),
        (["train"], "CONFIG.yaml"),
        (["train", "x.yaml", "--dryrun"], "unknown argument '--dryrun'; did you mean '--dry-run'?"),
        (["train", "x.yaml", "--actor.lr=1"], "configuration keys are written without dashes: actor.lr=1"),
        (["list", "wards"], "invalid choice"),
        (["train", "/no/such/file.yaml"], "/no/such/file.yaml: no such config file"),
        (["report", "/no/such/run"], "holds no metrics.jsonl"),
        (["demo", "--control", "nothing"], "invalid choice"),
        (["doctor"], "fix: name a run: areal doctor runs/"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what_to_do(capsys, argv, expected):
    assert cli.main(argv) == 2
    output = capsys.readouterr()
    assert output.err.startswith("error: ")
    assert expected in output.err
    assert output.out == ""


def test_errors_in_json_mode_are_one_object_on_stdout_and_a_message_on_stderr(capsys):
    assert cli.main(["train", "--json", "/no/such/file.yaml"]) == 2
    output = capsys.readouterr()
    report = json.loads(output.out)
    assert {key: report[key] for key in ("ok", "command", "exit_code", "code", "next", "warnings")} == {
        "ok": False, "command": "train", "exit_code": 2, "code": "config", "next": [], "warnings": [],
    }  # fmt: skip
    assert "no such config file" in report["error"]
    assert (report["where"], report["fix"]) == ("/no/such/file.yaml", "name a YAML file that exists")
    assert "error: " in output.err


def test_wrong_arguments_are_reported_as_json_too(capsys):
    assert cli.main(["tarin", "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert (report["code"], report["fix"]) == ("usage", "did you mean 'train'?")


@pytest.mark.parametrize(
    ("override", "where", "fix"),
    [
        ("actor.lr=-1", "command line", "set lr to a value >= 0"),
        ("actor.lr=x", "command line", "set actor.lr to a number"),
        ("actor.lrr=1", "command line", "did you mean actor.lr?"),
        ("reward=gsm9k", "command line", "write 'gsm8k'"),
        ("reward=nowhere:f", "command line", "install it or run where it can be imported"),
    ],
)
def test_json_says_how_to_fix_a_configuration(good, capsys, override, where, fix):
    assert cli.main(["train", str(good), override, "--dry-run", "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert (report["where"], report["fix"]) == (where, fix)


def test_a_wrong_value_says_where_it_was_written(good, capsys):
    assert cli.main(["train", str(good), "rollout.batch_size=two", "--dry-run", "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert (report["code"], report["where"]) == ("config", "command line")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DataError("row 3"), 20),
        (CheckpointError("torn"), 21),
        (RolloutError("stuck"), 22),
        (NumericsError("nan"), 23),
        (BusyError("pid 1"), 75),
        (KeyboardInterrupt(), 130),
        (RuntimeError("bug"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_error_has_its_documented_exit_code(monkeypatch, capsys, error, code):
    def fail(arguments):
        raise error

    monkeypatch.setattr(version, "run", fail)
    assert cli.main(["version"]) == code
    assert f"{code} " in cli.EXIT_CODES
    # Only what nobody foresaw deserves a traceback.
    assert ("Traceback" in capsys.readouterr().err) == (code == 1)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC, errno.EROFS])
def test_what_a_disk_refuses_is_no_error_of_the_program(monkeypatch, capsys, number):
    def refuse(_):
        raise OSError(number, os.strerror(number), "/mnt/report.html")

    monkeypatch.setattr(version, "run", refuse)
    assert cli.main(["version", "--json"]) == 21
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert f"error: /mnt/report.html: {os.strerror(number)}\nfix: free space" in err
    assert json.loads(out)["where"] == "/mnt/report.html"


def test_any_other_error_of_the_system_keeps_its_traceback(monkeypatch, capsys):
    def fail(_):
        raise FileNotFoundError(errno.ENOENT, "gone", "x")

    monkeypatch.setattr(version, "run", fail)
    assert cli.main(["version"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_names_that_are_no_utf_8_are_escaped(capsys):
    name = os.fsdecode(b"runs/a\xff")
    assert cli.main(["report", name, "--json"]) == 2
    out = capsys.readouterr().out
    assert name in json.loads(out)["error"]


@pytest.mark.parametrize("as_json", [True, False])
def test_a_terminal_of_another_encoding_gets_escapes(as_json):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_report("x", CommandReport(text="größer", data={"key": "größer"}), stream, as_json=as_json)
    stream.seek(0)
    text = stream.read()
    assert (json.loads(text)["key"] == "größer") if as_json else (text == "gr\\xf6\\xdfer\n")


@pytest.mark.parametrize("arguments", [["version"], ["version", "--json"]])
def test_a_closed_stdout_is_no_error(monkeypatch, arguments):
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(arguments) == 0


def test_a_folder_that_was_removed_is_named(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert cli.main(["version"]) == 2
    assert "the current folder does not exist any more" in capsys.readouterr().err


def test_a_command_may_finish_with_an_exit_code_of_its_own(monkeypatch, capsys):
    report = CommandReport(text="", data={"a": 1}, exit_code=1, warnings=("look",))
    monkeypatch.setattr(version, "run", lambda arguments: report)
    assert cli.main(["version", "--json"]) == 1
    output = capsys.readouterr()
    found = json.loads(output.out)
    assert (found["ok"], found["exit_code"], found["warnings"], found["a"]) == (False, 1, ["look"], 1)
    assert output.err == "warning: look\n"


def test_help_documents_all_exit_codes(capsys):
    assert cli.main(["train", "--help"]) == 0
    assert cli.EXIT_CODES.strip() in capsys.readouterr().out


def test_a_trace_is_asked_for_by_its_steps(good, capsys):
    for steps, expected in (("10-12", [10, 12]), ("7", [7, 7])):
        assert cli.main(["train", str(good), "--trace", steps, "--dry-run", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["config"]["metrics"]["trace"] == {"steps": expected}
    assert cli.main(["train", str(good), "--trace", "soon", "--dry-run", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["fix"] == "write --trace 10-12"


def test_a_tracker_that_is_not_installed_is_an_error_before_anything_is_loaded(good, capsys, monkeypatch):
    monkeypatch.setattr("areal.infra.metrics.trackers.wandb.WandbTracker.package", "no_such_client")
    assert cli.main(["train", str(good), "metrics.trackers.wandb={}", "--dry-run", "--json"]) == 2
    said = capsys.readouterr().out
    assert "metrics.trackers.wandb" in said
    assert "pip install 'areal[wandb]'" in said


def test_a_dry_run_reports_as_json_what_it_prints_as_text(good, capsys):
    assert cli.main(["train", str(good), "rollout.batch_size=4", "--dry-run", "--json", "seed=3"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["derived"]["prompts_per_step"] == 4
    assert report["provenance"]["seed"] == report["provenance"]["rollout.batch_size"] == "command line"
    assert report["config"]["seed"] == 3
    assert report["memory"]["total_bytes"] > 0


def test_no_resume_is_an_override_like_any_other(good, capsys):
    assert cli.main(["train", str(good), "--dry-run", "--json", "--no-resume"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["config"]["checkpoint"]["resume"] is False
    assert report["provenance"]["checkpoint.resume"] == "command line"


@pytest.mark.fault(
    row=33,
    injected="`areal train` with a configuration that cannot run",
    seen="refused by the command, exit code 2",
)
def test_training_is_not_started_when_the_configuration_cannot_run(good, capsys):
    assert cli.main(["train", str(good), "reward=gsm8"]) == 2
    assert "did you mean 'gsm8k'?" in capsys.readouterr().err


def test_list_names_everything_a_configuration_can_name(capsys):
    assert cli.main(["list", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert "gsm8k" in data["rewards"]
    assert "qwen3" in data["models"]
    assert "rlvr" in data["workflows"]
    assert data["objectives"]["grpo"]["formula"]
    assert cli.main(["list", "objectives"]) == 0
    assert "arXiv 2402.03300" in capsys.readouterr().out


def test_the_schema_describes_every_key(capsys):
    assert cli.main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["additionalProperties"] is False
    assert all(entry["description"] for entry in schema["properties"].values())
    assert schema["$defs"]["RolloutConfig"]["properties"]["batch_size"]["description"] == "Prompts per training step."


def test_version_lists_packages_without_importing_them(capsys):
    assert cli.main(["version", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["versions"]) >= {"areal", "python", "torch"}


@pytest.mark.exhaustive
def test_a_reward_module_in_the_current_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    (tmp_path / "mine_here.py").write_text("def reward(*args, **data):\n    return 1.0\n")
    config = tmp_path / "run.yaml"
    config.write_text(
        "kind: rl\nmodel: {init: {model_type: qwen3, vocab_size: 17}, tokenizer_path: 'characters:0123456789+-*/='}\n"
        "train_dataset: {name: arithmetic}\nreward: mine_here:reward\n"
    )
    assert cli.main(["train", "run.yaml", "--dry-run", "--json"]) == 0
    assert sys.path[-1] == str(tmp_path)
