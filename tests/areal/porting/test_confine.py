"""Trusted modeling code runs without network, programs and files of others."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from areal.porting.confine import ConfinedError, Refusal

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("event", "arguments"),
    [
        ("socket.connect", (None, ("example.org", 80))),
        ("subprocess.Popen", ("sh", ["sh"], None, None)),
        ("os.system", (b"true",)),
        ("open", ("/etc/hostname", "a", 0)),
        ("open", ("/etc/hostname", None, 1)),
        ("os.remove", ("/etc/hostname", -1)),
        ("os.rename", ("{scratch}/inside", "/etc/hostname", -1, -1)),
        ("open", ("{scratch}/../beside", "w", 0)),
    ],
)
def test_what_no_model_does_is_refused(tmp_path: Path, event: str, arguments: tuple[object, ...]) -> None:
    there = tuple(each.format(scratch=tmp_path) if isinstance(each, str) else each for each in arguments)
    with pytest.raises(ConfinedError, match="modeling code"):
        Refusal(tmp_path)(event, there)


def test_reading_and_the_scratch_folder_stay(tmp_path: Path) -> None:
    refusal = Refusal(tmp_path)
    allowed = [("open", ("/etc/hostname", "r", 0)), ("open", (f"{tmp_path}/new", "w", 0)), ("open", (3, "w", 0))]
    assert [refusal(event, arguments) for event, arguments in allowed] == [None] * 3


@pytest.mark.exhaustive
def test_code_that_writes_elsewhere_is_stopped_when_it_is_imported(tmp_path: Path) -> None:
    folder, target = tmp_path / "odd", tmp_path / "left"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "odd"}', encoding="utf-8")
    code = f"import os\nassert os.environ['HOME'] != {str(tmp_path)!r}\nopen({str(target)!r}, 'w')\n"
    (folder / "modeling_odd.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "areal.porting", str(folder), "--trust-source", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 2, done.stderr
    assert "ConfinedError: modeling code writes" in json.loads(done.stdout)["error"]
    assert not target.exists()
