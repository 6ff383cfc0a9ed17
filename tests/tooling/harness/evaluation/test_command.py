"""`areal-harness eval`: reading tasks, workspaces, agents, and what is said of what is left."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tooling.harness.__main__ import main
from tooling.harness.evaluation.checks import KINDS
from tooling.harness.evaluation.workspace import TaskWorkspace

PROMPT = "Greet Ann: write `hello Ann` into greeting.txt. $(touch owned)"
TASKS: dict[str, Any] = {
    "skill_name": "greet",
    "evals": [
        {
            "id": 1,
            "prompt": PROMPT,
            "expected_output": "greeting.txt greets Ann",
            "files": ["files/1/names/list.py.sample"],
            "assertions": ["Ann is greeted", "Nothing else was changed"],
        }
    ],
}
CHECKER = """\
[[eval]]
id = 1

[[eval.step]]
commit = "docs: names"

[[eval.check]]
says = "Ann is greeted"
kind = "file"
path = "greeting.txt"
contains = ["hello Ann"]

[[eval.check]]
says = "Nothing else was changed"
kind = "changed"
only = ["greeting.txt"]
"""
SKILL = "---\nname: greet\ndescription: Greet somebody.\n---\n\n# Greet\n"


class Repository:
    """A small repository with a task, and agents that are programs of three lines."""

    def __init__(self, root, capture):
        self.root = root
        self._capture = capture
        root.mkdir()
        subprocess.run(["git", "init", "-q", "-b", "main", str(root)], check=True)
        self.write("skills/greet/SKILL.md", SKILL)
        self.write("tests/skills/greet/evals.json", json.dumps(TASKS))
        self.write("tests/skills/greet/checker.toml", CHECKER)
        self.write("tests/skills/greet/files/1/names/list.py.sample", "NAMES = ['Ann']\n")

    def write(self, path, text):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def agent(self, code):
        """A command line for --agent that runs the code, with the prompt behind it."""
        program = self.root.parent / "agent.py"
        program.write_text(f"import os, pathlib, sys, time\n{code}\n", encoding="utf-8")
        return f"{sys.executable} {program}"

    def run(self, *words):
        self._capture.readouterr()
        code = main(["eval", *words, "--repo", str(self.root), "--json"])
        return code, json.loads(self._capture.readouterr().out)


@pytest.fixture
def repository(tmp_path, capsys):
    return Repository(tmp_path / "repository", capsys)


GREETS = "pathlib.Path('greeting.txt').write_text('hello Ann')"


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("code", "fails", "evidence"),
    [
        ("pass", "Ann is greeted", "greeting.txt does not exist"),
        ("pathlib.Path('greeting.txt').write_text('hello Bob')", "Ann is greeted", "does not hold 'hello Ann'"),
        (
            f"{GREETS}; os.remove('names/list.py'); pathlib.Path('more').write_text('')",
            "Nothing else was changed",
            "more, names/list.py",
        ),
        (f"{GREETS}; pathlib.Path('x').write_text(''); os.system('git add x; git commit -qm x')", "Nothing else", "x"),
    ],
)
def test_what_is_not_done_is_named_with_its_assertion(repository, code, fails, evidence):
    status, document = repository.run("--agent", repository.agent(code))
    assert status == 10
    failed = [one for one in document["evaluations"][0]["assertions"] if not one["passed"]]
    assert [one["text"].startswith(fails) and evidence in one["evidence"] for one in failed] == [True]


def test_the_prompt_is_one_argument_and_what_an_agent_prints_is_only_kept(repository, tmp_path):
    code = f"pathlib.Path({str(tmp_path / 'prompt')!r}).write_text(sys.argv[-1]); print('$(touch owned)'); {GREETS}"
    assert repository.run("--agent", repository.agent(code), "--keep", str(tmp_path / "kept"))[0] == 0
    assert (tmp_path / "prompt").read_text(encoding="utf-8") == PROMPT
    kept = tmp_path / "kept" / "greet-1" / "with_skill"
    assert (kept / "output.txt").read_text(encoding="utf-8") == "$(touch owned)\n"
    grading = json.loads((kept / "grading.json").read_text(encoding="utf-8"))
    assert grading["summary"] == {"passed": 2, "failed": 0, "total": 2, "pass_rate": 1.0}
    assert list(tmp_path.rglob("owned")) == []


def test_the_work_tree_is_what_is_tried_and_it_is_left_alone(repository):
    repository.write("new.txt", "not committed\n")
    before = {path: path.read_bytes() for path in repository.root.rglob("*") if path.is_file()}
    sees = f"assert os.path.exists('new.txt') and os.path.exists('names/list.py'); {GREETS}"
    code, document = repository.run("--agent", repository.agent(sees))
    assert (code, document["passed"], document["failed"]) == (0, 1, 0)
    [row] = document["evaluations"]
    assert [one["passed"] for one in row["assertions"]] == [True, True]
    assert row["agent"]["exit_code"] == 0
    assert {path: path.read_bytes() for path in repository.root.rglob("*") if path.is_file()} == before


def test_an_agent_that_takes_too_long_is_ended_and_judged(repository):
    code, document = repository.run("--agent", repository.agent("time.sleep(60)"), "--limit", "0.2")
    assert (code, document["evaluations"][0]["agent"]["exit_code"]) == (10, 124)


@pytest.mark.exhaustive
def test_the_baseline_does_the_task_without_the_skill(repository):
    knows = f"if os.path.exists('skills/greet/SKILL.md'): {GREETS}"
    code, document = repository.run("--agent", repository.agent(knows), "--baseline")
    assert code == 0
    assert {row["configuration"]: row["passed"] for row in document["evaluations"]} == {
        "with_skill": True,
        "without_skill": False,
    }


def test_a_workspace_can_be_worked_in_by_hand_and_judged_later(repository, tmp_path):
    target = tmp_path / "by-hand"
    code, document = repository.run("greet", "--prepare", str(target))
    assert (code, document["prompt"]) == (0, PROMPT)
    assert repository.run("--judge", str(target))[0] == 10
    (target / "greeting.txt").write_text("hello Ann\n", encoding="utf-8")
    assert repository.run("--judge", str(target))[0] == 0
    assert repository.run("greet", "--prepare", str(target))[0] == 3


def test_a_dry_run_says_everything_and_starts_nothing(repository):
    code, document = repository.run("--dry-run")
    assert code == 0
    [task] = document["evaluations"]
    assert (task["prompt"], task["files"], task["steps"]) == (PROMPT, ["names/list.py"], [{"commit": "docs: names"}])
    assert [check["kind"] for check in task["checks"]] == ["file", "changed"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no agent"),
        (["--agent", "nobody-has-this-program"], "no such program"),
        (["--agent", "'unclosed"], "no command line"),
        (["gret", "--dry-run"], "unknown skill"),
        (["--dry-run", "--id", "9"], "unknown task"),
        (["--judge", "."], "not a workspace"),
    ],
)
def test_what_cannot_be_run_is_said_with_what_to_do(repository, words, said):
    code, document = repository.run(*words)
    assert (code, document["code"]) == (2, "usage")
    assert said in document["error"]
    assert document["fix"]


@pytest.mark.parametrize(
    ("file", "before", "after", "said"),
    [
        ("evals.json", '"Ann is greeted"', '"Bob is greeted"', "does not say the same"),
        ("evals.json", '"greet"', '"great"', "skill_name"),
        ("evals.json", '"id": 1', '"id": "one"', "is not of type int"),
        ("evals.json", '"prompt"', '"promt"', "other keys"),
        ("evals.json", "files/1/names/list.py.sample", "../../../../etc/passwd", "not a file below"),
        ("checker.toml", 'kind = "file"', 'kind = "files"', "did you mean 'file'"),
        ("checker.toml", 'path = "greeting.txt"\n', "", "needs path"),
        ("checker.toml", "only =", "onyl =", "does not take onyl"),
        ("checker.toml", "commit =", "comit =", "unknown step 'comit'"),
        ("checker.toml", "id = 1", "id = 2", "other ids"),
        ("checker.toml", "[[eval]]", "[[eval", "cannot be read"),
    ],
)
def test_tasks_that_say_nothing_are_refused_and_found_by_check(repository, capsys, file, before, after, said):
    path = f"tests/skills/greet/{file}"
    text = (repository.root / path).read_text(encoding="utf-8")
    assert before in text
    repository.write(path, text.replace(before, after, 1))
    code, document = repository.run("--dry-run")
    assert code == 2
    assert said in document["error"]
    main(["check", "--no-run", "--json", "--repo", str(repository.root)])
    rules = [one["rule"] for one in json.loads(capsys.readouterr().out)["findings"]]
    assert "eval-format" in rules


def test_a_step_that_cannot_be_done_any_more_says_which(repository):
    step = '[[eval.step]]\nedit = { path = "names/list.py", before = "Bob", after = "Eve" }\n'
    repository.write("tests/skills/greet/checker.toml", CHECKER.replace("[[eval.check]]", step + "\n[[eval.check]]", 1))
    code, document = repository.run("--agent", repository.agent(GREETS))
    assert (code, document["fix"]) == (2, "renew the step")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A repository with a module, a test and a commit."""
    root = tmp_path_factory.mktemp("workspace")
    made = TaskWorkspace(root, "HEAD")
    made.git("init", "-q", "-b", "main")
    (root / "code.py").write_text("TABLE = {'a': 'x:y'}\n\n\ndef double(n):\n    return n * 2\n", encoding="utf-8")
    test = "from code_under_test import double\n\n\ndef test_it():\n    assert double(2) == 4\n"
    (root / "test_code.py").write_text(test, encoding="utf-8")
    (root / "code_under_test.py").write_text("def double(n):\n    return n * 2\n", encoding="utf-8")
    made.git("add", "--all")
    made.git("commit", "-q", "-m", "feat: code")
    return TaskWorkspace(root, made.git("rev-parse", "HEAD").strip())


