"""A repository as it would be after some files were edited: a copy of what audits read."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tooling.upgrade.operations.context import Context


@contextmanager
def edited_tree(context: Context, contents: Mapping[str, bytes]) -> Iterator[Context]:
    """A context whose root is the copy; releases that were opened before are not opened again.

    contents: of files that differ or are new, by path; others keep theirs."""
    with tempfile.TemporaryDirectory(prefix="areal-audit-") as folder:
        copy = Path(folder)
        if (context.root / ".git").exists():  # so that the copy's files are listed in the same way
            subprocess.run(["git", "init", "-q", "--template=", folder], check=False, capture_output=True)
        # Python files, those that flags, routes and variables are looked for in, and those that name versions
        from tooling.upgrade.surfaces.repository import source_files
        from tooling.upgrade.usage.checkout import Checkout

        root, locks = context.root, [variant.lock for variant in context.policy.variants if variant.lock]
        paths = {
            *Checkout(root).paths,
            *(file.path for file in source_files(root)),
            *context.declarations.files,
            *locks,
        }
        for path in sorted(
            {
                *tuple(sorted(path for path in paths if (root / path).is_file() and not (root / path).is_symlink())),
                *contents,
            }
        ):
            target = copy / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if path in contents:
                target.write_bytes(contents[path])
            else:
                with suppress(PermissionError):  # audits cannot read it either, and say so
                    shutil.copyfile(context.root / path, target)
        yield replace(context, root=copy, home=context.home or context.root)
