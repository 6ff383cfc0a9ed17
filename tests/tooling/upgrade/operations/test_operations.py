"""The parts of operations that commands do not show: copies of a tree, and which releases in between are asked."""

import base64
import hashlib
import os
import shutil
import subprocess
import zipfile
from dataclasses import replace

import pytest

from tooling.cli.errors import UsageError
from tooling.upgrade.operations.auditing import MOST_BETWEEN, Move, audit_moves, between
from tooling.upgrade.operations.context import open_context, unknown_now
from tooling.upgrade.operations.upgrading import edited_tree
from tooling.upgrade.sources.index_config import IndexSettings
from tooling.upgrade.sources.indexed import Catalogue


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "repository"
    files = {
        "pyproject.toml": '[project]\nname = "x"\nversion = "0"\ndependencies = ["engine==1.0"]\n',
        "x/a.py": "import engine\n",
        ".ci/check": "python -m engine\n",
        ".gitignore": "ignored.py\n",
        "ignored.py": "import engine\n",
        "data.bin": "much\n",
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "x/link.py").symlink_to(tmp_path / "outside.py")
    (tmp_path / "outside.py").write_text("import engine\n")
    subprocess.run(["git", "init", "-q", "--template=", str(root)], check=True)
    subprocess.run(["git", "-C", str(root), "add", "-A"], check=True)
    return root


def test_a_copy_has_what_audits_read_and_the_original_stays(repository, tmp_path):
    context = open_context(repository, cache=tmp_path / "cache", offline=True)
    with edited_tree(context, {"x/a.py": b"import other\n", "x/new.py": b""}) as then:
        copied = {
            path.relative_to(then.root).as_posix()
            for path in then.root.rglob("*")
            if path.is_file() and ".git" not in path.relative_to(then.root).parts
        }
        assert copied == {"pyproject.toml", "x/a.py", "x/new.py", ".ci/check"}
        assert (then.root / "x/a.py").read_text() == "import other\n"
        assert [file.path for file in then.usage(["other"]).files if file.uses] == ["x/a.py"]
        place = then.root
    assert not place.exists()
    assert (repository / "x/a.py").read_text() == "import engine\n"


def test_the_projects_own_environment_counts_in_a_copy_too(repository, tmp_path):
    packages = repository / ".venv/lib/python3.11/site-packages"
    (packages / "engine-1.0.dist-info").mkdir(parents=True)
    (packages / "engine-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: engine\nVersion: 1.0\n")
    (packages / "engine-1.0.dist-info/RECORD").write_text("engine/__init__.py,,\n")
    (packages / "engine").mkdir()
    (packages / "engine/__init__.py").write_text("def f(): ...\n")
    context = open_context(repository, cache=tmp_path / "cache", offline=True)
    with edited_tree(context, {}) as then:
        assert then.release("engine", "1.0").origin.verified == "folder"


