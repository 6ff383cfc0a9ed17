"""What a person sees of a training on a real terminal."""

from __future__ import annotations

import os
import pty
import re
import sys

import pytest

from areal.cli.commands.init import project_files


@pytest.mark.exhaustive
def test_a_training_shows_its_phases_its_samples_and_its_curves(tmp_path):
    for path, content in project_files("digits").items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
    command = [sys.executable, "-m", "areal", "train", "config.yaml", "total_train_steps=8"]
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.execve(command[0], command, {**os.environ, "TERM": "xterm", "COLUMNS": "110", "LINES": "40"})
    seen = b""
    try:
        while part := os.read(terminal, 65536):
            seen += part
    except OSError:  # Linux: the other end is closed
        pass
    assert os.waitpid(process, 0)[1] == 0, seen.decode()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())

    phases = ["starting (", "loading the model (", "training (", "done ("]
    places = [text.find(phase) for phase in phases]
    assert places == sorted(places)
    assert places[0] >= 0
    assert re.search(r"episodes \d+/256", text)
    assert re.search(r"\d+ s elapsed, \d+ s left", text)
    assert re.search(r"reward +[▁▂▃▄▅▆▇█]{8} [\d.]+  [\d.]+ \.\. [\d.]+, steps 1-8", text)
