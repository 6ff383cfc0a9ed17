"""Publish a folder as a model repository of the Hugging Face hub, in one commit: a reader sees all of it or nothing.

    publish(Path("runs/math/grpo/final"), "org/math-grpo", card="---\n...", private=True).url

The token comes from HF_TOKEN or from `hf auth login`, and is given to the client alone: no message, log or file of ours
has it. Interrupted, the same call goes on: files that arrived are not sent again, and the commit is the last step.
"""

from __future__ import annotations

import fnmatch
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from areal.api import HubError
from areal.hub.names import HubName, find_name, may_pass, note_published, transfer_errors
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from pathlib import Path

_logger = getLogger(__name__)
CARD: Final = "README.md"
_PAUSES: Final = (2.0, 8.0, 30.0)
"""Seconds before a commit that failed on the way is sent again; the client itself repeats single transfers."""
_OURS: Final = ("*.safetensors", "*.safetensors.index.json", "adapter_config.json")
"""What an earlier version of the model may have left in the repository: shards of another number, for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A version of a repository."""

    repo: str
    revision: str
    commit: str
    url: str
    files: tuple[str, ...]


def repository_name(text: str, revision: str | None = None) -> HubName:
    """Return the repository and branch that `org/name` or `org/name@branch` means. Raises HubError for other texts."""
    name = find_name(text if "@" in text else f"{text}@{revision or 'main'}")
    if name is None or name.is_pinned or (revision and name.revision != revision):
        raise HubError(
            f"cannot publish as {text!r}: expected org/name, or org/name@branch",
            where=text,
            fix="write the account or organization, a slash and the name of the model",
        )
    return name


def check_token(name: HubName) -> None:
    """Raise HubError when there is no token to publish with."""
    from huggingface_hub import get_token

    if not get_token():
        raise HubError(
            f"publishing {name.repo} needs a token of the hub, and there is none",
            where="HF_TOKEN",
            fix="run `hf auth login`, or set HF_TOKEN to a token with write access",
        )


def publish(folder: Path, name: HubName, *, card: str, private: bool, message: str) -> Publication:
    """Make the files of `folder` and the card the content of a branch of a repository, which is made if it is new.

    private: whether a new repository is. Raises HubError when the hub refuses or stays out of reach.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants

    check_token(name)
    api = HfApi()
    files = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    files = [file for file in files if file != CARD]
    for pause in (*_PAUSES, None):
        try:
            api.create_repo(name.repo, private=private, exist_ok=True)
            if name.revision != constants.DEFAULT_REVISION:
                api.create_branch(name.repo, branch=name.revision, exist_ok=True)
            there = api.list_repo_files(name.repo, revision=name.revision)
            stale = [file for file in there if file not in files and any(fnmatch.fnmatch(file, one) for one in _OURS)]
            operations: list[Any] = [CommitOperationDelete(path_in_repo=file) for file in stale]
            operations += [CommitOperationAdd(path_in_repo=CARD, path_or_fileobj=card.encode())]
            operations += [CommitOperationAdd(path_in_repo=file, path_or_fileobj=folder / file) for file in files]
            done = api.create_commit(name.repo, operations, commit_message=message, revision=name.revision)
        except Exception as error:
            problem = _explain(error, name)
            if problem is None:
                raise
            if pause is None or not may_pass(error):
                raise problem from error
            _logger.warning("%s; trying again in %g s", problem, pause)
            time.sleep(pause)
        else:
            note_published(name, done.oid)
            url = f"{constants.ENDPOINT}/{name.repo}"
            return Publication(repo=name.repo, revision=name.revision, commit=done.oid, url=url, files=(CARD, *files))
    raise AssertionError("the last attempt returns or raises")


def _explain(error: Exception, name: HubName) -> HubError | None:
    from huggingface_hub import constants, errors

    where = str(name)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return HubError(f"{name.repo} cannot be published: HF_HUB_OFFLINE=1", where=where, fix="unset HF_HUB_OFFLINE")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403, 404):
        return HubError(
            f"the hub does not let this token write to {name.repo} (HTTP {status})",
            where=where,
            fix="use a token with write access to that account (HF_TOKEN or `hf auth login`), or another name",
        )
    # For a file whose upload broke the client raises its own error, from that of its HTTP library.
    broken = next((one for one in (error, error.__cause__) if isinstance(one, transfer_errors())), None)
    if broken is not None:
        said = str(status) if status else type(broken).__name__
        return HubError(
            f"publishing {name.repo} at {constants.ENDPOINT} failed ({said}); what arrived is kept there",
            where=where,
            fix="run the same command again: it goes on with what is missing",
        )
    return None
