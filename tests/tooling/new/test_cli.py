"""The command line as people use it, in a real repository; one real run for what only a process has."""

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tooling.cli.git import find_repository
from tooling.cli.parser import split
from tooling.commit.message import cleaned, parse
from tooling.commit.rules import problems
from tooling.commit.settings import read_commit_settings
from tooling.kit.change.lock import repository_lock
from tooling.kit.template.expressions import evaluate
from tooling.kit.template.kinds import discover
from tooling.kit.template.manifest import load_manifest
from tooling.new.command_line import COMMANDS, EXIT_CODES, VALUE_OPTIONS, main

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
COMMAND = [sys.executable, "-m", "tooling.new"]


def call(capsys, world, *words):
    """In this process: exit code, stdout, stderr."""
    code = main([*map(str, words), "--repo", str(world.root)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# ------------------------------------------------------------------------------------------------------ the words


@pytest.mark.parametrize(
    ("words", "word", "rest"),
    [
        (["reward", "digits"], "reward", ["digits"]),
        (["--repo", "reward", "list"], "list", ["--repo", "reward"]),
        (["--json", "--wait", "3", "undo", "reward", "x"], "undo", ["--json", "--wait", "3", "reward", "x"]),
        (["--repo=x", "list"], "list", ["--repo=x"]),
        (["--json"], None, ["--json"]),
        ([], None, []),
    ],
)
def test_the_command_is_found_among_options(words, word, rest):
    found = split(words, VALUE_OPTIONS)
    assert (found.word, list(found.rest)) == (word, rest)


def test_words_after_two_dashes_are_no_options():
    found = split(["explain", "rule", "--", "--help"])
    assert (found.word, found.help) == ("explain", False)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rule", "--", "--json"], "the name '--json' begins or ends with a separator"),
        (["undo", "--", "rule", "--force"], "no rule '--force'"),
        (["undo", "rule", "x", "--", "--force"], "--force"),
    ],
)
def test_words_after_two_dashes_are_names(capsys, world, words, said):
    assert main(["--repo", str(world.root), *words]) == 2
    assert said in capsys.readouterr().err


def test_options_may_stand_anywhere(capsys, world):
    for words in (
        ["--json", "rule", "--percent=50", "half_off", "--dry-run"],
        ["rule", "--percent", "50", "--dry-run", "half_off", "--json"],
    ):
        code, out, _ = call(capsys, world, *words)
        assert (code, json.loads(out)["unit"]) == (0, {"kind": "rule", "name": "half_off"})


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rul", "x"], "no command and no kind is called 'rul'; did you mean 'rule'?"),
        (["udno", "rule", "x"], "did you mean 'undo'?"),
        (["rule", "x", "--percnt", "3"], "unknown option '--percnt'; did you mean '--percent'?"),
        (["rule", "x", "--style", "rouned"], "did you mean 'rounded'?"),
        (["rule", "x", "--percent", "many"], "percent"),
        (["rule", "x", "--percent", "101"], "at most 100"),
        (["rule", "x", "--test", "stagd"], "'stagd' is not one of after, staged; did you mean 'staged'?"),
        (["rule", "x", "--wait", "-1"], "--wait"),
        (["rule", "x", "y"], "unexpected argument 'y'"),
        (["rule", "x", "--test", "after", "--no-test"], "not allowed with"),
        (["undo", "rule"], "NAME"),
        (["undo", "rule", "nothing"], "nothing"),
        (["update"], "--all"),
        (["update", "rule", "x", "--all"], "--all"),
        (["schema", "rul"], "did you mean 'rule'?"),
        (["completion", "fsh"], "did you mean 'fish'?"),
        (["rule", "class"], "a word of Python; use e.g. 'custom_class'"),
        (["rule"], "write `areal-new rule NAME`"),
        ([], "areal-new --help"),
        (["--json=1", "list"], "--json"),
        (["--versoin"], "unknown option '--versoin'; did you mean '--version'?"),
        (["--dry-run"], "no command and no kind was given"),
    ],
)
def test_wrong_words_are_refused_with_what_to_do(capsys, world, words, said):
    before = world.tree()
    code, out, err = call(capsys, world, *words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("error: ")
    assert world.tree() == before


def test_a_question_with_the_name_of_a_common_option_names_the_template(capsys, world):
    world.write("templates/rule/copier.yml", "_subdirectory: template\nwait: {type: int, default: 1}\n")
    code, _, err = call(capsys, world, "rule", "x")
    assert code == 2
    assert "templates/rule/copier.yml" in err
    assert "question 'wait'" in err


# ----------------------------------------------------------------------------------------------------------- help


def test_help_names_every_command_kind_and_exit_code(world, run):
    done = run(world.root, "--help")
    assert (done.code, done.stderr) == (0, "")
    for word in (*COMMANDS, "rule", "a rule on prices", *map(str, EXIT_CODES)):
        assert word in done.stdout


def test_help_of_a_kind_shows_its_questions_as_options(world, run):
    page = run(world.root, "rule", "--help").stdout
    assert re.search(r"--style \{plain,rounded\}\s+How the result is given \(default: plain\)", page)
    assert re.search(r"--percent INT\s+How much is taken off \(default: 10\)", page)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(capsys, command):
    assert main([command, "--help"]) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"usage: areal-new {command}")
    assert len(page.splitlines()) > 8


