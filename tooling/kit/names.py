"""A unit's name: its spellings, computed once and handed to templates as data, and the reasons to refuse it.

    parse_name("Gsm8k-Hard").snake       # "gsm8k_hard"
    parse_name("import")                 # NameRefusedError: is a word of Python; use 'custom_import'

Whether a good name is free in a repository is asked in `tooling.kit.collisions`.
"""

from __future__ import annotations

import builtins
import keyword
import re
import sys
import unicodedata
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tooling.kit.errors import NameRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NAME_FIELDS = ("raw", "snake", "pascal", "const", "kebab", "key", "words")
"""Fields of `Names`, as templates know them."""
MAX_LENGTH = 60
_SEPARATORS = re.compile(r"[-._\s]+")
_NEW_WORD = re.compile(
    r"(?<=[a-z])(?=[A-Z])"  # mathVerify
    r"|(?<=[A-Z0-9])(?=[A-Z](?!v\d)[a-z])"  # HTTPJudge, Math500Hard; not the K of GSM8Kv2
    r"|(?<=[A-Z0-9])(?=v\d)"  # GSM8Kv2
)
_DEVICES = frozenset({"aux", "con", "nul", "prn", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))})
"""Files that cannot exist on Windows, whatever their suffix."""
_BUILT_IN = frozenset(name for name in dir(builtins) if not name.startswith("_"))
_LOOKALIKES = str.maketrans(
    "абвгдеёжзийклмнопрстуфхцыэіјѕԁαβγδεζηικλμνοπρςστυφχωßøđłıþðæœ",
    "abvgdeejziyklmnoprstufhcyeijsdabgdeziiklmnoprsstufhosodlitdao",
)
"""Small letters that no normalisation turns into ASCII, and what a person would type instead."""


@dataclass(frozen=True, slots=True)
class Names:
    """One name in every spelling.

    Example: "Gsm8k-Hard" -> snake "gsm8k_hard", pascal "Gsm8kHard", const "GSM8K_HARD", kebab "gsm8k-hard", key
    "gsm8k_hard", words "gsm8k hard"; "qwen3.5" -> snake and key "qwen3_5", pascal "Qwen3_5".
    """

    raw: str
    """As the user wrote it."""
    snake: str
    pascal: str
    const: str
    kebab: str
    key: str
    """What registries and configurations call the unit."""
    words: str
    """Lower-case words for prose."""

    def as_data(self) -> dict[str, str]:
        """For templates."""
        return asdict(self)


def parse_name(raw: str, *, reserved: Iterable[str] = ()) -> Names:
    """All spellings of a name that may hold letters, digits and the separators "-", ".", "_" and space.

    reserved: names that the kind's folder needs for itself. Raises NameRefusedError with the reason, and with a name
    that would pass: for words of Python, modules of its standard library, built-in functions, reserved names, letters
    outside ASCII (look-alikes among them), and names that are empty, too long, or begin with a digit or underscore.
    """
    taken = frozenset(map(fold, reserved))
    snake = _snake(raw)
    if snake is None:
        raise _refused(raw, _odd_character(raw), _transliterated(raw), taken)
    if raw.strip()[:1] in {"_", "-", "."} or raw.strip()[-1:] in {"_", "-", "."}:
        raise _refused(raw, "begins or ends with a separator", snake, taken)
    if snake[:1].isdigit():
        raise _refused(raw, "begins with a digit", _digits_last(snake), taken)
    if len(snake) > MAX_LENGTH:
        reason = f"is longer than {MAX_LENGTH} characters"
        raise _refused(raw, reason, snake[:MAX_LENGTH].rstrip("_"), taken)
    if (reason := _reason(snake, taken)) is not None:
        raise _refused(raw, reason, f"custom_{snake}", taken)
    return spell(raw, snake)


def spell(raw: str, snake: str) -> Names:
    """The spellings of a snake-case name that was checked before. Two numbers keep their "_" in pascal case, or
    "qwen3.5" would be "qwen35"."""
    parts = snake.split("_")
    pascal = ""
    for part in parts:
        joint = "_" if pascal[-1:].isdigit() and part[0].isdigit() else ""
        pascal += joint + part[:1].upper() + part[1:]
    kebab = "-".join(parts)
    return Names(raw, snake, pascal, snake.upper(), kebab, snake, " ".join(parts))


