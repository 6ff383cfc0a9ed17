"""The command line: settings, the worklist, annotations, errors and start-up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tooling.documentation.__main__ import main
from tooling.documentation.markdown import parser

ROOT = Path(__file__).resolve().parents[3]


def test_pages_without_translation_count_only_where_all_need_one(documents):
    documents.write("docs/en/new.md", "# New\n")
    assert documents.run("zh-check", "--check")[0] == 10
    documents.write("pyproject.toml", '[tool.areal.docs]\nexclude = ["docs/en/n*.md"]\n')
    assert documents.run("zh-check", "--check")[0] == 0
    documents.write("pyproject.toml", "[tool.areal.docs]\ncomplete = false\n")
    code, document = documents.run("zh-check", "--check")
    assert (code, document["without_translation"]) == (0, ["docs/en/new.md"])


def test_the_translation_may_lie_inside_the_source(documents):
    documents.git("mv", "docs/en/versions.md", "docs/en/guide.md", "docs/")
    documents.write("pyproject.toml", '[tool.areal.docs]\nsource = "docs"\ntranslation = "docs/zh"\n')
    code, document = documents.run("zh-check")
    assert code == 0
    assert [page["source"] for page in document["pages"]] == ["docs/guide.md", "docs/versions.md"]
    assert documents.differences() == []


def test_the_plan_holds_every_text_that_a_task_takes(marked):
    marked.replace("docs/en/versions.md", "has a number", "gets a number")
    marked.replace(
        "docs/en/versions.md", "## Faults", "## Ages\n\nThe age of a token, in ```` `versions` ````.\n\n## Faults"
    )
    code, document = marked.run("zh-plan")
    update, translate = document["tasks"]
    assert code == 0
    assert (update["action"], translate["action"]) == ("update", "translate")
    assert "has a number" in update["old_source"]
    assert "gets a number" in update["new_source"]
    assert update["current"].startswith("# 版本")
    assert (translate["after"], translate["current"]) == ("## 上限", "")
    page = marked.printed("zh-plan")
    inside = [token.content for token in parser().parse(page) if token.type == "fence"]
    assert translate["new_source"] in inside


def test_a_plan_for_what_is_in_step_says_so(marked):
    assert marked.run("zh-plan")[1]["tasks"] == []
    assert "nothing to do" in marked.printed("zh-plan")


def test_annotations_name_file_and_line_and_cannot_be_broken_out_of(marked):
    marked.replace("docs/zh/versions.md", "`max_age`", "`max%0A::error::x`")
    lines = marked.printed("zh-check", "--github", "--check").splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("::error file=docs/zh/versions.md,line=5,title=structure differs::")
    assert "max%250A::error::x" in lines[0]


def test_people_read_what_lags_and_the_sums(marked):
    marked.replace("docs/en/versions.md", "30 seconds", "40 seconds")
    text = marked.printed("zh-check")
    assert "docs/zh/versions.md: follows docs/en/versions.md" in text
    assert "source changed, structure differs: ## The bound" in text
    assert "line 5: numbers: 40 is not in the translation" in text
    assert text.rstrip().splitlines()[-3] == "2 pages, 1 lag; 4 sections, 1 lag"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["zh-chek"], "did you mean 'zh-check'?"),
        (["zh-check", "--chek"], "did you mean '--check'?"),
        (["zh-check", "--json", "--github"], "two forms"),
        (["zh-check", "nothing.md"], "is not a page"),
        (["zh-check", "../outside.md"], "is not a page"),
        (["zh-mark"], "required"),
    ],
)
def test_wrong_arguments_say_what_to_do(documents, words, said, capsys):
    assert main([*words, "--repo", str(documents.root)] if "zh-chek" not in words else words) == 2
    printed = capsys.readouterr()
    assert said in printed.out + printed.err


@pytest.mark.parametrize(
    "setting",
    ['sources = "x"', "source = 1", 'exclude = "x"', 'complete = "yes"', 'source = "../x"', 'translation = "docs/en"'],
)
def test_a_setting_that_means_nothing_is_refused(documents, setting):
    documents.write("pyproject.toml", f"[tool.areal.docs]\n{setting}\n")
    code, document = documents.run("zh-check")
    assert (code, document["code"]) == (2, "usage")
    assert document["fix"]


def test_a_page_that_is_no_text_is_named(documents):
    (documents.root / "docs/zh/guide.md").write_bytes(b"\xff\xfe\x00")
    code, document = documents.run("zh-check")
    assert (code, document["where"]) == (2, "docs/zh/guide.md")


def test_links_are_not_followed_out_of_the_repository(documents, tmp_path):
    (tmp_path / "secret.md").write_text("# secret\n", encoding="utf-8")
    (documents.root / "docs/zh/guide.md").unlink()
    (documents.root / "docs/zh/guide.md").symlink_to(tmp_path / "secret.md")
    code, document = documents.run("zh-mark", "guide.md")
    assert (code, document["code"]) == (3, "conflict")
    assert (tmp_path / "secret.md").read_text(encoding="utf-8") == "# secret\n"


def test_help_loads_neither_git_nor_the_parser():
    code = "import sys\nfrom tooling.documentation.__main__ import main\nmain(['--help'])\n"
    code += "print(sorted({'git', 'markdown_it', 'yaml'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    assert "exit codes:" in done.stdout