def test_help_outside_a_repository_lists_the_built_in_kinds(tmp_path, run):
    done = run(tmp_path, "--help")
    assert done.code == 0
    assert "  template" in done.stdout


def test_help_survives_damaged_project_settings(world, run):
    world.write("pyproject.toml", "[tool.areal.new\n")
    done = run(world.root, "--help")
    assert done.code == 2
    assert "pyproject.toml" in done.stderr
    assert "undo" in done.stdout


def test_the_version_is_that_of_the_checkout(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"areal-new {_declared_version()}\n"


def _declared_version():
    return re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)[1]


# ---------------------------------------------------------------------------------------------------- where it works


def test_it_works_from_any_sub_directory_and_with_repo(world, run):
    folder = world.root / "shop" / "rules"
    assert run(folder, "rule", "half_off", "--no-test").code == 0
    assert "half_off" in run(Path("/"), "list", "--repo", folder).stdout
    assert (world.root / "shop/rules/half_off.py").is_file()


def test_it_works_in_a_linked_work_tree_and_leaves_the_other_alone(world, tmp_path, run):
    linked = tmp_path / "linked"
    world.git("worktree", "add", "--quiet", str(linked))
    before = world.tree()
    assert run(linked, "rule", "half_off", "--no-test").code == 0
    assert (linked / "shop/rules/half_off.py").is_file()
    assert world.tree() == before
    assert run(linked, "undo", "rule", "half_off").code == 0


def test_outside_a_repository_it_says_so(tmp_path, run):
    done = run(tmp_path, "template", "x")
    assert done.code == 2
    assert "not inside a git repository" in done.stderr


# ------------------------------------------------------------------------------------------------ generate and undo