def write_wheel(folder, version):
    members = {
        "engine/__init__.py": f"VERSION = {version!r}\n" + "def old(): ...\n" * (version == "1.0"),
        f"engine-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: engine\nVersion: {version}\n",
    }
    rows = []
    for path, text in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        rows.append(f"{path},sha256={digest},{len(text)}\n")
    with zipfile.ZipFile(folder / f"engine-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**members, f"engine-{version}.dist-info/RECORD": "".join(rows)}.items():
            archive.writestr(path, text)


@pytest.fixture
def cached(repository, tmp_path):
    """A context whose cache has fetched five releases from a folder."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for version in ("1.0", "1.1", "1.2", "1.3", "1.4", "2.0"):
        write_wheel(wheels, version)
    context = open_context(repository, cache=tmp_path / "cache")
    settings = IndexSettings(indexes=(), find_links=(str(wheels),))
    context.catalogue = Catalogue(tmp_path / "cache", settings=settings)
    for version in ("1.0", "1.1", "1.2", "1.4", "2.0"):
        context.catalogue.release("engine", version)
    return context


def asked(context, old, new):
    return [each.source.origin.version for each in between(context, Move("engine", old, new), context.upstream)]


def test_only_cached_releases_between_the_two_are_asked_and_the_newest_of_them(cached):
    assert asked(cached, "1.0", "2.0") == ["1.1", "1.2", "1.4"]
    assert asked(cached, "1.0", "1.2") == ["1.1"]
    assert asked(cached, "2.0", "1.0") == []
    assert asked(cached, "not a version", "2.0") == []
    cached.catalogue.release("engine", "1.3")
    assert asked(cached, "1.0", "2.0") == ["1.2", "1.3", "1.4"]
    assert len(asked(cached, "1.0", "2.0")) == MOST_BETWEEN


def findings(context):
    (audit,) = audit_moves(context, [Move("engine", "1.0", "1.3")])
    return [(each.path, each.line, each.symbol) for each in audit.findings]


def test_an_audit_is_kept_until_a_file_of_the_repository_changes(cached, monkeypatch):
    (cached.root / "x/a.py").write_text("import engine\nengine.old()\n")
    first = findings(cached)
    monkeypatch.setattr("tooling.upgrade.verdicts.audit", None)  # judging again fails
    assert findings(cached) == first == [("x/a.py", 2, "engine.old")]
    (cached.root / "x/a.py").write_text("import engine\n\nengine.old()\n")
    with pytest.raises(TypeError, match="not callable"):
        findings(cached)
    monkeypatch.undo()
    assert findings(cached) == [("x/a.py", 3, "engine.old")]


@pytest.mark.sample(1)
@pytest.mark.parametrize("path", ["env/a.py", ".hidden/a.py", "x/a.py"])
def test_a_kept_audit_notices_changes_wherever_an_audit_reads(cached, path):
    shutil.rmtree(cached.root / ".git")
    (cached.root / path).parent.mkdir(exist_ok=True)
    (cached.root / path).write_text("import engine\nengine.old()\n")
    assert (path, 2, "engine.old") in findings(cached)
    (cached.root / path).write_text("import engine\n\nengine.old()\n")
    assert (path, 3, "engine.old") in findings(cached)


def test_an_audit_during_which_a_file_changed_is_not_kept(cached, monkeypatch):
    (cached.root / "x/a.py").write_text("import engine\nengine.old()\n")
    usage = type(cached).usage

    def meddling(context, *arguments):
        found = usage(context, *arguments)
        (context.root / "x/new.py").write_text("import engine\n")
        return found

    monkeypatch.setattr(type(cached), "usage", meddling)
    findings(cached)
    assert not list((cached.cache / "audits").glob("*.json"))


def test_a_file_whose_name_is_not_utf8_only_keeps_nothing(cached):
    (cached.root / os.fsdecode(b"x/\xff.py")).write_text("import engine\nengine.old()\n")
    assert (os.fsdecode(b"x/\xff.py"), 2, "engine.old") in findings(cached)


def test_a_kept_audit_names_the_releases_that_it_asked(cached):
    (cached.root / "x/a.py").write_text("import engine\nengine.old()\n")
    again = replace(cached, _opened={})
    findings(cached)
    findings(again)
    assert [each.version for each in again.origins()] == [each.version for each in cached.origins()]
    assert len(again.origins()) > 2


def test_a_damaged_kept_audit_is_made_again(cached):
    before = findings(cached)
    (kept,) = (cached.cache / "audits").glob("*.json")
    kept.write_text("[{}]")
    assert findings(cached) == before


def test_where_each_release_came_from_is_known_afterwards(cached):
    cached.upstream("engine", "2.0")
    cached.upstream("engine", "1.0")
    assert [(each.distribution, each.version) for each in cached.origins()] == [("engine", "1.0"), ("engine", "2.0")]
    assert cached.origins()[0].url.startswith("file://")


def test_a_name_nobody_gives_a_version_is_answered_with_one_that_is_alike(repository, tmp_path):
    context = open_context(repository, cache=tmp_path / "cache")
    error = unknown_now(context, "engin", "look again")
    assert isinstance(error, UsageError)
    assert error.fix == "did you mean 'engine'? Or look again"
    assert unknown_now(context, "something-else", "look again").fix == "look again"
