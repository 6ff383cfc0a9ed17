"""Which tests a change can affect: its own folder, what imports the changed module, and everything when in doubt."""

import affected_tests
import pytest

FILES = {
    "areal/__init__.py": "",
    "areal/api.py": "",
    "areal/models/__init__.py": "from areal import api\n",
    "areal/reward/__init__.py": "",
    "areal/reward/registry.py": 'TABLE = {"digits": "areal.reward.digits:score"}\n',
    "areal/reward/digits.py": "",
    "areal/reward/words.txt": "",
    "areal/trainer/run.py": "def run():\n    from areal.models import build\n",
    "pyproject.toml": "",
    "docs/index.md": "",
    "tests/conftest.py": "",
    "tests/test_all.py": "",
    "tests/areal/models/conftest.py": "",
    "tests/areal/models/deep/test_b.py": "",
    "tests/areal/models/test_a.py": "",
    "tests/areal/reward/test_a.py": "",
    "tests/areal/trainer/test_a.py": "from areal.trainer.run import run\n",
    "tests/areal/trainer/worker.py": "",
}
MODELS = ["tests/areal/models", "tests/areal/models/deep"]


@pytest.fixture
def affected(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(affected_tests, "ROOT", tmp_path)
    affected_tests.imports.cache_clear()
    yield lambda *changed: affected_tests.affected(list(changed), list(FILES))
    affected_tests.imports.cache_clear()


@pytest.mark.parametrize(
    ("changed", "folders"),
    [
        ("areal/api.py", [*MODELS, "tests/areal/trainer"]),
        ("areal/models/__init__.py", [*MODELS, "tests/areal/trainer"]),
        ("areal/trainer/run.py", ["tests/areal/trainer"]),
        ("areal/reward/digits.py", ["tests/areal/reward"]),
        ("areal/__init__.py", [*MODELS, "tests/areal/reward", "tests/areal/trainer"]),
        ("tests/areal/trainer/worker.py", ["tests/areal/trainer"]),
        ("tests/areal/models/conftest.py", MODELS),
        ("areal/reward/words.txt", ["tests/areal/reward"]),
        ("templates/reward/copier.yml", ["tests/templates", "tests/tooling/kit", "tests/tooling/new"]),
        ("tests/test_all.py", ["tests/test_all.py"]),
        ("tests/cpu_budget.toml", []),
        ("docs/index.md", []),
        ("Dockerfile", []),
        (".dockerignore", []),
        (".pre-commit-config.yaml", []),
        ("CITATION.cff", []),
        ("CONTRIBUTING.md", []),
        # What runs a file beside these follows it.
        ("README.md", ["tests/areal_harness", "tests/tooling/upgrade/commands"]),
        (".pre-commit-hooks.yaml", ["tests/test_published_hooks.py"]),
    ],
)
def test_a_change_affects_what_imports_it(affected, changed, folders):
    assert affected(changed) == (folders, "")


@pytest.mark.parametrize("changed", ["pyproject.toml", "tests/conftest.py", "scripts/check.sh", "what/is/this"])
def test_in_doubt_everything_is_affected(affected, changed):
    folders, why = affected("areal/reward/digits.py", changed)
    assert folders == ["tests"]
    assert changed in why


def test_a_module_that_is_gone_affects_all_that_may_have_imported_it(affected):
    assert len(affected("areal/models/gone.py")[0]) == 4


def test_the_command_prints_folders_or_one_object(run_command):
    done = run_command(affected_tests.main, ["--base", "HEAD", "--json"])
    assert done.json.keys() == {"folders", "all", "why", "changed"}
    unknown = run_command(affected_tests.main, ["--base", "no-such-revision"])
    assert (unknown.code, unknown.stdout) == (0, "tests\n")
