"""What is remembered of a repository's code holds exactly as long as what it was made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tooling.upgrade.interfaces.code import RepositoryCode
from tooling.upgrade.interfaces.flags import CommandsOfFiles
from tooling.upgrade.interfaces.judge import judge_interfaces
from tooling.upgrade.interfaces.modules import ReleaseModules
from tooling.upgrade.interfaces.pair import Remembered
from tooling.upgrade.interfaces.programs import ReleasePrograms
from tooling.upgrade.interfaces.repository import RepositoryFile
from tooling.upgrade.interfaces.requests import RequestFinder
from tooling.upgrade.sources.folder import memory_release

if TYPE_CHECKING:
    from pathlib import Path

CALLER = b"from own.paths import GENERATE\n\n\ndef ask(session):\n    session.post(f'{session.base}{GENERATE}')\n"
PATHS = b"GENERATE = '/generate'\n\n\ndef other():\n    return 1\n"
SOURCES = {"own/__init__.py": b"", "own/caller.py": CALLER, "own/paths.py": PATHS, "own/more.py": b"MORE = 1\n"}


def requests_of(sources: dict[str, bytes], where: Path) -> tuple[list[str], list[str]]:
    """Paths that own/caller.py requests, and the files that were parsed to find out."""
    files = [RepositoryFile(path, "python", content) for path, content in sources.items()]
    code = RepositoryCode(files, Remembered(where))
    finder = RequestFinder(code)
    finder.learn(["own/caller.py"])
    found = [request.path for request in finder.of("own/caller.py")]
    code.remembered.save()
    return found, sorted(file.path for file in files if "module" in vars(file))


def test_a_second_run_over_the_same_files_parses_nothing(tmp_path: Path) -> None:
    assert requests_of(SOURCES, tmp_path / "kept") == (["/generate"], ["own/caller.py", "own/paths.py"])
    assert requests_of(SOURCES, tmp_path / "kept") == (["/generate"], [])


@pytest.mark.parametrize(
    ("path", "content", "requests"),
    [
        ("own/caller.py", CALLER.replace(b"post", b"get"), ["/generate"]),
        ("own/caller.py", b"\n" + CALLER.replace(b"{GENERATE}", b"/abort"), ["/abort"]),
        ("own/paths.py", PATHS.replace(b"/generate", b"/v1/generate"), ["/v1/generate"]),
        ("own/paths.py", b"from own.more import GENERATE\n", []),
        ("own/paths.py", b"def broken(:\n", []),
        ("own/more.py", b"MORE = 2\n", ["/generate"]),
    ],
)
def test_an_edit_gives_what_a_first_run_gives(tmp_path: Path, path: str, content: bytes, requests: list[str]) -> None:
    requests_of(SOURCES, tmp_path / "kept")
    edited = {**SOURCES, path: content}
    assert requests_of(edited, tmp_path / "kept")[0] == requests_of(edited, tmp_path / "new")[0] == requests


def test_a_file_that_takes_a_modules_place_is_noticed(tmp_path: Path) -> None:
    requests_of(SOURCES, tmp_path / "kept")
    del (moved := dict(SOURCES))["own/paths.py"]
    assert requests_of(moved, tmp_path / "kept")[0] == []
    moved["own/paths/__init__.py"] = PATHS.replace(b"/generate", b"/moved")
    assert requests_of(moved, tmp_path / "kept")[0] == ["/moved"]


def test_an_edit_of_another_function_of_a_file_parses_that_file_only(tmp_path: Path) -> None:
    requests_of(SOURCES, tmp_path / "kept")
    edited = {**SOURCES, "own/paths.py": PATHS.replace(b"return 1", b"return 2")}
    assert requests_of(edited, tmp_path / "kept") == (["/generate"], ["own/paths.py"])


@pytest.mark.parametrize("damaged", [b"", b"no bytes of ours", "cut off"])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, damaged: bytes | str) -> None:
    requests_of(SOURCES, tmp_path / "kept")
    whole = (tmp_path / "kept").read_bytes()
    (tmp_path / "kept").write_bytes(whole[:-20] if isinstance(damaged, str) else damaged)
    assert requests_of(SOURCES, tmp_path / "kept")[0] == ["/generate"]


def test_what_is_not_used_any_more_goes(tmp_path: Path) -> None:
    requests_of(SOURCES, tmp_path / "kept")
    size = (tmp_path / "kept").stat().st_size
    for number in range(5):
        requests_of({**SOURCES, "own/caller.py": CALLER + b"# %d\n" % number}, tmp_path / "kept")
    assert (tmp_path / "kept").stat().st_size < size + 100


SERVER = """
import argparse, os
from fastapi import FastAPI
app = FastAPI()
@app.get("/health")
def health(): ...
DEPTH = os.environ.get("APP_DEPTH")
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size")
    parser.parse_args()
