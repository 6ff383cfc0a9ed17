"""That tests pass is claimed only when the repository's own command ran, and passed, on exactly what is proposed."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tooling.pull_request.checks import declared_checks

ROOT = Path(__file__).resolve().parents[3]
PASSES = "echo 'ok    style'\necho '12 passed, 3 skipped in 1.5s'\n"
FAILS = "echo 'FAIL  style'\necho '2 failed, 9 passed, 1 error in 1.5s'\nexit 1\n"
STAY = ("--no-rebase",)
"""So that what is proposed has the files that are checked out."""


@pytest.fixture
def declared(world):
    """declared(script): the world, whose branch declares a script as its checks."""

    def declare(script=PASSES):
        settings = '[tool.areal.pr]\nchecks = ["sh", "check.sh"]\n'
        world.commit("ci: check", {"pyproject.toml": settings, "check.sh": script})
        return world

    return declare


def attested(world):
    return world.root / ".git/areal-pr/checks.json"


def run_checks(world, *words):
    return world.run("create", "--run-checks", *STAY, *words)


def box(world, *words):
    """The box, and what is said about tests, by `body`."""
    ran = world.run("body", *(words or STAY))
    assert ran.code == 0, ran.err
    line = next(line for line in ran.out.splitlines() if line.endswith("] tests pass"))
    said = ran.out.partition("## Tests\n\n")[2].partition("\n## ")[0].strip()
    return line == "- [x] tests pass", said


def test_checks_that_pass_tick_the_box_with_counts_and_commit(declared):
    world = declared()
    before = world.tip()
    ran = run_checks(world, "--json")
    assert ran.code == 0, ran.err
    assert "ok    style\n12 passed, 3 skipped in 1.5s\n" in ran.err, "progress is seen"
    verdict = ran.json["attested_checks"]
    assert verdict["proven"]
    made = verdict["attestation"]
    assert (made["commit"], made["command"]) == (before, ["sh", "check.sh"])
    assert (made["passed"], made["failed"], made["skipped"]) == (12, 0, 3)
    assert [step["name"] for step in ran.json["steps"]][:2] == ["fetch", "checks"]
    assert "- [x] tests pass" in ran.json["body"]
    assert f"sh check.sh: 12 passed, 0 failed, 3 skipped in 0 s, at {made['when'][:10]}" in ran.json["body"]
    assert f"on {before}. It has the files that are proposed here." in ran.json["body"]


@pytest.mark.exhaustive
def test_a_later_run_reuses_what_is_attested(declared):
    world = declared()
    assert run_checks(world, "--no-squash", "--no-push").code == 0
    written = attested(world).stat().st_mtime_ns
    assert box(world)[0]
    assert box(world, "--no-rebase", "--no-squash")[0]
    joined = world.json("create", *STAY)
    assert joined["rewritten"], "the commits are joined: another commit, the same files"
    assert "- [x] tests pass" in joined["body"]
    assert box(world)[0], "the commit that they became is known"
    assert attested(world).stat().st_mtime_ns > written
    world.run("restore")
    assert box(world)[0], "and so is the one that was checked"


@pytest.mark.exhaustive
def test_a_new_commit_unticks(declared):
    world = declared()
    run_checks(world, "--no-push")
    assert box(world)[0]
    first = world.tip()
    world.commit("docs: more", {"more.txt": "x\n"})
    ticked, said = box(world)
    assert not ticked
    assert f"they ran on {first[:12]}" in said or f"the branch is at {world.tip()[:12]}" in said
    world.git("commit", "-q", "--allow-empty", "-m", "docs: nothing")
    assert not box(world)[0], "not even one without changes is taken for what was checked"
    world.git("reset", "-q", "--hard", first)
    assert box(world)[0]


@pytest.mark.parametrize("path", ["package/two.txt", pytest.param("untracked.txt", marks=pytest.mark.exhaustive)])
def test_an_edited_file_unticks(declared, path):
    world = declared()
    run_checks(world, "--no-push")
    world.write(path, "edited = True\n")
    ticked, said = box(world)
    assert (ticked, path in said) == (False, True)
    world.git("stash", "-q", "--include-untracked")
    assert box(world)[0]


@pytest.mark.exhaustive
def test_an_edited_file_of_a_submodule_unticks(declared):
    world = declared()
    library = world.folder / "library"
    subprocess.run(["git", "clone", "-q", os.fspath(world.remote), os.fspath(library)], check=True)
    world.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", os.fspath(library), "vendor")
    world.git("commit", "-q", "-m", "build: vendor")
    assert run_checks(world, "--no-push").code == 0
    assert box(world)[0]
    world.write("vendor/package/one.txt", "edited = True\n")
    ticked, said = box(world)
    assert (ticked, "vendor" in said) == (False, True)
    ran = run_checks(world)
    assert (ran.code, "vendor" in ran.err) == (2, True)


@pytest.mark.exhaustive
def test_another_command_unticks(declared):
    world = declared()
    run_checks(world, "--no-push")
    data = json.loads(attested(world).read_text())
    attested(world).write_text(json.dumps(data | {"command": ["sh", "-c", "echo 99 passed"]}))
    ticked, said = box(world)
    assert (ticked, "another command was run" in said) == (False, True)


@pytest.mark.exhaustive
def test_the_newest_base_unticks_and_is_no_ground_for_checks(declared):
    world = declared()
    ran = world.run("create", "--run-checks")
    assert (ran.code, "areal-pr create --no-push" in ran.err) == (2, True)
    assert "passed" not in ran.err, "nothing was run"
    run_checks(world, "--no-push")
    world.git("fetch", "-q")
    ticked, said = box(world, "--title", "feat: all of it")
    assert (ticked, "before this was brought onto the newest base" in said) == (False, True)
    assert world.run("create", "--no-push").code == 0
    assert world.run("create", "--run-checks").code == 0
    assert box(world, "--title", "")[0]


@pytest.mark.exhaustive
def test_a_box_that_names_another_command_stays_empty(declared):
    boxes = "- [ ] all tests pass (`sh check.sh`)\n- [ ] all tests pass (`make everything`)\n"
    world = declared()
    world.advance("docs: template", {".github/PULL_REQUEST_TEMPLATE.md": f"## Checklist\n\n{boxes}"})
    assert run_checks(world).code == 0
    text = world.run("body", *STAY).out
    assert "- [x] all tests pass (`sh check.sh`)\n- [ ] all tests pass (`make everything`)\n" in text


def test_failing_checks_stop_before_anything_changes(declared):
    world = declared(FAILS)
    world.use_gh()
    before = world.tip()
    ran = run_checks(world, "--json")
    assert (ran.code, ran.json["code"]) == (10, "checks")
    assert "failed with exit status 1: 9 passed, 3 failed, 0 skipped" in ran.json["error"]
    assert "areal-pr create --no-push" in ran.json["fix"]
    assert (world.tip(), world.there("topic"), world.backups()) == (before, "", [])
    assert not world.state.exists() or not world.requests()
    ticked, said = box(world)
    assert (ticked, "failed with exit status 1" in said) == (False, True)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("exit 0\n", 10, "counted no test that passed"),
        ("echo '0 passed in 0.1s'\n", 10, "counted no test that passed"),
        ("echo '5 passed, 1 failed in 0.1s'\n", 10, "5 passed, 1 failed"),
        ("echo '999 passed in 1s'\necho '1 failed in 1s'\n", 10, "0 passed, 1 failed"),
        ("kill -9 $$\n", 10, "was ended by signal 9"),
        (f"touch made.txt\n{PASSES}", 3, "files changed while the checks ran"),
        (f"git commit -q --allow-empty -m x\n{PASSES}", 3, "the branch moved meanwhile"),
    ],
)
def test_a_run_that_proves_nothing_is_refused(declared, script, code, said):
    world = declared(script)
    ran = run_checks(world)
    assert (ran.code, said in ran.err) == (code, True), ran.err
    assert (world.there("topic"), world.backups()) == ("", [])
    assert not box(world)[0]


def test_a_dry_run_runs_nothing_and_says_so(declared):
    world = declared("touch ../ran\n")
    ran = world.json("create", "--dry-run", "--run-checks", *STAY)
    assert ran["ok"]
    assert any("nothing was run" in each for each in ran["warnings"])
    assert [step["name"] for step in ran["steps"]][:2] == ["fetch", "checks"]
    assert not (world.folder / "ran").exists()
    assert not attested(world).exists()


def test_without_declared_checks_or_with_unknown_files_nothing_is_run(declared, world):
    ran = run_checks(world)
    assert (ran.code, "[tool.areal.pr]" in ran.err) == (2, True)
    declared("touch ../ran\n").write("conftest.py", "x = 1\n")
    ran = run_checks(world)
    assert (ran.code, "conftest.py" in ran.err) == (2, True)
    assert not (world.folder / "ran").exists()


def test_a_command_that_does_not_exist_is_named(world):
    world.commit("ci: check", {"pyproject.toml": '[tool.areal.pr]\nchecks = ["no-such-program"]\n'})
    ran = run_checks(world)
    assert (ran.code, "`no-such-program` cannot be started" in ran.err) == (2, True)
    assert "install no-such-program, or name another program in `checks`" in ran.err


def test_no_shell_reads_the_words(world):
    words = ["echo", "1 passed in 1s; touch ../hacked", "$(touch ../hacked)"]
    listed = ", ".join(json.dumps(word) for word in words)
    world.commit("ci: `touch ../hacked`", {"pyproject.toml": f"[tool.areal.pr]\nchecks = [{listed}]\n"})
    (world.folder / "bin/echo").symlink_to("/bin/echo")
    assert run_checks(world, "--no-push", "--title", "ci: $(touch ../hacked)").code == 0
    assert not (world.folder / "hacked").exists()


HOSTILE = {
    "not JSON": "{",
    "another shape": "[1, 2]",
    "nested": "[" * 50_000,
    "huge": '{"command": "' + "x" * 200_000 + '"}',
    "empty": "",
    "another key": '{"proven": true}',
}


@pytest.mark.exhaustive
def test_a_damaged_attestation_is_ignored_with_a_reason(declared):
    world = declared()
    run_checks(world, "--no-push")
    for what, content in HOSTILE.items():
        attested(world).write_text(content)
        ticked, said = box(world)
        assert not ticked, what
        assert "the attestation was ignored: " in said, what
        assert len(said) < 1_000, what


CHANGES = [
    {"commit": "0" * 40},
    {"commit": "HEAD"},
    {"tree": "0" * 40},
    {"status": 1},
    {"failed": 1},
    {"passed": 0},
    {"passed": -1},
    {"passed": "12"},
    {"when": "soon"},
    {"seconds": float("nan")},
    {"more": 1},
]


@pytest.mark.exhaustive
def test_a_changed_attestation_proves_nothing(declared):
    world = declared()
    run_checks(world, "--no-push", "--no-squash")
    made = json.loads(attested(world).read_text())
    for change in CHANGES:
        attested(world).write_text(json.dumps(made | change))
        ticked, said = box(world)
        assert not ticked, change
        assert said.startswith("Nothing is claimed about tests: "), change
    attested(world).write_text(json.dumps(made))
    assert box(world)[0]


@pytest.mark.exhaustive
def test_an_attestation_that_is_a_link_or_a_pipe_is_ignored(declared):
    world = declared()
    run_checks(world, "--no-push")
    elsewhere = world.folder / "checks.json"
    attested(world).rename(elsewhere)
    attested(world).symlink_to(elsewhere)
    assert not box(world)[0]
    attested(world).unlink()
    os.mkfifo(attested(world))
    assert not box(world)[0]


def test_a_green_report_of_another_project_proves_nothing(declared):
    world = declared()
    place = world.folder / "junit.xml"
    place.write_text('<testsuite tests="1"><testcase classname="other" name="test"/></testsuite>')
    ran = world.run("body", "--test-report", os.fspath(place))
    assert (ran.code, "--test-report" in ran.err) == (2, True)
    ticked, said = box(world)
    assert (ticked, "the checks were not run; `areal-pr create --run-checks`" in said.replace("\\", "")) == (
        False,
        True,
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)])
def test_interrupted_checks_leave_no_attestation_and_no_process(declared, number):
    world = declared("echo begun\nsleep 300\n")
    before = world.tip()
    words = [sys.executable, "-P", "-m", "tooling.pull_request", "create", "--run-checks", *STAY]
    environment = os.environ | {"PYTHONPATH": os.fspath(ROOT)}
    process = subprocess.Popen(words, cwd=world.root, env=environment, stderr=subprocess.PIPE)
    while process.stderr.readline() != b"begun\n":
        assert process.poll() is None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children
    process.send_signal(number)
    assert process.wait(60) == 130
    process.stderr.close()
    deadline = time.monotonic() + 60
    while any(Path("/proc", child).exists() for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not attested(world).exists()
    assert (world.tip(), world.there("topic")) == (before, "")


def test_this_repository_declares_what_its_template_names():
    command = shlex.join(declared_checks(ROOT))
    assert f"all tests pass (`{command}`)" in (ROOT / ".github/PULL_REQUEST_TEMPLATE.md").read_text(encoding="utf-8")
    assert (ROOT / "scripts/check.sh").is_file()
