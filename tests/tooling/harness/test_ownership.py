"""What experts answer for: one owner per file, a block that the code writes, and no sentences about what is missing."""

from __future__ import annotations

import pytest

from tooling.harness.checks.absence import absence_findings
from tooling.harness.ownership.owners import Owners
from tooling.kit.names import parse_name
from tooling.kit.receipts import Receipt, ReceiptFile, TemplateReference

OWNED = '[tool.areal.harness]\nlocal_folders = ["skills/greet/lists"]\nowned = ["app/**"]\n'
CONFIG = '''\
"""Settings."""

from typing import ClassVar, Literal


class Config:
    """The base."""


class VoiceConfig(Config):
    engine: Literal["loud", "soft"] = "soft"
    pitch: float = 1.0

    def __post_init__(self):
        if self.pitch < 0:
            raise ConfigError(f"voice.pitch is {self.pitch}, expected at least 0")


class RunConfig(Config):
    seed: int = 0
    voice: VoiceConfig = VoiceConfig()


class SongConfig(RunConfig):
    kind: Literal["song"] = "song"
    answer: VoiceConfig | None = None
    shown: ClassVar[str] = "never a key"


class UnusedConfig(Config):
    width: int = 0


SINGERS: dict[str, str] = {"alto": "app.sing:Alto", "bass": "app.sing:Bass"}


class ChoirEngine:
    """Sings."""
'''


def block_of(project):
    page = project.read("agents/words.md")
    return page[page.index("<!-- owned") : page.index("<!-- end of owned -->")]


def test_the_glob_that_says_most_about_a_file_has_it():
    owners = Owners([("all", "app/**"), ("plans", "app/*/plan.py"), ("sea", "app/sea/**"), ("sky", "app/{sky,sun}/*")])
    assert owners.of("app/words.py") == ("all",)
    assert owners.of("app/land/plan.py") == ("plans",)
    assert owners.of("app/sea/plan.py") == ("sea",)
    assert owners.of("app/sun/day.py") == ("sky",)
    assert owners.of("app/sun/day/noon.py") == ("all",)
    assert owners.of("docs/words.md") == ()


def test_globs_that_say_the_same_much_have_it_together():
    assert Owners([("first", "app/*.py"), ("second", "app/*.py")]).of("app/words.py") == ("first", "second")


def test_a_file_without_an_owner_and_one_with_two_are_found(project):
    project.write("pyproject.toml", project.read("pyproject.toml").split("[tool.")[0] + OWNED)
    assert project.findings() == []
    project.write("app/data/rows.txt", "a\n")
    assert project.findings() == [("owner", "no expert answers for it")]
    other = project.read("agents/words.md").replace("name: words", "name: other").replace("[app/*.py]", '["app/*.py"]')
    project.write("agents/other.md", other)
    assert ("owner", "other and words answer for it with globs that say the same much") in project.findings()


def test_the_block_says_what_the_code_says_and_is_found_when_it_does_not(project):
    project.write("app/config.py", CONFIG)
    assert [rule for rule, _ in project.findings()] == ["block"]
    assert project.states() != {}
    assert project.run("sync")[0] == 0
    assert {rule for rule, _ in project.findings()} == {"map"}, "of the platforms' folders"
    assert [line for line in block_of(project).splitlines() if line.startswith("- ")] == [
        "- `app/`: The program",
        "- `hello`: Words",
        "- `answer`, `voice`: `VoiceConfig` in `app/config.py`: engine (loud, soft), pitch",
        "- `kind: song`: `SongConfig` in `app/config.py`: kind (song), answer",
        "- every kind: `RunConfig` in `app/config.py`: seed, voice",
        "- `SINGERS` in `app/config.py`: alto, bass",
        "- `ChoirEngine` in `app/config.py`",
        "- voice.pitch is PITCH, expected at least 0 (`app/config.py`)",
    ]
    assert "ChoirEngine" in project.read(".codex/agents/words.toml")


