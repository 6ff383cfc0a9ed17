"""Receipts: what `areal-new` remembers of a generated unit, as a committed JSON file that reads the same everywhere.

    .areal/receipts/reward/digits.json

holds the template's tree hash, all answers, the SHA-256 of each pristine file after formatting, the entries made, and
whether the unit's tests have passed. Nothing else is remembered anywhere; `list`, `status`, `prove`, `undo`, `update`
and `rename` work from these files. They hold no dates and no machine paths, so that generating the same unit twice
gives the same bytes. A receipt is read as untrusted input: every path in it stays inside the repository.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from tooling.cli.errors import UsageError
from tooling.kit.change.plan import read_inside, safe_path
from tooling.kit.kind import DocumentEntry, RegistryEntry, RegistryShape, TemplateFile
from tooling.kit.names import Names

if TYPE_CHECKING:
    from collections.abc import Mapping

ProofState = Literal["written", "proven", "failed"]
"""How far a unit is: its files are there, its tests have passed, or they ran and did not pass."""

RECEIPTS = ".areal/receipts"
SCHEMA = 1
_HASH_LENGTH = 64


@dataclass(frozen=True, slots=True)
class ReceiptFile:
    """One generated file: the hash of its pristine bytes, and what `explain` says about it."""

    sha256: str
    purpose: str
    contract: str = ""
    todo: tuple[str, ...] = ()
    test: bool = False

    def entry(self, path: str) -> TemplateFile:
        """Return the same facts as the manifest gives them."""
        return TemplateFile(path, self.purpose, self.contract, self.todo, self.test)


@dataclass(frozen=True, slots=True)
class Proof:
    """What the unit's tests said when they ran last; without a run, that the unit is only written."""

    state: ProofState = "written"
    tests: tuple[str, ...] = ()
    """Test files that ran."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """How many tests ended how, by pytest's words: {"passed": 12, "skipped": 1}."""
    tested: str = ""
    """Hash of the unit's files as they were tested (`tooling.new.proof.hash_files`); empty without a run."""


@dataclass(frozen=True, slots=True)
class TemplateReference:
    """Which template a unit came from."""

    origin: str
    """"project", "built-in" or "package:<distribution>"."""
    folder: str
    """Relative to the repository root; only the folder's name when the template lies elsewhere."""
    tree: str
    """Git's hash of the folder's tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A generated unit, e.g. the reward "digits"."""

    kind: str
    names: Names
    generator: str
    """Program and version that wrote the receipt last, "areal-new 0.1.0"."""
    template: TemplateReference
    answers: Mapping[str, Any]
    """All answers, defaults and derived ones included: the same template with them gives the same bytes."""
    package: str
    tests: str
    register: bool = True
    """False when the unit was generated with --no-register; updates then leave registries alone too."""
    symbols: tuple[str, ...] = ()
    files: Mapping[str, ReceiptFile] = field(default_factory=dict)
    entries: tuple[RegistryEntry, ...] = ()
    """Registry entries that the generator made; what stood there before is not its to remove."""
    documents: tuple[DocumentEntry, ...] = ()
    unproven: tuple[RegistryEntry, ...] = ()
    """Registry entries that stand as long as the unit is not proven."""
    proof: Proof = field(default_factory=Proof)

    @property
    def name(self) -> str:
        """Return what the unit is called on the command line: the snake form."""
        return self.names.snake

    @property
    def path(self) -> str:
        """Return where the receipt lies, relative to the repository root."""
        return receipt_path(self.kind, self.name)

    @property
    def tests_of_unit(self) -> tuple[str, ...]:
        """Return the paths of the files that prove the unit."""
        return tuple(path for path, entry in self.files.items() if entry.test)

    def to_bytes(self) -> bytes:
        """Return the file's content: sorted keys, two spaces, a closing line feed."""
        document = {
            "schema": SCHEMA,
            "kind": self.kind,
            "name": self.name,
            "names": self.names.as_data(),
            "generator": self.generator,
            "template": asdict(self.template),
            "answers": dict(self.answers),
            "settings": {"package": self.package, "tests": self.tests, "register": self.register},
            "symbols": list(self.symbols),
            "files": {path: asdict(entry) for path, entry in self.files.items()},
            "entries": [asdict(entry) for entry in self.entries],
            "documents": [asdict(entry) for entry in self.documents],
            "unproven": [asdict(entry) for entry in self.unproven],
            "proof": asdict(self.proof),
        }
        return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def receipt_path(kind: str, name: str) -> str:
    """Return `.areal/receipts/<kind>/<name>.json`.

    Raises UsageError for parts that are not a single folder or file name.
    """
    for part in (kind, name):
        if not part or "/" in part or part.startswith("."):
            raise UsageError(f"{part!r} cannot name a unit or a kind", fix="use letters, digits and underscores")
    return safe_path(f"{RECEIPTS}/{kind}/{name}.json")


