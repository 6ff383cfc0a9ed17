"""Say what a run takes from each of its sources: rows, share of the prompts, passes over the rows (the dry run)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.infra.rollout.schedule import source_shares
from areal.trainer.config import PPOConfig
from areal.trainer.configuration.validation import dataset_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from areal.dataset.config import DatasetConfig
    from areal.trainer.config import RowsConfig


def training_rows(config: PPOConfig | RowsConfig, known: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the rows of each source, None where they are not known.

    known: what a rehearsal found, by dataset; lines of files are counted where it has nothing.
    """
    if not isinstance(config, PPOConfig):
        used = known.get("train_dataset", {}).get("used")
        return {"": count_rows(config.train_dataset) if used is None else used}
    found: dict[str, int | None] = {}
    for name, source in config.all_sources.items():
        rows = known.get(dataset_key(name), {}).get("used")
        if rows is None:
            rows = count_rows(source.dataset)
            rows = rows if rows is None or source.max_rows is None else min(rows, source.max_rows)
        found[name] = rows
    return found


def mixture_of(
    config: PPOConfig | RowsConfig, rows: Mapping[str, int | None], steps: int | None
) -> dict[str, dict[str, float | None]]:
    """Return rows, share of the prompts, prompts and epochs of each of several sources."""
    if not isinstance(config, PPOConfig) or not config.sources:
        return {}
    shares = source_shares({name: source.weight for name, source in config.sources.items()})
    found: dict[str, dict[str, float | None]] = {}
    for name, share in shares.items():
        prompts = None if steps is None else share * steps * config.rollout.batch_size
        number = rows[name]
        epochs = None if prompts is None or not number else prompts / number
        found[name] = {"rows": number, "share": share, "prompts": prompts, "epochs": epochs}
    return found


def used_up(config: PPOConfig | RowsConfig, rows: Mapping[str, int | None], steps: int | None) -> Iterator[str]:
    """Yield sources whose rows do not last to the end of the run."""
    if not isinstance(config, PPOConfig) or config.curriculum is None or not config.curriculum.max_reuse:
        return
    most = config.curriculum.max_reuse
    facts = mixture_of(config, rows, steps)
    total = None if steps is None else float(steps * config.rollout.batch_size)
    facts = facts or {"": {"rows": rows[""], "prompts": total}}
    for name, fact in facts.items():
        number, prompts = fact["rows"], fact["prompts"]
        if number is not None and prompts is not None and prompts > number * most:
            yield (
                f"{f'source {name}' if name else 'train_dataset'} is used up before the end: about {prompts:.0f} "
                f"prompts of {number:.0f} rows, at most {most} times each (curriculum.max_reuse)"
            )


def render_mixture(sources: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield lines about several sources; none for a single one."""
    if not sources:
        return
    yield from ("", "Sources (rows, share of the prompts, prompts in all, passes over the rows)")
    width = max(map(len, sources))
    for name, facts in sources.items():
        rows = "?" if facts["rows"] is None else f"{facts['rows']:,}"
        prompts = "?" if facts["prompts"] is None else f"{facts['prompts']:,.0f}"
        epochs = "?" if facts["epochs"] is None else f"{facts['epochs']:.2f}"
        yield f"  {name:<{width}}  {rows:>9}  {facts['share']:>6.1%}  {prompts:>9}  {epochs:>7}"


def count_rows(dataset: DatasetConfig) -> int | None:
    """Rows of a local JSON-lines file, or of `<split>.jsonl` in a local folder; None for anything else (not loaded
    here).
    """
    if not dataset.path:
        return None
    path = Path(dataset.path)
    file = path / f"{dataset.split}.jsonl" if path.is_dir() else path
    if file.suffix not in (".jsonl", ".ndjson") or not file.is_file():
        return None
    with file.open("rb") as lines:
        return sum(bool(line.strip()) for line in lines)
