"""Edits of one file: what is certain is written, everything else stays byte for byte."""

from dataclasses import replace

import pytest

from tooling.upgrade.findings import AuditFinding, AuditSeverity, FindingKind, Replacement
from tooling.upgrade.fixes.files import Fixed, fix_file


def finding(
    source: str,
    mark: str,
    kind: FindingKind,
    symbol: str,
    text: str,
    *,
    parameter: str = "",
    occurrence: int = 0,
) -> AuditFinding:
    """A finding at the given occurrence of `mark` in the source."""
    data, at = source.encode(), -1
    for _ in range(occurrence + 1):
        at = data.index(mark.encode(), at + 1)
    line = data.count(b"\n", 0, at) + 1
    column = at - (data.rfind(b"\n", 0, at) + 1)
    return AuditFinding(
        path="client.py",
        line=line,
        column=column,
        end_line=line,
        kind=kind,
        severity=AuditSeverity.BREAKING,
        confidence=1.0,
        distribution="up",
        symbol=symbol,
        parameter=parameter,
        message="",
        replacement=Replacement(text, "test", certain=True),
        fixable=True,
    )


def moved(source: str, mark: str, symbol: str, text: str, occurrence: int = 0) -> AuditFinding:
    return finding(source, mark, FindingKind.MOVED, symbol, text, occurrence=occurrence)


def fix(source: str, *findings: AuditFinding, exported: bool = False) -> Fixed:
    return fix_file("client.py", source.encode(), findings, exported=lambda _: exported)


def test_the_only_name_of_a_statement_keeps_the_statement() -> None:
    source = "from up.old import Thing  # why\n\nThing()\n"
    done = fix(source, moved(source, "Thing", "up.old.Thing", "up.new.home.Thing"))
    assert done.data == b"from up.new.home import Thing  # why\n\nThing()\n"
    assert not done.left


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_one_of_several_names_gets_a_statement_of_its_own(newline: str) -> None:
    source = newline.join(["if True:", "    from up.old import first, Thing, last", "    use(first, Thing, last)", ""])
    done = fix(source, moved(source, "Thing", "up.old.Thing", "up.new.Thing"))
    expected = ["if True:", "    from up.old import first, last", "    from up.new import Thing"]
    assert done.data.decode() == newline.join([*expected, "    use(first, Thing, last)", ""])


def test_the_last_of_several_lines_goes_without_a_trace() -> None:
    source = "from up.old import (\n    first,\n    Thing,\n)\n"
    done = fix(source, moved(source, "Thing", "up.old.Thing", "up.new.Thing"))
    assert done.data == b"from up.old import (\n    first,\n)\nfrom up.new import Thing\n"


def test_a_middle_line_goes_without_a_trace() -> None:
    source = "from up.old import (\n    first,\n    Thing,\n    last,  # kept\n)\n"
    done = fix(source, moved(source, "Thing", "up.old.Thing", "up.new.Thing"))
    assert done.data == b"from up.old import (\n    first,\n    last,  # kept\n)\nfrom up.new import Thing\n"


def test_two_names_that_go_to_one_place_share_a_statement() -> None:
    source = "from up.old import a, b, c\n"
    done = fix(source, moved(source, "a,", "up.old.a", "up.new.a"), moved(source, "c\n", "up.old.c", "up.new.c"))
    assert done.data == b"from up.old import b\nfrom up.new import a, c\n"


def test_two_places_that_all_names_go_to() -> None:
    source = "from up.old import a, c\n"
    done = fix(source, moved(source, "a,", "up.old.a", "up.x.a"), moved(source, "c\n", "up.old.c", "up.y.c"))
    assert done.data == b"from up.x import a\nfrom up.y import c\n"


def test_a_comment_beside_a_leaving_name_is_never_lost() -> None:
    source = "from up.old import (\n    Thing,  # because\n    last,\n)\n"
    done = fix(source, moved(source, "Thing", "up.old.Thing", "up.new.Thing"))
    assert done.data.decode() == source
    assert "comment" in done.left[0][1]


