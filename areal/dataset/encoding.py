"""Load tokenizers, and turn text into token ids the same way in loaders and workflows.

load_tokenizer("models/Qwen2.5-0.5B-Instruct")      # a folder
load_tokenizer("Qwen/Qwen2.5-0.5B@main")               # of the hub
load_tokenizer("characters:0123456789+-*/=")        # one token per character, for tiny models
load_tokenizer("bytes:")                            # one token per UTF-8 byte: any text, 258 tokens

A prompt is a chat (a list of messages, rendered by the tokenizer's chat template) or a plain string. A plain string
is encoded as it stands: no BOS and no other special token is added, so write them into the string when a model wants
them. What SFT learns is therefore what RL continues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError, DataError
from areal.dataset.origins import RowOrigins, remember
from areal.dataset.schema import messages_problem
from areal.hub.download import METADATA, local_folder
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

    from areal.api import DatasetKind


PAD_TOKEN: Final = "<pad>"
EOS_TOKEN: Final = "<eos>"
BOS_TOKEN: Final = "<bos>"
_CHARACTERS: Final = "characters:"
_BYTES: Final = "bytes:"


def is_buildable(path: str) -> bool:
    """Return whether `path` names a tokenizer that is built instead of read, such as "characters:0123456789+-*/="."""
    return path.startswith(_CHARACTERS) or path == _BYTES


def load_tokenizer(path: str) -> Any:
    """Return the tokenizer in a folder or of the hub ("org/name@revision"), or one of the built ones above.

    Raises ConfigError when there is none, HubError when it cannot be fetched.
    """
    from transformers import AutoTokenizer

    if path.startswith(_CHARACTERS):
        return character_tokenizer(path.removeprefix(_CHARACTERS))
    if path == _BYTES:
        return byte_tokenizer()
    if not path:
        raise ConfigError("no tokenizer: set model.tokenizer_path to a folder, or model.path to a checkpoint folder")
    folder = local_folder(path, METADATA)
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises whatever a malformed file leads to
        kind = "cannot be read" if folder.is_dir() else "is neither a folder nor org/name@revision of the hub"
        text = str(error) if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: {error}"
        raise ConfigError(f"tokenizer {path!r} {kind}: {text}") from error


def character_tokenizer(characters: str, *, bos: bool = False) -> PreTrainedTokenizerFast:
    """Build one token per character: ids are pad 0, eos 1, then bos when asked for, then `characters` in order.

    Encoding and decoding round-trip exactly; a character outside the vocabulary is an error, never an unknown token.
    `save_pretrained` writes a folder that `AutoTokenizer` loads.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    if not characters or len(set(characters)) != len(characters):
        raise ConfigError(f"characters is {characters!r}, expected at least one character and none twice")
    special = [PAD_TOKEN, EOS_TOKEN, *([BOS_TOKEN] if bos else [])]
    vocabulary = {token: index for index, token in enumerate([*special, *characters])}
    # The unknown token is named but absent on purpose: encoding an unknown character raises.
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return _wrap(backend, bos=bos)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Build one token per UTF-8 byte (ids 0 .. 255), then pad 256 and eos 257: any text round-trips exactly."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([PAD_TOKEN, EOS_TOKEN])
    return _wrap(backend, bos=False)


def check_tokenizer(tokenizer: Any, vocab_size: int, *, needs_chat_template: bool = False) -> None:
    """Raise ConfigError when a model with `vocab_size` embeddings cannot be trained with this tokenizer.

    needs_chat_template: set when prompts are chats.
    """
    if len(tokenizer) > vocab_size:
        raise ConfigError(
            f"the tokenizer has {len(tokenizer)} tokens but the model only {vocab_size} embeddings; "
            f"use the model's own tokenizer, or set vocab_size to at least {len(tokenizer)}"
        )
    if tokenizer.eos_token_id is None:
        raise ConfigError("the tokenizer has no end-of-sequence token, so generations could never end; set eos_token")
    if needs_chat_template and not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            "prompts are chats but the tokenizer has no chat template; use plain string prompts or set one"
        )


def _wrap(backend: Any, *, bos: bool) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    names = {"pad_token": PAD_TOKEN, "eos_token": EOS_TOKEN, **({"bos_token": BOS_TOKEN} if bos else {})}
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **names)


logger = getLogger(__name__)

Messages = "list[dict[str, str]] | str"
"""A chat, or a plain string."""


def has_chat_template(tokenizer: Any) -> bool:
    """Return whether the tokenizer can render a chat."""
    return bool(getattr(tokenizer, "chat_template", None))


def as_messages(text: str, tokenizer: Any, *, system: str = "") -> list[dict[str, str]] | str:
    """Return one user turn as a chat when the tokenizer has a template, else as a string (after the system text)."""
    if not has_chat_template(tokenizer):
        return f"{system}\n{text}" if system else text
    turns = [{"role": "system", "content": system}] if system else []
    return [*turns, {"role": "user", "content": text}]


