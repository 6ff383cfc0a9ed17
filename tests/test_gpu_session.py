"""The programs for an hour with a GPU: a line that fails or takes too long does not end the others, and budgets fit."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks/gpu_session.sh"


def session(*arguments, **environment):
    command, variables = ["bash", str(SCRIPT), *map(str, arguments)], os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=variables)


def listed(*arguments):
    """Name to minutes and command."""
    found = session("--dry-run", *arguments)
    assert found.returncode == 0, found.stderr
    lines = [re.fullmatch(r"(\S+) +(\d+) min  (.+)", line).groups() for line in found.stdout.splitlines()]
    return {name: (int(minutes), command) for name, minutes, command in lines}


def test_lines_that_fail_or_take_too_long_do_not_end_the_others(tmp_path):
    lines = tmp_path / "lines"
    lines.write_text(
        "first|1|echo '| a table |'\nbroken|1|echo 'no | luck' >&2; exit 3\n"
        "slow|1|sleep 30\nlast|1|echo the end | cat\n"
    )
    found = session("--lines", lines, "--folder", tmp_path / "out", "--seconds-per-minute", 1)
    assert found.returncode == 1
    page = (tmp_path / "out/session.md").read_text()
    rows = dict(re.findall(r"^\| (\w+) \| 1 \| \d+ \| ([^|]+) \|", page, re.MULTILINE))
    assert rows == {
        "first": "passed",
        "broken": "failed (3): no / luck",
        "slow": "stopped at twice its budget",
        "last": "passed",
    }
    assert "### first\n\n| a table |\n" in page
    assert "### last\n\nthe end\n" in page
    assert (tmp_path / "out/logs/broken.log.err").read_text() == "no | luck\n"


def test_memory_that_a_line_leaves_taken_is_noted(tmp_path):
    lines, taken, program = tmp_path / "lines", tmp_path / "taken", tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncase $1 in --query-gpu=memory.used) cat {taken} ;; esac\n")
    program.chmod(0o755)
    taken.write_text("400\n")
    lines.write_text(f"clean|1|echo 900 >{taken}\nserver|1|echo 21400 >{taken}\n")
    path = f"{tmp_path}:{os.environ['PATH']}"
    found = session("--lines", lines, "--folder", tmp_path / "out", "--seconds-per-minute", 1, PATH=path)
    assert found.returncode == 0
    page = (tmp_path / "out/session.md").read_text()
    assert re.search(r"^\| clean \| 1 \| \d+ \| passed \|", page, re.MULTILINE)
    assert "| passed; 21000 MiB of the GPU are still taken |" in page


def test_lines_are_chosen_by_name_and_a_session_that_passes_says_so(tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("one|1|true\ntwo|1|exit 1\n")
    assert session("--lines", lines, "--folder", tmp_path / "out", "--only", "one").returncode == 0
    assert "two" not in (tmp_path / "out/session.md").read_text()


def test_what_cannot_be_run_is_refused(tmp_path):
    assert session("--lines", tmp_path / "none").returncode == 2
    assert "unknown argument '--fast'" in session("--fast").stderr
    assert session("--folder").returncode == 2


def test_budgets_fill_the_time_and_a_try_has_the_same_lines():
    real, tried = listed(), listed("--try")
    assert sum(minutes for minutes, _ in real.values()) == 40
    assert {name: minutes for name, (minutes, _) in real.items()} == {
        name: minutes for name, (minutes, _) in tried.items()
    }
    programs = [[re.findall(r"benchmarks/\w+\.py", command) for _, command in each.values()] for each in (real, tried)]
    assert programs[0] == programs[1]


@pytest.mark.sample(1)
@pytest.mark.parametrize("program", ["gpu_step", "embedded_engine", "grpo_vs_trl", "weight_updates"])
def test_programs_take_the_options_of_their_lines(program):
    """Values and options are checked before --help is reached; what is unknown is left over, and would be named."""
    commands = [command for _, command in [*listed().values(), *listed("--try").values()] if f"{program}.py" in command]
    assert commands
    for command in commands:
        _, script, *options = shlex.split(command)
        helped = subprocess.run(
            [sys.executable, str(ROOT / script), *options, "--help"], capture_output=True, text=True, check=False
        )
        assert helped.returncode == 0, helped.stderr
        known = set(re.findall(r"--[a-z-]+", helped.stdout))
        assert known.issuperset(option for option in options if option.startswith("--"))