"""
CLIENT = """import app, os, requests, subprocess
from packaging.version import Version
if Version(app.__version__) < Version("2.5"):
    subprocess.run(["app", "--size", "1"])
    requests.get("http://localhost/health")
    os.environ["APP_DEPTH"] = "1"
"""


def lines_judged(repository: Path, cache: Path, new: str) -> list[tuple[int, str]]:
    """Line and kind of each finding about `CLIENT`; the new release has nothing of what it uses."""
    scripts = {"app": "app.server:main"}
    old = memory_release({"app/__init__.py": "", "app/server.py": SERVER}, "app", "1.0", scripts=scripts)
    gone = "import argparse\ndef main(): argparse.ArgumentParser().parse_args()\n"
    later = memory_release({"app/__init__.py": "", "app/server.py": gone}, "app", new, scripts=scripts)
    found = judge_interfaces(repository, old, later, "app", cache=cache)
    assert {use.line for use in found.uses} <= set(range(1, 9))
    return [(each.line, str(each.kind)) for each in found.findings]


ALL = [(4, "cli-flag"), (5, "http-route"), (6, "env-var")]


@pytest.mark.parametrize(
    ("before", "after", "new", "judged"),
    [
        ("", "", "2.0", ALL),
        ("", "", "3.0", []),
        ('Version("2.5")', 'Version("1.5")', "2.0", []),
        ("< Version", ">= Version", "3.0", ALL),
        ("import app", "# moved\nimport app", "2.0", [(line + 1, kind) for line, kind in ALL]),
        ('"--size"', '"size"', "2.0", ALL[1:]),
        ("/health", "/other", "2.0", [ALL[0], ALL[2]]),
        ("APP_DEPTH", "APP_WIDTH", "2.0", ALL[:2]),
    ],
)
def test_what_is_remembered_of_one_file_is_of_its_text_and_the_versions(
    tmp_path: Path, before: str, after: str, new: str, judged: list[tuple[int, str]]
) -> None:
    (repository := tmp_path / "repository").mkdir()
    (repository / "client.py").write_text(CLIENT)
    assert lines_judged(repository, tmp_path / "kept", "2.0") == ALL
    (repository / "client.py").write_text(CLIENT.replace(before, after))
    assert lines_judged(repository, tmp_path / "kept", new) == judged
    assert lines_judged(repository, tmp_path / "fresh", new) == judged


def test_the_order_of_the_names_of_programs_makes_nothing_anew(tmp_path: Path) -> None:
    """Roots of a release are a set, whose order differs from run to run."""
    release = memory_release({"app/__init__.py": "", "app/server.py": SERVER, "more/__init__.py": ""}, "app", "1.0")
    for names, parsed in ((["app", "more"], True), (["more", "app"], False)):
        file = RepositoryFile("client.py", "python", b"COMMAND = ['python', '-m', 'app.server', '--size', '1']\n")
        code = RepositoryCode([file], Remembered(tmp_path / "kept"))
        found = CommandsOfFiles([file], code, names, ReleasePrograms(ReleaseModules(release)), release.digest())
        code.remembered.save()
        assert ([use.program for use in found.uses], "module" in vars(file)) == (["app.server"], parsed)
