"""What a translation keeps, whatever its language; and what may differ."""

from __future__ import annotations

import pytest

from tooling.documentation.markdown import read_page
from tooling.documentation.numbers import missing


def test_equal_pages_in_two_languages_differ_in_nothing(documents):
    assert documents.differences() == []


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("before", "after", "kind", "said", "line"),
    [
        ("bound(versions)", "bound(version)", "code", "code differs", 9),
        ("```python", "```bash", "code", "a block of bash, in the source python", 9),
        ("`max_age`", "`max_ages`", "inline-code", "max_age is not in the translation", 5),
        ("[指南](guide.md)", "指南", "links", "guide.md is not in the translation", 5),
        ("/zh/intro", "/zh/outro", "links", "outro is not in the source", 5),
        ("guide.md", "guides.md", "links", "guides.md leads nowhere", 13),
        ("guide.md", "guide.md#章", "links", "no heading of docs/zh/guide.md has this anchor", 13),
        ("guide.md", "../en/guide.md", "links", "although docs/zh/guide.md translates it", 13),
        ("30 秒", "20 秒", "numbers", "30 is not in the translation", 5),
        ("| `lost` | 是 |\n", "| `lost` | 是 |\n| 无 | 否 |\n", "tables", "3 rows and 2 columns", 15),
        ("- 另一种\n", "", "lists", "lists have 1 items, in the source 2", 15),
    ],
)
def test_what_may_not_differ_is_named_with_its_line(documents, before, after, kind, said, line):
    documents.replace("docs/zh/versions.md", before, after)
    found = documents.differences()
    assert any(one == kind and said in message and at == line for one, message, at in found), found
    assert {one for one, _, _ in found} == {kind}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# 以更新次数计", "# 一切都以次数计"),
        ("30 秒", "三十秒"),
        ("limit = bound(versions)", "limit = bound(versions)\n"),
        ("[指南](guide.md)", "[指南](guide.md#指南)"),
        ("`lost`", "`lost`, 也就是 `lost`"),
    ],
)
def test_what_belongs_to_the_language_may_differ(documents, before, after):
    documents.replace("docs/zh/versions.md", before, after)
    assert documents.differences() == []


def test_a_difference_with_a_reason_is_meant(documents):
    documents.replace("docs/zh/versions.md", "30 秒", "半分钟")
    assert [kind for kind, _, _ in documents.differences()] == ["numbers"]
    documents.replace(
        "docs/zh/versions.md", "半分钟。", "半分钟。\n\n<!-- areal-docs allow numbers: minutes read better -->\n"
    )
    assert documents.differences() == []
    documents.replace("docs/zh/versions.md", "allow numbers: minutes read better", "allow numbers:")
    assert [kind for kind, _, _ in documents.differences()] == ["numbers"]


def test_a_paragraph_in_the_source_s_words_is_not_translated(documents):
    sentence = "Nobody ever told the translator about this long sentence of ours."
    documents.write("docs/en/guide.md", documents.read("docs/en/guide.md") + f"\n{sentence}\n")
    documents.write("docs/zh/guide.md", documents.read("docs/zh/guide.md") + f"\n{sentence}\n")
    assert [(kind, line) for kind, _, line in documents.differences()] == [("words", 5)]


def test_a_page_that_was_only_copied_is_untranslated(documents):
    documents.write("docs/zh/versions.md", documents.read("docs/en/versions.md"))
    documents.commit("docs: copy")
    states = documents.states()
    assert states["# Versions"] == states["## The bound"] == ["untranslated"]


def test_words_that_the_glossary_does_not_want_are_found(documents):
    documents.write("pyproject.toml", '[tool.areal.docs]\nglossary = "terms.md"\n')
    documents.write(
        "terms.md", "| en | zh | not |\n| --- | --- | --- |\n| version | 版本 | 版次 |\n| seed | 种子 | 版本 |\n"
    )
    assert documents.differences() == []
    documents.replace("docs/zh/versions.md", "`max_age` 个版本", "`max_age` 个版次")
    assert documents.differences() == [("glossary", "版次 stands for 'version'; the glossary says 版本", 7)]


@pytest.mark.parametrize(
    ("source", "translation"),
    [
        ("1,000 samples", "1000 个样本"),
        ("10k tokens", "1 万个 token"),
        ("1.5 million", "150 万"),
        ("on March 5, 2026", "2026 年 3 月 5 日"),
        ("the first 12 of them", "前十二个"),
        ("two threads", "2 个线程"),
        ("2 threads", "两个线程"),
        ("2026-01-05", "2026 年 1 月 5 日"),
        ("Step 3", "第 3 步"),
        ("64 %", "64%"),
    ],
)
def test_numbers_are_the_same_in_both_languages(source, translation):
    assert (missing(source, translation), missing(translation, source)) == ([], [])


@pytest.mark.parametrize(
    ("source", "translation", "lost"),
    [("at most 30", "至多 31", ["30"]), ("version 2.9.1", "版本 2.9", ["2.9.1"]), ("100 of 200", "100", ["200"])],
)
def test_numbers_that_got_lost_are_found(source, translation, lost):
    assert missing(source, translation) == lost


def test_a_page_is_cut_at_its_own_headings_only():
    page = read_page(
        "a.md",
        "---\ntitle: x\n---\nwords\n\n# One `x`\n\n> # quoted\n\n```text\n# code\n```\n\nTwo\n---\n\n# One `x`\n",
    )
    assert [(one.level, one.title, one.slug, one.line) for one in page.sections] == [
        (-1, "", "", 1),
        (0, "", "", 4),
        (1, "One x", "one-x", 6),
        (2, "Two", "two", 14),
        (1, "One x", "one-x-1", 17),
    ]
    assert [(one.language, one.line) for one in page.sections[2].facts.code] == [("text", 10)]


def test_formulas_links_and_roles_are_no_words():
    words = "The loss $x^{17}$ is {ref}`text 18 <target>` of https://a.org/19, {note} 20."
    page = read_page("a.md", f"# A\n\n{words}\n\n```{{note}}\nSee `b` 21.\n```\n")
    facts = page.sections[0].facts
    assert {link.target for link in facts.links} == {"ref:target", "https://a.org/19"}
    assert missing(facts.words, "") == ["18", "20", "21"]
    assert facts.spans == ("b",)
