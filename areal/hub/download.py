"""Fetch the files of a hub name that are needed, and no others, into the cache that all Hugging Face programs share.

    local_folder("models/mine")                             # that folder
    local_folder("Qwen/Qwen2.5-0.5B@main", METADATA)        # ~/.cache/huggingface/hub/.../snapshots/7ae5...
    read_range(HubName("Qwen/Qwen2.5-0.5B"), "model.safetensors", 0, 8)   # 8 bytes of it, and no more are sent

What is in the cache is not asked for again; interrupted downloads go on where they ended. HF_ENDPOINT, HF_HOME,
HF_TOKEN and HF_HUB_OFFLINE mean what they mean everywhere.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from areal.hub.names import HubName, RepoKind, explained, find_name, may_pass, pinned, transfer_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

METADATA: Final = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
"""Configuration and tokenizer, without weights: a few megabytes."""
CHECKPOINT: Final = (*METADATA, "*.safetensors")
"""All that training and generation read. Weights of other formats are never fetched: loading them may run code."""
_ASIDE: Final = ("*/*.safetensors", "*/*.json", "*/*.model")
"""Folders inside a repository hold the same model for other programs (onnx/, original/)."""
_PAUSES: Final = (1.0, 4.0)
"""Seconds before the start of a file is asked for again."""
_WHOLE: Final = 200
"""HTTP status of an answer that is not the part that was asked for."""


def local_folder(path: str | Path, files: Sequence[str] = CHECKPOINT, *, kind: RepoKind = "model") -> Path:
    """Return the folder that `path` names: itself, or the snapshot of a hub name with at least `files` in it.

    files: patterns of names, as in a shell. A path that is neither is returned as it is: who reads it says what is
    missing. Raises HubError when they cannot be fetched.
    """
    name = find_name(path)
    return Path(path) if name is None else fetch(name, files, kind=kind)


def fetch(name: HubName, files: Sequence[str], *, kind: RepoKind = "model") -> Path:
    """Return the snapshot of a hub name, with all of `files` that it has. Raises HubError."""
    from huggingface_hub import snapshot_download

    commit = pinned(name, kind)
    with explained(name, kind):
        return Path(
            snapshot_download(
                commit.repo,
                repo_type=kind,
                revision=commit.revision,
                allow_patterns=list(files),
                ignore_patterns=list(_ASIDE) if kind == "model" else None,
            )
        )


def file_names(name: HubName, *, kind: RepoKind = "model") -> list[str]:
    """Return the names of all files of a repository, sorted; offline, of those in the cache. Raises HubError."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled

    commit = pinned(name, kind)
    with explained(name, kind):
        try:
            return sorted(HfApi().list_repo_files(commit.repo, repo_type=kind, revision=commit.revision))
        except OfflineModeIsEnabled:
            folder = fetch(commit, ("README.md",), kind=kind)
            return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository."""

    name: str
    num_bytes: int
    is_cached: bool


def to_fetch(name: HubName, files: Sequence[str] = CHECKPOINT) -> list[RemoteFile]:
    """Return these files of a model with their sizes. Fetches none.

    Offline, an empty list: all of them are in the cache. Raises HubError when the hub cannot be asked and the cache
    lacks some.
    """
    from huggingface_hub import constants, snapshot_download

    if constants.is_offline_mode():
        fetch(name, files)
        return []
    commit = pinned(name, "model")
    with explained(name, "model"):
        listed = snapshot_download(
            commit.repo,
            revision=commit.revision,
            allow_patterns=list(files),
            ignore_patterns=list(_ASIDE),
            dry_run=True,
        )
    return [RemoteFile(file.filename, file.file_size or 0, not file.will_download) for file in listed]


def read_range(name: HubName, file: str, start: int, count: int) -> bytes:
    """Return `count` bytes of a file of a model from `start` on, fewer where it ends; no others are transferred.

    Raises HubError when the hub refuses or cannot be reached, after some attempts.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # documented, and not in its __all__
        build_hf_headers,
        get_session,
        hf_raise_for_status,
    )

    commit = pinned(name, "model")
    headers = build_hf_headers() | {"Range": f"bytes={start}-{start + count - 1}", "Accept-Encoding": "identity"}
    url = hf_hub_url(commit.repo, file, revision=commit.revision)
    with explained(name, "model"):
        for pause in (*_PAUSES, None):
            try:
                with get_session().stream("GET", url, headers=headers, follow_redirects=True) as response:
                    hf_raise_for_status(response)
                    # A proxy may send the whole file all the same: it is read no further than it has to be.
                    begin = start if response.status_code == _WHOLE else 0
                    content = b""
                    for piece in response.iter_bytes():
                        content += piece
                        if len(content) >= begin + count:
                            break
                    return content[begin : begin + count]
            except transfer_errors() as error:
                if pause is None or not may_pass(error):
                    raise
                time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")