def test_an_alias_keeps_its_name() -> None:
    source = "from up.old import Thing as T\nT()\n"
    done = fix(source, moved(source, "Thing", "up.old.Thing", "up.new.Other"))
    assert done.data == b"from up.new import Other as T\nT()\n"


def test_a_renamed_name_is_renamed_where_the_import_is_used_and_nowhere_else() -> None:
    source = (
        "from up import Old\n\n\ndef f(x: Old) -> None:\n    Old.go('Old')\n\n\n"
        "def g(Old: int) -> int:\n    return Old\n"
    )
    done = fix(source, finding(source, "Old", FindingKind.RENAMED, "up.Old", "up.New"))
    assert done.data.decode() == (
        "from up import New\n\n\ndef f(x: New) -> None:\n    New.go('Old')\n\n\n"
        "def g(Old: int) -> int:\n    return Old\n"
    )


def test_findings_on_uses_of_a_mended_import_are_done_with_it() -> None:
    source = "from up.old import Thing\nThing()\n"
    use = moved(source, "Thing()", "up.old.Thing", "up.new.Thing")
    done = fix(source, moved(source, "Thing\n", "up.old.Thing", "up.new.Thing"), use)
    assert use in done.done
    assert done.data == b"from up.new import Thing\nThing()\n"


@pytest.mark.parametrize("ending", ["", "__all__ = ['Old']\n"])
def test_a_name_that_others_import_from_here_keeps_its_name(ending: str) -> None:
    source = "from up import Old\nOld()\n" + ending
    done = fix(source, finding(source, "Old", FindingKind.RENAMED, "up.Old", "up.New"), exported=not ending)
    assert done.data.decode() == "from up import New as Old\nOld()\n" + ending


def test_a_new_name_that_is_taken_is_imported_under_the_old_one() -> None:
    source = "from up import Old\nNew = 1\nOld(New)\n"
    done = fix(source, finding(source, "Old", FindingKind.RENAMED, "up.Old", "up.New"))
    assert done.data == b"from up import New as Old\nNew = 1\nOld(New)\n"


def test_a_name_with_two_bindings_keeps_its_name() -> None:
    source = "try:\n    from up import Old\nexcept ImportError:\n    Old = None\nOld\n"
    done = fix(source, finding(source, "Old", FindingKind.RENAMED, "up.Old", "up.New"))
    assert b"from up import New as Old\n" in done.data


def test_a_module_with_an_alias_moves() -> None:
    source = "import up.old as o\no.f()\n"
    done = fix(source, moved(source, "up.old", "up.old", "up.new.place"))
    assert done.data == b"import up.new.place as o\no.f()\n"


def test_a_module_without_an_alias_is_left_to_people() -> None:
    source = "import up.old\nup.old.f()\n"
    done = fix(source, moved(source, "up.old", "up.old", "up.new"))
    assert done.data.decode() == source
    assert "every use" in done.left[0][1]


def test_a_relative_import_is_left_alone() -> None:
    source = "from .compat import Thing\n"
    done = fix(source, moved(source, "Thing", "up.old.Thing", "up.new.Thing"))
    assert done.data.decode() == source


def test_a_keyword_is_renamed_also_behind_wide_characters() -> None:
    source = "x = '\N{GRINNING FACE}é'; up.f(a, old=1)  # old=1\n"
    done = fix(source, finding(source, "old=1", FindingKind.PARAM_RENAMED, "up.f", "new", parameter="old"))
    assert done.data.decode() == "x = '\N{GRINNING FACE}é'; up.f(a, new=1)  # old=1\n"


def test_a_keyword_whose_new_name_is_passed_already_is_left_alone() -> None:
    source = "up.f(old=1, new=2)\n"
    done = fix(source, finding(source, "old", FindingKind.PARAM_RENAMED, "up.f", "new", parameter="old"))
    assert done.data.decode() == source
    assert "already" in done.left[0][1]


def test_positional_arguments_get_their_keywords() -> None:
    source = "up.f(a, b, c)\n"
    second = finding(source, "b", FindingKind.PARAM_KWONLY, "up.f", "size", parameter="size")
    third = finding(source, "c)", FindingKind.PARAM_KWONLY, "up.f", "rest", parameter="rest")
    assert fix(source, second, third).data == b"up.f(a, size=b, rest=c)\n"


