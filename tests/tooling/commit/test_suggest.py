"""What is suggested for a staged change, and why."""

import pytest

from tooling.commit.changes import CommittedFile
from tooling.commit.habits import Habits
from tooling.commit.message import parse
from tooling.commit.rules import problems
from tooling.commit.settings import CommitSettings
from tooling.commit.suggestion import guess_type
from tooling.commit.type_history import TypeHistory

TABLE = """
[tool.areal.commit]
none = ["README.md"]

[tool.areal.commit.scopes]
api = { paths = ["src/api/**"] }
engine = { paths = ["src/engine/**"], symbols = ["Engine*"] }
"""
SPEC = "class EngineSpec:\n    def build(self):\n        return 1\n\n\ndef other():\n    return 2\n"


def stage(repo, path, text):
    repo.write(path, text)
    repo.git("add", "--", path)


def file(path, status="M", added=10, deleted=0):
    return CommittedFile(path, status, added, deleted)


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ([file("docs/a.md"), file("README.md")], "docs"),
        ([file("tests/test_a.py")], "test"),
        ([file(".github/workflows/a.yml")], "ci"),
        ([file("pyproject.toml"), file("uv.lock")], "chore"),
        ([file("src/a.py", "A", 100), file("tests/test_a.py", "A", 100)], "feat"),
        ([file("src/a.py", added=4, deleted=3), file("tests/test_a.py", added=40)], "fix"),
        ([file(f"src/{n}.py", "R", 1, 1) for n in "abcde"], "refactor"),
        ([file("src/a.py", added=200, deleted=190)], "refactor"),
    ],
)
def test_the_type_follows_from_what_kinds_of_files_change_and_how(files, kind):
    guess = guess_type(files)
    assert guess.value == kind
    assert guess.evidence
    assert 0 < guess.confidence < 1


def test_types_are_learnt_from_history(repo):
    for number in range(24):
        repo.write("src/a.py", f"x = {number}\n")
        repo.commit(f"chore: keep {number}", "src/a.py")
    stage(repo, "src/a.py", "x = 99\n")
    kind = repo.json("suggest")["type"]
    assert kind["value"] == "chore"
    assert kind["confidence"] > 0.6
    assert kind["evidence"][0].startswith("24 earlier commits: ")


def test_likelihoods_of_types_add_up_and_follow_what_was_chosen_lately():
    history = TypeHistory()
    for number in range(60):
        history.learn("fix" if number < 20 else "perf", [file("src/a.py")])
    likely = history.likely([file("src/a.py")])
    assert next(iter(likely)) == "perf"
    assert sum(likely.values()) == pytest.approx(1.0)
    assert sum(TypeHistory().likely([file("src/a.py")]).values()) == pytest.approx(1.0)


def test_what_the_person_who_asks_chose_before_counts_more_than_what_others_chose():
    history, habits = TypeHistory(), Habits()
    for number in range(40):
        own = number % 3 == 0
        history.learn("perf" if own else "style", [file("src/a.py")], own=own)
        habits.learn("core" if own else "loop", [file("src/a.py")], own=own)
    likely, scopes = history.likely([file("src/a.py")]), habits.likely([file("src/a.py")])
    assert likely["perf"] > likely["style"]
    assert scopes["core"] > scopes["loop"]


def test_the_address_of_the_author_decides_whose_habits_count(repo):
    for number in range(12):
        who = ("one", "two", "two")[number % 3]
        repo.write("src/a.py", f"x = {number}\n")
        repo.git("add", ".")
        repo.git("commit", "-q", "-m", f"fix({who}): keep {number}", f"--author={who} <{who}@example.org>")
    stage(repo, "src/a.py", "x = 99\n")
    for who in ("one", "two"):
        repo.environment["GIT_AUTHOR_EMAIL"] = f"{who}@example.org"
        assert repo.json("suggest")["scope"]["value"] == who


