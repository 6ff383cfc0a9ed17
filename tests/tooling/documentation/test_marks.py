"""Pages with a mark: it says which sections of the source they follow, and needs no history to be compared."""

from __future__ import annotations

import pytest


def test_a_marked_page_is_in_step_until_its_source_changes(marked):
    assert marked.run("zh-check", "--check")[0] == 0
    marked.replace("docs/en/versions.md", "has a number", "gets a number of its own")
    code, document = marked.run("zh-check", "--check")
    assert (code, document["counts"]["lagging_sections"]) == (10, 1)
    assert marked.states() == {"# Versions": ["source changed"]}


def test_how_the_source_changed_is_shown_from_history(marked):
    marked.replace("docs/en/versions.md", "has a number", "gets a number")
    changed = marked.commit("docs: say gets")
    _, document = marked.run("zh-check", "docs/zh/versions.md")
    [section] = [one for one in document["pages"][0]["sections"] if one["state"] != "in step"]
    assert "-Every update of the weights has a number." in section["diff"]
    assert "+Every update of the weights gets a number." in section["diff"]
    assert section["followed"]["since"] == [changed]


def test_a_mark_needs_no_commits(marked):
    marked.git("update-ref", "-d", "HEAD")
    marked.replace("docs/en/versions.md", "has a number", "gets a number")
    assert marked.states() == {"# Versions": ["source changed"]}
    _, document = marked.run("zh-check")
    notes = [one["note"] for page in document["pages"] for one in page["sections"] if one["note"]]
    assert notes == ["what it follows is not in the history of this clone"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "Every update of the weights has a number. The first one is `0`.",
            "Every update of the\nweights has a\nnumber. The first one is `0`.",
        ),
        ("- one fault\n- another one", "* one fault\n* another one"),
        ("| kind | retried |\n| --- | --- |", "| kind  |  retried |\n|:---|---|"),
        ("## The bound", "## The bound ##\n"),
        ("# Versions\n", "Versions\n========\n"),
        ("The first", "<!-- a remark -->The first"),
        ("```python", "~~~python"),
    ],
)
def test_another_way_to_write_the_same_is_no_change(marked, before, after):
    text = marked.read("docs/en/versions.md").replace(before, after)
    marked.write("docs/en/versions.md", text.replace("\n```\n", "\n~~~\n") if "~~~" in after else text)
    assert marked.states() == {}


@pytest.mark.parametrize(
    ("before", "after", "section"),
    [
        ("limit = bound(versions)", "limit =  bound(versions)", "## The bound"),
        ("30 seconds", "40 seconds", "## The bound"),
        ("guide.md", "guide.md#guide", "## The bound"),
        ("`lost`", "lost", "## Faults"),
        ("another one", "another *one*", "## Faults"),
        ("- one fault\n- another one", "1. one fault\n2. another one", "## Faults"),
    ],
)
def test_what_says_something_else_is_a_change(marked, before, after, section):
    marked.replace("docs/en/versions.md", before, after)
    assert marked.states()[section][0] == "source changed"


def test_wrapping_chinese_lines_is_no_edit(marked):
    marked.replace("docs/zh/versions.md", "每次更新权重都有一个编号", "每次更新权重\n都有一个编号")
    before = marked.read("docs/zh/versions.md")
    assert marked.run("zh-mark", "versions.md")[0] == 0
    assert marked.read("docs/zh/versions.md") == before


def test_a_new_section_of_the_source_is_missing(marked):
    marked.replace("docs/en/versions.md", "## Faults", "## Ages\n\nThe age of a token.\n\n## Faults")
    assert marked.states() == {"## Ages": ["missing"]}


def test_a_section_that_the_source_lost_is_extra(marked):
    text = marked.read("docs/en/versions.md")
    marked.write("docs/en/versions.md", text[: text.index("## Faults")])
    assert marked.states() == {"## 故障": ["extra"]}


def test_sections_in_another_order_are_reordered(marked):
    text = marked.read("docs/en/versions.md")
    first, bound, faults = text.index("# Versions"), text.index("## The bound"), text.index("## Faults")
    marked.write("docs/en/versions.md", text[first:bound] + text[faults:] + "\n" + text[bound:faults])
    assert list(marked.states().values()) == [["reordered"]]


def test_a_heading_that_was_renamed_is_the_same_section(marked):
    marked.replace("docs/en/versions.md", "## The bound", "## How old a token may be")
    assert marked.states() == {"## How old a token may be": ["source changed"]}


def test_another_section_in_the_place_of_one_is_not_taken_for_it(marked):
    text = marked.read("docs/en/versions.md")
    start, end = text.index("## The bound"), text.index("## Faults")
    other = "## Seeds\n\nRandomness depends on nothing but the seed of a run, which is written down.\n\n"
    marked.write("docs/en/versions.md", text[:start] + other + text[end:])
    assert marked.states() == {"## Seeds": ["missing"], "## 上限": ["extra"]}


