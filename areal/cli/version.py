"""Print the versions that a bug report needs. Reads package metadata; imports nothing."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import areal
from areal.cli.output import Result, format_summary

if TYPE_CHECKING:
    import argparse

HELP = "print the versions that a bug report needs"

_PACKAGES = ("torch", "transformers", "datasets", "pydantic", "vllm", "flash-attn")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`areal version` has no options of its own."""


def run(arguments: argparse.Namespace) -> Result:
    """Collect versions."""
    from importlib import metadata  # 15 ms that other commands should not pay

    versions = {"areal": areal.__version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return Result(text=format_summary(versions), data={"versions": versions})
