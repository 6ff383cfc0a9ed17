"""Checklists: what is generated is checked, what people wrote stays."""

from dataclasses import replace

import pytest

from tooling.cli.errors import UsageError
from tooling.python.access_paths import Name
from tooling.python.symbols.tree import SymbolTree
from tooling.upgrade.checklists.document import Checklist, collect, drift, parse, render
from tooling.upgrade.policy.watched import FocusedPackage
from tooling.upgrade.sources.folder import memory_release
from tooling.upgrade.uses import Action, Argument, FileUses, PassedArguments, SourcePlace, Use

PATH = "skills/upgrade-deps/checklists/vllm.md"
PACKAGE = FocusedPackage(distribution="vllm", imports=("vllm",), repository="vllm-project/vllm")
GENERATE, LLM = "vllm.entrypoints.llm.LLM.generate", "vllm.entrypoints.llm.LLM"
LIST = Checklist(
    package=PACKAGE,
    version="0.18.0",
    files={"areal/engine/run.py": "primary", "tests/test_run.py": "secondary"},
    entries={LLM: "- Signature: `class LLM(model)`\n", GENERATE: "- `def generate(prompts, *, use_tqdm=True)`\n"},
    guarded=(("areal/engine/run.py", "Engine.step", "vllm >= 0.12"),),
    upstream_paths=("vllm/entrypoints/llm.py",),
)
WITHOUT = replace(LIST, entries={GENERATE: LIST.entries[GENERATE]})
NEW = render(LIST, None, PATH)


def test_what_was_rendered_has_no_drift_and_renders_to_itself() -> None:
    assert drift(LIST, NEW, PATH) == []
    assert render(LIST, NEW, PATH) == NEW


def test_frontmatter_says_what_the_package_is() -> None:
    import yaml

    front = yaml.safe_load(NEW.split("---")[1])
    assert front == {
        "package": "vllm",
        "version": "0.18.0",
        "github": "https://github.com/vllm-project/vllm",
        "branch_template": "v{version}",
        "upstream_paths": ["vllm/entrypoints/llm.py"],
    }


def with_note(key: str, note: str) -> str:
    head, tail = NEW.split(f"<!-- areal-audit:begin {key} -->")
    body, rest = tail.split("<!-- areal-audit:end -->\n", 1)
    return f"{head}<!-- areal-audit:begin {key} -->{body}<!-- areal-audit:end -->\n{note}{rest}"


def test_notes_survive_whatever_changes_around_them() -> None:
    noted = with_note("entry vllm.entrypoints.llm.LLM", "\nMind the memory.\n\n* a list\n")
    changed = replace(LIST, entries={**LIST.entries, LLM: "class LLM(model, *, seed)\n"}, files={})
    after = render(changed, noted, PATH)
    assert "\nMind the memory.\n\n* a list\n" in after
    assert "seed" in after
    assert drift(changed, after, PATH) == []


def test_notes_of_a_symbol_that_is_gone_stay_under_a_heading_and_only_once() -> None:
    noted = with_note("entry vllm.entrypoints.llm.LLM", "\nMind the memory.\n")
    after = render(WITHOUT, noted, PATH)
    assert "Notes on vllm.entrypoints.llm.LLM, which is not used any more" in after
    assert render(WITHOUT, after, PATH) == after
    assert drift(WITHOUT, after, PATH) == []


@pytest.mark.parametrize(
    ("change", "key", "what"),
    [
        ({"files": {**LIST.files, "areal/new.py": "primary"}}, "files", "changed"),
        ({"entries": WITHOUT.entries}, "entry vllm.entrypoints.llm.LLM", "stale"),
        ({"entries": {**LIST.entries, "vllm.X": "\n"}}, "entry vllm.X", "missing"),
        ({"entries": {**LIST.entries, LLM: "class LLM()\n"}}, "entry vllm.entrypoints.llm.LLM", "changed"),
        ({"guarded": ()}, "guarded", "changed"),
        ({"upstream_paths": ("vllm/other.py",)}, "frontmatter", "changed"),
    ],
)
def test_each_kind_of_drift_is_named(change: dict[str, object], key: str, what: str) -> None:
    found = drift(replace(LIST, **change), NEW, PATH)  # type: ignore[arg-type]  # one field each
    assert [(one.key, one.what) for one in found] == [(key, what)]


def test_a_part_edited_by_hand_is_drift() -> None:
    found = drift(LIST, NEW.replace("use_tqdm=True", "use_tqdm=False"), PATH)
    assert [one.what for one in found] == ["changed"]
    assert "use_tqdm=False" in found[0].message


def test_a_missing_checklist_is_drift() -> None:
    assert [one.what for one in drift(LIST, None, PATH)] == ["missing"]


def test_without_the_release_files_are_compared_by_name_only() -> None:
    blind = replace(LIST, entries={}, files={"areal/engine/run.py": "primary"})
    found = drift(blind, NEW, PATH, signatures=False)
    assert [(one.key, one.what) for one in found] == [("files", "stale")]
    assert "tests/test_run.py" in found[0].message


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda text: text.replace("<!-- areal-audit:end -->\n", "", 1), True),
        (lambda text: text.replace("---\n", "", 1), True),
        (lambda text: text + "<!-- areal-audit:end -->\n", True),
        (lambda text: text + "<!-- areal-audit:begin files -->\n<!-- areal-audit:end -->\n", True),
        (lambda _: "", True),
    ],
)
def test_a_damaged_checklist_is_refused_with_its_place(damage: object, line: bool) -> None:
    text = damage(NEW)  # type: ignore[operator]  # functions above
    with pytest.raises(UsageError) as caught:
        parse(text, PATH)
    assert caught.value.where.startswith(f"{PATH}:") is line
    assert drift(LIST, text, PATH)[0].what == "damaged"


def use(path: str, action: Action, text: str, function: str = "", **facts: object) -> Use:
    where = SourcePlace(path, 3, 0, 3, 9)
    target = Name("vllm.LLM")
    return Use(action=action, place=where, target=target, package="vllm", symbol_text=text, function=function, **facts)


UPSTREAM = SymbolTree(
    memory_release({"vllm/__init__.py": "class LLM:\n    def __init__(self, model): ...\n"}, "vllm", "1")
)


def collected(*uses: Use) -> Checklist:
    files = [FileUses(path=each.place.path, digest="", uses=(each,)) for each in uses]
    return collect(PACKAGE, "1", files, UPSTREAM)


def test_an_entry_says_where_and_how_a_symbol_is_used() -> None:
    passed = PassedArguments((Argument(SourcePlace("a.py", 3, 4, 3, 9), "model", -1),))
    found = collected(
        use("tests/test_a.py", Action.IMPORT, "LLM", "test"),
        use("areal/a.py", Action.CALL, "LLM()", "f", arguments=passed),
    )
    assert found.files == {"tests/test_a.py": "secondary", "areal/a.py": "primary"}
    assert found.upstream_paths == ("vllm/__init__.py",)
    assert found.entries["vllm.LLM"].splitlines()[2:] == [
        "- Source: `vllm/__init__.py`",
        "- Called in: `areal/a.py (f)`, `tests/test_a.py`",
        "- As written: `LLM()`",
        "- Signature: `class LLM(model)`",
        "- [ ] takes the keywords `model`",
    ]


def test_hostile_names_cannot_leave_their_cell() -> None:
    hostile = collected(use("a|b.py", Action.CALL, "x` | <!-- areal-audit:end -->\n# title"))
    text = render(hostile, None, PATH)
    assert parse(text, PATH)[1][-1].key == "guarded"
    assert render(hostile, text, PATH) == text
