"""A small project that uses two small packages, each in several releases: real git, real uv, wheels in a folder, no
network. Commands are called in this process; `command` makes one for a process of its own."""

from __future__ import annotations

import base64
import contextlib
import gc
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tooling.upgrade import __main__ as upgrade
from tooling.upgrade.commands import audit

ROOT = Path(__file__).resolve().parents[4]

CORE = '''
"""What runs models."""
import warnings


class LLM:
    def __init__(self, model, seed=0):
        self.model = model

    def generate(self, prompts, n=1, stop=None):
        if n != 1:
            warnings.warn("`n` is deprecated, use `count` instead", DeprecationWarning)
        return [prompts] * n

    def close(self):
        return self.model
'''
COUNTER = """
class Counter:
    def __init__(self, start=0):
        self.value = start

    def step(self):
        self.value = self.value + 1
        return self.value
"""
ENGINE = {
    "1.0": {
        "engine/__init__.py": "from engine.core import LLM\n",
        "engine/core.py": CORE,
        "engine/utils.py": COUNTER,
    },
    "2.0": {
        "engine/__init__.py": "from engine.core import LLM\n",
        "engine/core.py": (
            CORE.replace("n=1, stop", "count=1, stop")
            .replace("        if n != 1:\n", "")
            .replace('            warnings.warn("`n` is deprecated, use `count` instead", DeprecationWarning)\n', "")
            .replace("* n\n", "* count\n")
            .replace("    def close(self):\n        return self.model\n", "")
        ),
        "engine/counting.py": COUNTER,
        "engine/utils.py": "LIMIT = 3\n",
    },
    "3.0": {"engine/__init__.py": "", "engine/core.py": "import base\n"},
}
TENSOR = {
    "1.0": {
        "tensor/__init__.py": "def zeros(size):\n    return [0] * size\n\n\ndef ones(size):\n    return [1] * size\n"
    },
    "2.0": {"tensor/__init__.py": "def zeros(size):\n    return [0] * size\n"},
    "3.0": {"tensor/__init__.py": "def zeros(size):\n    return [0] * size\n"},
}
RELEASES = {
    ("engine", "1.0"): (ENGINE["1.0"], ["tensor"]),
    ("engine", "1.5"): (ENGINE["1.0"], ["tensor"]),
    ("engine", "2.0"): (ENGINE["2.0"], ["tensor>=2,<3"]),
    ("engine", "3.0"): (ENGINE["3.0"], ["tensor>=3"]),
    ("tensor", "1.0"): (TENSOR["1.0"], []),
    ("tensor", "2.0"): (TENSOR["2.0"], []),
    ("tensor", "3.0"): (TENSOR["3.0"], []),
}
MANIFEST = """\
[project]
name = "shop"
version = "0"
requires-python = ">=3.11"
dependencies = [
    "engine==1.0",  # what we run
    "tensor",
]

[tool.areal.upgrade.packages]
engine = { imports = ["engine"], repository = "example/engine" }
tensor = { imports = ["tensor"] }

[tool.areal.upgrade.variants.default]
manifests = ["pyproject.toml"]
lock = "uv.lock"
"""
PROJECT = {
    "pyproject.toml": MANIFEST,
    "Dockerfile": "FROM python:3.11\nRUN pip install engine==1.0\n",
    "shop/__init__.py": "",
    "shop/app.py": (
        "from engine import LLM\nfrom engine.utils import Counter\n\n\ndef answer(text):\n"
        '    llm = LLM("small", seed=1)\n    return llm.generate(text, n=2), Counter()\n'
    ),
    "shop/end.py": 'from engine import LLM\n\n\ndef end():\n    LLM("small").close()\n',
    "shop/numbers.py": "import tensor\n\n\ndef table():\n    return tensor.zeros(3), tensor.ones(2)\n",
}


