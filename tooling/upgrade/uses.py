"""Contract between `usage`, which reads the repository, and those who judge: what a piece of code does with a package.

Uses do not depend on a version. What a use touches is an access path, and what must hold for it to be reached are
conditions (`tooling.python`), so that the same use can be followed through the old and through the new release
(`upstream`). Everything is frozen and hashable.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tooling.python.access_paths import AccessPath, ClientClass, Name
    from tooling.python.conditions import Condition
    from tooling.python.symbols.symbol import Signature

# -------------------------------------------------------------------------------------------------------------- places


@dataclass(frozen=True, slots=True, order=True)
class SourcePlace:
    """A range of a file of the repository. Lines are 1-based, columns 0-based UTF-8 bytes, as in `ast`."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class TryPart:
    """One `try` statement around a use, or around what bound the value that is used. Uses of one `number` in one file
    belong to one statement."""

    number: int
    part: str
    """"body", "handler", or "else": what is run only after the body worked."""
    catches: frozenset[str]
    """Names of builtin exceptions caught: of all handlers for a body, of this handler for a handler. Bare: {"*"}.
    Exceptions of packages appear by their dotted name."""
    handler: int = -1
    """Index of the handler, for part "handler"."""
    reraises: bool = False
    """Whether every handler that catches ImportError or AttributeError or TypeError raises again, whatever it does."""
    path: str = ""
    """The file it belongs to, if it is not the one of the use."""


# ---------------------------------------------------------------------------------------------------------------- uses


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a call."""

    place: SourcePlace
    name: str | None
    """Keyword; None for a positional one."""
    position: int
    """Of a positional one; -1 for keywords."""
    literal: str | None = None
    """Source of a literal value."""
    from_mapping: bool = False
    """A keyword known from a literal dict that was unpacked, or one of several values that stand at its place."""
    function: ClientMethod | None = None
    """Shape of a function of the repository that is passed."""


@dataclass(frozen=True, slots=True)
class PassedArguments:
    """How something is called. `self` and `cls` are not among them."""

    given: tuple[Argument, ...] = ()
    has_star: bool = False
    """`*x` of unknown length: positional ones may be more."""
    has_double_star: bool = False
    """`**x` of unknown content: keywords may be more."""
    partial: bool = False
    """functools.partial and the like: arguments may come later, so none is missing."""


@dataclass(frozen=True, slots=True)
class ClientMethod:
    """A method that may override one of a base class, or a function that is passed on."""

    signature: Signature
    binding: str
    """"method", "classmethod", "staticmethod" or "property"."""
    is_async: bool
    decorated: bool
    """By something other than the bindings: the signature may differ."""
    passes_on: bool = False
    """Whether it gives what the method of the base class gives, whatever that is."""
    called: bool = False
    """Whether its file calls a method of that name."""


class Action(StrEnum):
    """What a use does with its target."""

    IMPORT = "import"
    """`import a.b`, `from a import b`; the place is that of the name."""
    STAR_IMPORT = "star-import"
    """`from a import *`; target is the module. Names that only it supplies are uses of their own."""
    READ = "read"
    """A name or attribute is read and nothing below applies. Chains give one use for each link that is ours."""
    CALL = "call"
    """Also partial, Thread(target=...), .remote(...), to_thread: see `PassedArguments.partial`."""
    SUBCLASS = "subclass"
    """Named as a base. Keywords of the class statement are in `arguments`."""
    OVERRIDE = "override"
    """A method in a subclass; target is Attribute(the base, its name), `method` its shape, the place its `def` line."""
    DECORATE = "decorate"
    """Used as a decorator without call."""
    EXCEPT = "except"
    ISINSTANCE = "isinstance"
    """Also issubclass."""
    ANNOTATION = "annotation"
    ASSIGN = "assign"
    """Assigned to an attribute of a module, class or instance of ours: a monkey patch if it is a module or class."""
    DELETE = "delete"
    STRING = "string"
    """A dotted string that names something: import_module, mock.patch, _target_."""
    PROBE = "probe"
    """hasattr, or getattr with a default: can never fail."""
    UNPACK = "unpack"
    """`a, b = value`; `count` says into how many."""
    SUBSCRIPT = "subscript"
    ITERATE = "iterate"
    """Looped over; `asynchronous` by `awaited`."""
    AWAIT = "await"
    ENTER = "enter"
    OPERATE = "operate"
    """Anything else that a special method does: `operation` names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One thing that one place does with a package."""

    action: Action
    place: SourcePlace
    target: AccessPath
    package: str
    """Import name it belongs to: the first part(s) of the dotted path, as policy names it."""
    arguments: PassedArguments | None = None
    method: ClientMethod | None = None
    awaited: bool | None = None
    """Of a call: True if awaited on the spot, False if a bare statement or used as a value at once, None if it is
    passed on."""
    count: int | None = None
    owner: str = ""
    """Of SUBCLASS: dotted path of the class, see `Extension`."""
    operation: str = ""
    """Of OPERATE: the special method that is asked first, `__len__` for `len(x)`."""
    other: str = ""
    """Of an operation of two values: the type of the other one if that is a literal, "same" if both come about in one
    way, "open" if the other one may do it too, "left" if that stands on the left and is asked first."""
    evaluated: bool = True
    """False under TYPE_CHECKING, in string annotations, and in annotations under `from __future__ import annotations`:
    never run."""
    conditions: tuple[Condition, ...] = ()
    """All must hold for the place to be reached, outermost first. Negated for `else` branches and after early exits."""
    attempts: tuple[TryPart, ...] = ()
    """Outermost first."""
    switches: tuple[Name, ...] = ()
    """For a fallback that sets a name to None instead: what is switched off when this fails."""
    symbol_text: str = ""
    """The expression's source, shortened: for reports and checklists."""
    function: str = ""
    """Qualified name of the function or class around, for checklists; "" at module level."""
    private: bool = False
    """Whether a private part (`_x`) of the package is named."""
    evidence: str = ""
    """How the type of what is used is known where the code does not say it: no ground for more than a warning."""


@dataclass(frozen=True, slots=True)
class DeadGuard:
    """A condition that is worth watching: `guard-dead` is judged against the new manifest's range."""

    place: SourcePlace
    condition: Condition


@dataclass(frozen=True, slots=True)
class Extension:
    """What a class of the repository adds to packages' classes."""

    owner: ClientClass
    names: frozenset[str]
    """What it has of the repository's own, its bases there included."""
    heirs: frozenset[str]
    """What classes of the repository that derive from it have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileUses:
    """All uses in one file."""

    path: str
    digest: str
    """Of the content."""
    uses: tuple[Use, ...]
    guards: tuple[DeadGuard, ...] = ()
    extensions: tuple[Extension, ...] = ()
    apart: bool = False
    """Whether it imports nothing of the repository, and nothing there imports it: what it sets is seen by itself."""
    loading: tuple[tuple[str, int], ...] = ()
    """Functions that patch something and are called when a module is loaded, and from which line on; 0 for another."""
    problem: str = ""
    """Why the file could not be read (syntax of another Python, not text); the audit says so and goes on."""
