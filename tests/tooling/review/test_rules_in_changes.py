"""Rules that look at a change as a whole: what should have changed with it."""

from __future__ import annotations

import pytest

from tooling.review.rules import regressions
from tooling.review.rules.catalogue import RULES

FUNCTIONS = "def {0}_one(x):\n    return x\n\n\ndef {0}_two(x):\n    return x\n"


def test_a_new_component_needs_its_registry_entry(world):
    registry = 'REWARDS = {\n    "exact": "areal.reward.exact:exact_reward",\n'
    world.commit(
        {
            "areal/__init__.py": "",
            "areal/reward/__init__.py": "",
            "areal/reward/exact.py": "def exact_reward():\n    return 1.0\n",
            "areal/reward/registry.py": registry + "}\n",
        }
    )
    fuzzy = "def fuzzy_reward():\n    return 1.0\n"
    world.commit({"areal/reward/fuzzy.py": fuzzy, "areal/reward/helpers.py": "def halve(x):\n    return x / 2\n"})
    assert world.found() == [("registry-entry-missing", "areal/reward/fuzzy.py", 1)]
    world.commit({"areal/reward/registry.py": registry + '    "fuzzy": "areal.reward.fuzzy:fuzzy_reward",\n}\n'})
    assert world.found("--base", "HEAD~2") == []


@pytest.mark.exhaustive
def test_fields_that_move_under_a_caller_by_position(world):
    head = "from dataclasses import dataclass\n\n\n@dataclass\nclass Args:\n"
    world.commit({"a.py": head + "    x: int\n    y: int\n", "b.py": "from a import Args\n\nargs = Args(1, 2)\n"})
    world.commit({"a.py": head + "    new: int\n    x: int\n    y: int\n"})
    assert ("field-moved", "a.py", 5) in world.found()
    world.commit({"a.py": head + "    new: int\n    x: int\n    y: int\n    z: int = 0\n"})
    assert world.found() == []


def test_a_credential_is_found_in_any_kind_of_file(world):
    token = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7cF0iL"
    world.commit({"notes.txt": "nothing\n", "run.sh": f"export TOKEN={token}\n"})
    (finding,) = world.review().open
    assert (finding.rule.id, finding.place.path, finding.place.line) == ("secret", "run.sh", 1)
    assert token not in finding.place.message


def test_credentials_of_many_services_are_found_where_they_are_new(world):
    pytest.importorskip("detect_secrets")
    slack, stripe = "xoxb-" + "34532454-e039d02840a0b9379c", "sk_live_" + "ReTllpYQYfIZu2Jnf2lAPFjD"
    world.commit({"a.py": f'SLACK = "{slack}"\n'})
    world.commit({"a.py": f'VALUE = 1\nSLACK = ("{slack}")\n', "b.yaml": f"key: {stripe}\n"})
    found = [each for each in world.review().open if each.rule.id == "secret"]
    assert [(each.place.path, each.place.line) for each in found] == [("b.yaml", 1)]
    assert stripe not in found[0].place.message


def test_a_literal_under_the_name_of_a_credential(world):
    key = "9f8a7Qz2kLmN4pRsT6vWxYb1cD3eFgHj"
    text = f'client = make(api_key="{key}")\npad_token = "{key.lower()}"\nsecret_name = "projects.areal.secrets.main"\n'
    world.commit({"a.py": text, "tests/test_a.py": text})
    assert [each for each in world.found() if each[0] == "secret"] == [("secret", "a.py", 1)]
    world.commit({"a.py": f"if True:\n    client = make(api_key='{key}')\n"})
    assert [each for each in world.found() if each[0] == "secret"] == [], "it was there before"