def write_wheel(folder, name, version, files, requires=(), *, record=None):
    """A wheel as an installer would take it. record: what it says of its files, instead of the truth."""
    information = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    members = {
        **files,
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for path, text in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        rows.append(f"{path},sha256={digest},{len(text.encode())}\n")
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in members.items():
            archive.writestr(member, text)
        archive.writestr(f"{information}/RECORD", "".join(rows) if record is None else record)
    return path


def _empty(folder: Path) -> Path:
    """An index without packages."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class World:
    """The project, the wheels, and an environment that knows nothing else."""

    def __init__(self, folder: Path, resolver_cache: Path | None = None) -> None:
        self.folder = folder
        self.root = folder / "shop"
        self.wheels = folder / "wheels"
        home = folder / "home"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_", "XDG_"))}
        self.environment = {
            **kept,
            "HOME": str(home),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_CONFIG_DIRS": str(home / "none"),
            "PIP_CONFIG_FILE": os.devnull,
            "UV_NO_CONFIG": "1",
            "UV_CACHE_DIR": str(resolver_cache or folder / "uv"),  # uv keeps what it asked Python
            "UV_FIND_LINKS": str(self.wheels),
            "UV_NO_INDEX": "1",  # for our own reading; uv itself does not know it
            "UV_DEFAULT_INDEX": _empty(self.wheels.parent / "no-index").as_uri(),
            "UV_PYTHON": sys.executable,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }

    def write(self, path: str, text: str | bytes) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return file

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def wheel(self, name, version, files, requires=(), **options):
        return write_wheel(self.wheels, name, version, files, requires, **options)

    def git(self, *words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(self.root), *identity, *words]
        return subprocess.run(command, env=self.environment, check=True, capture_output=True, text=True).stdout

    def commit(self, message: str = "change") -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)

    def with_slow_git(self) -> dict[str, str]:
        """An environment in which git says that it lists files (`waiting`), and does it when `go-on` exists."""
        program = self.folder / "slow" / "git"
        program.parent.mkdir()
        program.write_text(
            f'#!/bin/sh\ncase "$*" in *ls-files*) touch {self.folder}/waiting\n'
            f"while [ ! -e {self.folder}/go-on ]; do sleep 0.02; done;; esac\n"
            f'exec {shutil.which("git")} "$@"\n'
        )
        program.chmod(0o755)
        return {**self.environment, "PATH": f"{program.parent}{os.pathsep}{self.environment['PATH']}"}

    def command(self, *words: object, program: str = "") -> list[str]:
        """Command line of a program; "audit" for areal-audit."""
        if program == "audit":
            code = "import sys; from tooling.upgrade.commands.audit import main; sys.exit(main())"
            return [sys.executable, "-c", code, *map(str, words)]
        return [sys.executable, "-m", "tooling.upgrade", *map(str, words)]

    def run(
        self, *words: object, expect: int | set[int] = 0, program: str = "", where: Path | None = None, **changes: str
    ):
        """What a command printed, as `CompletedProcess`, called in this process; fails when it ends with another code,
        or with a traceback. changes: of the environment."""
        main = audit.main if program == "audit" else upgrade.main
        output, complaint = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name not in self.environment]:
                patch.delenv(name)
            for name, value in {**self.environment, **changes}.items():
                patch.setenv(name, value)
            patch.chdir(where or self.root)
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(complaint):
                code = main([str(word) for word in words])
        gc.enable()
        done = subprocess.CompletedProcess(list(words), code, output.getvalue(), complaint.getvalue())
        assert done.returncode in ({expect} if isinstance(expect, int) else expect), (
            f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        assert "Traceback" not in done.stderr
        return done

    def json(self, *words: object, **options):
        """The one object that a command prints with --json."""
        return json.loads(self.run(*words, "--json", **options).stdout)

    def tree(self) -> dict[str, bytes]:
        """Content of everything outside .git."""
        return {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and ".git" not in path.relative_to(self.root).parts
        }


@pytest.fixture(scope="session")
def pristine(tmp_path_factory):
    """Made once: the project, committed, with the lock that uv gives it and checklists that are true."""
    world = World(tmp_path_factory.mktemp("pristine"))
    world.wheels.mkdir()
    for (name, version), (files, requires) in RELEASES.items():
        write_wheel(world.wheels, name, version, files, requires)
    for path, text in PROJECT.items():
        world.write(path, text)
    subprocess.run(["git", "init", "-q", "-b", "main", "--template=", str(world.root)], check=True)
    # What is locked now is from before the newer releases of tensor.
    uv = Path(sys.executable).parent / "uv"
    program = str(uv) if uv.is_file() else shutil.which("uv")
    constrained = MANIFEST + '\n[tool.uv]\nconstraint-dependencies = ["tensor<2"]\n'
    world.write("pyproject.toml", constrained)
    subprocess.run([program, "lock", "-q"], cwd=world.root, env=world.environment, check=True)
    lock = world.read("uv.lock")
    start = lock.index("[manifest]")
    world.write("uv.lock", lock[:start] + lock[lock.index("[[package]]") :])
    world.write("pyproject.toml", MANIFEST)
    world.commit("start")
    world.run("--write", program="audit")
    world.commit("checklists")
    return world


@pytest.fixture
def world(pristine, tmp_path):
    """A copy of it; the wheels lie elsewhere, so that the lock does not name a folder of another test."""
    mine = World(tmp_path, pristine.folder / "uv")
    shutil.copytree(pristine.root, mine.root, symlinks=True)
    shutil.copytree(pristine.wheels, mine.wheels)
    return mine


@pytest.fixture
def shop(tmp_path):
    """A fresh copy of the examples' project, with the releases it brings along; no setting names another place."""
    world = World(tmp_path)
    for name in ("UV_FIND_LINKS", "UV_NO_INDEX", "UV_DEFAULT_INDEX", "UV_NO_CONFIG"):
        del world.environment[name]
    shutil.copytree(ROOT / "skills/upgrade-deps/fixtures/shop", world.root)
    subprocess.run(["git", "init", "-q", "--template=", str(world.root)], check=True)
    return world
