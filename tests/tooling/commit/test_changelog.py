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


def test_the_whole_history_is_written_by_tag_type_and_scope(repo):
    repo.commit("feat(api): add x")
    repo.commit("docs: tell of x")
    repo.git("tag", "v1")
    repo.commit("fix(zoo): keep y")
    repo.commit("fix(api): keep x")
    repo.commit("fix(api): keep x")
    repo.commit("feat!: drop z")
    planned = repo.run("changelog", "--write", "CHANGELOG.md", "--dry-run", "--diff")
    assert (planned.code, "keep y" in planned.stdout) == (0, True)
    assert not (repo.root / "CHANGELOG.md").exists()

    assert [each["path"] for each in repo.json("changelog", "--write", "CHANGELOG.md")["plan"]] == ["CHANGELOG.md"]
    text = (repo.root / "CHANGELOG.md").read_text()
    unreleased, first = text.split("## v1 (")
    assert unreleased.index("### Breaking\n\n- drop z") < unreleased.index("### New\n\n- drop z (")
    assert unreleased.index("**api**\n\n- keep x (") < unreleased.index("**zoo**\n\n- keep y (")
    assert unreleased.count("keep x") == 1
    assert "**api**\n\n- add x (" in first
    assert "tell of x" not in text


def test_the_page_has_the_heading_and_types_that_were_asked_for(repo):
    repo.commit("feat: add x")
    repo.commit("docs: describe x")
    asked = ("--title", "What *changed*", "--all-types")
    repo.run("changelog", "--write", "CHANGELOG.md", *asked)
    text = (repo.root / "CHANGELOG.md").read_text()
    assert text.startswith("# What \\*changed\\*\n")
    assert "### Documents\n\n- describe x (" in text
    assert repo.run("changelog", "--check", "CHANGELOG.md", *asked).code == 0
    assert repo.run("changelog", "--check", "CHANGELOG.md").code == 10, "it has another heading and other types"


def test_a_page_that_does_not_follow_the_history_is_found(repo):
    repo.commit("feat: add x")
    repo.run("changelog", "--write", "CHANGELOG.md")
    repo.commit("chore: write the changelog", "CHANGELOG.md")
    repo.commit("feat: add what came later")
    assert repo.run("changelog", "--check", "CHANGELOG.md").code == 0
    page = repo.root / "CHANGELOG.md"
    written = page.read_text()
    for changed in (written.replace("add x", "add gold"), written.replace("up to ", "up to 0"), "# By hand\n"):
        page.write_text(changed)
        assert repo.run("changelog", "--check", "CHANGELOG.md").code == 10
    page.write_text(written)
    repo.git("tag", "v1", "HEAD~2")
    assert repo.run("changelog", "--check", "CHANGELOG.md").code == 10, "the release has a section now"


def test_a_changelog_stays_inside_the_repository(repo):
    repo.commit("feat: add x")
    assert repo.run("changelog", "--write", "../stolen.md").code != 0
    assert not (repo.root.parent / "stolen.md").exists()
    assert repo.run("changelog", "--write", "a.md", "--check", "a.md").code == 2
    assert repo.run("changelog", "HEAD", "--write", "a.md").code == 2
    assert repo.run("changelog", "--dry-run").code == 2