def test_a_section_that_is_new_on_both_sides_waits_for_its_mark(marked):
    marked.replace("docs/en/versions.md", "## Faults", "## Ages\n\nThe age of a token.\n\n## Faults")
    marked.replace("docs/zh/versions.md", "## 故障", "## 年龄\n\ntoken 的年龄。\n\n## 故障")
    assert marked.states() == {"## Ages": ["source changed"]}
    assert marked.run("zh-mark", "versions.md")[0] == 0
    assert marked.states() == {}


def test_a_translation_that_was_edited_since_says_so(marked):
    marked.replace("docs/en/versions.md", "has a number", "gets a number")
    marked.replace("docs/zh/versions.md", "都有一个编号", "都得到一个编号")
    _, document = marked.run("zh-check", "versions.md")
    [section] = [one for one in document["pages"][0]["sections"] if one["state"] != "in step"]
    assert "edited since its mark" in section["note"]


def test_marking_writes_one_record_and_nothing_else(documents):
    before = documents.read("docs/zh/versions.md")
    code, document = documents.run("zh-mark", "docs/zh/versions.md", "--dry-run")
    assert (code, documents.read("docs/zh/versions.md")) == (0, before)
    assert [change["path"] for change in document["plan"]] == ["docs/zh/versions.md"]
    documents.run("zh-mark", "docs/en/versions.md")
    after = documents.read("docs/zh/versions.md")
    assert after.startswith(before.rstrip("\n") + "\n\n<!-- areal-docs follows docs/en/versions.md;")
    assert len(after.splitlines()) == len(before.splitlines()) + 6
    documents.run("zh-mark", "docs/zh/versions.md")
    assert documents.read("docs/zh/versions.md") == after


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("## 故障", "### 故障", "is in another place"),
        ("## 上限\n", "", "has no section for ## The bound"),
        ("30 秒", "31 秒", "numbers: 30 is not in the translation"),
        (
            "每次更新权重都有一个编号, 第一个是 `0`。",
            "Every update of the weights has a number. The first one is `0`.",
            "is not translated",
        ),
    ],
)
def test_a_page_that_does_not_follow_its_source_cannot_be_marked(documents, before, after, said):
    documents.replace("docs/zh/versions.md", before, after)
    if said == "is not translated":
        documents.replace("docs/zh/versions.md", "# 版本", "# Versions")
    text = documents.read("docs/zh/versions.md")
    code, document = documents.run("zh-mark", "guide.md", "versions.md")
    assert (code, document["code"]) == (10, "unmarkable")
    assert any(said in problem["message"] for problem in document["problems"]), document["problems"]
    assert documents.read("docs/zh/versions.md") == text
    assert "areal-docs" not in documents.read("docs/zh/guide.md")


def test_a_mark_that_was_edited_is_not_believed(marked):
    text = marked.read("docs/zh/versions.md")
    marked.write("docs/zh/versions.md", text.replace("## the-bound", "<<<<<<< ours"))
    code, document = marked.run("zh-check", "--check", "versions.md")
    assert code == 10
    assert "mark is broken" in document["pages"][0]["problem"]


def test_a_page_that_was_moved_is_found_by_its_mark(marked):
    marked.git("mv", "docs/en/guide.md", "docs/en/start.md")
    _, document = marked.run("zh-check")
    problems = {page["translation"]: (page["problem"], page["fix"]) for page in document["pages"] if page["problem"]}
    assert problems["docs/zh/guide.md"][0] == "its source is gone"
    assert "docs/en/start.md: move it to docs/zh/start.md" in problems["docs/zh/guide.md"][1]
    assert problems["docs/zh/start.md"][0] == "has no translation"


@pytest.mark.parametrize(
    ("begin", "end"),
    [("areal-new:faults", "/areal-new:faults"), ("areal-new:faults: begin", "areal-new:faults: end")],
)
def test_what_a_program_writes_into_a_region_is_not_translated(marked, begin, end):
    table = f"<!-- {begin} -->\n| name |\n| --- |\n| `gone` |\n<!-- {end} -->"
    marked.replace("docs/en/versions.md", "- one fault", f"{table}\n\n- one fault")
    marked.commit("docs: a table")
    assert "source changed" in marked.states()["## Faults"], "without the setting it counts"
    marked.write("pyproject.toml", '[tool.areal.docs]\ngenerated = ["areal-new:*"]\n')
    assert marked.states() == {}
    marked.replace("docs/en/versions.md", "| `gone` |", "| `gone` |\n| `new` |")
    assert marked.states() == {}
    marked.replace("docs/en/versions.md", "- one fault", "- one more fault")
    [section] = [one for one in marked.run("zh-plan", "versions.md")[1]["tasks"] if "Faults" in str(one)]
    assert "- one fault" in str(section)
    assert "gone" not in str(section), "its history is read without the region, too"
