"""Computes the spellings of a unit's name, and says why a name is refused or taken.

    parse_name("Gsm8k-Hard").snake       # "gsm8k_hard"
    parse_name("import")                 # NameRefusedError: is a word of Python; use 'custom_import'

    check_free(names, keys={"gsm8k"}, planned_paths=["areal/reward/digits.py"], paths=repository.files())
    find_symbols(repository, ["digits_reward"], below="areal")      # {"digits_reward": "areal/reward/digits.py:12"}

It does not know what was generated before: callers look at receipts first. Nothing is imported to find a symbol: git
finds the files that mention a name, `ast` tells a definition from a mention.
"""

from __future__ import annotations

import builtins
import keyword
import re
import sys
import unicodedata
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from tooling.cli.errors import ConflictError, NameRefusedError
from tooling.cli.git import Git
from tooling.python.source import defined_names, parsed_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from tooling.cli.git import Repository


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
        """Return every spelling by its field, for templates."""
        return asdict(self)


def parse_name(raw: str, *, reserved: Iterable[str] = ()) -> Names:
    """Return all spellings of a name that may hold letters, digits and the separators "-", ".", "_" and space.

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
    if (occupied := _reason(snake, taken)) is not None:
        raise _refused(raw, occupied, f"custom_{snake}", taken)
    return spell(raw, snake)


def spell(raw: str, snake: str) -> Names:
    """Return the spellings of a snake-case name that was checked before.

    Two numbers keep their "_" in pascal case, or "qwen3.5" would be "qwen35".
    """
    parts = snake.split("_")
    pascal = ""
    for part in parts:
        joint = "_" if pascal[-1:].isdigit() and part[0].isdigit() else ""
        pascal += joint + part[:1].upper() + part[1:]
    kebab = "-".join(parts)
    return Names(raw, snake, pascal, snake.upper(), kebab, snake, " ".join(parts))


def fold(name: str) -> str:
    """Return what names are compared by: "Qwen3.5", "qwen3_5" and "qwen35" are too alike."""
    return _SEPARATORS.sub("", unicodedata.normalize("NFKC", name).casefold())


def suggest(snake: str, is_free: Callable[[str], bool]) -> str:
    """Return a free name near a good one: "gsm8k" -> "gsm8k_v2", or "_v3" and so on; "" when none is found."""
    stem = re.sub(r"_v\d+$", "", snake)[: MAX_LENGTH - 4]
    return next((name for n in range(2, 100) if is_free(name := f"{stem}_v{n}")), "")


def _snake(raw: str) -> str | None:
    """Return small words joined by "_"; None when a character is neither letter, digit nor separator in ASCII.

    Compared after NFKC: full-width letters and the like are read as what they look like.
    """
    text = unicodedata.normalize("NFKC", raw).strip()
    if not re.fullmatch(r"[A-Za-z0-9._ -]*[A-Za-z0-9][A-Za-z0-9._ -]*", text, re.ASCII):
        return None
    words = (word for part in _SEPARATORS.split(text) for word in _NEW_WORD.split(part))
    return "_".join(word.lower() for word in words if word)


def _odd_character(raw: str) -> str:
    """Say what `_snake` could not read."""
    for letter in unicodedata.normalize("NFKC", raw).strip():
        if not re.fullmatch(r"[A-Za-z0-9._ -]", letter):
            return f"holds {letter!r} ({unicodedata.name(letter, 'no letter')}), which no module name can have"
    return "has no letter"


def _reason(snake: str, reserved: frozenset[str]) -> str | None:
    """Say why a well-formed name cannot be used; None when it can."""
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
    """Suggest a name that passes, else give the rules."""

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
    """Return the nearest ASCII name: foreign letters and digits replaced, accents and the rest dropped."""
    decomposed = unicodedata.normalize("NFKD", raw.replace("ß", "ss"))
    letters = []
    for letter in decomposed:
        plain = letter.lower().translate(_LOOKALIKES)
        if unicodedata.category(letter).startswith("N") and not letter.isascii():
            plain = str(unicodedata.digit(letter, ""))
        if letter.isupper():
            plain = plain.upper()
        if letter.isascii() and unicodedata.category(letter)[0] in "CPSZ":
            plain = "_"
        letters.append(plain if plain.isascii() and not unicodedata.combining(letter) else "")
    snake = _snake("".join(letters).strip("_ "))
    return "" if snake is None else _digits_last(snake) if snake[:1].isdigit() else snake


# ---------------------------------------------------------------------------------------------------------- collisions


def check_free(
    names: Names,
    *,
    kind: str = "unit",
    keys: Collection[str] = (),
    planned_keys: Collection[str] | None = None,
    paths: Collection[str] = (),
    planned_paths: Collection[str] = (),
    symbols: Collection[str] = (),
    repository: Repository | None = None,
    below: str = "",
    reserved: Collection[str] = (),
) -> None:
    """Refuse a name that is taken. Raises ConflictError for a file that is in the way, NameRefusedError for a registry
    key or top-level name that exists, and for whatever differs from the name only in case or separators ("Gsm8k",
    "qwen35" beside "qwen3_5"): people, shells and case-insensitive disks would mix them up. Both suggest a free name.

    keys: of the registries that the kind is entered in; planned_keys: what would be entered (the name's key when None).
    paths: files of the repository (`Repository.files()`). symbols: top-level names that the unit would define, looked
    up with git in Python files below the folder `below`; needs `repository`.
    """
    planned_keys = [names.key] if planned_keys is None else planned_keys
    folded_keys, folded_paths = {fold(key): key for key in keys}, _folded(paths)

    def obstacle(snake: str, keys_: Iterable[str], paths_: Iterable[str], symbols_: list[str]) -> _Taken | None:
        for key in keys_:
            if (found := folded_keys.get(fold(key))) is not None:
                like = f"is taken: the registry has {key!r}"
                return _Taken(like if key in keys else f"is too like {found!r}, which the registry has", "name")
        for path in paths_:
            found = _path_collision(path, snake, folded_paths)
            if found == path:
                return _Taken(f"is taken: {path} exists", path, ConflictError)
            if found is not None:
                return _Taken(f"is too like that of {found}: {path} could be mistaken for it", found)
        if symbols_ and repository is not None:
            for symbol, place in find_symbols(repository, symbols_, below=below).items():
                return _Taken(f"is taken: {symbol!r} is defined at {place}", place, by_a_unit=False)
        return None

    def is_free(candidate: str) -> bool:
        try:
            parse_name(candidate, reserved=reserved)
        except NameRefusedError:
            return False
        new_keys = [key.replace(names.key, candidate) for key in planned_keys]
        new_paths = [_renamed(path, names.snake, candidate) for path in planned_paths]
        new_symbols = [_respelt(symbol, names, spell(candidate, candidate)) for symbol in symbols]
        return obstacle(candidate, new_keys, new_paths, new_symbols) is None

    taken = obstacle(names.snake, planned_keys, planned_paths, list(symbols))
    if taken is not None:
        free = suggest(names.snake, is_free)
        fix = f"use e.g. {free!r}" if free else "choose another name"
        if taken.by_a_unit:
            fix += f"; `areal-new list` shows generated {kind}s, `areal-new update` brings one up to date"
        raise taken.error(f"the name {names.raw!r} {taken.reason}", where=taken.where, fix=fix)


def _renamed(path: str, old: str, new: str) -> str:
    """Return the path with another name; not inside of other words ("al" in "areal/reward/al.py")."""
    return re.sub(rf"(?<![A-Za-z0-9]){re.escape(old)}(?![A-Za-z0-9])", new, path)


def _respelt(symbol: str, old: Names, new: Names) -> str:
    """Return the symbol that a unit of the other name would define: "digits_reward" -> "digits_v2_reward"."""
    for before, after in ((old.snake, new.snake), (old.pascal, new.pascal), (old.const, new.const)):
        if before in symbol:
            return symbol.replace(before, after, 1)
    return symbol


@dataclass(frozen=True, slots=True)
class _Taken:
    """What is in the way of a name."""

    reason: str
    where: str
    error: type[ConflictError | NameRefusedError] = NameRefusedError
    by_a_unit: bool = True
    """Whether what is in the way may be a generated unit."""


def _folded(paths: Collection[str]) -> dict[str, str]:
    """Return files and their folders by case-folded path, and by a path whose last part is folded further.

    The exact spelling of a file wins.
    """
    table: dict[str, str] = {}
    for path in paths:
        table.setdefault(path.casefold(), path)
        table.setdefault(_loosely(path), path)
        for parent in PurePosixPath(path).parents:
            table.setdefault(f"{parent.as_posix()}/", path)
    return table


def _loosely(path: str) -> str:
    place = PurePosixPath(path.casefold())
    return f"{place.parent.as_posix()}//{fold(place.stem)}{place.suffix}"


def _path_collision(path: str, snake: str, folded: dict[str, str]) -> str | None:
    """Return the file that is in the way of `path`: the same, one too like it, or a package in the module's place.

    Separators count only in files that carry the unit's name.
    """
    found = folded.get(path.casefold())
    if found is None and snake in PurePosixPath(path).stem:
        found = folded.get(_loosely(path))
    if found is None and path.endswith(".py"):
        found = folded.get(f"{path.removesuffix('.py')}/__init__.py".casefold())
    return found


def find_symbols(repository: Repository, symbols: Iterable[str], *, below: str = "") -> dict[str, str]:
    """Return where top-level names are defined in the repository's Python files, new ones included.

    Only those that are found: {"digits_reward": "areal/reward/digits.py:12"}. Raises UsageError when git cannot search.
    """
    wanted = sorted(set(symbols))
    found: dict[str, str] = {}
    patterns = [part for word in wanted for part in ("-e", word)]
    place = f":(top,glob){below.strip('/') + '/' if below else ''}**/*.py"
    command = ["grep", "--untracked", "-l", "-z", "-w", "-F", *patterns, "--", place]
    for path in sorted(Git(repository.root).listed(*command, allowed=(0, 1))) if wanted else ():
        tree = parsed_file(repository.root / path)
        for name, node in defined_names(tree.body if tree is not None else ()):
            if name in wanted:
                found.setdefault(name, f"{path}:{node.lineno}")
    return dict(sorted(found.items()))