def fold(name: str) -> str:
    """What names are compared by: "Qwen3.5", "qwen3_5" and "qwen35" are too alike to be told apart."""
    return _SEPARATORS.sub("", unicodedata.normalize("NFKC", name).casefold())


def suggest(snake: str, is_free: Callable[[str], bool]) -> str:
    """A free name near a good one: "gsm8k" -> "gsm8k_v2", or "_v3" and so on; "" when none is found."""
    stem = re.sub(r"_v\d+$", "", snake)[: MAX_LENGTH - 4]
    return next((name for n in range(2, 100) if is_free(name := f"{stem}_v{n}")), "")


def _snake(raw: str) -> str | None:
    """Small words joined by "_"; None when there is a character that is neither letter, digit nor separator in ASCII
    (after NFKC: full-width letters and the like are read as what they look like)."""
    text = unicodedata.normalize("NFKC", raw).strip()
    if not re.fullmatch(r"[A-Za-z0-9._ -]*[A-Za-z0-9][A-Za-z0-9._ -]*", text, re.ASCII):
        return None
    words = (word for part in _SEPARATORS.split(text) for word in _NEW_WORD.split(part))
    return "_".join(word.lower() for word in words if word)


def _odd_character(raw: str) -> str:
    """What `_snake` could not read."""
    for letter in unicodedata.normalize("NFKC", raw).strip():
        if not re.fullmatch(r"[A-Za-z0-9._ -]", letter):
            return f"holds {letter!r} ({unicodedata.name(letter, 'no letter')}), which no module name can have"
    return "has no letter"


def _reason(snake: str, reserved: frozenset[str]) -> str | None:
    """Why a well-formed name cannot be used."""
    if keyword.iskeyword(snake) or keyword.iskeyword(snake.capitalize()) or keyword.issoftkeyword(snake):
        return "is a word of Python"
    if snake in sys.stdlib_module_names:
        return "is a module of Python's standard library"
    if snake in _BUILT_IN:
        return "is a built-in function of Python"
    if snake in _DEVICES:
        return "cannot be the name of a file on Windows"
    return "is a name that this kind needs for itself" if fold(snake) in reserved else None


def _refused(raw: str, reason: str, candidate: str, reserved: frozenset[str]) -> NameRefusedError:
    return NameRefusedError(f"the name {raw!r} {reason}", where="name", fix=_advice(candidate, reserved))


def _advice(candidate: str, reserved: frozenset[str]) -> str:
    """A suggestion that was tried, or the rules."""

    def passes(name: str) -> bool:
        well_formed = _snake(name) == name and not name[0].isdigit() and len(name) <= MAX_LENGTH
        return well_formed and _reason(name, reserved) is None

    if candidate and not passes(candidate):
        candidate = suggest(candidate, passes) if _snake(candidate) == candidate else ""
    if candidate:
        return f"use e.g. {candidate!r}"
    return "use letters a-z, digits and '_', beginning with a letter"


def _digits_last(snake: str) -> str:
    """ "7b_chat" -> "chat_7b", "2048" -> "n2048"."""
    parts = snake.split("_")
    first = next((index for index, part in enumerate(parts) if not part[0].isdigit()), None)
    return f"n{snake}" if first is None else "_".join([*parts[first:], *parts[:first]])


def _transliterated(raw: str) -> str:
    """The nearest ASCII name: accents dropped, look-alike and foreign letters and digits replaced, the rest cut out."""
    decomposed = unicodedata.normalize("NFKD", raw.replace("ß", "ss"))
    letters = []
    for letter in decomposed:
        plain = letter.lower().translate(_LOOKALIKES)
        if unicodedata.category(letter).startswith("N") and not letter.isascii():
            plain = str(unicodedata.digit(letter, ""))
        if letter.isupper():
            plain = plain.upper()
        if unicodedata.category(letter)[0] in "PSZ" and letter.isascii():
            plain = "_"
        letters.append(plain if plain.isascii() and not unicodedata.combining(letter) else "")
    snake = _snake("".join(letters).strip("_ "))
    return "" if snake is None else _digits_last(snake) if snake[:1].isdigit() else snake