def encode_prompt(messages: Any, tokenizer: Any, *, enable_thinking: bool = False) -> list[int]:
    """Return the token ids of a prompt, ending where the model's answer begins.

    enable_thinking: handed to the chat template; templates without that switch ignore it. Raises DataError for an
    empty prompt, a chat without a template to render it, and a chat whose text contains one of the tokenizer's
    control tokens (it would be read as control, not as text).
    """
    problem = messages_problem(messages)
    if problem:
        raise DataError(problem)
    if isinstance(messages, str):
        return encode_text(messages, tokenizer)
    if not has_chat_template(tokenizer):
        raise DataError(
            "messages is a chat but the tokenizer has no chat template; give a plain string, or set a template"
        )
    for index, message in enumerate(messages):
        if found := control_token_problem(message["content"], tokenizer):
            raise DataError(f"messages[{index}] {found}, or give the whole prompt as a rendered string")
    return list(
        render_chat(messages, tokenizer, add_generation_prompt=True, return_dict=False, enable_thinking=enable_thinking)
    )


def render_chat(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: Any,
    *,
    enable_thinking: bool = False,
    tokenize: bool = True,
    **options: Any,
) -> Any:
    """Return what `apply_chat_template` makes of a chat: its tokens, or its text. Raises DataError when the template
    refuses it.
    """
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template(
            list(messages), tokenize=tokenize, enable_thinking=enable_thinking, **options
        )
    # Templates raise the first on purpose, and the second for a missing or empty field.
    except (TemplateError, TypeError) as error:
        raise DataError(f"the chat template refuses the conversation: {error}") from error


def control_token_problem(text: str, tokenizer: Any) -> str:
    """Say that a text of a chat contains one of the tokenizer's control tokens; empty when it does not."""
    for token in tokenizer.all_special_tokens:
        if token in text:
            return f"contains the control token {token!r} as text, which would be read as control; remove it"
    return ""


def encode_text(text: str, tokenizer: Any) -> list[int]:
    """Return the token ids of a text, without BOS or EOS; raises DataError when the tokenizer cannot represent it."""
    try:
        return list(tokenizer.encode(text, add_special_tokens=False))
    # The Rust tokenizers raise bare Exception for a character outside a vocabulary without an unknown token.
    except Exception as error:
        raise DataError(f"the tokenizer cannot encode {text[:60]!r}: {error}") from error


def encode_answer(text: str, tokenizer: Any) -> list[int]:
    """Return the token ids of an answer and the end-of-sequence token, as the policy would have to sample them."""
    if tokenizer.eos_token_id is None:
        raise ConfigError("the tokenizer has no end-of-sequence token, so answers could never end; set eos_token")
    return [*encode_text(text, tokenizer), tokenizer.eos_token_id]


def sft_row(messages: Any, answer: str, tokenizer: Any) -> dict[str, list[int]]:
    """Return `input_ids` of prompt and answer, `loss_mask` 1 on the answer and its end-of-sequence token."""
    prompt_ids = encode_prompt(messages, tokenizer)
    answer_ids = encode_answer(answer, tokenizer)
    return {"input_ids": prompt_ids + answer_ids, "loss_mask": [0] * len(prompt_ids) + [1] * len(answer_ids)}


def to_dataset(
    rows: Sequence[dict[str, Any]],
    source: str,
    lengths: Iterable[int],
    max_length: int | None,
    *,
    unit: str = "row",
    numbers: Sequence[int] = (),
) -> Dataset:
    """Build the dataset from mapped rows, leaving out those longer than `max_length` tokens (counted in the log).

    lengths: tokens of each row. unit, numbers: place of each row in the source (`RawRows`); both are remembered as its
    origins. Rows may lack columns others have; the gap becomes None. Raises DataError when no row is left or a column
    mixes types.
    """
    from datasets import Dataset

    measured = list(lengths)
    indices = [i for i, length in enumerate(measured) if max_length is None or length <= max_length]
    kept = [rows[i] for i in indices]
    num_dropped = len(rows) - len(kept)
    if num_dropped:
        logger.warning("%s: dropped %d of %d rows with more than %s tokens", source, num_dropped, len(rows), max_length)
    if not kept:
        reason = f"all {num_dropped} are longer than max_length {max_length}" if num_dropped else "the source is empty"
        raise DataError(f"{source}: 0 rows left: {reason}")
    columns = list(dict.fromkeys(column for row in kept for column in row))
    table = {column: [row.get(column) for row in kept] for column in columns}
    try:
        dataset = Dataset.from_dict(table)
    # pyarrow's errors subclass ValueError and TypeError; they name neither the source nor the columns.
    except (TypeError, ValueError) as error:
        raise DataError(f"{source}: a column of {', '.join(columns)} mixes types across rows: {error}") from error
    origins = RowOrigins(
        source=source,
        unit=unit,
        numbers=[numbers[i] for i in indices] if numbers else (),
        lengths=[measured[i] for i in indices],
    )
    return remember(dataset, origins)


ID_COLUMNS: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "preference": (("chosen_ids", "chosen_loss_mask"), ("rejected_ids", "rejected_loss_mask")),
    "sft": (("input_ids", "loss_mask"),),
}
"""Columns of token ids with their masks, of kinds whose rows are encoded already."""


def row_length(row: Mapping[str, Any], kind: DatasetKind, tokenizer: Any) -> int | None:
    """Return the length of a row, which is what must fit: prompt tokens for RL (the answer needs room of its own), all
    tokens for SFT, those of the longer side for preferences. None for a prompt that only its workflow can read.
    """
    if kind != "rl":
        return max(len(row[ids]) for ids, _ in ID_COLUMNS[kind])
    try:
        return len(encode_prompt(row["messages"], tokenizer))
    except DataError:
        return None
