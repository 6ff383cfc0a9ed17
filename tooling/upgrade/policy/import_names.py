"""Under what name a distribution is imported: what is installed says so, else a known few, else its own name.

Reads `.dist-info` folders; imports nothing.
"""

from __future__ import annotations

import re
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_KNOWN: dict[str, tuple[str, ...]] = {
    "attrs": ("attr", "attrs"),
    "beautifulsoup4": ("bs4",),
    "faiss-cpu": ("faiss",),
    "flash-linear-attention": ("fla",),
    "gitpython": ("git",),
    "hydra-core": ("hydra",),
    "megatron-bridge": ("megatron.bridge",),
    "megatron-core": ("megatron.core",),
    "nvidia-ml-py": ("pynvml",),
    "opencv-python": ("cv2",),
    "opencv-python-headless": ("cv2",),
    "openai-agents": ("agents",),
    "pillow": ("PIL",),
    "protobuf": ("google.protobuf",),
    "pyjwt": ("jwt",),
    "python-dateutil": ("dateutil",),
    "python-dotenv": ("dotenv",),
    "pyyaml": ("yaml",),
    "pyzmq": ("zmq",),
    "sglang-router": ("sglang_router",),
    "scikit-learn": ("sklearn",),
    "tensorboardx": ("tensorboardX",),
}
_TOP = re.compile(r"(?P<name>[A-Za-z_]\w*)(?:/|\.py$|\.[\w-]+\.(?:so|pyd)$)")


def import_names(distribution: str, root: Path | None = None) -> tuple[str, ...]:
    """Import names of a distribution. root: a repository whose `.venv` is asked first."""
    if distribution in _KNOWN:
        return _KNOWN[distribution]
    for folders in _environments(root):
        found = _installed(distribution, folders)
        if found:
            return found
    return (distribution.replace("-", "_").replace(".", "_"),)


def _environments(root: Path | None) -> Iterable[list[str] | None]:
    if root is not None:
        libraries = [*root.glob(".venv/lib/python*/site-packages"), *root.glob(".venv/Lib/site-packages")]
        yield [str(folder) for folder in libraries if folder.is_dir()]
    yield None


def _installed(distribution: str, folders: list[str] | None) -> tuple[str, ...]:
    if folders == []:
        return ()
    try:
        context = {"name": distribution} if folders is None else {"name": distribution, "path": folders}
        found = next(iter(metadata.distributions(**context)), None)
        if found is None:
            return ()
        listed = (found.read_text("top_level.txt") or "").split()
        names = listed or [
            hit["name"] for file in found.files or () if (hit := _TOP.match(str(file).replace("\\", "/")))
        ]
    except (OSError, ValueError):  # a damaged installation says nothing
        return ()
    return tuple(sorted({name for name in names if name.isidentifier() and not _is_strange(name)}))


def _is_strange(name: str) -> bool:
    return name in {"test", "tests", "docs", "examples", "benchmarks"} or name.startswith("__editable__")
