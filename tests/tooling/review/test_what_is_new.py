"""Only what a change adds is reported: moved, known, suppressed and accepted findings are not."""

from __future__ import annotations

import json

import pytest

from tooling.review.findings import LINTED
from tooling.review.rules.catalogue import FORMER, RULES

BAD = "import yaml\n\n\ndef read(text):\n    return yaml.unsafe_load(text)\n"
AT = ("unsafe-yaml", "a.py", 5)


def test_what_was_there_before_is_not_reported(world):
    world.commit({"a.py": BAD})
    assert world.found() == [AT]
    world.commit({"a.py": "# A comment above moves the line.\n" + BAD + "\n\nx = 1\n"})
    assert world.found() == []


def test_a_second_one_of_the_same_kind_is_reported(world):
    world.commit({"a.py": BAD})
    world.commit({"a.py": BAD + "    return yaml.unsafe_load(text)\n"})
    assert len(world.found()) == 1


def test_code_that_moves_to_another_file_is_not_reported(world):
    world.commit({"a.py": BAD})
    world.commit({"a.py": "x = 1\n", "b.py": BAD.replace("read", "read_it")})
    assert world.found() == []


def test_a_rename_is_not_reported(world):
    world.commit({"a.py": BAD})
    world.git("mv", "a.py", "b.py")
    world.commit({})
    assert world.found() == []


def test_files_outside_the_change_that_used_what_it_removed(world):
    world.commit(
        {
            "pkg/__init__.py": "",
            "pkg/a.py": "def load_all(x):\n    return x\n\n\ndef save_all(x):\n    return x\n",
            "pkg/b.py": "from pkg.a import load_all, save_all\n\nload_all(1)\nsave_all(1)\n",
        }
    )
    world.commit({"pkg/a.py": "def save_all(x, where):\n    return x\n"})
    assert world.found() == [("unresolved-import", "pkg/b.py", 1), ("signature-mismatch", "pkg/b.py", 4)]


@pytest.mark.exhaustive
def test_a_class_is_called_as_its_base_or_its_fields_say(world):
    calls = "from pkg.a import Both, Open, Options, Reader\n\nReader({})\nOptions({})\nOpen(width=1)\nBoth(1)\n"
    world.commit(
        {
            "src/pkg/__init__.py": "",
            "src/pkg/a.py": """
from functools import cache
from typing import NamedTuple
from elsewhere import Base

class Plain:
    def __init__(self, path, *, size=1): ...
class Reader(Plain):
    pass
class Options(NamedTuple):
    depth: int
class Open(Base):
    pass
@cache
def Both(one): ...
""",
            "src/pkg/b.py": calls.format("path='x', size=2", "depth=1"),
        }
    )
    assert world.found() == []
    world.commit({"src/pkg/b.py": calls.format("width=2", "deep=1").replace("Both(1)", "Both(two=1)")})
    assert world.found() == [("signature-mismatch", "src/pkg/b.py", line) for line in (3, 4, 6)]


@pytest.mark.exhaustive
def test_files_outside_that_get_a_removed_name_from_a_package(world):
    world.commit(
        {
            "pkg/__init__.py": "from pkg.a import load_all\n",
            "pkg/a.py": "def load_all(x):\n    return x\n",
            "pkg/b.py": "from pkg import load_all\n\nload_all(1)\n",
            "pkg/c.py": "def load_all(x):\n    return x\n\n\nload_all(1)\n",
        }
    )
    world.commit({"pkg/a.py": "def load_all(x, where):\n    return x\n"})
    assert world.found() == [("signature-mismatch", "pkg/b.py", 3)]
    assert world.review().comparison.affected == ("pkg/__init__.py", "pkg/b.py", "pkg/c.py")


def test_a_common_name_of_a_moved_script_leads_nowhere(world):
    script = "def main(x):\n    return x\n"
    world.commit({"old/script.py": script} | {f"other/m{number}.py": script for number in range(3)})
    world.git("mv", "old/script.py", "old/renamed.py")
    world.commit({})
    assert world.review().comparison.affected == ()


