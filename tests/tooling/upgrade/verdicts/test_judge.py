"""Uses written by hand, judged against two small releases: what is said, and the evidence for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tooling.python.access_paths import Attribute, Called, Either, InstanceOf, Name, Unknown
from tooling.python.conditions import CompareVersion, HasName, Not, Undecided, VersionSource
from tooling.python.symbols.symbol import Parameter, Signature
from tooling.python.symbols.tree import SymbolTree
from tooling.upgrade.findings import AuditSeverity, FindingKind, Replacement
from tooling.upgrade.replacements.explain import Explainer
from tooling.upgrade.sources.folder import memory_release
from tooling.upgrade.uses import (
    Action,
    Argument,
    ClientMethod,
    FileUses,
    PassedArguments,
    SourcePlace,
    TryPart,
    Use,
)
from tooling.upgrade.verdicts import ReleasePair, audit
from tooling.upgrade.verdicts.case import JudgedUse
from tooling.upgrade.verdicts.comparison import JudgeContext
from tooling.upgrade.verdicts.judge import judge

OLD = """
class LLM:
    def __init__(self, model, swap=4): ...
    def generate(self, prompts, *, use_tqdm=True): ...
    def encode(self, prompts): ...
class Engine:
    def encode(self, prompts): ...
def gone(): ...
def same(a, b=1): ...
def unknown(): return compute()
"""
NEW = """
class LLM:
    def __init__(self, model): ...
    def generate(self, prompts, *, use_tqdm=False): ...
class Engine:
    def encode(self, prompts): ...
