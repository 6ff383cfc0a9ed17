"""Report what a run from Python would do, as `areal train --dry-run` does, with rows that are not in files yet."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from areal.api import ArealError
from areal.infra.checkpoint.archive import INPUTS_FOLDER
from areal.trainer.configuration.problems import DEFAULT
from areal.trainer.configuration.source import ResolvedConfig, config_from_mapping, flatten, to_mapping
from areal.trainer.dry_run import dry_run
from areal.trainer.hub_sources import with_pins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from areal.trainer.python.arguments import Built


class DryRun(dict[str, Any]):
    """The object that `areal train --dry-run --json` prints, by its keys; `print` and notebooks show its text.

    Example: `areal.GRPO(...).dry_run()["derived"]["total_steps"]`.
    """

    def __init__(self, facts: dict[str, Any], *, text: str) -> None:
        """text: the same for people."""
        super().__init__(facts)
        self.text = text

    def __repr__(self) -> str:
        """Return the text."""
        return self.text

    __str__ = __repr__


def try_out(built: Built, *, source: str, restart: bool) -> DryRun:
    """Report what the run would do. source: names the call that it was built by. Raises what `dry_run` raises."""
    config = built.config
    inputs = str(config.directory / INPUTS_FOLDER)
    # Loaders read files, so the rows are written to a temporary folder. The report names the folder of the run.
    with tempfile.TemporaryDirectory(prefix="areal-dry-run-") as folder, _errors_moved(folder, inputs):
        for rows in built.rows:
            rows.write(Path(folder))
        moved = config_from_mapping(_moved(to_mapping(config), inputs, folder), source=source)
        given = set(flatten(built.mapping))
        origins = {key: source if key in given else DEFAULT for key in flatten(to_mapping(moved))}
        resolved = ResolvedConfig(config=moved, provenance=MappingProxyType(origins), source=None)
        found = dry_run(with_pins(resolved, restart=restart), restart=restart)
        facts: dict[str, Any] = _moved(dict(found.facts), folder, inputs)
        text = found.text.replace(folder, inputs)
    if found.refused_because:
        text += f"\n\nwarning: the run would be refused: {found.refused_because}"
    return DryRun(facts, text=text)


@contextlib.contextmanager
def _errors_moved(folder: str, inputs: str) -> Iterator[None]:
    """Let errors name the folder where the run will keep its rows, not the temporary one."""
    try:
        yield
    except ArealError as error:
        error.args = tuple(_moved(list(error.args), folder, inputs))
        error.where, error.fix = (text.replace(folder, inputs) for text in (error.where, error.fix))
        error.problems = tuple(_moved(list(error.problems), folder, inputs))
        raise


def _moved(value: Any, before: str, after: str) -> Any:
    """Return plain data with one folder in place of another."""
    if isinstance(value, dict):
        return {key: _moved(item, before, after) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_moved(item, before, after) for item in value]
    return value.replace(before, after) if isinstance(value, str) else value
