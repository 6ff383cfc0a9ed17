"""Say what `org/name@revision` means: a repository of the Hugging Face hub at one commit.

    find_name("Qwen/Qwen2.5-0.5B@v1.0")      # HubName(repo="Qwen/Qwen2.5-0.5B", revision="v1.0")
    find_name("models/my-checkpoint")        # None when there is such a folder: what exists locally wins
    pin("Qwen/Qwen2.5-0.5B@v1.0")            # "Qwen/Qwen2.5-0.5B@7ae557604adf67be50417f59c2c2f167def9a775"

A revision is a branch, a tag or a commit; without one it is `main`. A process asks for a revision once: whatever it
reads of a name afterwards is of one commit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from areal.api import HubError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

RepoKind = Literal["model", "dataset"]

_PART: Final = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?"
_NAME: Final = re.compile(rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[\w][\w./-]*))?")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_FILES: Final = (
    ".csv",
    ".gz",
    ".json",
    ".jsonl",
    ".ndjson",
    ".parquet",
    ".safetensors",
    ".tsv",
    ".txt",
    ".yaml",
    ".yml",
)
"""Endings of files: `data/train.jsonl` is a file that is missing, and no repository."""
_MAIN: Final = "main"


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository at a revision."""

    repo: str
    revision: str = _MAIN

    def __str__(self) -> str:
        """Return it as it is written in configurations."""
        return f"{self.repo}@{self.revision}"

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, which never changes."""
        return _COMMIT.fullmatch(self.revision) is not None

    def download_command(self, kind: RepoKind = "model") -> str:
        """Return the command that fetches it into the cache."""
        revision = "" if self.revision == _MAIN else f" --revision {self.revision}"
        return f"hf download {self.repo}{' --repo-type dataset' if kind == 'dataset' else ''}{revision}"


def find_name(path: str | Path) -> HubName | None:
    """Return the repository that `path` names; None when it is a local file or folder, or cannot be such a name."""
    text = str(path)
    match = _NAME.fullmatch(text)
    if match is None or Path(text).exists():
        return None
    if match["revision"] is None and text.endswith(_FILES):
        return None
    return HubName(match["repo"], match["revision"] or _MAIN)


def pin(path: str, *, kind: RepoKind = "model") -> str:
    """Return `path` with the commit that its revision stands for now; as it is, when it is not a name of the hub.

    Offline, the commit that the revision stood for when it was last fetched. Raises HubError when there is no such
    repository or revision, or the hub cannot be reached and the cache does not know it.
    """
    name = find_name(path)
    return path if name is None else str(pinned(name, kind))


def pinned(name: HubName, kind: RepoKind) -> HubName:
    """Return the name with a commit as its revision. Raises HubError as `pin` does."""
    from huggingface_hub import HfApi

    if name.is_pinned:
        return name
    key = (kind, name.repo, name.revision)
    if key not in _commits:
        with explained(name, kind):
            found = HfApi().resolve_revision(name.repo, revision=name.revision, repo_type=kind)
        _commits[key] = found.resolved
    return HubName(name.repo, _commits[key])


def note_published(name: HubName, commit: str) -> None:
    """From now on, let this process read what it has published itself, where it has read the revision before, too."""
    _commits["model", name.repo, name.revision] = commit


_commits: dict[tuple[str, str, str], str] = {}
"""Commits of revisions that this process has asked for: all it reads of a name is of the same commit."""


def explained(name: HubName, kind: RepoKind) -> AbstractContextManager[None]:
    """Raise HubError for what the client raises, with what to do about it."""
    from contextlib import contextmanager

    @contextmanager
    def translate() -> Iterator[None]:
        try:
            yield
        except HubError:
            raise
        except Exception as error:
            problem = _explain(error, name, kind)
            if problem is None:
                raise
            raise problem from error

    return translate()


def _explain(error: Exception, name: HubName, kind: RepoKind) -> HubError | None:
    from huggingface_hub import constants, errors

    where = str(name)
    causes = [error, error.__cause__]
    if any(isinstance(cause, errors.GatedRepoError) for cause in causes):
        page = f"{constants.ENDPOINT}/{'datasets/' if kind == 'dataset' else ''}{name.repo}"
        return HubError(
            f"{kind} {name.repo} is gated: its owner has not given access to the account of this token",
            where=where,
            fix=f"accept its conditions at {page}, then log in with `hf auth login` or set HF_TOKEN",
        )
    if any(isinstance(cause, errors.RepositoryNotFoundError) for cause in causes) or _status(error) in (401, 403):
        return HubError(
            f"no such folder {name.repo!r}, and the hub shows no {kind} of that name (a private one needs a token)",
            where=where,
            fix="correct the path or the name; for a private one log in with `hf auth login` or set HF_TOKEN",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return HubError(
            f"{kind} {name.repo} has no revision {name.revision!r}",
            where=where,
            fix=f"name a branch, tag or full commit of it after @, or leave @{name.revision} out for {_MAIN}",
        )
    unreachable = (errors.RevisionResolutionError, errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)
    if constants.is_offline_mode() and isinstance(error, unreachable):
        return HubError(
            f"no such folder {name.repo!r}, the cache does not have all that is needed of {kind} {name}, and "
            f"HF_HUB_OFFLINE=1 forbids fetching it",
            where=where,
            fix=f"fetch it where there is a network: {name.download_command(kind)} (or unset HF_HUB_OFFLINE)",
        )
    if isinstance(error, (*unreachable, *transfer_errors())):
        first = str(error.__cause__ or error).strip().splitlines()
        return HubError(
            f"no such folder {name.repo!r}, and {kind} {name} could not be fetched from {constants.ENDPOINT}: "
            f"{type(error.__cause__ or error).__name__}: {first[0] if first else ''}",
            where=where,
            fix=f"try again; or fetch it beforehand: {name.download_command(kind)}, and set HF_HUB_OFFLINE=1",
        )
    return None


def transfer_errors() -> tuple[type[Exception], ...]:
    """Return what the client raises when a transfer fails: errors of its HTTP library, which its own are made of."""
    from huggingface_hub.errors import HfHubHTTPError

    return tuple(base for base in HfHubHTTPError.__mro__[1:] if base.__name__ in ("HTTPError", "OSError"))


def may_pass(error: Exception) -> bool:
    """Return whether the same request may succeed later: the hub is busy or broken, or was not reached."""
    status = _status(error)
    return status is None or status == 429 or status >= 500


def _status(error: Exception) -> int | None:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None