def test_no_argument_is_named_when_one_behind_it_cannot_be() -> None:
    source = "up.f(a, b, c)\n"
    done = fix(source, finding(source, "b", FindingKind.PARAM_KWONLY, "up.f", "size", parameter="size"))
    assert done.data.decode() == source
    assert "behind it" in done.left[0][1]


def test_a_member_is_renamed_on_its_own_line_only() -> None:
    source = "llm = up.LLM()\nllm.old(1).x\nother.old(1)\n"
    done = fix(source, finding(source, "llm.old", FindingKind.RENAMED, "up.LLM.old", "up.LLM.new"))
    assert done.data == b"llm = up.LLM()\nllm.new(1).x\nother.old(1)\n"


def test_a_member_that_moved_to_another_module_is_left_to_people() -> None:
    source = "up.utils.thing()\n"
    done = fix(source, moved(source, "up.utils.thing", "up.utils.thing", "up.other.thing"))
    assert done.data.decode() == source


@pytest.mark.parametrize(
    ("before", "text", "after"), [("x.size + 1", "size()", "x.size() + 1"), ("x.size()", "size", "x.size")]
)
def test_a_property_and_a_method_change_places(before: str, text: str, after: str) -> None:
    done = fix(before + "\n", finding(before, "x.size", FindingKind.KIND_CHANGED, "up.X.size", text))
    assert done.data.decode() == after + "\n"


def test_what_is_not_fixable_is_not_touched() -> None:
    source = "from up.old import Thing\n"
    done = fix(source, replace(moved(source, "Thing", "up.old.Thing", "up.new.Thing"), fixable=False))
    assert (done.data.decode(), done.done, done.left) == (source, (), ())


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfe",
        b"def f(:\n",
        "\ufefffrom up.old import Thing\n".encode(),
        b"# coding: latin-1\nfrom up.old import Thing\n",
    ],
)
def test_a_file_that_cannot_be_edited_comes_back_as_it_was(data: bytes) -> None:
    known = moved("from up.old import Thing\n", "Thing", "up.old.Thing", "up.new.Thing")
    done = fix_file("client.py", data, [known])
    assert done.data == data
    assert len(done.left) == 1


@pytest.mark.parametrize(
    "source", ['import os; import up.a\nup.a.f("text")\n', 'import up.a\ndown = 3\nup.a.f("text", f"{up.a.f}")\n']
)
def test_a_string_beside_code_does_not_make_the_code_text(source: str) -> None:
    new = "up.b.f" if "os" in source else "down.b.f"
    done = fix(source, moved(source, "up.a.f", "up.a.f", new))
    assert done.data.decode() == source
    assert not done.done


def test_a_path_in_a_string_is_replaced_beside_code_that_names_it_too() -> None:
    source = 'import up.a\nmock.patch("up.a.f", up.a.f)\n'
    done = fix(source, moved(source, '"up.a.f"', "up.a.f", "up.b.f"))
    assert done.data.decode() == 'import up.a\nmock.patch("up.b.f", up.a.f)\n'


AWAITED = [
    ("async def g():\n    x = up.load()\n", "async def g():\n    x = await up.load()\n"),
    ("async def g():\n    (up.load())\n", "async def g():\n    (await up.load())\n"),
    ("async def g(x=up.load()):\n    pass\n", ""),
    ("async def g():\n    class A:\n        x = up.load()\n", ""),
    ("@up.load()\nasync def g():\n    pass\n", ""),
    ("async def g():\n    async def h(x=up.load()):\n        pass\n", "x=(await up.load())"),
]


@pytest.mark.parametrize(("source", "after"), AWAITED)
def test_a_call_is_awaited_only_where_that_compiles(source: str, after: str) -> None:
    done = fix(source, finding(source, "up.load", FindingKind.ASYNC_CHANGED, "up.load", "await load()"))
    assert after in done.data.decode()
    assert bool(done.done) == bool(after)
    if not after:
        assert done.data.decode() == source


