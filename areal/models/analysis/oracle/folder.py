"""Sources with files of their own: a checkpoint folder, a config.json, modeling code that no library has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from areal.models.analysis.oracle.library import Subject, installed
from areal.models.analysis.records import SubjectError

if TYPE_CHECKING:
    from pathlib import Path


class UnknownConfigError(SubjectError):
    """A config.json of a type that nobody knows, without code."""


class UntrustedSourceError(SubjectError):
    """Code that was not declared to be trusted."""


def resolve_folder(path: Path, *, modeling: Path | None, trust: bool) -> Subject:
    """The subject of a folder or config.json. Raises `SubjectError`."""
    config = read_config(path / "config.json" if path.is_dir() else path)
    model_type = config.get("model_type")
    if model_type in CONFIG_MAPPING_NAMES and modeling is None:
        return installed(str(model_type), config)
    raise UnknownConfigError(f"{path}: model_type {model_type!r} is unknown to the installed transformers.")


def read_config(path: Path) -> dict[str, Any]:
    """Content of a config.json. Raises `SubjectError` when it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SubjectError(f"{path} is not a readable config.json: {error}") from error
    if not isinstance(content, dict):
        raise SubjectError(f"{path} holds a {type(content).__name__} instead of an object.")
    return content