def test_generated_units_are_left_out_so_that_making_one_leaves_pages_as_they_are(project):
    project.write("app/config.py", CONFIG)
    project.run("sync")
    receipt = project.root / ".areal/receipts/singer/tenor.json"
    receipt.parent.mkdir(parents=True)
    template = TemplateReference("project", "templates/singer", "0" * 40)
    names, files = parse_name("tenor"), {"app/choir/tenor.py": ReceiptFile("0" * 64, "sings")}
    places = {"package": "app", "tests": "tests"}
    known = Receipt(
        kind="singer", names=names, generator="x", template=template, answers={}, files=files, **places, symbols=()
    )
    receipt.write_bytes(known.to_bytes())
    project.write("app/choir/tenor.py", '"""Sings high."""\n')
    project.write("app/config.py", CONFIG.replace('"app.sing:Bass"', '"app.sing:Bass", "tenor": "app.choir.tenor:T"'))
    assert "block" not in {rule for rule, _ in project.findings()}
    receipt.unlink()
    assert "block" in {rule for rule, _ in project.findings()}


@pytest.mark.parametrize("planted", [("- `app/`:", "- `apps/`:"), ("- `hello`: Words\n", ""), ("Words", "Sentences")])
def test_a_block_that_was_edited_is_found_and_written_again(project, planted):
    page = project.read("agents/words.md")
    head, begin, block = page.partition("<!-- owned")
    project.write("agents/words.md", head + begin + block.replace(*planted))
    assert [rule for rule, _ in project.findings()] == ["block"]
    assert project.run("sync", "--check")[0] == 10
    project.run("sync")
    assert project.read("agents/words.md") == page


def test_a_page_without_a_block_gets_one_at_its_end(project):
    page = project.read("agents/words.md")
    project.write("agents/words.md", page[: page.index("\n<!-- owned")])
    assert project.findings() == [("block", "has no block about what it owns")]
    project.run("sync")
    assert project.read("agents/words.md") == page


def test_one_page_is_checked_with_the_owners_of_all(project):
    project.write("app/config.py", CONFIG)
    other = project.read("agents/words.md").replace("name: words", "name: other")
    project.write("agents/other.md", other.replace("app/*.py", "app/words.py, app/config.py"))
    project.run("sync")
    assert project.run("check", "agents/words.md")[0] == 0
    assert "`app/`, of it __init__.py" in block_of(project)


ABSENT = [
    "There is no remote engine here.",
    "There is no Ray or Slurm launcher",
    "has no separate engine for arbitrary models",
    "no engine for arbitrary models, and no inference server of its own",
    "Sequence parallelism is not supported.",
    "This is not yet implemented.",
    "It does not support several\nmachines.",
    "Do not invent options for them.",
    "nothing imports megatron-core",
    "Without a backend no plan can be run.",
    "one process that trains and generates on one device",
]
RULES = [
    "Every collective takes its group; no rank leaves early by a local condition.",
    "A value that is never computed again has no entry in the table.",
    "Nothing in the analysis knows a family by its name.",
    "No verdict without a command behind it.",
    "The state of one process is not visible to another one.",
    "`there is no engine` is what it prints.",
    "It does not change the weights, and a failure is not a reward.",
]


@pytest.mark.parametrize("sentence", ABSENT)
def test_a_sentence_about_what_does_not_exist_is_found(sentence):
    found = list(absence_findings("agents/words.md", f"Words.\n\n{sentence}\n", 10))
    assert found
    assert {one.line for one in found} <= {12, 13}


@pytest.mark.parametrize("sentence", RULES)
def test_a_rule_about_what_must_not_happen_is_not(sentence):
    assert list(absence_findings("agents/words.md", sentence, 1)) == []


def test_the_block_may_say_what_is_refused(project):
    project.write(
        "app/words.py",
        project.read("app/words.py") + "\n\ndef check(x):\n    raise UsageError('there is no engine for that')\n",
    )
    project.run("sync")
    assert "there is no engine for that" in block_of(project)
    assert {rule for rule, _ in project.findings()} == {"map"}, "of the platforms' folders"
