"""Deal with rows that are longer than a run can use, before it starts: leave them out, shorten them, or refuse them.

`areal.dataset.loading` measures all rows, and comes here when some are too long.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from areal.api import DataError
from areal.dataset.encoding import ID_COLUMNS, row_length
from areal.dataset.origins import place_of, remember
from areal.dataset.schema import MAX_EXAMPLES
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from datasets import Dataset

    from areal.api import DatasetKind
    from areal.dataset.config import Overlong
    from areal.dataset.origins import LengthLimit, RowOrigins

logger = getLogger(__name__)


def fit_long_rows(
    dataset: Dataset,
    long: Sequence[int],
    *,
    kind: DatasetKind,
    overlong: Overlong,
    limit: LengthLimit,
    tokenizer: Any,
    name: str,
    known: RowOrigins,
) -> Dataset:
    """Return the dataset without the rows `long`, or with them shortened; the rest as `areal.dataset.loading.fit_rows`.

    known: origins, with the lengths of all rows and what was measured.
    """
    assert known.fitting is not None
    examples = [f"{place_of(dataset, i)} has {known.lengths[i]}" for i in long[:MAX_EXAMPLES]]
    more = f"; and {len(long) - MAX_EXAMPLES} more" if len(long) > MAX_EXAMPLES else ""
    if overlong == "error":
        raise DataError(
            f"{name}: {len(long)} of {len(dataset)} rows with more than {limit.tokens} tokens ({limit.reason}): "
            f"{'; '.join(examples)}{more}",
            where=known.source,
            fix="shorten these rows, raise the limit, or set overlong to filter or truncate",
        )
    shortened = {i: truncated_row(dataset[i], kind, limit.tokens, tokenizer) for i in long if overlong == "truncate"}
    gone = {i for i in long if shortened.get(i) is None}
    for verb, count in (("dropped", len(gone)), ("shortened", len(long) - len(gone))):
        if count:
            logger.warning(
                "%s: %s %d of %d rows with more than %d tokens (%s), e.g. %s",
                name, verb, count, len(dataset), limit.tokens, limit.reason, examples[0],
            )  # fmt: skip
    uncut = [i for i in gone if overlong == "truncate" and _has_images(dataset[i], kind, limit.tokens)]
    if uncut:
        first = place_of(dataset, min(uncut))
        logger.warning(
            "%s: %d of these were not shortened since that would cut images, e.g. %s", name, len(uncut), first
        )
    kept = [i for i in range(len(dataset)) if i not in gone]
    if not kept:
        raise DataError(
            f"{name}: 0 rows left: all {len(dataset)} are longer than {limit.reason} ({limit.tokens} tokens); the "
            f"shortest has {min(length for length in known.lengths if length is not None)}",
            where=known.source,
            fix="raise the limit, or use shorter rows",
        )
    result = _with_rows(dataset, kept, {i: row for i, row in shortened.items() if row is not None})
    numbers = [known.numbers[i] for i in kept] if len(known.numbers) == len(dataset) else ()
    done = replace(known.fitting, num_overlong=len(long), num_truncated=len(long) - len(gone))
    left = [known.lengths[i] if i not in shortened else limit.tokens for i in kept]
    return remember(result, replace(known, numbers=numbers, lengths=left, fitting=done))


def truncated_row(row: Mapping[str, Any], kind: DatasetKind, limit: int, tokenizer: Any) -> dict[str, Any] | None:
    """Return a row cut to `limit` tokens; None when nothing would be left to learn, or to answer.

    Answers of SFT and preference rows lose their end, and with it the end-of-sequence token. A prompt for RL loses the
    beginning of its longest turn that is not the system's, since the question stands at the end. None also for a row
    that would lose an image, or a part of one: prompts for RL with images, and SFT rows with one behind the limit.
    """
    if kind == "rl" and row.get("images"):
        return None
    if kind == "rl":
        messages = _shorter_prompt(row["messages"], limit, tokenizer)
        return None if messages is None else {**row, "messages": messages}
    if loses_image(row, limit):
        return None
    cut = dict(row)
    for ids, mask in ID_COLUMNS[kind]:
        cut[ids], cut[mask] = row[ids][:limit], row[mask][:limit]
        # Nothing predicts the first token.
        if not any(cut[mask][1:]):
            return None
    return cut


def _has_images(row: Mapping[str, Any], kind: DatasetKind, limit: int) -> bool:
    return bool(row.get("images")) if kind == "rl" else loses_image(row, limit)


def loses_image(row: Mapping[str, Any], limit: int) -> bool:
    """Whether the first `limit` tokens of an SFT row lack a placeholder of an image, or the token that must follow."""
    spans = zip(row.get("image_starts") or (), row.get("image_lengths") or (), strict=True)
    return any(start + length >= limit for start, length in spans)


def _shorter_prompt(messages: Any, limit: int, tokenizer: Any) -> Any:
    """Return the longest prompt that fits, None when there is none."""
    chosen = None
    if not isinstance(messages, str):
        turns = [i for i, turn in enumerate(messages) if turn["role"] != "system" and isinstance(turn["content"], str)]
        if not turns:
            return None
        chosen = max(turns, key=lambda i: len(messages[i]["content"]))
    text: str = messages if chosen is None else messages[chosen]["content"]

    def without(begin: int) -> Any:
        if chosen is None:
            return text[begin:]
        return [{**turn, "content": text[begin:]} if i == chosen else turn for i, turn in enumerate(messages)]

    def fits(begin: int) -> bool:
        length = row_length({"messages": without(begin)}, "rl", tokenizer)
        return length is not None and length <= limit

    low, high = 0, len(text) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return without(low) if text[low:].strip() and fits(low) else None


def _with_rows(dataset: Dataset, kept: list[int], changed: Mapping[int, Mapping[str, Any]]) -> Dataset:
    if not changed:
        return dataset.select(kept)
    from datasets import Dataset

    rows = [changed.get(i) or dataset[i] for i in kept]
    return Dataset.from_list([dict(row) for row in rows], features=dataset.features)
