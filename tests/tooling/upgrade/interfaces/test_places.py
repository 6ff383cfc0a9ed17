"""Where repositories write commands, requests and variables: each file of `places.md` as it stands, marks taken off.

python -m pytest tests/tooling/upgrade/interfaces/test_places.py -q
"""

import re
from pathlib import Path

import pytest

from tooling.upgrade.findings import AuditSeverity
from tooling.upgrade.interfaces.judge import judge_interfaces
from tooling.upgrade.sources.folder import memory_release

MARK = re.compile(r" *# (breaks|warns)$", re.MULTILINE)
WORDS = {AuditSeverity.BREAKING: "breaks", AuditSeverity.WARNING: "warns"}
COMMANDS = """
import argparse
def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve")
    serve.add_argument("--port")
    serve.add_argument("--gone-flag")
    bench = commands.add_parser("bench")
    bench.add_argument("--rounds")
    parser.parse_args()
"""
SERVER = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--port")
parser.add_argument("--gone-flag")
parser.parse_args()
"""
HTTP = """
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
app = FastAPI()
class Query(BaseModel):
    model_config = ConfigDict(extra="forbid")
    prompt: str
    gone_field: int = 1
@app.get("/health")
async def health(): ...
@app.post("/generate")
async def generate(query: Query): ...
@app.post("/gone")
async def gone(query: Query): ...
"""
VARIABLES = """
import os
KEPT = os.environ.get("APP_KEPT_VAR")
GONE = os.environ.get("APP_GONE_VAR")
"""
OLD = {"__init__": "", "cli": COMMANDS, "server": SERVER, "http": HTTP, "envs": VARIABLES}
LINES = re.compile(r"^.*(?:gone_field|gone-flag|bench|GONE).*\n", re.MULTILINE)
NEW = {name: LINES.sub("", text).partition('@app.post("/gone")')[0] for name, text in OLD.items()}


def release(files, version):
    named = {f"app/{name}.py": text for name, text in files.items()}
    return memory_release(named, "app", version, scripts={"app": "app.cli:main"})


def read_cases():
    """Title to files: `~~~ path` begins one, `~~~` ends it."""
    cases = {}
    for part in re.split(r"(?m)^## ", Path(__file__).with_name("places.md").read_text())[1:]:
        files = re.findall(r"(?ms)^~~~ (\S+)\n(.*?)^~~~$", part)
        cases[part.partition("\n")[0]] = dict(files)
    return cases


def judged(files, folder):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(MARK.sub("", text))
    found = judge_interfaces(folder, release(OLD, "1"), release(NEW, "2"), "app").findings
    return {(each.path, each.line, WORDS[each.severity]) for each in found}


def marked(files):
    return {
        (name, number, hit[1])
        for name, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        if (hit := MARK.search(line))
    }


@pytest.mark.sample(22)
@pytest.mark.parametrize(("title", "files"), read_cases().items(), ids=read_cases())
def test_exactly_the_marked_lines_are_found(title, files, tmp_path):
    assert files, title
    assert judged(files, tmp_path) == marked(files)