def test_a_scope_that_a_path_spells_is_found_in_a_folder_nobody_has_touched():
    habits = Habits()
    for number in range(30):
        habits.learn(("archon", "proxy", "core")[number % 3], [file(f"src/{number % 3}/a.py")])
    assert next(iter(habits.likely([file("lib/new/archon_engine.py")]))) == "archon"


def test_a_scope_that_is_a_guess_is_left_out_and_named(repo):
    for number in range(24):
        repo.write(f"src/{number % 8}/a.py", f"x = {number}\n")
        repo.commit(f"fix(part{number % 8}): keep {number}", f"src/{number % 8}/a.py")
    stage(repo, "src/new/a.py", "x = 1\n")
    scope = repo.json("suggest")["scope"]
    assert scope["value"] == ""
    assert "not sure enough" in scope["evidence"][-1]
    assert scope["alternatives"]


def test_a_renamed_function_is_described_as_renamed(repo):
    repo.write("src/api/a.py", "def build():\n    return 1\n")
    repo.commit("feat: start", "src/api/a.py")
    stage(repo, "src/api/a.py", "def make():\n    return 1\n")
    report = repo.json("suggest", "--type", "refactor", "--scope", "")
    assert report["header"].endswith("rename build to make")


def test_a_function_that_became_two_is_not_renamed(repo):
    repo.write("src/api/a.py", "def build():\n    return 1\n")
    repo.commit("feat: start", "src/api/a.py")
    stage(repo, "src/api/a.py", "def make():\n    return 1\n\n\ndef form():\n    return 1\n")
    assert "rename" not in repo.json("suggest", "--type", "refactor", "--scope", "")["header"]


def test_a_file_that_cannot_be_parsed_any_more_has_lost_no_symbols(repo):
    repo.write("src/api/a.py", "def build():\n    return 1\n")
    repo.commit("feat: start", "src/api/a.py")
    stage(repo, "src/api/a.py", "def build(:\n    return 1\n")
    assert repo.json("suggest")["symbols"] == []


def test_a_file_without_symbols_leaves_the_description_open(repo):
    repo.write("conf.yaml", "a: 1\n")
    repo.commit("feat: start", "conf.yaml")
    stage(repo, "conf.yaml", "a: 2\n")
    assert "<what it does>" in repo.json("suggest")["header"]


def test_a_type_that_the_project_does_not_have_is_never_suggested():
    assert guess_type([file("docs/a.md")], types=("fix", "feat", "chore")).value in {"fix", "feat", "chore"}


def test_the_table_decides_about_the_scope_with_its_row_as_evidence(repo):
    repo.write("pyproject.toml", TABLE)
    repo.commit("chore: start", "pyproject.toml")
    stage(repo, "src/api/a.py", "def build():\n    return 1\n")
    stage(repo, "README.md", "words\n")
    scope = repo.json("suggest")["scope"]
    assert scope["value"] == "api"
    assert "src/api/a.py: src/api/**" in scope["evidence"]


def test_a_changed_symbol_decides_before_its_path(repo):
    repo.write("pyproject.toml", TABLE)
    repo.write("src/api/a.py", SPEC)
    repo.commit("chore: start", "pyproject.toml", "src/api/a.py")
    stage(
        repo,
        "src/api/a.py",
        SPEC.replace("return 1", "return 9"),
    )
    report = repo.json("suggest")
    assert report["scope"]["value"] == "engine"
    assert {each["name"]: each["what"] for each in report["symbols"]} == {
        "EngineSpec": "changed",
        "EngineSpec.build": "changed",
    }


def test_a_change_of_everything_has_no_scope(repo):
    rows = "".join(f's{n} = {{ paths = ["s{n}/**"] }}\n' for n in range(5))
    repo.write("pyproject.toml", f"[tool.areal.commit.scopes]\n{rows}")
    repo.commit("chore: start", "pyproject.toml")
    for number in range(5):
        stage(repo, f"s{number}/a.py", "x = 1\n")
    scope = repo.json("suggest")["scope"]
    assert scope["value"] == ""
    assert len(scope["alternatives"]) == 3


