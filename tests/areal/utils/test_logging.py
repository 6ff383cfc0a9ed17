"""Logging set-up: only the package's logger, once, wherever stderr is at that moment."""

from __future__ import annotations

import io
import json
import logging as standard
import subprocess
import sys
from pathlib import Path

import pytest

from areal.utils import logging
from areal.utils.suggest import did_you_mean, nearest


@pytest.fixture(autouse=True)
def restore():
    logger = standard.getLogger("areal")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers


def test_importing_the_module_changes_no_logger():
    code = "import logging, areal.utils.logging; print(logging.root.handlers, logging.getLogger('areal').handlers)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[] []"


def test_lines_are_concise_and_carry_the_module_without_the_package_name():
    stream = io.StringIO()
    logging.configure("info", stream=stream)
    logging.getLogger("areal.infra.rollout").warning("%d prompts dropped", 3)
    logging.getLogger("areal.infra.rollout").debug("not shown")
    line = stream.getvalue()
    assert line[8:] == " WARNING infra.rollout: 3 prompts dropped\n"


def test_configuring_again_replaces_instead_of_adding_and_leaves_foreign_handlers_alone():
    foreign = standard.NullHandler()
    standard.getLogger("areal").addHandler(foreign)
    root = list(standard.root.handlers)
    first, second = io.StringIO(), io.StringIO()
    logging.configure(stream=first)
    logging.configure(stream=second)
    logging.getLogger("areal.x").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1
    assert foreign in standard.getLogger("areal").handlers
    assert standard.root.handlers == root


def test_stderr_is_looked_up_when_a_line_is_written(capsys):
    logging.configure()
    logging.getLogger("areal.x").info("to the present stderr")
    assert "to the present stderr" in capsys.readouterr().err


def test_json_lines_carry_extra_fields_and_exceptions():
    stream = io.StringIO()
    logging.configure("DEBUG", json=True, stream=stream)
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("areal.x").exception("failed", extra={"step": 7})
    record = json.loads(stream.getvalue())
    assert (record["level"], record["logger"], record["message"], record["step"]) == ("ERROR", "areal.x", "failed", 7)
    assert "ValueError: boom" in record["exception"]
    assert record["time"].endswith("Z")


def test_a_file_receives_the_same_lines_and_its_folder_is_made(tmp_path):
    file = tmp_path / "deep" / "run.log"
    logging.configure(stream=io.StringIO(), file=file)
    logging.getLogger("areal.x").info("kept")
    logging.configure(stream=io.StringIO())
    assert "kept" in file.read_text()


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="Unknown level"):
        logging.configure("loud")


def test_suggestions_ignore_case_and_dashes_and_stay_silent_when_nothing_is_near():
    assert nearest("Batch-Size", ["batch_size", "seed"]) == ["batch_size"]
    assert did_you_mean("lr", ["lr", "seed"]) == "did you mean 'lr'?"
    assert did_you_mean("zzzzz", ["lr", "seed"]) == ""


def test_a_recording_has_the_lines_and_events_of_its_time_whatever_the_console_shows(tmp_path):
    logging.configure("warning", stream=io.StringIO())
    file = tmp_path / "log.jsonl"
    with logging.recorded(file) as event:
        event("run started", kind="start", pid=7)
        logging.getLogger("areal.x").warning("%d prompts dropped", 3, extra={"prompt": 4})
        try:
            raise KeyError("no row 9")
        except KeyError as error:
            event("run ended", error=error, kind="end")
    logging.getLogger("areal.x").warning("not of this run")
    start, line, end = (json.loads(text) for text in file.read_text().splitlines())
    assert (start["message"], start["kind"], start["pid"]) == ("run started", "start", 7)
    assert (line["level"], line["message"], line["prompt"]) == ("WARNING", "3 prompts dropped", 4)
    assert "KeyError: 'no row 9'" in end["exception"]


def test_a_recording_that_the_disk_refuses_stops_nothing(tmp_path, capsys):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    (tmp_path / "log.jsonl").symlink_to(full)
    with logging.recorded(tmp_path / "log.jsonl") as event:
        event("run started")
        logging.getLogger("areal.x").error("x")
    assert "Traceback" not in capsys.readouterr().err
