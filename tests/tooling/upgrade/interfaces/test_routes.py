"""Routes, request fields and environment variables of two releases against what a repository uses.

python -m pytest tests/tooling/upgrade/interfaces/test_routes.py -q
"""

import os
import re
import subprocess
import sys

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from tooling.python import tables
from tooling.upgrade.findings import AuditSeverity
from tooling.upgrade.fixes.files import fix_file
from tooling.upgrade.interfaces.judge import judge_interfaces
from tooling.upgrade.interfaces.modules import ReleaseModules
from tooling.upgrade.interfaces.pair import InterfaceStore
from tooling.upgrade.interfaces.routes import routes
from tooling.upgrade.sources.folder import memory_release

MARK = re.compile(r"# (breaks|warns): ([\w-]+)")
WORDS = {AuditSeverity.BREAKING: "breaks", AuditSeverity.WARNING: "warns"}


def release(version, **files):
    named = {f"app/{name.replace('__', '/')}.py": text for name, text in files.items()}
    return memory_release({"app/__init__.py": "", **named}, "app", version)


def check_judged(tmp_path, old, new, client, name="client.py"):
    (tmp_path / name).write_text(client)
    found = judge_interfaces(tmp_path, old, new, "app").findings
    marked = {
        number: hit.groups() for number, line in enumerate(client.splitlines(), start=1) for hit in MARK.finditer(line)
    }
    assert {each.line: (WORDS[each.severity], str(each.kind)) for each in found} == marked
    return found


SERVER = """
from fastapi import APIRouter, FastAPI
from app.models import Query
app = FastAPI()
router = APIRouter(prefix="/v1")
@app.post("/generate_from_file")
async def generate_from_file(request: Request): ...
@app.get("/health")
async def health(): ...
@router.get("/models/{model_id:path}")
async def model(model_id: str): ...
@router.api_route("/flush", methods=["GET", "POST"])
async def flush(): ...
@router.post("/query")
async def query(body: Query): ...
app.include_router(router, prefix="/api")
app.add_api_route("/stats", health, methods=["GET"])
"""
MODELS = """
from pydantic import BaseModel, ConfigDict, Field
class Base(BaseModel):
    CONFIG
    prompt: str
class Query(Base):
    guided_json: str = None
    top_k: int = Field(-1, alias="topk")
"""


def models(config="pass", gone=True):
    text = MODELS.replace("CONFIG", config)
    return text.replace("    guided_json: str = None\n", "") if gone else text


def test_routes_have_prefixes_methods_and_alike_parameters():
    table = routes(ReleaseModules(release("1", server=SERVER, models=models(gone=False))))
    assert {path: sorted({method for row in rows for method in row.methods}) for path, rows in table.items()} == {
        "/generate_from_file": ["POST"],
        "/health": ["GET"],
        "/api/v1/models/{}": ["GET"],
        "/api/v1/flush": ["GET", "POST"],
        "/api/v1/query": ["POST"],
        "/stats": ["GET"],
    }
    (query,) = table["/api/v1/query"]
    assert (query.model, query.body, query.aliases, query.extra) == (
        "Query",
        ("prompt", "guided_json", "topk"),
        (),
        "ignore",
    )


BODIES = """
from dataclasses import dataclass
from typing import TypedDict
from fastapi import FastAPI
from pydantic import BaseModel
from sqlmodel import SQLModel
app = FastAPI()
class Service:
    def __init__(self, url, key): ...
class Plain(BaseModel):
    prompt: str
class Written(BaseModel, extra="forbid"):
    prompt: str
    def __init__(self, **kw): super().__init__(**kw)
class Row(SQLModel):
    prompt: str
@dataclass
class Data:
    prompt: str
class Keys(TypedDict):
    prompt: str
@app.post("/it")
def it(service: Service, body: MODEL): ...
"""


@pytest.mark.parametrize("model", ["Plain", "Written", "Row", "Data", "Keys"])
def test_the_body_is_a_model_and_no_service(model):
    text = BODIES.replace("MODEL", model)
    (route,) = routes(ReleaseModules(release("1", server=text)))["/it"]
    assert (route.model, route.body) == (model, ("prompt",))
    assert route.extra == ("forbid" if model == "Written" else "ignore")


def test_rows_of_an_older_reader_of_symbols_are_not_used(tmp_path, monkeypatch):
    store = InterfaceStore(tmp_path, release("1"))
    store.write("routes", TypeAdapter(int), 1)
    assert store.read("routes", TypeAdapter(int)) == 1
    monkeypatch.setattr(tables, "SCHEMA", tables.SCHEMA + 1)
    assert store.read("routes", TypeAdapter(int)) is None


