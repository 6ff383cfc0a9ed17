"""Say which optional extra brings a package that could not be imported."""

from __future__ import annotations

from typing import Final

from areal.api.errors import UsageError

PACKAGES: Final[dict[str, str]] = {
    "PIL": "train",
    "aiohttp": "servers",
    "datasets": "train",
    "huggingface_hub": "train",
    "langdetect": "ifeval",
    "math_verify": "train",
    "numpy": "train",
    "peft": "lora",
    "ray": "ray",
    "safetensors": "train",
    "torch": "train",
    "transformers": "train",
}
"""Import name to the extra of `areal` that installs it; sorted."""


def missing_package(error: Exception) -> Exception:
    """Return a UsageError that names the extra when the error is the failed import of a package that one brings; else
    the error itself.
    """
    # A submodule that is missing ("torch.foo") is another version, or broken: its traceback says more.
    package = error.name if isinstance(error, ModuleNotFoundError) else None
    if package not in PACKAGES:
        return error
    fix = f"pip install 'areal[{PACKAGES[package]}]'"
    return UsageError(f"this command needs {package}, which is not installed", where=package, fix=fix)
