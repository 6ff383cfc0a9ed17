"""Completion scripts, run by real shells."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tooling.new.command_line import COMMANDS, main

BASH = """
source {script}
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_areal_new
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def script(world, tmp_path, capsys):
    def write(shell):
        assert main(["completion", shell, "--repo", str(world.root)]) == 0
        path = tmp_path / f"completion.{shell}"
        path.write_text(capsys.readouterr().out, encoding="utf-8")
        return path

    return write


def complete(path, *words, folder="/"):
    """What bash offers for the last word."""
    quoted = " ".join(f"'{word}'" for word in ("areal-new", *words))
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH.format(script=path, words=quoted)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return set(done.stdout.split())


def test_bash_offers_kinds_and_commands(script):
    offered = complete(script("bash"), "")
    assert {"rule", *COMMANDS} <= offered
    assert complete(script("bash"), "u") == {"undo", "update"}


def test_bash_offers_options_and_their_values(script):
    path = script("bash")
    assert {"--style", "--percent", "--dry-run", "--json"} <= complete(path, "rule", "x", "--")
    assert complete(path, "rule", "--style", "") == {"plain", "rounded"}
    assert complete(path, "rule", "--style", "r") == {"rounded"}
    assert complete(path, "--repo", "rule", "rule", "--test", "") == {"after", "staged"}


def test_bash_offers_kinds_shells_and_files_as_arguments(script, tmp_path):
    path = script("bash")
    assert "rule" in complete(path, "undo", "")
    assert complete(path, "undo", "rule", "") == set()
    assert complete(path, "completion", "") == {"bash", "fish", "zsh"}
    assert {"rule", "output"} <= complete(path, "schema", "")
    (tmp_path / "plan.json").write_text("{}")
    assert complete(path, "apply", "pl", folder=tmp_path) == {"plan.json"}
    assert complete(path, "rule", "x", "--plan-out", "pl", folder=tmp_path) == {"plan.json"}


HOSTILE = """
_subdirectory: template
style:
  type: str
  help: "it's `touch hacked` $(touch hacked) ; \\\\ % \\n touch hacked"
  choices: ["$(touch hacked)", "`touch hacked`", "a b;touch hacked", "good", "x'y", 'x"y', "*"]
  default: good
"""


def test_words_of_a_template_are_never_run_by_the_shell(world, script, tmp_path):
    world.write("templates/rule/copier.yml", HOSTILE)
    assert complete(script("bash"), "rule", "--style", "", folder=tmp_path) == {"good"}
    for shell in ("bash", "fish", "zsh"):
        text = script(shell).read_text()
        assert "good" in text
        unquoted = "".join(text.split("'")[::2])  # what stands outside of single quotes
        assert "hacked" not in unquoted
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_the_scripts_are_syntactically_right(script, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n", str(script(shell))], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_fish_offers_kinds_options_and_values(script):
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    path = script("fish")

    def offered(line):
        command = ["fish", "--no-config", "-c", f"source {path}; complete -C '{line}'"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return {entry.split("\t")[0] for entry in done.stdout.splitlines()}

    assert {"rule", *COMMANDS} <= offered("areal-new ")
    assert offered("areal-new rule --style ") == {"plain", "rounded"}
    assert "rule" in offered("areal-new undo ")


@pytest.mark.parametrize("shell", ["fish", "zsh"])
def test_every_script_knows_all_words_and_options(script, shell):
    text = script(shell).read_text()
    for word in ("rule", *COMMANDS, "style", "rounded", "dry-run", "plan-out"):
        assert word in text
    assert text.count("'") % 2 == 0


def test_a_damaged_kind_does_not_spoil_the_rest(world, script):
    world.write("templates/rule/copier.yml", "- no table\n")
    path = script("bash")
    assert "rule" in complete(path, "")
    assert "--dry-run" in complete(path, "undo", "--")


def test_the_script_can_be_loaded_as_documented(world, tmp_path):
    areal_new = Path(__file__).resolve().parents[3] / ".venv/bin/areal-new"
    if not areal_new.exists():
        pytest.skip("areal-new is not installed in .venv")
    command = f"source <({areal_new} completion bash --repo {world.root}) && complete -p areal-new"
    done = subprocess.run(["bash", "--norc", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "complete -F _areal_new areal-new"
