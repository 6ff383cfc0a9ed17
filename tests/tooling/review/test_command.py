"""The command as people and programs use it: sides, forms of output, exit codes, and that it only reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from tooling.review.__main__ import main
from tooling.review.rule_texts import concerns
from tooling.review.rules.catalogue import RULES

BAD = "import yaml\n\n\ndef read(text):\n    return yaml.unsafe_load(text)\n"


def run(world, capsys, *options: str) -> tuple[int, str]:
    code = main(["--repo", str(world.root), *options])
    return code, capsys.readouterr().out


def state_of(world) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(world.root.rglob("*")) if path.is_file()}


def test_a_branch_is_compared_with_where_it_left_main(world):
    world.git("checkout", "-q", "-b", "topic")
    world.commit({"a.py": BAD})
    world.git("checkout", "-q", "main")
    world.commit({"b.py": BAD})
    assert world.found("--head", "topic") == [("unsafe-yaml", "a.py", 5)]


def test_what_is_staged_and_what_is_on_disk(world):
    world.write({"a.py": BAD})
    world.git("add", "a.py")
    world.write({"a.py": "x = 1\n", "new file.py": BAD})
    assert world.found("--staged") == [("unsafe-yaml", "a.py", 5)]
    assert world.found("--worktree") == [("unsafe-yaml", "new file.py", 5)]


def test_the_first_commit_of_all_can_be_reviewed_before_and_after_it_is_made(tmp_path, capsys):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "a.py").write_text(BAD, encoding="utf-8")
    subprocess.run(["git", "add", "a.py"], cwd=tmp_path, check=True)
    assert main(["--repo", str(tmp_path), "--staged", "--json"]) == 10
    assert json.loads(capsys.readouterr().out)["findings"][0]["rule"] == "unsafe-yaml"
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run(["git", *identity, "commit", "-q", "-m", "x"], cwd=tmp_path, check=True)
    assert main(["--repo", str(tmp_path), "--commit", "HEAD", "--json"]) == 10


def test_a_bare_repository_can_be_reviewed(world, tmp_path, capsys):
    world.commit({"a.py": BAD})
    world.git("clone", "-q", "--bare", ".", str(tmp_path / "bare"))
    assert main(["--repo", str(tmp_path / "bare"), "--commit", "main", "--json"]) == 10
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["path"], finding["line"], finding["severity"]) == ("a.py", 5, "HIGH")


def test_a_clone_that_lacks_contents_is_reviewed_without_them(world):
    world.commit({"large.bin": "data " * 100, "old name.py": "x = 1\n"})
    world.git("mv", "old name.py", "new name.py")
    world.commit({"large.bin": "other " * 100, "a.py": BAD})
    blob = world.git("rev-parse", "HEAD:large.bin").strip()
    (world.root / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    outcome = world.review()
    assert [each.rule.id for each in outcome.open] == ["unsafe-yaml"]
    assert outcome.notes == ("large.bin: its content is not in this clone",)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("threshold", "code"), [("high", 10), ("critical", 0), ("low", 10), ("never", 0)])
def test_the_exit_code_follows_the_threshold(world, capsys, threshold, code):
    world.commit({"a.py": BAD})
    assert run(world, capsys, "--commit", "HEAD", "--fail-on", threshold)[0] == code


def test_the_json_report_carries_the_analysis_and_prompts(world, capsys):
    world.commit({"areal/algorithm/loss.py": "def loss(x, mask):\n    return x.sum() / mask.sum()\n"})
    code, out = run(world, capsys, "--commit", "HEAD", "--json")
    report = json.loads(out)
    analysis = report["CHANGE_ANALYSIS_REPORT"]
    assert code == report["exit_code"] == 10
    assert analysis["files"][0]["symbols"] == ["loss"]
    assert [each["name"] for each in analysis["domains"]] == ["algorithm"]
    (reading,) = analysis["passes"]
    assert reading["expert"] == "algorithm"
    assert "areal/algorithm/loss.py" in reading["prompt"]
    assert {each["rule"] for each in report["findings"]} == {"unguarded-mask-division", "unmasked-numerator"}


def test_a_quick_review_stops_after_the_analysis(world, capsys):
    world.commit({"a.py": BAD})
    code, out = run(world, capsys, "--commit", "HEAD", "--quick", "--json")
    assert (code, json.loads(out)["findings"]) == (0, [])


def test_sarif_names_rule_place_and_fingerprint(world, capsys):
    world.commit({"a b.py": BAD})
    code, out = run(world, capsys, "--commit", "HEAD", "--sarif")
    (run_,) = json.loads(out)["runs"]
    (result,) = run_["results"]
    assert code == 10
    assert run_["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "unsafe-yaml"
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("a%20b.py", 5)
    assert len(result["partialFingerprints"]["arealReview/v1"]) == 24


def test_names_of_files_cannot_forge_annotations_markdown_or_terminal_text(world, capsys):
    world.commit({"a\n::error::x|`b`\x1b[31m.py": BAD})
    annotations = run(world, capsys, "--commit", "HEAD", "--github")[1]
    assert annotations.count("\n") == 1
    assert annotations.startswith("::error file=a%0A%3A%3Aerror%3A%3Ax")
    table = run(world, capsys, "--commit", "HEAD", "--markdown")[1]
    assert r"x\|\`b\`" in table
    assert "\x1b" not in run(world, capsys, "--commit", "HEAD")[1] + table


def test_nothing_is_written_and_nothing_of_the_repository_runs(world, capsys, tmp_path):
    trap = tmp_path / "trap"
    world.commit({"a.py": "x = 1\n", ".gitattributes": "*.py diff=evil filter=evil\n"})
    for key in ("core.fsmonitor", "diff.external", "diff.evil.textconv", "diff.evil.command", "core.pager"):
        world.git("config", key, f"touch {trap} #")
    world.write({"a.py": BAD, "conftest.py": f"open({str(trap)!r}, 'w')\n"})
    before = state_of(world)
    for options in (["--worktree"], ["--commit", "HEAD"], ["--staged"]):
        run(world, capsys, *options, "--json")
    assert state_of(world) == before
    assert not trap.exists()


def test_a_link_is_not_followed_out_of_the_repository(world, tmp_path):
    (tmp_path / "outside.py").write_text(BAD, encoding="utf-8")
    os.symlink(tmp_path / "outside.py", world.root / "a.py")
    outcome = world.review("--worktree")
    assert (outcome.open, outcome.notes) == ((), ("a.py: binary, a link, a submodule or very large",))


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (["--base", "nothing"], "--base nothing"),
        (["--base=--output=x"], "--base --output=x"),
        (["--commit", "HEAD", "--head", "main"], "--head"),
        (["look"], "look"),
        (["--baseline", "gone.json"], "--baseline gone.json"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(world, capsys, options, where):
    code, out = run(world, capsys, *options, "--json")
    report = json.loads(out)
    assert (code, report["where"]) == (2, where)
    assert report["fix"]


def test_outside_of_a_repository_it_says_so(tmp_path, capsys):
    assert main(["--repo", str(tmp_path), "--json"]) == 2
    assert "not a git repository" in json.loads(capsys.readouterr().out)["error"]


def test_explain_says_what_a_rule_looks_for(capsys):
    assert main(["explain", "unsafe-yaml"]) == 0
    assert RULES["unsafe-yaml"].text.fix in capsys.readouterr().out
    assert main(["explain", "barrier-of-all-ranks"]) == 0  # a former name
    assert capsys.readouterr().out.startswith("group-unnamed ")
    assert main(["explain", "unsafe-yml", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["fix"] == "did you mean 'unsafe-yaml'?"
    assert main(["explain", "--json"]) == 0
    assert {each["id"] for each in json.loads(capsys.readouterr().out)["rules"]} == set(RULES)


@pytest.mark.sample(71)
@pytest.mark.parametrize("rule", RULES)
def test_explain_is_complete_for_every_rule(rule, capsys):
    assert main(["explain", rule, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["rule"]
    assert all(said[key] for key in ("id", "severity", "family", "why", "fix", "example", "reads", "concerns"))
    assert said["suppress"].startswith(f"# review: ignore[{rule}] ")


def test_every_concern_is_served_and_every_rule_serves_one():
    served = [rule for rules in concerns().values() for rule in rules]
    assert sorted(served) == sorted(RULES)


@pytest.mark.exhaustive
def test_a_change_of_a_thousand_lines_takes_seconds(world):
    body = "".join(f"def f_{number}(x, mask):\n    y = x * {number}\n    return y\n\n\n" for number in range(25))
    world.commit({f"areal/m{number}.py": body for number in range(300)} | {"areal/__init__.py": ""})
    world.commit({f"areal/m{number}.py": body.replace("return y", "return y + 1") for number in range(40)})
    started = time.process_time()
    assert world.review().comparison.added == 1000
    assert time.process_time() - started < 15


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from tooling.review.__main__ import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"libcst", "git", "yaml", "torch"} & set(done.stderr.split())
