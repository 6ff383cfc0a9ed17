"""Manifests: what template.toml may say, and what it becomes for one unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tooling.cli.errors import UsageError
from tooling.kit.kind import DocumentEntry, KindManifest, OptionEntry, RegistryEntry, ResolvedManifest, TemplateFile
from tooling.kit.template.manifest import load_manifest, resolve

if TYPE_CHECKING:
    from pathlib import Path

FULL = """
name = "reward"
summary = "a reward function"
symbols = ["{{ snake }}_reward", "{% if style == 'judge' %}JUDGE{% endif %}"]
generator = "tooling.new.generators.reward"
commit = "feat(reward): add {{ kebab }}"
next = ["areal train reward={{ key }}"]
reserved = ["registry"]

[[options]]
name = "from-examples"
metavar = "FILE"
help = "rows"

[[files]]
path = "{{ package_path }}/reward/{{ snake }}.py"
purpose = "scores {{ words }}"
contract = "areal/api/reward.py:RewardFunction"
todo = ["say what counts", "{% if style == 'judge' %}set the key{% endif %}"]

[[files]]
path = "tests/test_{{ snake }}.py"
purpose = "its test"
test = true
when = "style != 'none'"

[[registry]]
file = "{{ package_path }}/reward/registry.py"
shape = "mapping"
table = "REWARDS"
key = "{{ key }}"
value = "{{ package }}.reward.{{ snake }}:{{ snake }}_reward"

[[unproven]]
file = "{{ package_path }}/reward/registry.py"
shape = "sequence"
table = "UNPROVEN"
key = "{{ key }}"

[[documents]]
file = "docs/extensions.md"
section = "rewards"
key = "{{ key }}"
line = "| `{{ key }}` |"
when = "{{ documented }}"