def test_generating_says_what_was_done_and_proves_it(world):
    command = [*COMMAND, "rule", "half_off", "--percent", "50"]
    done = subprocess.run(
        command, cwd=world.root, env=ENVIRONMENT, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    out = done.stdout
    assert re.search(r"create +shop/rules/half_off.py +the rule half off", out)
    assert re.search(r"register +shop/rules/registry.py:\d+ +RULES half_off", out)
    assert re.search(r"✓ tests +\d+\.\d\d s", out)
    assert "use rule=half_off" in out
    added = ".areal/receipts/rule/half_off.json docs/extensions.md shop/rules/half_off.py shop/rules/registry.py"
    assert f"  git add {added} tests/test_half_off.py\n  git commit -m 'feat(rules): add half-off'\n" in out


@pytest.mark.parametrize("words", [("half_off",), ("rule_" + "x" * 55, "--no-register")], ids=["short", "longest"])
def test_the_next_steps_commit_exactly_what_was_written(world, run, words):
    world.write("shop/mine.py", "x = 1\n")
    said = json.loads(run(world.root, "rule", *words, "--no-test", "--json").stdout)
    for step in said["next"][-2:]:
        world.git(*shlex.split(step)[1:])
    assert world.status().splitlines() == ["?? shop/mine.py"]
    found = problems(parse(cleaned(world.git("log", "-1", "--format=%B"))), read_commit_settings(ROOT))
    assert [problem for problem in found if not problem.rule.startswith("scope")] == []  # `rules` is a kind of the test


def test_the_message_of_every_kind_of_this_repository_passes_its_own_check():
    for name, kind in discover(ROOT).items():
        message = evaluate(load_manifest(kind.folder).commit, {"kebab": "half-off"}, where=name)
        assert problems(parse(message), read_commit_settings(ROOT)) == [], name


def test_generate_and_undo_leave_the_tree_as_it_was(world, run):
    before, staged = world.tree(), world.status()
    assert run(world.root, "rule", "half_off", "--no-test").code == 0
    again = run(world.root, "rule", "half_off", "--no-test")
    assert (again.code, again.stdout.splitlines()[0]) == (
        0,
        "rule half_off: written, not proven; `areal-new prove rule half_off` runs its tests",
    )
    done = run(world.root, "undo", "rule", "half_off")
    assert done.code == 0, done.stderr
    assert re.search(r"delete +shop/rules/half_off.py", done.stdout)
    assert (world.tree(), world.status()) == (before, staged)


def test_answers_come_from_a_file_and_options_win(capsys, world, tmp_path):
    file = tmp_path / "answers.json"
    file.write_text('{"percent": 30, "style": "rounded"}')
    code, _, err = call(capsys, world, "rule", "x", "--answers", file, "--percent", "40", "--no-test")
    assert code == 0, err
    source = world.read("shop/rules/x.py")
    assert "(100 - 40)" in source
    assert "round(result, 2)" in source


@pytest.mark.parametrize("text", ["[1]", "{", '{"percnt": 3}', '{"percent": "lots"}'])
def test_a_wrong_answers_file_is_refused(capsys, world, tmp_path, text):
    file = tmp_path / "answers.json"
    file.write_text(text)
    code, _, err = call(capsys, world, "rule", "x", "--answers", file)
    assert code == 2
    assert "answers" in err or "perc" in err


def test_no_register_leaves_the_registry_alone(capsys, world):
    before = world.read("shop/rules/registry.py")
    assert call(capsys, world, "rule", "half_off", "--no-register", "--no-test")[0] == 0
    assert world.read("shop/rules/registry.py") == before


# ------------------------------------------------------------------------------------------------------- dry runs


def test_a_dry_run_writes_nothing_at_all(world, run):
    before, state = world.tree(), sorted(map(str, (world.root / ".git").rglob("*")))
    done = run(world.root, "rule", "half_off", "--dry-run", "--diff")
    assert done.code == 0, done.stderr
    assert "dry run: nothing was written" in done.stdout
    assert (world.tree(), sorted(map(str, (world.root / ".git").rglob("*")))) == (before, state)


def test_the_diff_of_a_dry_run_is_what_the_real_run_does(world, run):
    planned = json.loads(run(world.root, "rule", "half_off", "--dry-run", "--diff", "--json").stdout)
    patch = world.root.parent / "plan.patch"
    patch.write_text("".join(change["diff"] for change in planned["plan"]))
    world.git("apply", str(patch))
    patched = world.tree()
    world.git("checkout", "--quiet", ".")
    world.git("clean", "--quiet", "-fd")
    assert run(world.root, "rule", "half_off", "--no-test").code == 0
    assert world.tree() == patched


def test_a_dry_run_can_run_the_tests_on_a_copy(world, run):
    world.interpreter("test -f shop/rules/half_off.py")
    before = world.tree()
    done = run(world.root, "rule", "half_off", "--dry-run", "--test", "staged")
    assert done.code == 0, done.stdout + done.stderr
    assert "✓ tests-staged" in done.stdout
    assert world.tree() == before


# ------------------------------------------------------------------------------------------------------ saved plans


def test_a_saved_plan_is_applied_as_it_was_reviewed(world, tmp_path, run):
    file = tmp_path / "plan.json"
    world.interpreter("test -f shop/rules/half_off.py")
    before = world.tree()
    saved = run(world.root, "rule", "half_off", "--plan-out", file)
    assert saved.code == 0, saved.stderr
    assert world.tree() == before
    assert f"areal-new apply {file}" in saved.stdout
    done = run(world.root, "apply", file)
    assert done.code == 0, done.stderr
    assert "✓ tests" in done.stdout
    assert "half_off" in run(world.root, "list").stdout
    again = run(world.root, "apply", file)
    assert (again.code, "nothing to do" in again.stdout) == (0, True)
    assert run(world.root, "undo", "rule", "half_off").code == 0
    assert world.tree() == before


def test_a_plan_whose_ground_moved_is_refused_and_names_the_files(world, tmp_path, run):
    file = tmp_path / "plan.json"
    run(world.root, "rule", "half_off", "--plan-out", file)
    world.edit("shop/rules/registry.py", "# sorted", "# sorted by hand")
    before = world.tree()
    for words in (["apply", file], ["apply", file, "--dry-run"]):
        done = run(world.root, *words)
        assert done.code == 3
        assert "shop/rules/registry.py: changed since the plan was made" in done.stderr
    assert world.tree() == before


def test_a_dry_run_that_should_save_its_plan_says_that_it_does_not(world, tmp_path, capsys):
    code, _, err = call(capsys, world, "rule", "half_off", "--dry-run", "--plan-out", str(tmp_path / "plan.json"))
    assert code == 2
    assert "--plan-out" in err
    assert not (tmp_path / "plan.json").exists()


def test_an_existing_plan_file_is_replaced_only_with_force(capsys, world, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text("mine")
    code, _, err = call(capsys, world, "rule", "half_off", "--plan-out", file)
    assert (code, file.read_text()) == (3, "mine")
    assert "--force" in err
    assert call(capsys, world, "rule", "half_off", "--plan-out", file, "--force")[0] == 0
    assert json.loads(file.read_text())["format"] == "areal-new-plan"
    assert list(tmp_path.glob(".*.tmp")) == []


@pytest.fixture(scope="module")
def saved_plan(originals, run_command, tmp_path_factory):
    """A plan file as a JSON object."""
    file = tmp_path_factory.mktemp("saved") / "plan.json"
    assert run_command(main, ["rule", "half_off", "--plan-out", file], cwd=originals[0].root).code == 0
    return json.loads(file.read_text())


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("tests", ["--collect-only"], "--collect-only"),
        ("tests", ["../outside.py"], ".."),
        ("tests", "all", "tests"),
        ("registered", [{"type": "shell"}], "registered"),
        ("kept", [{"path": 1}], "kept"),
        ("backups", ["../../x"], ".."),
        ("backups", [".git/config"], ".git"),
        ("backups", "x", "backups"),
        ("templates", [{"kind": 1, "tree": "x"}], "templates"),
        ("commit", None, "commit"),
    ],
)
def test_a_plan_file_is_not_trusted(capsys, world, saved_plan, tmp_path, part, value, said):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(saved_plan | {"extra": saved_plan["extra"] | {part: value}}))
    before = world.tree()
    code, _, err = call(capsys, world, "apply", file)
    assert code == 2
    assert said in err
    assert world.tree() == before


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "areal-new-plan", "version": 2, "changes": [], "extra": {}}']
)
def test_a_file_that_is_no_plan_is_refused(capsys, world, tmp_path, text):
    file = tmp_path / "plan.json"
    file.write_text(text)
    assert call(capsys, world, "apply", file)[0] == 2
    assert call(capsys, world, "apply", tmp_path / "nothing.json")[0] == 2