MUTANT = {"before": "n * 2", "after": "n + 2"}


@pytest.mark.sample(10)
@pytest.mark.parametrize(
    ("kind", "values", "problem"),
    [
        ("file", {"path": "*.py", "contains": ["double"], "matches": ["^def"]}, ""),
        ("file", {"path": "code.py", "lacks": ["double"]}, "holds 'double'"),
        ("file", {"path": "gone.py", "exists": False}, ""),
        ("file", {"path": "code.py", "exists": False}, "exists"),
        ("symbol", {"path": "code.py", "name": "double", "type": "function"}, ""),
        ("symbol", {"path": "code.py", "name": "triple"}, "has no triple"),
        ("symbol", {"path": "code.py", "name": "double", "type": "async function"}, "is not of type async function"),
        ("symbol", {"path": "code.py", "name": "double", "calls": ["print"]}, "does not call print"),
        ("registry", {"path": "code.py", "table": "TABLE", "key": "a", "value": "x:.*"}, ""),
        ("registry", {"path": "code.py", "table": "TABLE", "key": "b"}, "no entry 'b'"),
        ("registry", {"path": "code.py", "table": "TABLE", "key": "a", "value": "z:.*"}, "leads to 'x:y'"),
        ("registry", {"path": "code.py", "table": "OTHER", "key": "a"}, "has no table OTHER"),
        ("command", {"run": ["echo", '{"a": [1]}'], "json": "a.0", "equals": 1}, ""),
        ("command", {"run": ["echo", '{"a": [1]}'], "json": "a", "count": 0}, "has 1 entries"),
        ("command", {"run": ["echo", '{"a": [1]}'], "json": "a.b"}, "the JSON has no a.b"),
        ("command", {"run": ["false"]}, "exits with 1"),
        ("command", {"run": ["python", "-c", "raise SystemExit(3)"], "exit": [0, 3]}, ""),
        ("command", {"run": ["no-such-program"]}, "exits with 127"),
        ("call", {"target": "code_under_test:double", "cases": [{"args": [2], "returns": 4}]}, ""),
        (
            "call",
            {"target": "code_under_test:double", "cases": [{"args": [2], "returns": 5}]},
            "expected {'returns': 5}",
        ),
        ("call", {"target": "code_under_test:double", "cases": [{"args": [], "raises": "TypeError"}]}, ""),
        ("call", {"target": "code_under_test:gone", "cases": []}, "code_under_test:gone: AttributeError: module"),
        pytest.param("tests", {"paths": ["test_code.py"]}, "", marks=pytest.mark.exhaustive),
        ("tests", {"paths": ["test_code.py"], "least": 2}, "1 tests pass, expected 2"),
        ("tests", {"paths": ["test_gone.py"]}, "does not exist"),
        pytest.param(
            "mutants",
            {"path": "code_under_test.py", "tests": ["test_code.py"], "mutants": [MUTANT]},
            "1 tests pass",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "mutants",
            {"path": "code_under_test.py", "tests": ["test_code.py"], "mutants": [{"before": "* 2", "after": "* 3"}]},
            "",
            marks=pytest.mark.exhaustive,
        ),
        ("changed", {"only": []}, ""),
        ("changed", {"must": ["code.py"]}, "unchanged: code.py"),
        ("clean", {}, ""),
        ("commits", {"count": 0}, "there is no commit"),
        ("remote", {"name": "origin", "branch": "x"}, "it has none"),
    ],
)
def test_a_kind_says_what_is_wrong_and_nothing_else(workspace, kind, values, problem):
    before = {path.name: path.read_bytes() for path in workspace.root.glob("*.py")}
    found = KINDS[kind].problem(workspace, values)
    assert (problem in found) if problem else (found == "")
    assert {path.name: path.read_bytes() for path in workspace.root.glob("*.py")} == before


def test_a_mutant_is_never_written_through_a_link(workspace, tmp_path):
    outside = tmp_path / "outside.py"
    outside.write_text("n * 2\n", encoding="utf-8")
    (workspace.root / "link.py").symlink_to(outside)
    values = {"path": "link.py", "tests": ["test_code.py"], "mutants": [MUTANT]}
    assert "not a file of the workspace" in KINDS["mutants"].problem(workspace, values)
    (workspace.root / "link.py").unlink()
    assert outside.read_text(encoding="utf-8") == "n * 2\n"