def test_without_a_table_history_decides(repo):
    for number in range(6):
        repo.write("src/runner/loop.py", f"x = {number}\n")
        repo.commit(f"fix(core): keep {number}", "src/runner/loop.py")
    stage(repo, "src/runner/other.py", "y = 1\n")
    scope = repo.json("suggest")["scope"]
    assert scope["value"] == "core"
    assert scope["evidence"][0] == "6 earlier commits were looked at"


def test_where_the_table_is_silent_history_has_a_say(repo):
    repo.write("pyproject.toml", TABLE)
    for number in range(3):
        repo.write("other/a.py", f"x = {number}\n")
        repo.commit(f"fix(rest): keep {number}", "other/a.py", "pyproject.toml")
    stage(repo, "other/b.py", "y = 1\n")
    assert repo.json("suggest")["scope"]["value"] == "rest"


def test_in_a_new_repository_folders_have_a_say(repo):
    stage(repo, "src/runner/loop.py", "x = 1\n")
    scope = repo.json("suggest")["scope"]
    assert "runner" in [scope["value"], *(each["value"] for each in scope["alternatives"])]


def test_the_skeleton_conforms_and_asks_for_the_reason(repo):
    stage(repo, "src/api/a.py", "def build():\n    return 1\n")
    stage(repo, "src/api/b.py", "class Reader:\n    pass\n")
    message = repo.json("suggest")["message"]
    assert "<why:" in message
    assert "- src/api/a.py: added build" in message
    assert [each for each in problems(parse(message), CommitSettings()) if each.severity == "error"] == []


def test_a_public_name_that_goes_is_a_breaking_change(repo):
    repo.write("src/api/a.py", "def build():\n    return 1\n\n\ndef _own():\n    return 2\n")
    repo.commit("feat: start", "src/api/a.py")
    stage(repo, "src/api/a.py", "x = 1\n")
    message = parse(repo.json("suggest")["message"])
    assert message.marked
    assert [footer.value for footer in message.footers if footer.breaking] == ["build removed; <what to use instead>"]


def test_a_public_name_that_moves_is_none(repo):
    repo.write("src/api/a.py", "def build():\n    return 1\n")
    repo.commit("feat: start", "src/api/a.py")
    stage(repo, "src/api/a.py", "x = 1\n")
    stage(repo, "src/api/b.py", "def build():\n    return 1\n")
    assert not parse(repo.json("suggest")["message"]).breaking


def test_what_the_caller_knows_is_taken_over(repo):
    stage(repo, "src/api/a.py", "x = 1\n")
    assert repo.json("suggest", "--type", "perf", "--scope", "own")["header"].startswith("perf(own): ")
    assert repo.run("suggest", "--type", "nonsense").code == 2


def test_nothing_staged_is_said(repo):
    done = repo.run("suggest")
    assert done.code == 2
    assert "nothing is staged" in done.stderr


@pytest.mark.parametrize("name", ["a b.py", "ü.py", "--force.py", "$(touch stolen).py", "new\nline.py", 'quo"te.py'])
def test_hostile_paths_are_only_data(repo, name):
    stage(repo, f"src/{name}", "def build():\n    return 1\n")
    report = repo.json("suggest")
    assert [each["path"] for each in report["files"]] == [f"src/{name}"]
    assert not (repo.root / "stolen").exists()
    assert not (repo.root / "src/stolen").exists()


def test_files_that_are_no_python_after_all_have_no_symbols(repo):
    stage(repo, "src/a.py", "def broken(:\n")
    (repo.root / "src/b.py").write_bytes(b"\xff\x00 = 1\n")
    repo.git("add", ".")
    assert repo.json("suggest")["symbols"] == []


def test_nothing_that_the_repository_configures_is_started(repo):
    repo.commit("fix: x", "a.txt")
    stage(repo, "a.txt", "other\n")
    for setting in ("core.fsmonitor", "diff.external", "core.pager"):
        repo.git("config", setting, "touch stolen")
    repo.run("suggest")
    repo.run("check", "HEAD")
    assert not (repo.root / "stolen").exists()
