"""Fetch the files of a hub name that are needed, and no others, into the cache that all Hugging Face programs share.

    local_folder("models/mine")                             # that folder
    local_folder("Qwen/Qwen2.5-0.5B@main", METADATA)        # ~/.cache/huggingface/hub/.../snapshots/7ae5...

What is in the cache is not asked for again; interrupted downloads go on where they ended. HF_ENDPOINT, HF_HOME,
HF_TOKEN and HF_HUB_OFFLINE mean what they mean everywhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from areal.hub.names import HubName, RepoKind, explained, find_name, pinned

if TYPE_CHECKING:
    from collections.abc import Sequence

METADATA: Final = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
"""Configuration and tokenizer, without weights: a few megabytes."""
CHECKPOINT: Final = (*METADATA, "*.safetensors")
"""All that training and generation read. Weights of other formats are never fetched: loading them may run code."""
_ASIDE: Final = ("*/*.safetensors", "*/*.json", "*/*.model")
"""Folders inside a repository hold the same model for other programs (onnx/, original/)."""


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


def to_fetch(name: HubName, files: Sequence[str] = CHECKPOINT) -> tuple[int, int]:
    """Return how many of these files of a model are not in the cache yet, and their bytes. Fetches none.

    Raises HubError when the hub cannot be asked and the cache lacks some.
    """
    from huggingface_hub import constants, snapshot_download

    if constants.is_offline_mode():
        fetch(name, files)
        return 0, 0
    commit = pinned(name, "model")
    with explained(name, "model"):
        listed = snapshot_download(
            commit.repo,
            revision=commit.revision,
            allow_patterns=list(files),
            ignore_patterns=list(_ASIDE),
            dry_run=True,
        )
    missing = [file for file in listed if file.will_download]
    return len(missing), sum(file.file_size or 0 for file in missing)
