"""Small tokenizers built from nothing, and the checks that a tokenizer fits a model.

load_tokenizer("models/Qwen2.5-0.5B-Instruct")      # a folder
load_tokenizer("characters:0123456789+-*/=")        # one token per character, for tiny models
load_tokenizer("bytes:")                            # one token per UTF-8 byte: any text, 258 tokens
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD_TOKEN: Final = "<pad>"
EOS_TOKEN: Final = "<eos>"
BOS_TOKEN: Final = "<bos>"
_CHARACTERS: Final = "characters:"
_BYTES: Final = "bytes:"


def is_buildable(path: str) -> bool:
    """Return whether `path` names a tokenizer that is built instead of read, such as "characters:0123456789+-*/="."""
    return path.startswith(_CHARACTERS) or path == _BYTES


def load_tokenizer(path: str) -> Any:
    """Return the tokenizer in a local folder, or one of the built ones above. Raises ConfigError when there is none."""
    from transformers import AutoTokenizer

    if path.startswith(_CHARACTERS):
        return character_tokenizer(path.removeprefix(_CHARACTERS))
    if path == _BYTES:
        return byte_tokenizer()
    if not path:
        raise ConfigError("no tokenizer: set model.tokenizer_path to a folder, or model.path to a checkpoint folder")
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        kind = "cannot be read" if Path(path).is_dir() else "is neither a folder nor a reachable hub id"
        raise ConfigError(f"tokenizer {path!r} {kind}: {error}") from error


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
