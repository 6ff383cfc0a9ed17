"""Print the versions that a bug report needs. Reads package metadata; imports nothing."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import areal
from areal.cli.output import CommandReport, format_summary

if TYPE_CHECKING:
    import argparse

_PACKAGES = ("torch", "transformers", "datasets", "pydantic", "vllm", "flash-attn")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add nothing: `areal version` has no options of its own."""


def run(arguments: argparse.Namespace) -> CommandReport:
    """Collect versions."""
    from importlib import metadata  # 15 ms that other commands should not pay

    versions = {"areal": areal.__version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return CommandReport(text=format_summary(versions), data={"versions": versions})
