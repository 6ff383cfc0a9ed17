"""Measure rows, and deal with those that are longer than a run can use, before it starts.

    fit_rows(dataset, kind="rl", overlong="filter", limit=LengthLimit(tokens=1024, reason="..."), ...)

The length of a row is what must fit: prompt tokens for RL (the answer needs room of its own), all tokens for SFT, those
of the longer side for preferences. A prompt that only its workflow can read is not measured here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from areal.api import DataError
from areal.dataset.encoding import encode_prompt
from areal.dataset.origins import Fitting, RowOrigins, origins_of, place_of, remember
from areal.dataset.schema import MAX_EXAMPLES
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from datasets import Dataset

    from areal.api import DatasetKind
    from areal.dataset.config import Overlong

logger = getLogger(__name__)

_SEQUENCES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "preference": (("chosen_ids", "chosen_loss_mask"), ("rejected_ids", "rejected_loss_mask")),
    "sft": (("input_ids", "loss_mask"),),
}
"""Columns of token ids with their masks, of kinds whose rows are encoded already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthLimit:
    """How long a row may be.

    Example: `LengthLimit(tokens=64, reason="engine.max_seq_len 96 - gconfig.max_new_tokens 32")`.
    """

    tokens: int
    reason: str
    """What it follows from, for messages."""


def fit_rows(
    dataset: Dataset, *, kind: DatasetKind, overlong: Overlong, limit: LengthLimit | None, tokenizer: Any, name: str
) -> Dataset:
    """Return the dataset with rows of at most `limit` tokens, with its origins and what was done (`Fitting`).

    overlong: "filter" leaves longer rows out, and says so in the log; "truncate" shortens them (see `truncated_row`)
    and leaves out those of which nothing to learn would remain; "error" raises. name: of the dataset, for messages.

    Raises DataError, with rows and lengths, for overlong rows under "error", and when no row is left.
    """
    known = origins_of(dataset) or RowOrigins(source=name, unit="row", numbers=())
    lengths: Sequence[int | None] = known.lengths
    if limit is not None and len(lengths) != len(dataset):
        lengths = [row_length(row, kind, tokenizer) for row in dataset]
    measured = [length for length in lengths if length is not None]
    fitting = Fitting(
        num_read=len(dataset),
        num_overlong=0,
        num_truncated=0,
        longest=max(measured, default=0),
        limit=None if limit is None else limit.tokens,
        reason="" if limit is None else limit.reason,
    )
    long = [] if limit is None else [i for i, length in enumerate(lengths) if length and length > limit.tokens]
    if limit is None or not long:
        return remember(dataset, replace(known, lengths=lengths, fitting=fitting))
    examples = [f"{place_of(dataset, i)} has {lengths[i]}" for i in long[:MAX_EXAMPLES]]
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
    _say(name, limit, num_rows=len(dataset), num_gone=len(gone), num_short=len(long) - len(gone), example=examples[0])
    kept = [i for i in range(len(dataset)) if i not in gone]
    if not kept:
        raise DataError(
            f"{name}: 0 rows left: all {len(dataset)} are longer than {limit.reason} ({limit.tokens} tokens); the "
            f"shortest has {min(measured)}",
            where=known.source,
            fix="raise the limit, or use shorter rows",
        )
    result = _with_rows(dataset, kept, {i: row for i, row in shortened.items() if row is not None})
    numbers = [known.numbers[i] for i in kept] if len(known.numbers) == len(dataset) else ()
    done = replace(fitting, num_overlong=len(long), num_truncated=len(long) - len(gone))
    left = [lengths[i] if i not in shortened else limit.tokens for i in kept]
    return remember(result, replace(known, numbers=numbers, lengths=left, fitting=done))


def row_length(row: Mapping[str, Any], kind: DatasetKind, tokenizer: Any) -> int | None:
    """Return the tokens of a row; None for a prompt that cannot be encoded here."""
    if kind != "rl":
        return max(len(row[ids]) for ids, _ in _SEQUENCES[kind])
    try:
        return len(encode_prompt(row["messages"], tokenizer))
    except DataError:
        return None


def truncated_row(row: Mapping[str, Any], kind: DatasetKind, limit: int, tokenizer: Any) -> dict[str, Any] | None:
    """Return a row cut to `limit` tokens; None when nothing would be left to learn, or to answer.

    Answers of SFT and preference rows lose their end, and with it the end-of-sequence token. A prompt for RL loses the
    beginning of its longest turn that is not the system's, since the question stands at the end.
    """
    if kind == "rl":
        messages = _shorter_prompt(row["messages"], limit, tokenizer)
        return None if messages is None else {**row, "messages": messages}
    cut = dict(row)
    for ids, mask in _SEQUENCES[kind]:
        cut[ids], cut[mask] = row[ids][:limit], row[mask][:limit]
        # Nothing predicts the first token.
        if not any(cut[mask][1:]):
            return None
    return cut


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


def _say(name: str, limit: LengthLimit, *, num_rows: int, num_gone: int, num_short: int, example: str) -> None:
    what = f"more than {limit.tokens} tokens ({limit.reason})"
    if num_gone:
        logger.warning("%s: dropped %d of %d rows with %s, e.g. %s", name, num_gone, num_rows, what, example)
    if num_short:
        logger.warning("%s: shortened %d of %d rows with %s, e.g. %s", name, num_short, num_rows, what, example)