TURNED = [
    (
        "    for x in up.load():\n        pass\n",
        "async for ... in up.load",
        "    async for x in up.load():\n        pass\n",
    ),
    ("    y = [x for x in up.load()]\n", "async for ... in up.load", "    y = [x async for x in up.load()]\n"),
    ("    async for x in up.load():\n        pass\n", "for ... in up.load", "    for x in up.load():\n        pass\n"),
    ("    y = list(x for x in up.load())\n", "async for ... in up.load", ""),
    ("    y = list(up.load())\n", "async for ... in up.load", ""),
    (
        "    with up.load() as x:\n        pass\n",
        "async with up.load",
        "    async with up.load() as x:\n        pass\n",
    ),
    ("    async with up.load() as x:\n        pass\n", "with up.load", "    with up.load() as x:\n        pass\n"),
    ("    with up.load(), open('a'):\n        pass\n", "async with up.load", ""),
    ("    def h():\n        with up.load():\n            pass\n", "async with up.load", ""),
    ("    return next(up.load())\n", "await anext(...)", "    return (await anext(up.load()))\n"),
    ("    return await anext(up.load(), 1)\n", "next(...)", "    return next(up.load(), 1)\n"),
    ("    return next(iter(up.load()))\n", "await anext(...)", ""),
]


@pytest.mark.parametrize(("body", "text", "after"), TURNED)
def test_loops_and_contexts_become_asynchronous_and_back(body: str, text: str, after: str) -> None:
    """What was looped over or entered has the other protocol now; where a statement cannot say so it is left alone."""
    source = f"async def g():\n{body}"
    done = fix(source, finding(source, "up.load", FindingKind.ASYNC_CHANGED, "up.load", text))
    assert done.data.decode() == (f"async def g():\n{after}" if after else source)
    assert bool(done.done) == bool(after)


def extended(source: str, text: str = "def hook(self, x, mask=None)") -> Fixed:
    return fix(source, finding(source, "def hook", FindingKind.OVERRIDE_DRIFT, "up.Base.hook", text))


@pytest.mark.parametrize("last", ["x", "x: int", "x: (int)", "x=(1)", "x: int = (1 + 2)"])
def test_an_override_gets_its_parameter_behind_the_whole_last_one(last: str) -> None:
    source = f"class A(up.Base):\n    def hook(self, {last}):\n        return self.mask, f(mask=1)\n"
    assert extended(source).data.decode() == source.replace(f"self, {last}", f"self, {last}, mask=None")


@pytest.mark.parametrize("body", ["return mask[x]", "mask = 1", "import mask", "def mask(): ..."])
def test_a_parameter_that_would_hide_a_name_of_the_body_is_refused(body: str) -> None:
    source = f"class A(up.Base):\n    def hook(self, x):\n        {body}\n"
    done = extended(source)
    assert done.data.decode() == source
    assert "uses mask" in done.left[0][1]


@pytest.mark.parametrize(
    ("kind", "source", "mark", "after"),
    [
        (FindingKind.PARAM_POSONLY, "up.f(1, b=(1 + 2))", "b=", "up.f(1, (1 + 2))"),
        (FindingKind.PARAM_KWONLY, "up.f(1, (a+c))", "a+c", "up.f(1, b=(a+c))"),
        (FindingKind.PARAM_KWONLY, "up.f(1, (a, c))", "(a, c)", "up.f(1, b=(a, c))"),
        (FindingKind.DEFAULT_CHANGED, "up.f((1 + 2))", "up.f", "up.f((1 + 2), b=3)"),
    ],
)
def test_parentheses_around_an_argument_stay_around_it(kind: FindingKind, source: str, mark: str, after: str) -> None:
    text = "b=3" if kind is FindingKind.DEFAULT_CHANGED else "b"
    parameter = "" if kind is FindingKind.DEFAULT_CHANGED else "b"
    done = fix(source + "\n", finding(source, mark, kind, "up.f", text, parameter=parameter))
    assert done.data.decode() == after + "\n"