def test_requests_to_routes_that_are_gone_are_found(tmp_path):
    new = SERVER.replace('@app.post("/generate_from_file")\n', "").replace('["GET", "POST"]', '["GET"]')
    new = new.replace("/models/{model_id:path}", "/model-list/{name}")
    client = """
import requests  # talks to app
from urllib.parse import urljoin
def call(base, host, model):
    requests.post(f"http://{host}/generate_from_file", json={})  # breaks: http-route
    requests.post(base + "/generate_from_file")  # breaks: http-route
    requests.get(urljoin(base, "health"))
    requests.post(url=f"{base}/api/v1/flush")  # breaks: http-route
    requests.get(f"{base}/api/v1/flush")
    url = f"{base}/api/v1/models/{model}"  # breaks: http-route
    requests.get(url)
    client.post("/generate_from_file", files={})  # breaks: http-route
    path = "/generate_from_file"
    requests.get(f"{base}/elsewhere/generate_from_file")
"""
    both = {"models": models(gone=False)}
    check_judged(tmp_path, release("1", server=SERVER, **both), release("2", server=new, **both), client)


def test_a_path_that_the_repository_serves_itself_is_only_a_warning(tmp_path):
    new = SERVER.replace('@app.post("/generate_from_file")\n', "")
    client = """
app = FastAPI()
@app.post("/generate_from_file")
def ours(): ...
requests.post(f"{base}/generate_from_file")  # warns: http-route
"""
    check_judged(tmp_path, release("1", server=SERVER), release("2", server=new), client)


@pytest.mark.parametrize(
    ("config", "fate"),
    [
        ('model_config = ConfigDict(extra="forbid")', "breaks"),
        ("pass", "warns"),
        ('model_config = ConfigDict(extra="allow")', None),
    ],
)
def test_fields_that_a_model_lost(tmp_path, config, fate):
    mark = f"  # {fate}: http-field" if fate else ""
    client = f"""
import requests  # app
payload = {{
    "prompt": "x",
    "topk": 1,
    "guided_json": "{{}}",{mark}
    "never_there": 1,
}}
requests.post(f"{{base}}/api/v1/query", json=payload)
"""
    old = release("1", server=SERVER, models=models(config, gone=False))
    check_judged(tmp_path, old, release("2", server=SERVER, models=models(config)), client)


def test_strict_models_do_refuse_and_others_do_ignore():
    class Strict(BaseModel, extra="forbid"):
        prompt: str

    class Plain(BaseModel):
        prompt: str

    with pytest.raises(ValidationError):
        Strict(prompt="x", guided_json="{}")
    assert not hasattr(Plain(prompt="x", guided_json="{}"), "guided_json")


OLD_ENVS = """
import os
environment_variables = {
    "APP_USE_V1": lambda: os.getenv("APP_USE_V1", "1"),
    "APP_BACKEND": lambda: os.environ.get("APP_BACKEND"),
}
flag = os.environ["APP_FLAG"]
mode = get_bool_env_var("APP_MODE")
depth = EnvInt("APP_DEPTH", 3)
class Envs:
    APP_WIDTH = EnvInt(3)
    APP_HEIGHT: EnvInt = EnvInt(4)
os.environ["APP_SET_ONLY"] = "1"
other = os.getenv("HF_TOKEN")
kept = os.getenv("APP_KEPT")
"""
NEW_ENVS = 'import os\nkept = os.getenv("APP_KEPT")\nclass Envs:\n    APP_HEIGHT = EnvInt(4)\n'


def test_variables_that_nobody_reads_any_more(tmp_path):
    client = """
'APP_USE_V1 in a docstring'
import os, subprocess
os.environ["APP_USE_V1"] = "1"  # warns: env-var
os.environ.setdefault("APP_BACKEND", "x")  # warns: env-var
env = {
    "APP_FLAG": "1",  # warns: env-var
    "APP_KEPT": "1",
    "HF_TOKEN": "x",
    "APP_UNHEARD_OF": "1",
}
monkeypatch.setenv("APP_MODE", "1")  # warns: env-var
subprocess.run("run", env=dict(
    APP_DEPTH="1",  # warns: env-var
    APP_WIDTH="1",  # warns: env-var
    APP_HEIGHT="1",
))
print(os.getenv("APP_SET_ONLY"), os.getenv("OTHER_APP_FLAG"))
pairs = ["APP_FLAG=1"]  # warns: env-var
"""
    check_judged(tmp_path, release("1", envs=OLD_ENVS), release("2", envs=NEW_ENVS), client)


def test_variables_in_scripts_and_yaml(tmp_path):
    script = (
        "# APP_FLAG is set below\nexport APP_FLAG=1  # warns: env-var\nAPP_MODE=1 run  # warns: env-var\n"
        "echo $APP_KEPT $APP_FLAGS\n"
    )
    old, new = release("1", envs=OLD_ENVS), release("2", envs=NEW_ENVS)
    check_judged(tmp_path, old, new, script, "run.sh")
    (tmp_path / "run.sh").unlink()
    check_judged(tmp_path, old, new, "env:\n  - name: APP_FLAG  # warns: env-var\n    value: '1'\n", "pod.yaml")


