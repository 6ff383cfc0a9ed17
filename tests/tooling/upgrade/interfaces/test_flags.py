"""Flags of commands against parsers: each pair is run with real argparse, then judged.

python -m pytest tests/tooling/upgrade/interfaces/test_flags.py -q
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tooling.upgrade.findings import AuditSeverity
from tooling.upgrade.interfaces.judge import judge_interfaces
from tooling.upgrade.interfaces.modules import ReleaseModules
from tooling.upgrade.interfaces.programs import ReleasePrograms
from tooling.upgrade.sources.folder import memory_release

PAIRS = tomllib.loads(Path(__file__).with_name("flags.toml").read_text(encoding="utf-8"))["pair"]
MARK = re.compile(r"# (breaks|warns): ([\w-]+)")


def sources(pair, side):
    return {"app/__init__.py": "", "app/server.py": pair[side], **pair.get(f"{side}_files", {})}


def release(pair, side, version):
    return memory_release(sources(pair, side), "app", version, scripts={"app": "app.server:main"})


def expected(pair):
    found = {}
    for number, line in enumerate(pair["client"].splitlines(), start=1):
        for fate, kind in MARK.findall(line):
            found[number] = (fate, kind)
    return {**found, **dict.fromkeys(pair.get("also_breaks", ()), ("breaks", "cli-flag"))}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, marks=() if number % 5 == 0 else pytest.mark.exhaustive, id=pair["name"])
        for number, pair in enumerate(PAIRS)
    ],
)
def test_the_pair_does_what_it_says(pair, tmp_path):
    for side in ("old", "new"):
        for path, text in sources(pair, side).items():
            file = tmp_path / side / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def status(side, arguments):
        command = [sys.executable, "-m", "app.server", *arguments]
        return subprocess.run(command, cwd=tmp_path / side, capture_output=True, check=False, timeout=60).returncode

    for arguments in pair.get("refused", ()):
        assert (status("old", arguments), status("new", arguments)) == (0, 2), arguments
    for arguments in pair.get("taken", ()):
        assert (status("old", arguments), status("new", arguments)) == (0, 0), arguments
    if "app/legacy.py" in pair.get("old_files", {}):
        assert not (tmp_path / "new/app/legacy.py").exists()


@pytest.mark.parametrize("pair", PAIRS, ids=[pair["name"] for pair in PAIRS])
def test_exactly_the_marked_lines_are_found(pair, tmp_path):
    (tmp_path / pair.get("client_name", "client.py")).write_text(pair["client"])
    found = judge_interfaces(tmp_path, release(pair, "old", "1.0"), release(pair, "new", "2.0"), "app").findings
    words = {AuditSeverity.BREAKING: "breaks", AuditSeverity.WARNING: "warns"}
    assert {each.line: (words[each.severity], each.kind) for each in found} == expected(pair)
    assert all(each.message and each.symbol and each.distribution == "app" for each in found)


def test_an_option_that_fills_the_same_variable_is_the_replacement(tmp_path):
    old = 'import argparse\np = argparse.ArgumentParser()\np.add_argument("--moe", dest="mode")\np.parse_args()\n'
    new = old.replace('"--moe"', '"--expert-mode"')
    (tmp_path / "c.py").write_text('x = ["python", "-m", "app.server", "--moe", "1"]\n')
    releases = [
        memory_release({"app/__init__.py": "", "app/server.py": text}, "app", version)
        for text, version in ((old, "1"), (new, "2"))
    ]
    (finding,) = judge_interfaces(tmp_path, *releases, "app").findings
    assert finding.replacement is not None
    assert (finding.replacement.text, finding.replacement.certain) == ("--expert-mode", True)
    assert (finding.old.file, finding.old.line) == ("app/server.py", 3)


def test_flags_of_transformers_style_parsers_are_the_fields_of_their_classes():
    text = (
        "import dataclasses\nfrom app.base import Base\nfrom elsewhere import HfArgumentParser\n"
        "@dataclasses.dataclass\nclass Args(Base):\n    warmup_ratio: float = 0.0\n    bf16: bool = False\n"
        "def main():\n    parser = HfArgumentParser((Args,))\n    parser.parse_args_into_dataclasses()\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    files = {"app/__init__.py": "", "app/base.py": "class Base:\n    output_dir: str\n", "app/server.py": text}
    command = ReleasePrograms(ReleaseModules(memory_release(files, "app", "1"))).command("app.server", ())
    assert command is not None
    assert sorted(command.flags()) == [
        "--bf16", "--output-dir", "--output_dir", "--warmup-ratio", "--warmup_ratio",
    ]  # fmt: skip


def test_a_second_run_reads_what_the_first_kept_and_a_damaged_cache_is_made_anew(tmp_path):
    pair = next(pair for pair in PAIRS if pair["name"] == "sub-commands, one of them gone")
    root, cache = tmp_path / "repository", tmp_path / "cache"
    root.mkdir()
    (root / "client.py").write_text(pair["client"])

    def found():
        releases = release(pair, "old", "1.0"), release(pair, "new", "2.0")
        return judge_interfaces(root, *releases, "app", cache=cache).findings

    first = found()
    kept = sorted(cache.rglob("*.json"))
    assert first
    assert kept
    assert found() == first
    for path in kept:
        path.write_text('{"parser": {"flags": 1}}')
    assert found() == first


def test_damaged_and_hostile_sources_are_passed_over(tmp_path):
    (tmp_path / "client.py").write_text("def (:\n  app.server")
    (tmp_path / "bad.yaml").write_text("a: [python -m app.server --gone\n b: {")
    (tmp_path / "bomb.yaml").write_text(
        "a: &a [app.server, x]\nb: &b [*a, *a, *a, *a]\nc: &c [*b, *b, *b, *b]\nd: [*c, *c, *c, *c]\n"
    )
    files = {
        "app/__init__.py": "",
        "app/server.py": "import argparse\ndef loop(p): loop(p)\nloop(argparse.ArgumentParser())",
    }
    release_of_it = memory_release({**files, "app/broken.py": "def ("}, "app", "1")
    assert judge_interfaces(tmp_path, release_of_it, release_of_it, "app").findings == ()
