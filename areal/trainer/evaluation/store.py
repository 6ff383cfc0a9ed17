"""Keep the samples of an evaluation: each one on disk as soon as it is there, none taken twice.

    evaluation.json    what is evaluated: model, sets, seed; a folder belongs to one evaluation
    samples.jsonl      one line per sample
    report.json, report.html    written at the end

Seeds are functions of set, row and sample, so an evaluation that was killed goes on as if nothing had happened, and one
that asks for more rows or more samples per row keeps those it has.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, Self

from areal.api import CheckpointError, ConfigError, RewardUse
from areal.infra.checkpoint.run_control import RunLock
from areal.infra.metrics.jsonl import JsonLines
from areal.infra.rollout.groups import added_uses
from areal.trainer.evaluation.samples import EvalSample, SetResult
from areal.utils.atomic import atomic_write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

MANIFEST: Final = "evaluation.json"
SAMPLES: Final = "samples.jsonl"
_FREE: Final = frozenset({"answer", "pass_reward", "rows", "samples"})
"""Settings of a set that may change without making its samples others."""
_FIELDS: Final = frozenset(field.name for field in fields(EvalSample))


class SampleStore:
    """Folder of one evaluation, locked by this process. Use it as a context manager."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any], *, restart: bool = False) -> None:
        """manifest: what is evaluated. restart: put samples that are there aside and begin anew.

        Raises BusyError when another process evaluates there; `open` raises ConfigError when the folder belongs to
        another evaluation.
        """
        self.folder = folder
        self._manifest, self._restart = dict(manifest), restart
        self._lock = RunLock(folder)
        self._lines: JsonLines | None = None

    def __enter__(self) -> Self:
        """Lock the folder, check that it is of this evaluation, and open the file of samples."""
        self._lock.acquire()
        try:
            if self._restart:
                self._put_aside()
            self._check()
            atomic_write(self.folder / MANIFEST, json.dumps(self._manifest, indent=2) + "\n")
            self._lines = JsonLines(self.folder / SAMPLES)
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file and give the folder free."""
        if self._lines is not None:
            self._lines.close()
        self._lock.release()

    def add(self, name: str, sample: EvalSample) -> None:
        """Write one sample of the set `name`; it is with the operating system when this returns. Raises CheckpointError
        when the disk refuses.
        """
        assert self._lines is not None, "add comes inside the with block"
        try:
            self._lines.append(sample.to_mapping(name))
        except OSError as error:
            raise CheckpointError(
                f"cannot write a sample to {self.folder / SAMPLES}: {error}. Those before are kept; free space and run "
                f"the same command again",
                where=str(self.folder / SAMPLES),
                fix="free space and run the same command again",
            ) from error

    def _put_aside(self) -> None:
        number = 1 + len(list(self.folder.glob(f"{SAMPLES}.*")))
        if (self.folder / SAMPLES).exists():
            (self.folder / SAMPLES).rename(self.folder / f"{SAMPLES}.{number}")
        (self.folder / MANIFEST).unlink(missing_ok=True)

    def _check(self) -> None:
        file = self.folder / MANIFEST
        if not file.exists():
            return
        before = read_manifest(self.folder)
        changed = differences(before, self._manifest)
        if changed:
            raise ConfigError(
                f"{self.folder} holds an evaluation of something else:\n" + "\n".join(f"  {line}" for line in changed),
                where=str(file),
                fix="give another --output, or begin anew with --restart, which keeps the old samples under another "
                "name",
            )


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read what an evaluation is of. Raises CheckpointError when the folder holds none, or a damaged one."""
    file = folder / MANIFEST
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not isinstance(found.get("sets"), dict):
            raise ValueError("expected an object with sets")
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{file} cannot be read: {error}; expected the folder of an evaluation",
            where=str(file),
            fix="name a folder that `areal eval` wrote",
        ) from error
    return found


def read_samples(
    folder: Path, name: str, *, rows: int, samples: int, answer: Callable[[str], str | None] | None = None
) -> dict[tuple[int, int], EvalSample]:
    """Return the samples of a set that are within `rows` and `samples`, by (row, sample); torn lines are passed over.

    answer: votes anew, by this rule, for samples that were kept under another; None leaves votes as they are.
    """
    found: dict[tuple[int, int], EvalSample] = {}
    file = folder / SAMPLES
    if not file.exists():
        return found
    with file.open("rb") as lines:
        for line in lines:
            try:
                record = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                record = None
            if not isinstance(record, dict) or record.get("set") != name:
                continue
            sample = EvalSample(**{"reward": None, **{key: record[key] for key in _FIELDS & record.keys()}})
            if sample.row < rows and sample.sample < samples:
                if answer is not None and sample.reward is not None:
                    sample = replace(sample, answer=answer(sample.completion))
                # Of a sample that was lost and tried again, the later line counts.
                found[sample.row, sample.sample] = sample
    return found


def collect(
    name: str, found: Mapping[tuple[int, int], EvalSample], *, rows: int, samples: int, pass_reward: float
) -> SetResult:
    """Return the results of a set, of which every sample is there."""
    chosen = tuple(tuple(found[row, sample] for sample in range(samples)) for row in range(rows))
    uses = added_uses(_uses_of(sample) for row in chosen for sample in row)
    return SetResult(name=name, k=samples, pass_reward=pass_reward, rows=chosen, reward_uses=uses)


def _uses_of(sample: EvalSample) -> dict[str, RewardUse]:
    return {
        name: RewardUse(calls=int(use["calls"]), failures=int(use["failures"]), seconds=use["seconds"])
        for name, use in (sample.uses or {}).items()
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what makes samples of two evaluations others, one line each; sets that only one has do not."""
    pairs: dict[str, tuple[Any, Any]] = {
        key: (before.get(key), now.get(key)) for key in ("schema", "fingerprint", "seed", "engine", "dtype")
    }
    for name in sorted(before["sets"].keys() & now["sets"].keys()):
        first, second = before["sets"][name], now["sets"][name]
        pairs |= {
            f"eval_sets.{name}.{key}": (first.get(key), second.get(key))
            for key in sorted(first.keys() | second.keys())
            if key not in _FREE
        }
    return [f"{key}: was {first!r}, is {second!r}" for key, (first, second) in pairs.items() if first != second]
