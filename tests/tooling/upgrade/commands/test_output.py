"""What the commands print: JSON that fits its schema for every exit code, SARIF, Markdown, text; and no tracebacks."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from tooling.cli.git import find_repository
from tooling.kit.change.lock import repository_lock
from tooling.upgrade.__main__ import EXIT_CODES
from tooling.upgrade.commands.audit import EXIT_CODES as AUDIT_EXIT_CODES

SCHEMAS = Path(__file__).resolve().parents[4] / "tooling/upgrade/commands/schemas"
UPGRADE, AUDIT = (json.loads((SCHEMAS / f"{name}.json").read_text()) for name in ("upgrade", "audit"))


def fits(document, schema=UPGRADE):
    jsonschema.Draft202012Validator(schema).validate(document)
    return document


@pytest.mark.parametrize(("schema", "codes"), [(UPGRADE, EXIT_CODES), (AUDIT, AUDIT_EXIT_CODES)])
def test_the_schemas_know_exactly_the_documented_exit_codes(schema, codes):
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["properties"]["exit_code"]["enum"] == sorted(set(codes) - {141})


def test_the_schema_refuses_what_is_not_documented(world):
    good = fits(world.json("impact", "engine==1.5"))
    changes = [
        {"ok": False},
        {"exit_code": 3},
        {"exit_code": 8},
        {"surprise": 1},
        {"error": "but ok"},
        {"audits": [{}]},
    ]
    for change in changes:
        with pytest.raises(jsonschema.ValidationError):
            fits({**good, **change})


def test_success_findings_and_warnings_fit_the_schema(world):
    assert fits(world.json("engine==1.5", "--dry-run", "--diff"))["ok"] is True
    fits(world.json("engine==2.0", "--fix", "--dry-run", expect=10))
    fits(world.json("latest", expect=10))
    world.write("shop/app.py", 'from engine import LLM\n\n\ndef f():\n    LLM("a", **{"seed": 3})\n')
    world.write("shop/end.py", "try:\n    from engine.utils import Counter\nexcept ImportError:\n    Counter = None\n")
    assert {each["severity"] for each in fits(world.json("impact", "engine==2.0", expect=10))["findings"]} == {
        "warning"
    }


def test_every_failure_fits_the_schema(world):
    fits(world.json("engine", expect=2))
    fits(world.json("--no-such-option", expect=2))
    fits(world.json("engine==2.0", "tensor==1.0", expect=9))
    fits(world.json("impact", "engine==9.9", expect=11))
    with repository_lock(find_repository(world.root), wait_seconds=1):
        busy = fits(world.json("engine==2.0", "--wait", "0.1", expect=75))
        assert str(os.getpid()) in busy["error"]
        fits(world.json("engine==2.0", "--dry-run", expect=10))
        fits(world.json("--write", "--wait", "0", expect=75, program="audit"), AUDIT)
    fits(world.json(program="audit"), AUDIT)
    fits(world.json("nothing", program="audit", expect=2), AUDIT)
    world.write("shop/end.py", "")
    fits(world.json(program="audit", expect=10), AUDIT)
    world.write("uv.lock", "not = [toml")
    fits(world.json("engine==2.0", expect=2))
    fits(world.json(program="audit", expect=2), AUDIT)


def test_sarif_names_every_finding_and_nothing_else_reaches_stdout(world):
    done = world.run("engine==2.0", "--sarif", expect=10)
    log = json.loads(done.stdout)
    assert log["version"] == "2.1.0"
    found = [
        (result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"], result["ruleId"], result["level"])
        for run in log["runs"]
        for result in run["results"]
    ]
    assert ("shop/end.py", "removed", "error") in found
    assert len(found) == 5
    failed = world.run("engine==2.0", "tensor==1.0", "--sarif", expect=9)
    assert json.loads(failed.stdout)["runs"]
    assert "error: " in failed.stderr


def test_markdown_is_the_audit_alone(world):
    done = world.run("impact", "engine==2.0", "--markdown", expect=10)
    assert done.stdout.startswith("### engine 1\\.0 → 2\\.0\n") or done.stdout.startswith("### engine 1.0 → 2.0\n")
    assert "| `shop/end.py:5` | removed |" in done.stdout


def test_text_says_where_what_and_what_to_write(world):
    text = world.run("impact", "engine==2.0", expect=10).stdout
    assert text.startswith("engine 1.0 -> 2.0: 4 breaking\n")
    assert "2: breaking moved: engine.utils.Counter moved: it is `engine.counting.Counter` now" in text
    assert "old: engine/utils.py:2  class Counter(start=0)" in text
    assert "write: engine.counting.Counter (same body, only new definition of that name; --fix may write it)" in text
    assert "8 uses of 4 symbols, 8 judged, 0% not seen; 3 + 4 modules read" in text


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["engine==2.0", "--summary", "../out.md"], "--summary ../out.md"),
        (["engine==2.0", "--summary", "/tmp/out.md"], "--summary /tmp/out.md"),
        (["engine==2.0", "--summary", ".git/out.md"], "--summary .git/out.md"),
        (["engine==2.0", "--summary", "pyproject.toml"], "--summary pyproject.toml"),
        (["engine==2.0", "--summary", "shop"], "--summary shop"),
        (["engine==2.0", "--markdown", "--sarif"], ""),
        (["engine==2.0", "--wait", "soon"], ""),
        (["engine==2.0", "--wait", "-1"], ""),
        (["engine==2.0", "--wait", "nan"], ""),
        (["engine==2.0", "--repo", "no/such"], "--repo no/such"),
        (["engine==2.0", "--repo", "pyproject.toml"], "--repo pyproject.toml"),
        (["engine==2.0", "--cache", "pyproject.toml"], "--cache pyproject.toml"),
        (["impact", "engine==2.0", "--fix"], ""),
        (["impact", "engine==2.0", "--summary", "x.md"], ""),
        (["latest", "--fix"], ""),
        (["latest", "--from", "1.0"], ""),
        (["latest", "engine==2.0"], ""),
        (["latest", "engin"], "engin"),
        (["latest", "nothing at all"], ""),
        ([], ""),
        (["impact"], ""),
        (["==2.0"], ""),
        (["engine==2.0 "], None),
        (["engine==2.0; rm -rf /"], ""),
        (["../engine==2.0"], ""),
    ],
)
def test_wrong_arguments_are_told_with_what_to_do_and_nothing_is_written(world, words, where):
    start = world.tree()
    if where is None:  # spaces around are no mistake
        world.run("impact", *words, expect=10)
        return
    done = fits(world.json(*words, expect=2))
    assert done["error"]
    assert done["fix"]
    assert where in done["where"]
    plain = world.run(*words, expect=2)
    assert plain.stdout == ""
    assert plain.stderr.startswith("error: ")
    assert world.tree() == start


def test_a_folder_without_git_is_audited_and_not_written(world):
    subprocess.run(["rm", "-rf", str(world.root / ".git")], check=True)
    start = world.tree()
    assert fits(world.json("impact", "engine==2.0", expect=10))["findings"]
    assert fits(world.json("engine==2.0", "--dry-run", expect=10))["plan"]
    assert "git" in fits(world.json("engine==2.0", expect=2))["error"]
    fits(world.json("--write", program="audit", expect=2), AUDIT)
    assert world.tree() == start


def test_a_foreign_repository_needs_no_policy(world):
    world.write("pyproject.toml", world.read("pyproject.toml").partition("[tool.areal")[0])
    world.commit("no policy")
    done = fits(world.json("engine==2.0", expect=10))
    assert {each["path"] for each in done["plan"]} == {"Dockerfile", "pyproject.toml", "uv.lock", "upgrade-summary.md"}


def as_mere_mortal():
    """What turns a command into one that permissions hold for, also where tests run as superuser."""
    if os.geteuid() != 0:
        return []
    program = shutil.which("setpriv")
    if program is None:
        pytest.skip("the superuser may read everything, and there is no setpriv to give that up")
    return [program, "--bounding-set=-dac_override,-dac_read_search"]


def test_what_may_not_be_read_is_named_and_no_silence(world):
    (world.root / "shop/app.py").chmod(0)
    world.write("shop/huge.py", "import engine\n" + "#" * 5_000_000)
    command = [*as_mere_mortal(), *world.command("impact", "engine==2.0", "--json")]
    done = subprocess.run(command, cwd=world.root, env=world.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 10, done.stderr
    (audit,) = fits(json.loads(done.stdout))["audits"]
    assert audit["unreadable"] == ["shop/app.py: Permission denied", "shop/huge.py: larger than 4000000 bytes"]


@pytest.mark.exhaustive
def test_an_upgrade_names_what_it_could_not_read(world):
    (world.root / "shop/app.py").chmod(0)
    world.write("shop/huge.py", "import engine\n" + "#" * 5_000_000)
    command = [*as_mere_mortal(), *world.command("engine==2.0", "--fix", "--no-lock")]
    done = subprocess.run(command, cwd=world.root, env=world.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 10, done.stderr
    assert "not read: shop/huge.py" in done.stdout


@pytest.mark.exhaustive
def test_a_repository_that_may_not_be_read_is_named(world):
    world.root.chmod(0)
    done = subprocess.run(
        [*as_mere_mortal(), *world.command("impact", "engine==2.0", "--json", "--repo", world.root)],
        cwd=world.folder,
        env=world.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    world.root.chmod(0o755)
    assert done.returncode in {1, 2}
    assert str(world.root) in fits(json.loads(done.stdout))["where"]


def test_help_names_every_option_and_exit_code_and_loads_little(world):
    text = world.run("--help").stdout
    assert all(f"\n  {code} " in text for code in EXIT_CODES)
    assert {"--from", "--fix", "--dry-run", "--offline", "--sarif", "--markdown", "--json"} <= set(text.split())
    program = (
        "import sys; from tooling.upgrade.__main__ import main; main(['--help'])\n"
        "sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=world.environment, capture_output=True, text=True, check=True
    )
    heavy = {"packaging", "libcst", "email", "http", "tomllib", "git", "concurrent", "subprocess"}
    assert heavy & set(done.stderr.split()) == set()
    assert "exit codes" in world.run("--help", program="audit").stdout


@pytest.mark.exhaustive
def test_ctrl_c_ends_with_130_and_nothing_written(world):
    start = world.tree()
    environment = world.with_slow_git()
    child = subprocess.Popen(
        world.command("engine==2.0", "--json"),
        cwd=world.root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not (world.folder / "waiting").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGINT)
    output, complaint = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in complaint
    assert fits(json.loads(output))["code"] == "interrupted"
    assert world.tree() == start
    assert world.json("impact", "engine==1.5")["ok"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "words", [[], *(pytest.param([word], marks=pytest.mark.exhaustive) for word in ("--json", "--sarif"))]
)
def test_a_report_that_nobody_can_take_is_no_traceback(world, words):
    command = world.command("impact", "engine==2.0", *words)

    def run(**streams):
        done = subprocess.run(
            command, cwd=world.root, env=world.environment, stderr=subprocess.PIPE, text=True, check=False, **streams
        )
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
        return done

    if Path("/dev/full").exists():
        with open("/dev/full", "w") as full:
            done = run(stdout=full)
        assert done.returncode == 1
        assert "could not be printed" in done.stderr
    reading, writing = os.pipe()
    os.close(reading)
    assert run(stdout=writing).returncode == 141
    os.close(writing)
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    done = subprocess.run(closed, cwd=world.root, env=world.environment, stderr=subprocess.PIPE, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == 10
