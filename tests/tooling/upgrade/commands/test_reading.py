"""Releases and files that cannot be fetched or read: what is said, and that nothing is left half done."""

import functools
import hashlib
import http.server
import json
import re
import socket
import threading
from pathlib import Path

import pytest

from tooling.upgrade.declarations.find import repository_files
from tooling.upgrade.manifests.baseline import is_excluded
from tooling.upgrade.policy.read import read_policy


@pytest.fixture
def serve():
    """Serves a folder on a real socket; returns its address."""
    servers = []

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words):
            """Requests are no news."""

    def start(folder):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def index(world, serve):
    """An index of the world's wheels; `page` writes a project's page, with attributes of some files."""

    class Index:
        def __init__(self, address):
            self.environment = {"UV_NO_INDEX": "", "UV_FIND_LINKS": "", "UV_DEFAULT_INDEX": f"{address}/simple"}

        def page(self, name, attributes=None, hashes=None):
            lines = []
            for file in sorted(world.wheels.glob(f"{name}-*")):
                stated = (hashes or {}).get(file.name) or hashlib.sha256(file.read_bytes()).hexdigest()
                extra = (attributes or {}).get(file.name, "")
                lines.append(f'<a href="/wheels/{file.name}#sha256={stated}" {extra}>{file.name}</a>')
            page = world.folder / "simple" / name / "index.html"
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text("<html><body>" + "<br>".join(lines) + "</body></html>")

    found = Index(serve(world.folder))
    found.page("engine")
    found.page("tensor")
    return found


def clean(world):
    return world.git("status", "--porcelain", "-uall") == ""


def test_an_unknown_version_is_answered_with_those_that_there_are(world):
    done = world.json("impact", "engine==9.9", expect=11)
    assert done["code"] == "upstream"
    assert "9.9" in done["error"]
    assert "3.0" in f"{done['error']} {done['fix']}"
    upgrade = world.json("engine==9.9", expect=11)
    assert upgrade["error"] == done["error"]
    assert clean(world)


def test_an_unknown_package_is_answered_with_a_name_that_is_alike(world):
    done = world.json("impact", "engin==2.0", expect=2)
    assert "engine" in done["fix"]
    done = world.json("impact", "engin==2.0", "--from", "1.0", expect=11)
    assert "engine" in f"{done['error']} {done['fix']}"
    assert clean(world)


@pytest.mark.exhaustive
def test_a_yanked_release_is_read_and_its_reason_told(world, index):
    index.page("engine", {"engine-2.0-py3-none-any.whl": 'data-yanked="broken on Tuesdays"'})
    done = world.json("impact", "engine==2.0", expect=10, **index.environment)
    assert [each for each in done["warnings"] if "2.0 was yanked" in each and "broken on Tuesdays" in each]
    rows = {each["version"]: each["yanked"] for each in done["sources"]}
    assert rows == {"1.0": None, "2.0": "broken on Tuesdays"}
    (row,) = world.json("latest", "engine", expect=10, **index.environment)["packages"]
    assert (row["clean"], row["breaking"]) == ("1.5", "3.0")


def test_a_wheel_that_is_wrong_about_itself_is_read_with_a_warning_where_its_index_vouches_for_it(world, index):
    world.wheel("engine", "2.0", {"engine/__init__.py": ""}, record=f"engine/__init__.py,sha256={'A' * 43},0\n")
    index.page("engine")
    done = world.json("impact", "engine==2.0", expect=10, **index.environment)
    assert [each for each in done["warnings"] if "'engine/__init__.py' is not what RECORD says" in each]
    assert [bool(each["doubt"]) for each in done["sources"]] == [False, True]


def test_a_wheel_that_is_wrong_about_itself_is_refused_where_nothing_vouches_for_it(world):
    world.wheel("engine", "2.0", {"engine/__init__.py": ""}, record=f"engine/__init__.py,sha256={'A' * 43},0\n")
    done = world.json("impact", "engine==2.0", expect=11)
    assert (done["code"], "not what RECORD says" in done["error"]) == ("archive", True)
    assert "audit another version" in done["fix"]


def test_where_releases_came_from_is_told(world, index):
    done = world.json("impact", "engine==2.0", expect=10, **index.environment)
    (_, new) = done["sources"]
    assert new["filename"] == "engine-2.0-py3-none-any.whl"
    assert new["url"].startswith("http://127.0.0.1:")
    assert new["verified"] == "whole"
    assert new["bytes_read"] > 500
    again = world.json("impact", "engine==2.0", expect=10, **index.environment)
    assert [each["bytes_read"] for each in again["sources"]] == [0, 0]