def test_a_name_that_is_put_together_may_still_be_read(tmp_path):
    new = release("2", envs='import os\ndef read(name): return os.getenv(f"APP_{name}")\n')
    check_judged(tmp_path, release("1", envs=OLD_ENVS), new, 'import os\nos.environ["APP_FLAG"] = "1"\n')


def test_a_variable_that_nobody_reads_changes_nothing(tmp_path):
    for name, text in (("old", "import os\nprint(os.getenv('APP_FLAG'))"), ("new", "print(None)")):
        (tmp_path / f"{name}.py").write_text(text)

    def printed(name, value):
        environment = {**os.environ, "APP_FLAG": value}
        command = [sys.executable, str(tmp_path / f"{name}.py")]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout

    assert printed("old", "1") != printed("old", "2")
    assert printed("new", "1") == printed("new", "2")


def test_a_route_and_a_variable_that_were_renamed_are_mended(tmp_path):
    server = """
import os
from fastapi import FastAPI
app = FastAPI()
CACHE = os.environ.get("APP_{cache}", "/tmp")
@app.post("/{path}")
async def flush(request: Request): ...
@app.get("/{other}")
async def {other}(): ...
"""
    old = release("1.0", server=server.format(cache="CACHE", path="flush_cache", other="health"))
    new = release("2.0", server=server.format(cache="CACHE_DIR", path="v1/flush", other="alive"))
    client = """import os, requests  # app
os.environ["APP_CACHE"] = "/data"  # warns: env-var
requests.post(f"{base}/flush_cache")  # breaks: http-route
requests.get(f"{base}/health")  # breaks: http-route
"""
    found = check_judged(tmp_path, old, new, client)
    assert [each.replacement.text for each in found if each.replacement] == ["APP_CACHE_DIR", "/v1/flush"]
    fixed = fix_file("client.py", client.encode(), found)
    (tmp_path / "client.py").write_bytes(fixed.data)
    left = judge_interfaces(tmp_path, old, new, "app").findings
    assert [(each.line, each.replacement) for each in left] == [(4, None)], (
        "another function answers: nothing is offered"
    )
    assert b'f"{base}/v1/flush"' in fixed.data


ROUTED = """
from fastapi import FastAPI
app = FastAPI()
@app.post("/{path}")
async def flush(request: Request): ...
"""
REQUEST = 'import requests  # app\nrequests.post(f"{base}/flush_cache")\n'


@pytest.mark.parametrize(
    ("old", "new", "client", "certain"),
    [
        ({}, {"server": ROUTED.format(path="v1/flush")}, REQUEST, [True]),
        ({}, {"server": ROUTED.format(path="v1/flush")}, REQUEST.replace("app", ""), [False]),
        ({}, {"server": "", "other": ROUTED.format(path="v1/flush")}, REQUEST, [False]),
        ({"other": ROUTED.format(path="a")}, {"server": ROUTED.format(path="v1/flush")}, REQUEST, [False]),
        (
            {},
            {"server": "app = FastAPI()\napp.add_api_route('/b', b)\ndef flush(): ..."},
            REQUEST,
            [],
        ),
    ],
)
def test_a_route_is_rewritten_only_where_nothing_is_guessed(tmp_path, old, new, client, certain):
    before = release("1.0", server=ROUTED.format(path="flush_cache"), **old)
    (tmp_path / "client.py").write_text(client)
    found = judge_interfaces(tmp_path, before, release("2.0", **new), "app").findings
    assert [each.replacement.certain for each in found if each.replacement] == certain
    assert len(found) == 1


@pytest.mark.parametrize(
    ("held", "instead", "client", "certain"),
    [
        ("CACHE", "APP_CACHE_DIR", 'os.environ["APP_CACHE"]', True),
        ("CACHE", "APP_CACHE_DIR", 'run(env={"APP_CACHE": "1"})', True),
        ("CACHE", "APP_CACHE_DIR", 'getattr(S, "APP_CACHE")', False),
        ("VALUE", "APP_CACHE_DIR", 'os.getenv("APP_CACHE")', False),
        ("CACHE", "APP_TOKEN", 'os.getenv("APP_CACHE")', False),
        ("APP", "APP_TOKEN", 'os.getenv("APP_CACHE")', False),
    ],
)
def test_a_variable_is_rewritten_only_where_nothing_is_guessed(tmp_path, held, instead, client, certain):
    old, new = (
        release(version, server=f'import os\n{held} = os.environ.get("{name}")\n')
        for version, name in (("1.0", "APP_CACHE"), ("2.0", instead))
    )
    (tmp_path / "client.py").write_text(f"import os\n{client}\n")
    (found,) = judge_interfaces(tmp_path, old, new, "app").findings
    assert found.replacement.text == instead
    assert found.fixable == certain