def test_await_leaves_with_what_stands_before_the_parenthesis() -> None:
    source = "async def g():\n    await (up.stop())\n"
    done = fix(source, finding(source, "up.stop", FindingKind.ASYNC_CHANGED, "up.stop", "stop()"))
    assert done.data.decode() == "async def g():\n    (up.stop())\n"


def test_an_edit_that_breaks_the_file_does_not_take_the_others_with_it() -> None:
    source = "up.f(x for x in y)\nup.g(old=1)\n"
    bad = finding(source, "x for", FindingKind.PARAM_KWONLY, "up.f", "b", parameter="b")
    bad = replace(bad, column=source.index("(") + 1)
    good = finding(source, "old", FindingKind.PARAM_RENAMED, "up.g", "new", parameter="old")
    done = fix(source, bad, good)
    assert done.data.decode() == "up.f(x for x in y)\nup.g(new=1)\n"
    assert [each for each, _ in done.left] == [bad]


@pytest.mark.parametrize(
    ("source", "after"),
    [
        ("from up import *\na()\n", "from up import *\nfrom up.core import a\na()\n"),
        ("from other import *\na()\n", ""),
        ("from .up import *\na()\n", ""),
        ("from up import *\nimport up as u\nu.a()\n", ""),
    ],
)
def test_a_star_import_helps_only_a_plain_name_of_its_module(source: str, after: str) -> None:
    mark = "u.a()" if "u.a" in source else "a()"
    done = fix(source, finding(source, mark, FindingKind.REMOVED, "up.a", "up.core.a"))
    assert ("from up.core import a" in done.data.decode()) == bool(after)
    assert not after or done.data.decode() == after


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("size: 1\nold: 2\n", "size: 1\n"),
        ("size: 1\nold: 'a'\n\nlast: 2\n", "size: 1\n\nlast: 2\n"),
        ('size: 1\nold: "a\n\n  b"\n', ""),
        ("size: 1\nold: [1,\n2]\n", ""),
        ("size: 1\nold: a\n\n  b\n", ""),
        ("model:\n  old: 1\n", ""),
        ("size: {\nold: 2\n}\n", ""),
        ("size: {% value %}\nold: 1\n", ""),
    ],
)
def test_an_entry_of_yaml_goes_only_with_all_of_its_value(text: str, after: str) -> None:
    one = finding(text, "old", FindingKind.PARAM_REMOVED, "up.f", "", parameter="old")
    done = fix_file("conf.yaml", text.encode(), [replace(one, path="conf.yaml")])
    assert done.data.decode() == (after or text)
    assert bool(done.done) == bool(after)


@pytest.mark.parametrize(("written", "after"), [("/old/", "/v2/new/"), ("/old?x=1", "/v2/new?x=1"), ("/old/{x}", "")])
def test_a_route_is_found_with_a_slash_or_a_query_behind_it(written: str, after: str) -> None:
    source = f'requests.get(f"{{base}}{written}")\n'
    done = fix(source, finding(source, "requests", FindingKind.HTTP_ROUTE, "GET /old", "/v2/new"))
    assert done.data.decode() == source.replace(written, after or written)
    assert bool(done.done) == bool(after)


def test_a_key_of_the_same_name_beside_a_dotted_path_is_none_of_its_business() -> None:
    source = 'mock.patch("up.core.flush", new=fakes["flush"])\n'
    done = fix(source, finding(source, '"up.core', FindingKind.RENAMED, "up.core.flush", "up.core.clear"))
    assert done.data.decode() == 'mock.patch("up.core.clear", new=fakes["flush"])\n'


@pytest.mark.parametrize("path", ["client.py", "conf.yaml", "run.sh"])
@pytest.mark.parametrize("kind", [FindingKind.MOVED, FindingKind.CLI_FLAG, FindingKind.PARAM_REMOVED])
def test_a_finding_behind_the_end_of_the_file_is_left_alone(path: str, kind: FindingKind) -> None:
    one = replace(finding("old", "old", kind, "up.old", "up.new"), path=path, line=9, end_line=9)
    assert fix_file(path, b"up.old\n", [one]).data == b"up.old\n"
