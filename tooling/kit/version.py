"""The version of the harness: a checkout's own pyproject.toml, or what the installed distribution says."""

from __future__ import annotations

from pathlib import Path

DISTRIBUTION = "areal"


def version() -> str:
    """Example: "0.1.0". A checkout is asked first: reading one file is quicker than searching installed packages, and
    the metadata of an editable install may be older than the code."""
    import tomllib

    checkout = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if checkout.is_file():
        project = tomllib.loads(checkout.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == DISTRIBUTION:
            return str(project["version"])
    from importlib.metadata import version as installed_version

    return installed_version(DISTRIBUTION)