def test_python_that_cannot_be_parsed(world):
    world.commit({"a.py": "x = 1\n", "new_syntax.py": "def f[T](x: T) -> T:\n    return x\n\n\ntype A = int\n"})
    assert world.found() == []
    world.commit({"a.py": "x = 1\n<<<<<<< HEAD\n"})
    assert world.found() == [("unreadable-python", "a.py", 2)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("terms", [190, 900, 9000])
def test_a_tree_of_any_depth_is_survived(world, terms):
    world.commit({"a.py": "x = 1\n"})
    world.commit({"a.py": f"x = {' + '.join(['y'] * terms)}\ny = eval(x)\n"})
    assert {path for _, path, _ in world.found()} <= {"a.py"}
    assert "unreadable-python" not in {rule for rule, _, _ in world.found()}


def test_a_new_function_among_tested_ones_needs_a_test(world):
    world.commit({"m.py": FUNCTIONS.format("first"), "tests/test_m.py": "from m import first_one, first_two\n"})
    world.commit({"m.py": FUNCTIONS.format("first") + "\n\ndef third(x):\n    return x\n"})
    assert world.found() == [("untested-symbol", "m.py", 9)]


def test_a_new_function_among_untested_ones_needs_none(world):
    world.commit({"m.py": FUNCTIONS.format("first"), "tests/test_m.py": "import m\n"})
    world.commit({"m.py": FUNCTIONS.format("first") + "\n\ndef third(x):\n    return x\n"})
    assert world.found() == []


def test_a_requirement_changes_with_its_lock(world):
    project = '[project]\nname = "x"\ndependencies = ["torch>={}"]\n'
    world.commit({"pyproject.toml": project.format("2.9"), "uv.lock": "one\n"})
    world.commit({"pyproject.toml": project.format("2.10")})
    assert world.found() == [("lock-behind", "pyproject.toml", 3)]
    world.commit({"uv.lock": "two\n"})
    assert world.found("--base", "HEAD~2") == []


def test_a_manifest_without_a_lock_may_change_alone(world):
    world.commit({"pyproject.toml": '[project]\ndependencies = ["torch"]\n'})
    world.commit({"pyproject.toml": '[project]\ndependencies = ["numpy"]\n'})
    assert world.found() == []


def test_the_reference_of_options_changes_with_the_options(world):
    options = "class Options:\n    size: int = 1\n"
    world.commit({"api/cli_args.py": options, "docs/cli_reference.md": "`size`\n"})
    world.commit({"api/cli_args.py": options + "    shape: int = 2\n"})
    assert world.found() == [("pages-behind", "api/cli_args.py", 3)]


def test_a_page_changes_with_its_translation(world):
    world.commit({"docs/en/a.md": "A\n", "docs/zh/a.md": "B\n", "docs/en/alone.md": "A\n"})
    world.commit({"docs/en/a.md": "A\nB\nC\nD\n", "docs/en/alone.md": "A\nB\nC\nD\n"})
    assert world.found() == [("translation-behind", "docs/en/a.md", 2)]


def test_copies_of_a_skill_change_together(world):
    copies = {f"{top}/skills/s/SKILL.md": "one\n" for top in (".agents", ".claude")}
    world.commit(dict(copies))
    world.commit({".agents/skills/s/SKILL.md": "two\n"})
    assert world.found() == [("mirror-drift", ".agents/skills/s/SKILL.md", 1)]
    world.commit(dict.fromkeys(copies, "three\n"))
    assert world.found() == []


def test_documents_that_name_what_was_removed(world):
    world.commit({"a.py": "class OldThing:\n    pass\n", "docs/a.md": "Use `OldThing`.\n\nOldThing is fine.\n"})
    world.commit({"a.py": "class NewThing:\n    pass\n"})
    assert world.found() == [("document-names-gone", "docs/a.md", 1)]


def test_documents_may_name_a_module_of_the_name(world):
    world.commit({"my_family/__init__.py": "my_family = 1\n", "docs/a.md": "Use `my_family`.\n"})
    world.commit({"my_family/__init__.py": "other = 1\n"})
    assert world.found() == []


def test_documents_stay_true_when_a_symbol_only_moves(world):
    world.commit({"a.py": "class OldThing:\n    pass\n", "docs/a.md": "Use `OldThing`.\n"})
    world.commit({"a.py": "x = 1\n", "b.py": "class OldThing:\n    pass\n"})
    assert world.found() == []


def test_a_public_name_goes_with_a_word_of_deprecation_before(world):
    world.commit({"p/__init__.py": '__all__ = ["load", "save"]\n'})
    world.commit({"p/__init__.py": '__all__ = ["load"]\n'})
    assert world.found() == [("removed-export", "p/__init__.py", 1)]
    world.commit({"p/__init__.py": '__all__ = ["load", "save"]\nOLD = "save is deprecated"\n'})
    world.commit({"p/__init__.py": '__all__ = ["load"]\n'})
    assert world.found() == []


def test_a_new_config_field_is_documented_where_the_others_are(world):
    said = "class RunConfig:\n    a: int = 1\n    '''Steps.'''\n    b: int = 2\n    '''Seconds.'''\n"
    world.commit({"a.py": said, "b.py": said.replace("    '''Seconds.'''\n", "")})
    world.commit(
        {"a.py": said + "    c: int = 3\n    d: PartConfig = 4\n", "b.py": said + "    d: int = 4\n    '''D.'''\n"}
    )
    assert world.found() == []
    world.commit({"a.py": said + "    d: PartConfig = 4\n    e: int = 5\n    '''E.'''\n    c: int = 3\n"})
    assert world.found("--base", "HEAD~2") == [("undocumented-field", "a.py", 9)]


def test_documents_for_most_fields_do_not_accuse_the_rest(world):
    text = "class RunConfig:\n    a: int = 1\n    b: int = 2\n    c: int = 3\n"
    world.commit({"a.py": text})
    world.commit({"a.py": text.replace("1\n", "1\n    '''A.'''\n").replace("2\n", "2\n    '''B.'''\n")})
    assert world.found() == []


def test_a_new_config_field_needs_a_default(world):
    head = "from dataclasses import dataclass\n\n\n@dataclass\nclass RunConfig:\n    a: int\n"
    world.commit({"a.py": head, "b.py": head.replace("RunConfig", "Point")})
    world.commit({"a.py": head + "    b: int\n", "b.py": head.replace("RunConfig", "Point") + "    b: int\n"})
    assert world.found() == [("required-field-added", "a.py", 7)]
    world.commit({"a.py": head + "    b: int = 1\n"})
    assert world.found("--base", "HEAD~2", "--head", "HEAD") == []


def test_a_new_config_field_that_all_callers_name_breaks_nobody(world):
    head = "from dataclasses import dataclass\n\n\n@dataclass\nclass RunConfig:\n    a: int\n"
    world.commit({"a.py": head, "b.py": "from a import RunConfig\n\nRunConfig(a=1)\n"})
    world.commit({"a.py": head + "    b: int\n", "b.py": "from a import RunConfig\n\nRunConfig(a=1, b=2)\n"})
    assert world.found() == []


def test_a_renamed_config_field_is_no_new_one(world):
    head = "from dataclasses import dataclass\n\n\n@dataclass\nclass RunConfig:\n"
    world.commit({"a.py": head + "    size: int\n"})
    world.commit({"a.py": head + "    length: int\n"})
    assert world.found() == []


def test_a_heavy_package_that_all_others_import_late(world):
    late = "def f():\n    import vllm\n\n    return vllm\n"
    world.commit({f"pkg/m{number}.py": late for number in range(3)} | {"pkg/__init__.py": ""})
    world.commit({"pkg/new.py": "import vllm\n", "pkg/light.py": "import json\n", "tests/test_new.py": "import vllm\n"})
    assert world.found() == [("heavy-import", "pkg/new.py", 1)]
    world.commit({"pkg/second.py": "import vllm\n"})
    assert world.found() == []  # one that imports it early: there is no such habit


def test_a_dependency_moves_with_its_checklist(world):
    world.commit({"constraints.txt": "torch==2.9.0\n", "skills/up/checklists/torch.md": "audited 2.9.0\n"})
    world.commit({"constraints.txt": "torch==2.10.0\n"})
    assert world.found() == [("checklist-behind", "constraints.txt", 1)]
    world.commit({"skills/up/checklists/torch.md": "audited 2.10.0\n"})
    assert world.found("--base", "HEAD~2") == []


def test_addresses_and_homes_of_one_place(world):
    home = "/" + "home"  # so that this file names no such place itself
    text = f'A = "http://10.1.2.3:8000/v1"\nB = "{home}/alice/models/x"\n'
    fine = f'A = "http://127.0.0.1:80"\nB = "{home}/user/models"\n# http://10.1.2.3:80\nC = "http://example.com"\n'
    others = {"tests/test_a.py": text, "docs/a.md": text}
    world.commit({"a.py": text, "b.py": fine, "c.yaml": f"path: {home}/bob/x\n", **others})
    assert world.found() == [("fixed-endpoint", path, line) for path, line in (("a.py", 1), ("a.py", 2), ("c.yaml", 1))]


def test_every_rule_of_a_change_is_tested_here():
    tested = {"registry-entry-missing", "field-moved", "secret", "unreadable-python", "untested-symbol", "lock-behind"}
    tested |= {
        "undocumented-field",
        "checklist-behind",
        "fixed-endpoint",
        "heavy-import",
        "required-field-added",
        "pages-behind",
    }
    tested |= {"translation-behind", "mirror-drift", "document-names-gone", "removed-export"}
    tested |= {"named-file-missing"}  # in test_rules_of_lifetimes
    tested |= {"unknown-setting-key"}  # in test_setting_keys
    tested |= {"attribute-no-longer-set"}  # in test_rules_of_slips
    tested |= {rule.id for rule in regressions.RULES}  # in test_rules_of_versions
    assert {name for name, rule in RULES.items() if rule.in_change is not None} == tested