def test_a_comment_with_a_reason_suppresses(world):
    line = "    return yaml.unsafe_load(text)"
    world.commit({"a.py": BAD.replace(line, f"{line}  # review: ignore[unsafe-yaml] our own constant")})
    world.commit({"b.py": BAD.replace(line, f"    # review: ignore[unsafe-yaml] our own constant\n{line}")})
    outcome = world.review("--base", "HEAD~2")
    assert (outcome.open, {each.suppressed for each in outcome.findings}) == ((), {"our own constant"})
    assert len(outcome.findings) == 2


def test_a_reason_that_ruff_was_given_is_not_asked_for_again(world):
    code = "import asyncio\n\n\nasync def f(g):\n    asyncio.create_task(g())  # noqa: RUF006{}\n"
    world.commit(
        {"a.py": code.format(" - ends with the loop"), "b.py": code.format(""), "c.py": code.format(", B006 - why")}
    )
    outcome = world.review()
    assert [each.place.path for each in outcome.open] == ["b.py", "c.py"]
    assert {each.suppressed for each in outcome.findings} == {"", "ends with the loop"}


def test_rules_of_ruff_are_paired_with_rules_that_exist():
    assert set(LINTED.values()) <= set(RULES)


def test_a_comment_about_another_rule_suppresses_nothing(world):
    world.commit({"a.py": BAD.replace("(text)\n", "(text)  # review: ignore[secret] our own constant\n")})
    assert world.found() == [AT]


@pytest.mark.exhaustive
def test_former_names_of_rules_still_suppress_and_switch_off(world):
    assert set(FORMER.values()) <= RULES.keys()
    assert RULES.keys().isdisjoint(FORMER)
    above = "import torch.distributed as dist\n\n\nclass E:\n    def f(self, g):\n        dist.barrier(group=g)\n"
    line = "        dist.barrier()"
    world.commit({"a.py": f"{above}{line}\n"})
    assert world.found() == [("group-unnamed", "a.py", 7)]
    world.commit({"b.py": f"{above}{line}  # review: ignore[barrier-of-all-ranks] all of them\n"})
    assert (world.found(), [each.suppressed for each in world.review().findings]) == ([], ["all of them"])
    world.commit({"pyproject.toml": '[tool.areal.review]\ndisable = ["barrier-of-all-ranks"]\n'})
    world.commit({"c.py": f"{above}{line}\n"})
    assert world.review().findings == ()


def test_a_short_reason_suppresses_nothing(world):
    world.commit({"a.py": BAD.replace("(text)\n", "(text)  # review: ignore[unsafe-yaml] ok\n")})
    assert world.found() == [AT]


def test_a_baseline_accepts_what_it_names(world, tmp_path, capsys):
    from tooling.review.__main__ import main

    world.commit({"a.py": BAD})
    assert main(["--repo", str(world.root), "--commit", "HEAD", "--as-baseline"]) == 10
    accepted = tmp_path / "baseline.json"
    accepted.write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["--repo", str(world.root), "--commit", "HEAD", "--baseline", str(accepted), "--json"]) == 0
    (hidden,) = json.loads(capsys.readouterr().out)["suppressed"]
    assert (hidden["rule"], hidden["reason"]) == ("unsafe-yaml", "baseline")


def test_the_policy_is_that_of_the_base(world):
    world.commit({"pyproject.toml": '[tool.areal.review]\ndisable = ["secret"]\nexclude = ["old/**"]\n'})
    off = '[tool.areal.review]\ndisable = ["unsafe-yaml"]\n'
    world.commit({"a.py": BAD, "old/deep/b.py": BAD, "pyproject.toml": off})
    outcome = world.review()
    assert [each.place.path for each in outcome.open] == ["a.py"]
    assert "old/deep/b.py: excluded by the policy" in outcome.notes
