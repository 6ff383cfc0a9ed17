"""`areal-commit check`, as the hook and the build server run it."""

import subprocess
import sys

import pytest


def test_a_message_that_conforms_passes_in_silence(repo):
    done = repo.run("check", "--message", "feat: keep x")
    assert (done.code, done.stdout, done.stderr) == (0, "", "")


def test_a_file_is_read_without_its_comments(repo):
    repo.write("message", "# what a long comment this is, longer than any header may be: 72 characters are\nfix: x\n")
    assert repo.run("check", "message").code == 0


def test_standard_input_is_a_file_too(repo):
    assert repo.run("check", "-", stdin="nonsense").code == 10


def test_every_problem_is_named_with_its_place_and_its_fix(repo):
    done = repo.run("check", "--message", "fix: added x.\nbody")
    assert done.code == 10
    assert "error: header: 'added' is not in the imperative mood; write 'add'" in done.stdout
    assert "error: line 2: no blank line between header and body; insert one" in done.stdout


def test_json_holds_every_problem_and_nothing_else_reaches_stdout(repo):
    report = repo.json("check", "--message", "Feat: x")
    assert (report["ok"], report["exit_code"], report["checked"]) == (True, 0, 1)
    (problem,) = report["messages"][0]["problems"]
    assert problem["rule"] == "type-case"
    assert repo.json("check", "--message", "x")["code"] == "message"


def test_warnings_fail_only_where_that_was_asked_for(repo):
    assert repo.run("check", "--message", "Feat: x").code == 0
    assert repo.run("check", "--message", "Feat: x", "--strict").code == 10


def test_a_range_is_checked_oldest_first(repo):
    repo.commit("start")
    repo.commit("one")
    repo.commit("fix: two")
    repo.commit("three")
    report = repo.json("check", "HEAD~3..HEAD")
    assert [each["header"] for each in report["messages"]] == ["one", "fix: two", "three"]
    assert report["exit_code"] == 10


def test_one_revision_is_one_commit(repo):
    repo.commit("nonsense")
    repo.commit("fix: two")
    assert repo.json("check", "HEAD")["checked"] == 1
    assert repo.run("check", "HEAD").code == 0


def test_a_merge_passes_whatever_it_says(repo):
    repo.commit("fix: one")
    repo.git("checkout", "-q", "-b", "side")
    repo.commit("fix: two", "side.txt")
    repo.git("checkout", "-q", "main")
    repo.commit("fix: three", "main.txt")
    repo.git("merge", "-q", "--no-ff", "-m", "my own words", "side")
    assert repo.run("check", "HEAD~1..HEAD").code == 0


def test_a_forgotten_fixup_fails_a_range(repo):
    repo.commit("fix: one")
    repo.commit("fixup! fix: one")
    assert repo.run("check", "HEAD~1..HEAD").code == 10


def test_commits_older_than_the_rules_are_counted_and_not_judged(repo):
    repo.commit("nonsense")
    repo.commit("more nonsense")
    since = repo.git("rev-parse", "HEAD").strip()
    repo.write("pyproject.toml", f'[tool.areal.commit]\nsince = "{since}"\n')
    repo.commit("fix: x")
    report = repo.json("check", "HEAD")
    assert (report["exit_code"], report["checked"]) == (0, 1)
    report = repo.json("check", "HEAD~2..HEAD")
    assert (report["exit_code"], report["checked"], report["exempt"]) == (0, 1, 1)
    assert repo.run("check", "HEAD~2..HEAD", "--all").code == 10


def test_a_published_commit_can_be_accepted_with_a_reason(repo):
    repo.commit("fix: one")
    repo.commit("nonsense")
    wrong = repo.git("rev-parse", "HEAD").strip()
    repo.write("pyproject.toml", f'[tool.areal.commit.accepted]\n{wrong[:12]} = "published by mistake"\n')
    repo.commit("fix: x")
    report = repo.json("check", "HEAD~2..HEAD")
    assert (report["exit_code"], report["checked"], report["exempt"]) == (0, 1, 1)
    assert repo.run("check", "HEAD~2..HEAD", "--all").code == 10


@pytest.mark.parametrize("line", ['0123456789ab = "no"', 'HEAD = "published by mistake"', "0123456789ab = 1"])
def test_accepting_takes_a_hash_and_a_reason(repo, line):
    repo.write("pyproject.toml", f"[tool.areal.commit.accepted]\n{line}\n")
    repo.commit("fix: x")
    assert repo.json("check", "HEAD")["exit_code"] == 2


@pytest.mark.parametrize("target", ["nowhere", "nowhere..HEAD", "--output=stolen..x", "-x..y"])
def test_what_is_neither_a_file_nor_a_revision_is_refused(repo, target):
    repo.commit("fix: x")
    assert repo.run("check", "--", target).code == 2
    assert not (repo.root / "stolen..x").exists()


def test_a_range_that_git_does_not_know_says_where_to_look(repo):
    repo.commit("fix: x")
    assert "git branch --all" in repo.json("check", "nowhere..HEAD")["fix"]


def test_a_message_with_bytes_that_are_no_text_is_refused_without_a_traceback(repo):
    (repo.root / "message").write_bytes(b"fix: \xff\xfe x\n")
    done = repo.run("check", "message")
    assert done.code == 10
    assert "Traceback" not in done.stderr


def test_a_setting_that_does_not_exist_is_refused_with_the_nearest(repo):
    repo.write("pyproject.toml", "[tool.areal.commit]\nheader_lenght = 50\n")
    done = repo.run("check", "--message", "fix: x")
    assert done.code == 2
    assert "did you mean 'header_length'?" in done.stderr


def test_checking_a_message_loads_nothing_heavy(repo):
    code = (
        "import sys\nfrom tooling.commit.__main__ import main\nmain(['check', '--message', 'fix: x'])\n"
        "heavy = {'git', 'libcst', 'copier', 'jinja2', 'rich', 'yaml', 'subprocess', 'asyncio'}\n"
        "raise SystemExit(' '.join(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repo.root, env=repo.environment, capture_output=True, text=True, check=False
    )
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("address", ["n <a\x02b\x02feat: fine message\x02z@c>", "n <a\x01z@c>"])
def test_an_address_does_not_decide_what_is_judged(repo, address):
    repo.commit("feat: a first one")
    tree = repo.git("rev-parse", "HEAD^{tree}").strip()
    raw = f"tree {tree}\nauthor {address} 1700000000 +0000\ncommitter n <c@d> 1700000000 +0000\n\nBad \x01 \x02 text\n"
    made = subprocess.run(
        ["git", "hash-object", "-t", "commit", "-w", "--literally", "--stdin"],
        cwd=repo.root,
        env=repo.environment,
        input=raw.encode(),
        capture_output=True,
        check=True,
    )
    done = repo.run("check", made.stdout.decode().strip())
    assert (done.code, "Bad" in done.stdout) == (10, True)