def test_a_release_with_neither_wheel_nor_sdist_is_refused(world):
    (world.wheels / "engine-2.0-py3-none-any.whl").rename(world.wheels / "engine-2.0.exe")
    done = world.json("impact", "engine==2.0", expect=11)
    assert "2.0" in done["error"]
    assert done["fix"]


@pytest.mark.parametrize("damage", ["cut", "garbage", "empty"])
def test_a_corrupt_archive_is_refused_and_named(world, damage):
    file = world.wheels / "engine-2.0-py3-none-any.whl"
    content = file.read_bytes()
    file.write_bytes({"cut": content[: len(content) // 2], "garbage": b"no archive" * 99, "empty": b""}[damage])
    done = world.json("impact", "engine==2.0", expect=11)
    assert done["code"] == "archive"
    assert "engine-2.0-py3-none-any.whl" in f"{done['where']} {done['error']}"


def test_an_archive_that_does_not_match_its_hash_is_refused(world, index):
    index.page("engine", hashes={"engine-2.0-py3-none-any.whl": "0" * 64})
    done = world.json("impact", "engine==2.0", expect=11, **index.environment)
    assert done["code"] == "archive"
    assert "hash" in done["error"] or "sha256" in done["error"]
    again = world.json("impact", "engine==2.0", expect=11, **index.environment)
    assert again["error"] == done["error"], "nothing of it was kept"


def test_a_network_that_is_gone_is_told_and_leaves_nothing_behind(world):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nobody listens there
        index = f"http://127.0.0.1:{unused.getsockname()[1]}/simple"
        gone = {
            "UV_DEFAULT_INDEX": index,
            "UV_NO_INDEX": "",
            "UV_FIND_LINKS": "",
            "PIP_RETRIES": "0",
            "UV_HTTP_RETRIES": "0",
        }
        done = world.json("engine==2.0", expect=11, **gone)
    assert done["code"] in {"upstream", "offline"}
    assert done["fix"]
    assert clean(world)


def test_offline_uses_what_a_run_before_has_fetched_and_nothing_else(world, index):
    cache = world.folder / "mine"
    done = world.json("impact", "engine==2.0", "--cache", cache, "--offline", expect=11, **index.environment)
    assert done["code"] == "offline"
    world.run("impact", "engine==2.0", "--cache", cache, expect=10, **index.environment)
    (world.wheels / "engine-2.0-py3-none-any.whl").unlink()
    for words in (["--cache", cache, "--offline"], ["--offline", cache]):
        done = world.json("impact", "engine==2.0", *words, expect=10, **index.environment)
        assert len(done["findings"]) == 4
    done = world.json("impact", "engine==3.0", "--offline", cache, expect=11, **index.environment)
    assert done["code"] == "offline"


def test_offline_may_stand_before_the_package(world):
    assert world.json("impact", "--offline", "engine==2.0", expect=10)["versions"][0]["new"] == "2.0"
    done = world.json("impact", "engine==2.0", "--offline", "no/such/folder", expect=2)
    assert "no/such/folder" in done["where"]


def test_a_file_that_cannot_be_parsed_is_named_and_the_audit_goes_on(world):
    world.write("shop/broken.py", "from engine import LLM\ndef f(:\n")
    world.write("shop/odd.py", b"from engine import LLM\nx = '\xff'\n")
    done = world.json("impact", "engine==2.0", expect=10)
    (audit,) = done["audits"]
    assert [each.partition(":")[0] for each in audit["unreadable"]] == ["shop/broken.py", "shop/odd.py"]
    assert len(done["findings"]) == 4
    text = world.run("impact", "engine==2.0", expect=10).stdout
    assert "not read: shop/broken.py" in text


def test_what_the_release_offers_on_its_command_line_is_audited_too(world):
    server = (
        "import argparse\n\ndef main():\n    parser = argparse.ArgumentParser()\n"
        '    parser.add_argument("--model")\n    parser.add_argument("--task")\n    parser.parse_args()\n'
    )
    core = {"engine/__init__.py": "from engine.core import LLM\n", "engine/core.py": "class LLM: ...\n"}
    world.wheel("engine", "4.0", {**core, "engine/serve.py": server + '\nif __name__ == "__main__":\n    main()\n'})
    fewer = server.replace('    parser.add_argument("--task")\n', "")
    world.wheel("engine", "4.1", {**core, "engine/serve.py": fewer + '\nif __name__ == "__main__":\n    main()\n'})
    world.write("run.sh", "#!/bin/sh\npython -m engine.serve --model small --task chat\n")
    done = world.json("impact", "engine==4.1", "--from", "4.0", expect=10)
    (finding,) = [each for each in done["findings"] if each["severity"] == "breaking"]
    assert (finding["path"], finding["line"], finding["kind"]) == ("run.sh", 2, "cli-flag")
    assert finding["distribution"] == "engine"


def exclude(world, *folders):
    table = f"[tool.areal.upgrade]\nexclude = {json.dumps(list(folders))}\n\n[tool.areal.upgrade.packages]"
    world.write("pyproject.toml", world.read("pyproject.toml").replace("[tool.areal.upgrade.packages]", table))


@pytest.mark.exhaustive
def test_an_audit_without_files_in_scope_says_so_and_is_not_compatible(world):
    assert world.json("impact", "engine==1.5")["audits"][0]["files"] == 5
    exclude(world, "shop", "Dockerfile")
    done = world.json("impact", "engine==2.0", expect=2)
    assert done["error"].startswith("nothing was looked at")
    assert "exclude" in done["fix"]
    assert (done["audits"][0]["files"], done["audits"][0]["uses"]) == (0, 0)
    assert "engine 1.0 -> 2.0: nothing was looked at\n" in world.run("impact", "engine==2.0", expect=2).stdout
    upgrade = world.json("engine==1.5", "--dry-run")
    assert [each for each in upgrade["warnings"] if "nothing was looked at" in each]
    (row,) = world.json("latest", "engine", expect=2)["packages"]
    assert "nothing was looked at" in row["problem"]


def test_an_audit_whose_only_uses_are_excluded_says_where_they_are(world):
    exclude(world, "shop/app.py", "shop/end.py")
    done = world.json("impact", "engine==2.0", expect=2)
    assert "engine is used in 2 files, all excluded: shop/app.py, shop/end.py" in done["error"]
    assert done["where"] == "pyproject.toml: [tool.areal.upgrade] exclude"
    assert world.json("impact", "tensor==2.0", expect=10)["audits"][0]["files"] == 3


def test_no_excluded_file_of_the_harness_uses_a_dependency():
    root = Path(__file__).resolve().parents[4]
    policy = read_policy(root)
    names = {name for each in policy.packages for name in each.imports}
    names |= {"copier", "git", "jinja2", "jsonschema", "libcst", "markdown_it", "mcp", "packaging", "pydantic", "rich"}
    uses = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(names)}|yaml)\b", re.MULTILINE)
    excluded = [path for path in repository_files(root) if is_excluded(path, policy)]
    assert [path for path in excluded if path.startswith("tooling/") and uses.search((root / path).read_text())] == []
    assert not is_excluded("tooling/kit/template/rendering.py", policy)


def test_a_package_that_nobody_installed_is_imported_as_its_releases_say(world):
    """`python-telegram-bot` is `telegram`: neither its name nor this machine says so."""
    world.wheel("acme_rocket_kit", "1.0", {"rocket/__init__.py": "def launch(): ...\n"})
    world.wheel("acme_rocket_kit", "2.0", {"rocket/__init__.py": ""})
    world.write("shop/start.py", "import rocket\n\nrocket.launch()\n")
    found = world.json("impact", "acme-rocket-kit==2.0", "--from", "acme-rocket-kit==1.0", expect=10)
    assert [(each["path"], each["line"], each["kind"]) for each in found["findings"]] == [
        ("shop/start.py", 3, "removed")
    ]


def test_a_release_that_only_requires_another_may_have_moved_there(world):
    """`typer` 0.12.0 has no module of its own: `typer-slim`, which it requires, has them."""
    world.wheel("acme_kit", "1.0", {"kit/__init__.py": "def launch(): ...\n"})
    world.wheel("acme_kit", "2.0", {}, requires=["acme-kit-slim==2.0"])
    world.wheel("acme_kit", "3.0", {"other/__init__.py": ""}, requires=["acme-kit-slim==2.0"])
    world.write("shop/start.py", "import kit\n\nkit.launch()\n")
    found = world.json("impact", "acme-kit==2.0", "--from", "acme-kit==1.0", expect={0, 10})
    assert found["findings"] == []
    assert any("only the new version requires" in each["why"] for each in found["audits"][0]["open"])
    found = world.json("impact", "acme-kit==3.0", "--from", "acme-kit==1.0", expect=10)
    assert {each["kind"] for each in found["findings"]} == {"removed"}
