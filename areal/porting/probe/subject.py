"""What is analysed: a causal language model of `transformers`, or of a folder with its own code."""

from __future__ import annotations

import os
from pathlib import Path

from areal.porting.probe.folder import (
    ModelingError,
    UnknownConfigError,
    UntrustedSourceError,
    resolve_folder,
)
from areal.porting.probe.library import Subject, UnknownTypeError, find_type, installed
from areal.porting.records import SubjectError

__all__ = ["ModelingError", "Subject", "UnknownConfigError", "UnknownTypeError", "UntrustedSourceError", "resolve"]


def resolve(source: str, *, modeling: Path | None = None, trust: bool = False) -> Subject:
    """Finds the classes that `source` names.

    source: a model_type of the installed transformers (dashes and capitals do not matter), a class name, a checkpoint
    folder or a config.json; with code of its own in the folder (`auto_map`) or in `modeling`. Such code runs only with
    `trust`.

    Raises `SubjectError` where there is nothing to analyse: unknown type, code that is not trusted, no causal model,
    an encoder, a multimodal wrapper.
    """
    path = Path(source).expanduser()
    if path.suffix == ".json" or path.is_dir() or modeling is not None:
        return resolve_folder(path, modeling=modeling, trust=trust)
    if os.sep in source:
        raise SubjectError(f"{source} is no folder and no config.json; a source is one of these, or a model_type.")
    return installed(find_type(source))