def same(a, b=1): ...
def unknown(): return compute()
"""


def compared(old: str = OLD, new: str = NEW) -> ReleasePair:
    return ReleasePair(
        "up",
        SymbolTree(memory_release({"up/__init__.py": old}, "up", "1.0")),
        SymbolTree(memory_release({"up/__init__.py": new}, "up", "2.0")),
    )


def at(line: int, column: int = 0) -> SourcePlace:
    return SourcePlace("client.py", line, column, line, column + 1)


def use(action: Action, target, line: int = 1, *, text: str = "", **more) -> Use:
    return Use(action=action, place=at(line), target=target, package="up", symbol_text=text, **more)


def call(target, *positional: int, line: int = 1, **named: int) -> Use:
    given = [Argument(at(line, 10 + index), None, index) for index in range(len(positional))]
    given += [Argument(at(line, 20 + index), name, -1) for index, name in enumerate(named)]
    return use(Action.CALL, target, line, arguments=PassedArguments(tuple(given)))


def judged(one: Use, pair: ReleasePair | None = None, **context):
    pair = pair or compared()
    return judge(JudgedUse(one, pair.old, pair.new, JudgeContext("up", (pair,), **context)))


def test_a_name_that_is_gone_is_breaking_and_shows_where_it_was() -> None:
    (finding,) = judged(use(Action.IMPORT, Name("up.gone"), 3))
    assert (finding.kind, finding.severity, finding.line) == (FindingKind.REMOVED, AuditSeverity.BREAKING, 3)
    assert finding.symbol == "up.gone"
    assert finding.old.signature == "def gone()"
    assert (finding.old.file, finding.old.line) == ("up/__init__.py", 8)
    assert "up.gone is gone" in finding.message


def test_what_explains_an_absence_decides_kind_and_replacement() -> None:
    found = Replacement("up.same", "same body", certain=True)
    (finding,) = judged(use(Action.IMPORT, Name("up.gone")), explain=lambda *_: (FindingKind.RENAMED, found))
    assert finding.kind is FindingKind.RENAMED
    assert finding.replacement == found
    assert finding.fixable
    assert finding.new.signature == "def same(a, b=1)"


def test_an_argument_is_the_place_of_what_is_said_of_it() -> None:
    (finding,) = judged(call(Name("up.LLM"), 1, swap=2, line=5))
    assert (finding.kind, finding.parameter, finding.column) == (FindingKind.PARAM_REMOVED, "swap", 20)
    assert finding.old.signature == "class LLM(model, swap=4)"
    assert finding.new.signature == "class LLM(model)"


def test_a_method_of_an_instance_is_named_by_its_class() -> None:
    (finding,) = judged(call(Attribute(Called(Name("up.LLM")), "encode"), 1))
    assert (finding.kind, finding.symbol) == (FindingKind.REMOVED, "up.LLM.encode")


def test_a_default_that_changed_is_a_warning_for_those_who_rely_on_it() -> None:
    generate = Attribute(InstanceOf(Name("up.LLM")), "generate")
    (finding,) = judged(call(generate, 1))
    assert (finding.kind, finding.severity) == (FindingKind.DEFAULT_CHANGED, AuditSeverity.WARNING)
    assert judged(call(generate, 1, use_tqdm=1)) == []


def test_nothing_is_said_of_what_did_not_change() -> None:
    assert judged(call(Name("up.same"), 1, b=2)) == []
    assert judged(use(Action.IMPORT, Name("up.same"))) == []


def test_a_call_that_never_fitted_is_not_the_new_versions_fault() -> None:
    assert judged(call(Name("up.same"), 1, 2, 3)) == []
    assert judged(call(Name("up.same"), 1, nothing=3)) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a, b", "x, y"),
        ("a, x=1, y=2", "a, p=1, q=2"),
        ("x: int, y: str", "p: int, q: str"),
        ("x: Optional[int] = None, y=None", "p: int | None = None, q=None"),
    ],
)
def test_parameters_of_other_names_at_the_old_places_take_what_is_passed_by_position(old: str, new: str) -> None:
    assert judged(call(Name("up.f"), 0, 1), compared(f"def f({old}): ...", f"def f({new}): ...")) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [("x: int, y", "p: str, y"), ("x=1, y=2", "p='', y=2"), ("x=1, y=2", "y=2, z=3"), ("x=1, y=2", "p=1, y=2, z=3")],
)
def test_a_parameter_of_another_type_or_default_or_among_more_is_another_one(old: str, new: str) -> None:
    assert judged(call(Name("up.f"), 0, 1), compared(f"def f({old}): ...", f"def f({new}): ..."))


MOVED = [
    ({"__init__": "from up.a import f", "a": "def f(size=1):\n    return size\n"},
     {"__init__": "from up.b import f", "b": "def f(length=1):\n    return length\n"}, Name("up.f")),
    ({"__init__": "class A:\n    def f(self, size=1): ...\nclass B(A): ..."},
     {"__init__": "class A: ...\nclass B(A):\n    def f(self, length=1): ..."}, Attribute(Called(Name("up.B")), "f")),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "target"), MOVED)
def test_a_definition_elsewhere_behind_the_same_name_keeps_its_renames(old, new, target) -> None:
    trees = [
        SymbolTree(memory_release({f"up/{name}.py": text for name, text in files.items()}, "up", version))
        for files, version in ((old, "1.0"), (new, "2.0"))
    ]
    pair = ReleasePair("up", *trees)
    assert judged(call(target, 3), pair, explain=Explainer()) == []
    (finding,) = judged(call(target, size=3), pair, explain=Explainer())
    assert (finding.kind, finding.replacement.text) == (FindingKind.PARAM_RENAMED, "length")


@pytest.mark.parametrize("hook", ["__getattr__", "__getattribute__"])
def test_what_only_a_hook_may_still_give_is_a_warning(hook: str) -> None:
    new = f"class A:\n    def {hook}(self, name): raise AttributeError(name)\n"
    pair = compared(f"{new}    def f(self): ...\n", new)
    (finding,) = judged(call(Attribute(Called(Name("up.A")), "f")), pair)
    assert (finding.severity, "only its __getattr" in finding.message) == (AuditSeverity.WARNING, True)


def test_a_test_that_takes_too_long_to_decide_is_not_known() -> None:
    test = "a"
    for _ in range(20):
        test = f"(({test}) and a or b)"
    body = f"def f(a=0, b=1):\n    if {test}:\n        return b\n"
    pair = compared(body.replace("b=1", "b=2"), body)
    assert [each.kind for each in judged(call(Name("up.f")), pair)] == [FindingKind.DEFAULT_CHANGED]
    loops = " ".join(f"for {name} in [{'1, ' * 70}]" for name in "xyz")
    endless = f"def f(a=0, b=1):\n    if [1 {loops}]:\n        return b\n"
    assert len(judged(call(Name("up.f")), compared(endless.replace("b=1", "b=2"), endless))) == 1


def test_one_of_two_types_is_a_warning_and_both_are_breaking() -> None:
    either = Either((Called(Name("up.LLM")), Called(Name("up.Engine"))))
    (finding,) = judged(call(Attribute(either, "encode"), 1))
    assert finding.severity is AuditSeverity.WARNING
    both = Either((Called(Name("up.LLM")), Called(Name("up.LLM"))))
    (finding,) = judged(call(Attribute(both, "encode"), 1))
    assert finding.severity is AuditSeverity.BREAKING


def test_an_unknown_receiver_is_never_judged() -> None:
    assert judged(call(Attribute(Unknown(), "encode"), 1)) == []


def test_what_is_open_in_new_is_not_breaking() -> None:
    pair = compared(NEW + "def extra(): ...\n", NEW + "def __getattr__(name):\n    return compute(name)\n")
    assert judged(use(Action.IMPORT, Name("up.extra")), pair) == []


def test_a_probe_never_fails() -> None:
    assert judged(use(Action.PROBE, Name("up.gone"))) == []


def test_unevaluated_code_breaks_for_type_checkers_only() -> None:
    (finding,) = judged(use(Action.IMPORT, Name("up.gone"), evaluated=False))
    assert finding.severity is AuditSeverity.WARNING


def new_version(literal: str) -> CompareVersion:
    return CompareVersion(VersionSource.MODULE, "up", ">=", literal)


def test_only_what_the_new_version_reaches_is_judged() -> None:
    gone = use(Action.READ, Name("up.gone"), text="up.gone")
    assert judged(replace(gone, conditions=(Not(new_version("2.0")),))) == []
    assert judged(replace(gone, conditions=(HasName(Name("up"), "gone"),))) == []
    (finding,) = judged(replace(gone, conditions=(Not(new_version("3.0")),)))
    assert finding.severity is AuditSeverity.BREAKING
    assert finding.guard == "not (up >= 3.0)"


def test_an_undecided_condition_hides_nothing() -> None:
    (finding,) = judged(use(Action.READ, Name("up.gone"), conditions=(Undecided("sys.platform"),)))
    assert (finding.severity, finding.guard) == (AuditSeverity.BREAKING, "sys.platform")


def test_code_for_the_new_version_is_judged_by_the_new_version_alone() -> None:
    (finding,) = judged(use(Action.READ, Name("up.never"), conditions=(new_version("2.0"),)))
    assert (finding.kind, finding.severity) == (FindingKind.REMOVED, AuditSeverity.BREAKING)
    assert judged(use(Action.READ, Name("up.never"))) == []


BODY = TryPart(1, "body", frozenset({"ImportError"}))
HANDLER = TryPart(1, "handler", frozenset({"ImportError"}), handler=0)


def audited(*uses: Use, pair: ReleasePair | None = None, **more):
    class Index:
        files = (FileUses(path="client.py", digest="", uses=uses),)

    (result,) = audit(Index(), [pair or compared()], **more)
    return result


def test_a_fallback_that_works_makes_a_failure_harmless() -> None:
    tried = use(Action.IMPORT, Name("up.gone"), 2, attempts=(BODY,))
    fallback = use(Action.IMPORT, Name("up.same"), 4, attempts=(HANDLER,))
    assert audited(tried, fallback).findings == ()


def test_the_last_resort_is_what_breaks() -> None:
    tried = use(Action.IMPORT, Name("up.gone"), 2, attempts=(BODY,))
    fallback = use(Action.READ, Name("up.LLM.encode"), 4, text="up.LLM.encode", attempts=(HANDLER,))
    (finding,) = audited(tried, fallback).findings
    assert (finding.line, finding.severity) == (4, AuditSeverity.BREAKING)


def test_a_handler_that_is_not_reached_is_not_judged() -> None:
    tried = use(Action.IMPORT, Name("up.same"), 2, attempts=(BODY,))
    fallback = use(Action.IMPORT, Name("up.gone"), 4, attempts=(HANDLER,))
    assert audited(tried, fallback).findings == ()


def test_a_switched_off_feature_is_a_warning_that_names_it() -> None:
    tried = use(Action.IMPORT, Name("up.gone"), 2, attempts=(BODY,), switches=(Name("client.gone"),))
    (finding,) = audited(tried).findings
    assert finding.severity is AuditSeverity.WARNING
    assert "client.gone is switched off" in finding.message
    assert finding.guard == "try ... except ImportError"


def test_a_handler_that_raises_again_is_no_fallback() -> None:
    tried = use(Action.IMPORT, Name("up.gone"), 2, attempts=(replace(BODY, reraises=True),))
    assert [each.severity for each in audited(tried).findings] == [AuditSeverity.BREAKING]


def test_handling_any_error_of_a_call_is_no_fallback() -> None:
    anything = TryPart(1, "body", frozenset({"Exception"}))
    (finding,) = audited(replace(call(Name("up.LLM"), 1, swap=2), attempts=(anything,))).findings
    assert finding.severity is AuditSeverity.BREAKING


def test_uses_of_a_gone_import_say_where_it_was_imported() -> None:
    imported = use(Action.IMPORT, Name("up.gone"), 1, text="gone")
    called = replace(call(Name("up.gone"), line=7), symbol_text="gone")
    first, second = audited(imported, called).findings
    assert (first.line, second.line) == (1, 7)
    assert "imported in line 1" in second.message


def test_uses_are_no_worse_than_their_import() -> None:
    imported = use(Action.IMPORT, Name("up.gone"), 1, text="gone", attempts=(BODY,))
    called = replace(call(Name("up.gone"), line=7), symbol_text="gone")
    assert [each.line for each in audited(imported, called).findings if each.severity is AuditSeverity.BREAKING] == []


def test_links_of_one_expression_give_one_finding() -> None:
    inner = use(Action.READ, Name("up.gone"), 3, text="up.gone")
    outer = use(Action.CALL, Attribute(Name("up.gone"), "more"), 3, text="up.gone.more", arguments=PassedArguments())
    assert len(audited(inner, outer).findings) == 1


def test_what_cannot_be_seen_is_counted() -> None:
    result = audited(
        use(Action.IMPORT, Name("up.same"), 1),
        use(Action.IMPORT, Name("up.never"), 2),
        use(Action.READ, Attribute(Called(Name("up.unknown")), "x"), 3),
        use(Action.IMPORT, Name("other.thing"), 4),
    )
    assert (result.uses, result.judged, result.unresolved) == (3, 1, 1)
    assert [(each.count, each.example) for each in result.open] == [(1, "client.py:3")]
    (finding,) = result.findings
    assert (finding.kind, finding.severity) == (FindingKind.UNRESOLVED, AuditSeverity.INFO)


HOOKS_OLD = """
class Trainer:
    def loss(self, model): ...
    def helper(self): ...
    def run(self): self.loss(1)
