"""Pages without a mark: history says what they can know of, and nothing else is held against them."""

from __future__ import annotations

import subprocess


def test_a_change_of_the_source_after_the_translation_is_found_with_its_commit(documents):
    documents.replace("docs/en/versions.md", "No token is older", "No token is ever older")
    changed = documents.commit("docs: ever")
    assert documents.states() == {"## The bound": ["source changed"]}
    _, document = documents.run("zh-check", "versions.md")
    page = document["pages"][0]
    [section] = [one for one in page["sections"] if one["state"] != "in step"]
    assert (page["basis"], section["followed"]["since"]) == ("history", [changed])
    assert "+No token is ever older" in section["diff"]


def test_a_translation_that_was_written_later_is_not_blamed(documents):
    documents.replace("docs/en/versions.md", "No token is older", "No token is ever older")
    documents.commit("docs: ever")
    documents.replace("docs/zh/versions.md", "都不会比", "都绝不会比")
    documents.commit("docs: the same in Chinese")
    assert documents.states() == {}


def test_one_commit_that_changes_both_is_in_step(documents):
    documents.replace("docs/en/versions.md", "No token is older", "No token is ever older")
    documents.replace("docs/zh/versions.md", "都不会比", "都绝不会比")
    documents.commit("docs: ever")
    assert documents.states() == {}


def test_work_that_is_not_committed_is_not_late(documents):
    documents.replace("docs/en/versions.md", "No token is older", "No token is ever older")
    assert documents.states() == {}


def test_a_translation_that_has_the_change_already_is_not_blamed(documents):
    for language in ("zh", "en"):
        documents.replace(f"docs/{language}/versions.md", "`max_age`", "`max_versions`")
        documents.commit(f"docs: {language}")
    assert documents.states() == {}


def test_a_change_that_only_moves_lines_is_none(documents):
    documents.replace("docs/en/versions.md", "Every update of the weights", "Every update\nof the weights")
    documents.commit("style: wrap")
    assert documents.states() == {}


def test_pages_are_followed_through_renames(documents):
    documents.replace("docs/en/versions.md", "No token is older", "No token is ever older")
    documents.commit("docs: ever")
    documents.git("mv", "docs/en/versions.md", "docs/en/ages.md")
    documents.git("mv", "docs/zh/versions.md", "docs/zh/ages.md")
    documents.commit("docs: move")
    assert documents.states() == {"## The bound": ["source changed"]}


def test_a_branch_that_did_not_see_the_change_is_judged_by_what_it_saw(documents):
    documents.git("switch", "-q", "-c", "chinese")
    documents.replace("docs/zh/versions.md", "都不会比", "都绝不会比")
    documents.commit("docs: Chinese on a branch")
    documents.git("switch", "-q", "main")
    documents.replace("docs/en/versions.md", "No token is older", "No token is ever older")
    documents.commit("docs: English meanwhile")
    documents.git("merge", "-q", "--no-edit", "chinese")
    assert documents.states() == {"## The bound": ["source changed"]}


def test_a_clone_without_history_blames_nobody(documents, tmp_path):
    documents.replace("docs/en/versions.md", "No token is older", "No token is ever older")
    documents.commit("docs: ever")
    shallow = tmp_path / "shallow"
    subprocess.run(
        ["git", "clone", "-q", "--depth", "1", f"file://{documents.root}", str(shallow)],
        check=True,
        capture_output=True,
    )
    documents.root = shallow
    assert documents.states() == {}


def test_without_history_structure_is_still_compared(documents):
    documents.replace("docs/en/versions.md", "30 seconds", "40 seconds")
    documents.commit("docs: longer")
    _, document = documents.run("zh-check", "--no-history", "versions.md")
    assert document["pages"][0]["basis"] == "structure"
    assert documents.states("--no-history") == {"## The bound": ["structure differs"]}


def test_sections_that_only_one_page_has_are_missing_or_extra(documents):
    documents.replace("docs/en/versions.md", "## Faults", "## Ages\n\nThe age of `token_age`.\n\n## Faults")
    documents.replace("docs/zh/versions.md", "## 故障\n", "### 译注\n\n`note_of_translator`\n\n## 故障\n")
    documents.commit("docs: more")
    states = documents.states()
    assert states["## Ages"] == ["missing"]
    assert states["### 译注"] == ["extra"]
    assert "## The bound" not in states


def test_hostile_names_reach_no_shell_and_no_other_place(documents):
    name = "docs/en/--output=x; touch owned.md"
    documents.write(name, "# Title\n\nSome words of a page that has an odd name.\n")
    documents.write(name.replace("/en/", "/zh/"), "# 标题\n\n一些话。\n")
    documents.commit("docs: odd")
    assert documents.run("zh-check")[0] == 0
    assert documents.run("zh-mark", name)[0] == 0
    assert not (documents.root / "owned.md").exists()
    assert not (documents.root / "x").exists()