# ----------------------------------------------------------------------------------------------------------- tests


FAILS = "echo 'E  assert 180.0 == 181.0'; exit 1"


def test_failing_tests_after_writing_keep_the_files_and_say_how_to_undo(world, run):
    world.interpreter(FAILS)
    done = run(world.root, "rule", "half_off")
    assert done.code == 7
    assert "✗ tests" in done.stdout
    assert "assert" in done.stdout
    assert "areal-new undo rule half_off" in done.stderr
    assert (world.root / "shop/rules/half_off.py").is_file()


def test_failing_staged_tests_write_nothing(world, run):
    world.interpreter(FAILS)
    before = world.tree()
    done = run(world.root, "rule", "half_off", "--test", "staged")
    assert done.code == 7
    assert "nothing was written" in done.stderr
    assert world.tree() == before


# ------------------------------------------------------------------------------------------- processes and terminals


def test_an_interrupt_while_waiting_ends_with_130(world):
    with repository_lock(find_repository(world.root), wait_seconds=0):
        child = subprocess.Popen(
            [*COMMAND, "rule", "x", "--wait", "60", "--json"],
            cwd=world.root,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: holds_open(child.pid, "areal-new/lock"))
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=60)
    assert child.returncode == 130
    assert json.loads(out)["code"] == "interrupted"


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def holds_open(pid, ending):
    try:
        return any(os.readlink(link).endswith(ending) for link in Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:
        return False


def test_a_reader_that_leaves_early_is_no_error(world):
    script = f"{' '.join(COMMAND)} schema output | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=world.root, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == ["{", "0"]
    assert done.stderr == ""


def test_without_a_terminal_nothing_is_asked(world, run):
    done = run(world.root, "rule", stdin="half_off\n")
    assert done.code == 2
    assert not (world.root / "shop/rules/half_off.py").exists()


def test_at_a_terminal_missing_answers_are_asked(world):
    world.edit("templates/rule/copier.yml", "  default: plain\n", "")
    code, screen = at_terminal(world.root, ["rule", "--no-test"], ["half_off", "rouned", "rounded"])
    assert code == 0, screen
    assert "name of the new rule:" in screen
    assert "plain, rounded" in screen
    assert "round(result, 2)" in world.read("shop/rules/half_off.py")


@pytest.mark.exhaustive
def test_json_at_a_terminal_asks_nothing(world):
    code, screen = at_terminal(world.root, ["rule", "--json"], [])
    assert code == 2
    assert '"code": "usage"' in screen


def at_terminal(folder, words, lines):
    """Run in a terminal of its own and type a line for each question; exit code and everything shown."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(sys.executable, [*COMMAND, *words], ENVIRONMENT)
    screen, waiting = b"", list(lines)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # Linux: the other end is closed
            break
        if not piece:
            break
        screen += piece
        if waiting and screen.rstrip(b" ").endswith(b":"):
            os.write(terminal, waiting.pop(0).encode() + b"\n")
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), screen.decode(errors="replace")


def test_an_interrupted_run_stops_dry_runs_until_it_is_recovered(world, run):
    before = world.tree()
    script = """
import os, sys
from tooling.kit.change.transaction import apply_plan, repository_lock
from tooling.cli.git import find_repository
from tooling.kit.change.plan import Plan
from pathlib import Path
repository = find_repository(Path.cwd())
plan = Plan(repository.root)
plan.write("shop/rules/registry.py", b"gone", reason="test")
plan.write("shop/new.py", b"new", reason="test")
def observe(step):
    if plan.root.joinpath("shop/new.py").exists(): os._exit(9)
with repository_lock(repository, wait_seconds=0):
    apply_plan(repository, plan, observe=observe)
"""
    assert subprocess.run([sys.executable, "-c", script], cwd=world.root, env=ENVIRONMENT, check=False).returncode == 9
    assert world.tree() != before
    dry = run(world.root, "rule", "half_off", "--dry-run")
    assert dry.code == 3
    assert "areal-new recover" in dry.stderr
    assert "interrupted run" in run(world.root, "status").stderr
    half_done = world.tree()
    preview = run(world.root, "recover", "--dry-run")
    assert "shop/new.py: would be removed again" in preview.stdout
    assert world.tree() == half_done
    done = run(world.root, "recover")
    assert (done.code, "shop/new.py" in done.stdout) == (0, True)
    assert world.tree() == before
    assert "nothing to recover" in run(world.root, "recover").stdout
    assert "nothing to recover" in run(world.root, "recover", "--dry-run").stdout