"""
HOOKS_NEW = """
class Trainer:
    def loss(self, model, count=None): ...
    def run(self): self.loss(1, count=2)
"""


def override(name: str, *parameters: str, **more) -> Use:
    method = ClientMethod(
        Signature(tuple(Parameter(each, "positional") for each in parameters)),
        binding="method",
        is_async=False,
        decorated=more.get("decorated", False),
        called=more.get("called", False),
    )
    return use(Action.OVERRIDE, Attribute(Name("up.Trainer"), name), 2, method=method)


def test_an_override_that_drifted_shows_the_call_that_does_not_fit() -> None:
    (finding,) = judged(override("loss", "model"), compared(HOOKS_OLD, HOOKS_NEW))
    assert (finding.kind, finding.severity) == (FindingKind.OVERRIDE_DRIFT, AuditSeverity.BREAKING)
    assert "up/__init__.py:4 calls self.loss(1, count=2)" in finding.message


def test_a_decorated_override_may_take_more_than_it_shows() -> None:
    (finding,) = judged(override("loss", "model", decorated=True), compared(HOOKS_OLD, HOOKS_NEW))
    assert finding.severity is AuditSeverity.WARNING


@pytest.mark.parametrize(("called", "severities"), [(True, []), (False, [AuditSeverity.WARNING])])
def test_an_override_of_a_lost_helper_that_only_the_repository_calls_is_as_before(called, severities) -> None:
    found = judged(override("helper", called=called), compared(HOOKS_OLD, HOOKS_NEW))
    assert [finding.severity for finding in found] == severities


@pytest.mark.parametrize(
    ("still", "severity"),
    [("", AuditSeverity.BREAKING), ("def help(other): other.helper()", AuditSeverity.WARNING)],
)
def test_an_override_of_a_lost_helper_that_others_called_is_dead_unless_something_calls_one(still, severity) -> None:
    old = f"{HOOKS_OLD}\ndef run(trainer): trainer.helper()\n"
    (finding,) = judged(override("helper"), compared(old, f"{HOOKS_NEW}\n{still}\n"))
    assert (finding.kind, finding.severity) == (FindingKind.OVERRIDE_DRIFT, severity)


@pytest.mark.parametrize("name", ["__init__", "__new__"])
def test_constructors_are_free(name) -> None:
    old, new = "class Trainer:\n    def {}(self): ...\n", "class Trainer:\n    def {}(self, a): ...\n"
    assert judged(override(name), compared(old.format(name), new.format(name))) == []


def test_code_that_is_nested_too_deep_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = compared()

    def deep(_access_path):
        raise RecursionError

    monkeypatch.setattr(pair.new, "follow", deep)
    result = audited(call(Attribute(Called(Name("up.LLM")), "encode"), 1), pair=pair)
    assert result.findings == ()
    assert [each.why for each in result.open] == ["nested too deep to be followed"]


def test_equal_releases_differ_in_nothing() -> None:
    pair = compared(OLD, OLD)
    uses = (call(Attribute(Called(Name("up.LLM")), "generate"), 1), use(Action.IMPORT, Name("up.gone"), 2))
    assert audited(*uses, pair=pair).findings == ()


def test_what_stands_on_a_moved_name_is_judged_at_its_new_place() -> None:
    old = SymbolTree(memory_release({"up/__init__.py": "", "up/a.py": OLD}, "up", "1.0"))
    new = SymbolTree(memory_release({"up/__init__.py": "", "up/b.py": NEW}, "up", "2.0"))
    pair = ReleasePair("up", old, new)
    moved = Replacement("up.b.LLM", "only home", certain=True)
    one = call(Attribute(Called(Name("up.a.LLM")), "encode"), 1)
    assert judged(one, pair) == []
    (finding,) = judged(
        one, pair, explain=lambda absent, *_: (FindingKind.MOVED, moved) if absent.name == "a" else None
    )
    assert (finding.kind, finding.symbol) == (FindingKind.REMOVED, "up.a.LLM.encode")


@pytest.mark.parametrize(
    ("fast", "found"),
    [({}, 1), ({"up/fast.so": b""}, 0), ({"up/fast.so": b"", "up/fast.py": ""}, 1), ({"up/other.so": b""}, 1)],
)
def test_a_keyword_is_not_forgotten_that_a_compiled_module_may_take(fast, found) -> None:
    taking = "class Model:\n    def forward(self, ids, head_mask_of_layers=None): ..."
    old = SymbolTree(memory_release({"up/__init__.py": OLD, "up/fast.py": taking}, "up", "1.0"))
    new = SymbolTree(memory_release({"up/__init__.py": NEW, **fast}, "up", "2.0"))
    one = call(Called(Name("up.unknown")), head_mask_of_layers=1)
    assert len(judged(one, ReleasePair("up", old, new))) == found