[renames]
"template/old.py.jinja" = "template/{{ snake }}.py.jinja"
"""
CONTEXT = {
    "snake": "digits",
    "kebab": "digits",
    "key": "digits",
    "words": "digits",
    "package": "areal",
    "package_path": "areal",
    "style": "exact",
    "documented": True,
}
FILES = ["areal/reward/digits.py", "tests/test_digits.py"]


def manifest(folder: Path, text: str = FULL) -> KindManifest:
    (folder / "template.toml").write_text(text, encoding="utf-8")
    return load_manifest(folder)


def refused(folder: Path, text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        manifest(folder, text)
    assert "template.toml" in caught.value.where
    assert caught.value.fix
    return caught.value


def test_a_manifest_is_read(tmp_path):
    loaded = manifest(tmp_path)
    assert (loaded.name, loaded.summary, loaded.generator) == (
        "reward",
        "a reward function",
        "tooling.new.generators.reward",
    )
    assert loaded.options == (OptionEntry("from-examples", "FILE", "rows"),)
    assert loaded.reserved == ("registry",)
    assert loaded.renames == {"template/old.py.jinja": "template/{{ snake }}.py.jinja"}


def test_it_becomes_what_one_unit_needs(tmp_path):
    assert resolve(manifest(tmp_path), CONTEXT, FILES) == ResolvedManifest(
        symbols=("digits_reward",),
        commit="feat(reward): add digits",
        next=("areal train reward=digits",),
        files=(
            TemplateFile(
                "areal/reward/digits.py",
                "scores digits",
                "areal/api/reward.py:RewardFunction",
                ("say what counts",),
            ),
            TemplateFile("tests/test_digits.py", "its test", test=True),
        ),
        registry=(
            RegistryEntry(
                "areal/reward/registry.py", "mapping", "REWARDS", "digits", "areal.reward.digits:digits_reward"
            ),
        ),
        unproven=(RegistryEntry("areal/reward/registry.py", "sequence", "UNPROVEN", "digits"),),
        documents=(DocumentEntry("docs/extensions.md", "rewards", "digits", "| `digits` |"),),
    )


def test_conditions_drop_entries(tmp_path):
    loaded = manifest(tmp_path)
    resolved = resolve(loaded, {**CONTEXT, "style": "none", "documented": False}, FILES[:1])
    assert [entry.path for entry in resolved.files] == FILES[:1]
    assert resolved.documents == ()
    assert resolve(loaded, {**CONTEXT, "style": "judge"}).symbols == ("digits_reward", "JUDGE")


def test_every_rendered_file_needs_its_entry(tmp_path):
    with pytest.raises(UsageError, match=r"nothing says what 'areal/extra\.py' is for") as caught:
        resolve(manifest(tmp_path), CONTEXT, [*FILES, "areal/extra.py"])
    assert "[[files]]" in caught.value.fix


def test_every_entry_needs_its_file(tmp_path):
    with pytest.raises(UsageError, match=r"'tests/test_digits\.py', which the template does not render") as caught:
        resolve(manifest(tmp_path), CONTEXT, [FILES[0], "tests/test_digit.py"])
    assert "'tests/test_digit.py'" in caught.value.fix


def test_two_entries_for_one_file_are_refused(tmp_path):
    again = '[[files]]\npath = "tests/test_{{ key }}.py"\npurpose = "again"\n'
    loaded = manifest(tmp_path, FULL.replace("[renames]", f"{again}[renames]"))
    with pytest.raises(UsageError, match="two entries are about"):
        resolve(loaded, CONTEXT, FILES)


@pytest.mark.parametrize(
    ("text", "message", "where"),
    [
        ('summary = "x"\n', "lacks `name`", "template.toml"),
        ('name = "reward"\n', "lacks `summary`", "template.toml"),
        ('name = "Reward"\nsummary = "x"\n', "not a name for a kind", "template.toml"),
        ('name = "reward"\nsummary = "x"\nsymbol = []\n', "unknown key 'symbol'", "template.toml"),
        ('name = "reward"\nsummary = 3\n', "of type int, expected str", "template.toml"),
        ('name = "reward"\nsummary = "x"\nnext = [3]\n', "not text", "next"),
        ('name = "reward"\nsummary = "x"\ngenerator = "os; x"\n', "not a module", "generator"),
        ('name = "reward"\nsummary = "x"\n[[files]]\npath = "a"\n', "lacks `purpose`", "files[1]"),
        ('name = "reward"\nsummary = "x"\n[[files]]\npath = "a"\npurpose = "b"\ntests = true\n', "'tests'", "files[1]"),
        ('name = "reward"\nsummary = "x"\n[[files]]\npath = "a"\npurpose = "b"\nwhen = 3\n', "`when`", "files[1]"),
        ('name = "reward"\nsummary = "x"\n[[registry]]\nfile = "a"\nshape = "b"\n', "lacks `table`", "registry[1]"),
        ('name = "reward"\nsummary = "x"\nfiles = ["a"]\n', "expected a table", "files[1]"),
        ('name = "reward"\nsummary = "x"\n[renames]\n"../a" = "b"\n', "unsafe path", "renames"),
        ('name = "reward"\nsummary = "x"\nname = "b"\n', "not TOML", "template.toml"),
        ('name = "reward"\nsummary = "x"\n[[options]]\nname = "a"\nmetavar = "b"\nhelp = "c"\nwhen = "x"\n',
         "'when'", "options[1]"),
    ],
)  # fmt: skip
def test_odd_manifests_are_refused(tmp_path, text, message, where):
    error = refused(tmp_path, text)
    assert message in error.message
    assert error.where.endswith(where)


def test_a_misspelt_key_gets_the_nearest(tmp_path):
    assert "'symbols'" in refused(tmp_path, 'name = "reward"\nsummary = "x"\nsymbol = []\n').fix


def test_a_missing_manifest_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        load_manifest(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"{{ package_path }}/reward/{{ snake }}.py"', '"../{{ snake }}.py"', "unsafe path"),
        ('"{{ package_path }}/reward/registry.py"', '"/etc/{{ snake }}"', "unsafe path"),
        ('"docs/extensions.md"', '".git/config"', "lies inside .git"),
        ('"mapping"', '"maping"', "unknown shape"),
        ('"scores {{ words }}"', '"scores {{ nothing }}"', "undefined"),
        ("\"style != 'none'\"", '"style !!"', "cannot be evaluated"),
        ("\"style != 'none'\"", '"nothing"', "undefined"),
        ('"{{ documented }}"', '"{{ snake }}"', "expected true or false"),
        ('"| `{{ key }}` |"', '"| {{ key }} |\\n| more |"', "more than one line"),
        ('"scores {{ words }}"', "\"{{ 'x'.__class__ }}\"", "unsafe"),
    ],
)
def test_what_cannot_be_evaluated_names_the_entry(tmp_path, old, new, message):
    assert old in FULL
    with pytest.raises(UsageError) as caught:
        resolve(manifest(tmp_path, FULL.replace(old, new)), CONTEXT)
    assert message in caught.value.message
    assert caught.value.where.startswith("reward/template.toml: ")
