"""Ten kinds of false statements, planted in a copy of this repository: `check` finds each of them where it stands."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tooling.harness.__main__ import main
from tooling.harness.context import open_context

ROOT = Path(__file__).resolve().parents[3]
PAGE, SKILL, OWNER = "agents/launcher.md", "skills/add-reward/SKILL.md", "agents/archon.md"
SENTENCES = [
    ("path", "See `areal/infra/scheduler/local.py`.", "areal/infra/scheduler/local.py does not exist"),
    ("command", "Run `areal-new rewards NAME`.", "rewards"),
    ("option", "Run `areal train CONFIG.yaml --launcher ray`.", "no option --launcher"),
    ("symbol", "Set `rollout.max_head_offpolicy`.", "has no max_head_offpolicy"),
    ("symbol", "`LocalLauncher` is a `RemoteLauncher`.", "nothing is called RemoteLauncher"),
    ("absence", "There is no inference server of its own.", "says what does not exist"),
    ("command", "```bash\nareal train 'CONFIG.yaml\n```", "a quote is not closed"),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The repository's files in a repository of their own."""
    target = tmp_path_factory.mktemp("planted") / "areal"
    for path in open_context(ROOT).files:
        if path.split("/")[0] not in {".agents", ".claude", ".codex", ".opencode", "tests"}:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, target / path)
    subprocess.run(["git", "init", "-q", str(target)], check=True)
    return target


def plant(root, path, old, new):
    """Replace a text that stands there once."""
    text = (root / path).read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path} has {text.count(old)} times {old!r}"
    (root / path).write_text(text.replace(old, new), encoding="utf-8")


def line_of(root, path, sentence):
    """The line that a sentence begins on; that of the command in a block."""
    text = (root / path).read_text(encoding="utf-8")
    return text[: text.index(sentence)].count("\n") + (2 if sentence.startswith("```") else 1)


def findings(root, capsys, *words):
    capsys.readouterr()
    main(["check", *words, "--repo", str(root), "--json"])
    return json.loads(capsys.readouterr().out)["findings"]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_each_of_ten_kinds_of_false_statements_is_found(copy, capsys):
    before = {(one["path"], one["rule"], one["message"]) for one in findings(copy, capsys)}
    pages = [(PAGE, SKILL)[number % 2] for number in range(len(SENTENCES))]
    for page, (_, sentence, _) in zip(pages, SENTENCES, strict=True):
        heading = "## Questions to answer" if page == PAGE else "## Verify"
        plant(copy, page, heading, f"{sentence}\n\n{heading}")
    # 8, 9: what the block says of the code; 10: a file that nobody answers for
    plant(copy, OWNER, "- `MODELS` in `areal/models/registry.py`", "- `MODELS` in `areal/models/registry.py`: llama")
    plant(copy, "agents/planner.md", "- `areal/api/`", "- `areal/apis/`")
    plant(copy, "agents/environments.md", "  - areal/workflow/**\n", "")
    found = [one for one in findings(copy, capsys) if (one["path"], one["rule"], one["message"]) not in before]
    for page, (rule, sentence, message) in zip(pages, SENTENCES, strict=True):
        place = (page, line_of(copy, page, sentence), rule)
        said = [one["message"] for one in found if (one["path"], one["line"], one["rule"]) == place]
        assert any(message in one for one in said), f"{sentence}: {said}"
    assert {one["path"] for one in found if one["rule"] == "block"} >= {OWNER, "agents/planner.md"}
    unowned = [one["path"] for one in found if one["rule"] == "owner"]
    assert unowned
    assert all(path.startswith("areal/workflow/") for path in unowned)
