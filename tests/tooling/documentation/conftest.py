"""A repository with documents in two languages and real git, and the command run in it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tooling.documentation.__main__ import main

if TYPE_CHECKING:
    from pathlib import Path

ENGLISH = """\
# Versions

Every update of the weights has a number. The first one is `0`.

## The bound

No token is older than `max_age` versions; with 2 threads nothing waits longer than 30 seconds.

```python
limit = bound(versions)  # counted in updates
```

See [the guide](guide.md) and [the site](https://example.org/en/intro).

## Faults

| kind | retried |
| --- | --- |
| `lost` | yes |

- one fault
- another one
"""
CHINESE = """\
# 版本

每次更新权重都有一个编号, 第一个是 `0`。

## 上限

任何 token 都不会比 `max_age` 个版本更旧, 两个线程时等待不超过 30 秒。

```python
limit = bound(versions)  # 以更新次数计
```

见[指南](guide.md)和[网站](https://example.org/zh/intro)。

## 故障

| 种类 | 重试 |
| --- | --- |
| `lost` | 是 |

- 一种故障
- 另一种
"""
GUIDE = "# Guide\n\nWords of the guide, which say how everything is done here.\n"
GUIDE_CHINESE = "# 指南\n\n指南说明一切如何进行。\n"
WHO = ("-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")


class Documents:
    """A work tree below tmp_path that sees no settings of the machine."""

    def __init__(self, root: Path, capture: Any = None) -> None:
        self.root = root
        self._capture = capture

    def git(self, *arguments: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(
            ["git", *WHO, *arguments], cwd=self.root, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def read(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8")

    def replace(self, path: str, before: str, after: str) -> None:
        text = self.read(path)
        assert before in text
        self.write(path, text.replace(before, after))

    def commit(self, message: str = "change") -> str:
        self.git("add", "--all")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD").strip()

    def run(self, *words: str) -> tuple[int, dict[str, Any]]:
        """The exit code and the JSON object of one command line."""
        self._capture.readouterr()
        code = main([*words, "--repo", os.fspath(self.root), "--json"])
        return code, json.loads(self._capture.readouterr().out)

    def printed(self, *words: str) -> str:
        """What people see of one command line."""
        self._capture.readouterr()
        main([*words, "--repo", os.fspath(self.root)])
        return self._capture.readouterr().out

    def states(self, *words: str) -> dict[str, list[str]]:
        """Sections that lag, by the heading of the source or else of the translation, with all their states."""
        _, document = self.run("zh-check", *words)
        return {
            (one["source"] or one["translation"])["heading"]: [one["state"], *one["also"]]
            for page in document["pages"]
            for one in page["sections"]
            if one["state"] != "in step"
        }

    def differences(self) -> list[tuple[str, str, int]]:
        """(kind, message, line) of everything that differs and may not."""
        _, document = self.run("zh-check")
        return [
            (each["kind"], each["message"], each["line"])
            for page in document["pages"]
            for one in page["sections"]
            for each in one["differences"]
        ]


@pytest.fixture(scope="session")
def committed(tmp_path_factory):
    """Made once; every test has a copy."""
    made = Documents(tmp_path_factory.mktemp("documents"))
    made.git("init", "-q", "-b", "main", "--template=")
    made.write("docs/en/versions.md", ENGLISH)
    made.write("docs/zh/versions.md", CHINESE)
    made.write("docs/en/guide.md", GUIDE)
    made.write("docs/zh/guide.md", GUIDE_CHINESE)
    made.commit("docs: both languages")
    return made.root


@pytest.fixture(scope="session")
def marked_once(committed, tmp_path_factory):
    made = Documents(shutil.copytree(committed, tmp_path_factory.mktemp("marked") / "repo"))
    pages = ["docs/zh/versions.md", "docs/zh/guide.md"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["zh-mark", *pages, "--repo", os.fspath(made.root)]) == 0, printed.getvalue()
    made.commit("docs: mark")
    return made.root


@pytest.fixture
def documents(committed, tmp_path, capsys):
    return Documents(shutil.copytree(committed, tmp_path / "repo"), capsys)


@pytest.fixture
def marked(marked_once, tmp_path, capsys):
    return Documents(shutil.copytree(marked_once, tmp_path / "repo"), capsys)
