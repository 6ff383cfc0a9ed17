"""History as a list of changes."""


def test_breaking_changes_come_first_then_each_type_under_its_title(repo):
    repo.commit("chore: start")
    repo.git("tag", "v1")
    repo.commit("fix(api): keep x (#7)")
    repo.commit("feat!: drop y")
    repo.commit("feat(api): add z\n\nBREAKING CHANGE: call it with\na number")
    repo.commit("test: try x")
    repo.commit("no header at all")
    text = repo.run("changelog").stdout
    assert text.startswith("## v1..HEAD\n\n### Breaking\n\n- **api**: call it with a number\n- drop y\n\n### New\n\n")
    assert "### Corrected\n\n- **api**: keep x (#7)\n" in text
    assert "### Other\n\n- no header at all (" in text
    assert "try x" not in text
    assert "try x" in repo.run("changelog", "--all-types").stdout


def test_a_commit_that_is_taken_back_in_the_range_is_left_out_with_its_revert(repo):
    repo.commit("chore: start")
    repo.commit("feat: add x", "x.txt")
    repo.git("revert", "--no-edit", "HEAD")
    assert [each["subject"] for each in repo.json("changelog", "HEAD~2..HEAD")["entries"]] == []
    assert repo.json("changelog", "HEAD~1..HEAD")["entries"][0]["type"] == "revert"


def test_a_revert_that_is_taken_back_leaves_the_commit(repo):
    repo.commit("chore: start")
    repo.commit("feat: add x", "x.txt")
    repo.git("revert", "--no-edit", "HEAD")
    repo.git("revert", "--no-edit", "HEAD")
    assert [each["subject"] for each in repo.json("changelog", "HEAD~3..HEAD")["entries"]] == ["add x"]


def test_subjects_are_text_and_no_markup(repo):
    repo.commit("fix: keep <b> and [x](y)")
    assert r"keep \<b\> and \[x\](y)" in repo.run("changelog").stdout


def test_without_commits_that_is_said(repo):
    assert repo.run("changelog").code == 2
    repo.commit("fix: x")
    assert repo.run("changelog", "--", "--output=stolen").code == 2
    assert not (repo.root / "stolen").exists()