def read_receipts(root: Path) -> list[Receipt]:
    """Return all receipts of a repository, by kind and name; [] without any. Raises UsageError for a damaged one."""
    folder = root / RECEIPTS
    paths = sorted(path.relative_to(root).as_posix() for path in folder.glob("*/*.json"))
    found = (_read(root, path) for path in paths)
    return [receipt for receipt in found if receipt is not None]


def read_receipt(root: Path, kind: str, name: str) -> Receipt | None:
    """Return the receipt of one unit by its snake name; None without one. Raises UsageError for a damaged one."""
    return _read(root, receipt_path(kind, name))


def parse_receipt(content: bytes, path: str) -> Receipt:
    """Return a receipt from the bytes of its file. Raises UsageError naming the file and the part that is wrong."""
    try:
        document = json.loads(content)
        json.dumps(document, ensure_ascii=False).encode()  # half a surrogate pair could never be written again
    except (ValueError, RecursionError) as error:  # numbers of 5000 digits, too
        raise _refusal(path, f"is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise _refusal(path, "is not a JSON object")
    if document.get("schema") != SCHEMA:
        found = document.get("schema")
        raise UsageError(
            f"has schema {found!r}; this areal-new reads schema {SCHEMA}",
            where=path,
            fix="use the areal-new that wrote it, or restore the file with git",
        )
    receipt = _ReceiptReader(path, document).receipt()
    if receipt.path != path:
        raise _refusal(path, f"describes the {receipt.kind} {receipt.name!r}, which belongs in {receipt.path}")
    return receipt


def _read(root: Path, path: str) -> Receipt | None:
    content = read_inside(root, path)
    return None if content is None else parse_receipt(content, path)


def _refusal(path: str, what: str) -> UsageError:
    return UsageError(f"the receipt {what}", where=path, fix="restore it with git; receipts are not edited by hand")


_Record = TypeVar("_Record", Names, TemplateReference, RegistryEntry, DocumentEntry)
"""Dataclasses whose fields are all texts."""
_Entry = TypeVar("_Entry", RegistryEntry, DocumentEntry)
"""Those that name a file."""
_Value = TypeVar("_Value", dict[str, Any], list[Any], str, bool)
_WRONG_TYPES: dict[type, str] = {
    dict: "is not an object",
    list: "is not a list",
    str: "is not text",
    bool: "is neither true nor false",
}


def _is_hash(text: str) -> bool:
    return len(text) == _HASH_LENGTH and set(text) <= set("0123456789abcdef")


class _ReceiptReader:
    """Reads the parts of one receipt with their types checked; a wrong part is refused by its name."""

    def __init__(self, path: str, document: Mapping[str, Any]) -> None:
        self._path = path
        self._document = document

    def receipt(self) -> Receipt:
        document, settings = self._document, self._typed(self._document, "settings", dict)
        known = {"schema", "name", "settings", "names", *(item.name for item in fields(Receipt))} - {
            "package",
            "tests",
            "register",
        }
        if unknown := sorted(document.keys() - known):
            raise _refusal(self._path, f"has unknown parts: {', '.join(unknown)}")
        names = self._record(self._typed(document, "names", dict), Names, "names")
        if not (names.snake.isidentifier() and names.snake.isascii()):
            raise _refusal(self._path, f"is damaged: `names.snake` {names.snake!r} is not an identifier")
        if document.get("name") != names.snake:
            raise _refusal(self._path, f"is damaged: `name` {document.get('name')!r} is not the snake name")
        return Receipt(
            kind=self._typed(document, "kind", str),
            names=names,
            generator=self._typed(document, "generator", str),
            template=self._record(self._typed(document, "template", dict), TemplateReference, "template"),
            answers=self._typed(document, "answers", dict),
            package=self._typed(settings, "package", str),
            tests=self._typed(settings, "tests", str),
            register=self._typed(settings, "register", bool),
            symbols=self._texts(document.get("symbols"), "symbols"),
            files={
                self._safe(path, "files"): self._file(path, item)
                for path, item in sorted(self._typed(self._document, "files", dict).items())
            },
            entries=tuple(self._registry(item, "entries") for item in self._typed(document, "entries", list)),
            documents=tuple(
                self._placed(item, DocumentEntry, "documents") for item in self._typed(document, "documents", list)
            ),
            # Receipts of earlier versions have neither: nothing is known about their units.
            unproven=tuple(
                self._registry(item, "unproven") for item in self._typed({"unproven": [], **document}, "unproven", list)
            ),
            proof=self._proof(document["proof"]) if "proof" in document else Proof(),
        )

    def _proof(self, item: Any) -> Proof:
        if not isinstance(item, dict) or item.keys() != {known.name for known in fields(Proof)}:
            raise _refusal(self._path, "is damaged: `proof` says nothing usable")
        state, outcomes, tested = item["state"], item["outcomes"], self._typed(item, "tested", str)
        if state not in get_args(ProofState):
            raise _refusal(self._path, f"is damaged: `proof` has the unknown state {state!r}")
        if not isinstance(outcomes, dict) or not all(type(count) is int and count > 0 for count in outcomes.values()):
            raise _refusal(self._path, "is damaged: `proof.outcomes` does not count tests")
        if (tested or state != "written") and not _is_hash(tested):
            raise _refusal(self._path, "is damaged: `proof` has no SHA-256 of what was tested")
        tests = tuple(self._safe(path, "proof.tests") for path in self._texts(item["tests"], "proof.tests"))
        return Proof(state, tests, outcomes, tested)

    def _file(self, path: str, item: Any) -> ReceiptFile:
        if not isinstance(item, dict) or item.keys() != {"sha256", "purpose", "contract", "todo", "test"}:
            raise _refusal(self._path, f"is damaged: `files` says nothing usable about {path}")
        digest = self._typed(item, "sha256", str)
        if not _is_hash(digest):
            raise _refusal(self._path, f"is damaged: `files` has no SHA-256 of {path}")
        return ReceiptFile(
            digest,
            self._typed(item, "purpose", str),
            self._typed(item, "contract", str),
            self._texts(item["todo"], f"files of {path}"),
            self._typed(item, "test", bool),
        )

    def _registry(self, item: Any, part: str) -> RegistryEntry:
        entry = self._placed(item, RegistryEntry, part)
        if entry.shape not in get_args(RegistryShape):
            raise _refusal(self._path, f"is damaged: `{part}` has the unknown shape {entry.shape!r}")
        return entry

    def _placed(self, item: Any, record: type[_Entry], part: str) -> _Entry:
        entry = self._record(item, record, part)
        self._safe(entry.file, part)
        return entry

    def _record(self, item: Any, record: type[_Record], part: str) -> _Record:
        expected = {known.name for known in fields(record)}
        if not isinstance(item, dict) or item.keys() != expected or not all(isinstance(v, str) for v in item.values()):
            raise _refusal(self._path, f"is damaged: `{part}` needs the texts {', '.join(sorted(expected))}")
        return record(**item)

    def _safe(self, path: str, part: str) -> str:
        try:
            safe = safe_path(path)
        except UsageError as error:
            raise _refusal(self._path, f"was tampered with: `{part}` has an {error.message}") from error
        if safe != path or PurePosixPath(safe).is_absolute():
            raise _refusal(self._path, f"was tampered with: `{part}` has the odd path {path!r}")
        return safe

    def _typed(self, item: Mapping[str, Any], part: str, kind: type[_Value]) -> _Value:
        value = item.get(part)
        if not isinstance(value, kind):
            raise _refusal(self._path, f"is damaged: `{part}` {_WRONG_TYPES[kind]}")
        return value

    def _texts(self, value: Any, part: str) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise _refusal(self._path, f"is damaged: `{part}` is not a list of texts")
        return tuple(value)
