"""Where gone names went: each kind of evidence by a pair of packages, and what must not count as evidence."""

from __future__ import annotations

from textwrap import indent

import pytest

from tooling.python.access_paths import Attribute, Called, Name
from tooling.python.symbols.symbol import Absent, Found
from tooling.python.symbols.tree import SymbolTree
from tooling.upgrade.findings import FindingKind
from tooling.upgrade.replacements.explain import Explainer
from tooling.upgrade.sources.folder import memory_release
from tooling.upgrade.uses import Action, Argument, PassedArguments, SourcePlace, Use

HERE = SourcePlace("client.py", 1, 0, 1, 1)
BODY = """
    total = 0
    for index, value in enumerate(values):
        if value is None:
            continue
        total += index * value + len(str(value))
    return total
"""
OTHER = """
    names = sorted({name.strip().lower() for name in values if name})
    with open("log.txt", "w") as stream:
        stream.write("\\n".join(names))
    return [name for name in names if not name.startswith("_")]
"""
METHOD, OTHER_METHOD = indent(BODY, "    "), indent(OTHER, "    ")


def upstream(files, version="1"):
    return SymbolTree(memory_release({"pkg/__init__.py": "", **files}, "pkg", version))


def use_of(target, action=Action.IMPORT, *, positional=0, keywords=()):
    given = [Argument(HERE, None, number) for number in range(positional)]
    given += [Argument(HERE, name, -1) for name in keywords]
    arguments = PassedArguments(tuple(given)) if action in (Action.CALL, Action.SUBCLASS) else None
    access_path = Name(target) if isinstance(target, str) else target
    return Use(action=action, place=HERE, target=access_path, package="pkg", arguments=arguments)


def explained(dotted, old, new, *, use=None, between=()):
    """What is said of a dotted path that the new files lack."""
    before, after = upstream(old), upstream(new, "2")
    assert isinstance(before.resolve(dotted), Found), "the old side must have it"
    absent = after.resolve(dotted)
    assert isinstance(absent, Absent), "the new side must lack it"
    return Explainer(lambda _: [upstream(files) for files in between])(absent, before, after, use or use_of(dotted))


def parameter(name, old, new, *, function="pkg.f", positional=0, keywords=None):
    before, after = upstream({"pkg/__init__.py": old}), upstream({"pkg/__init__.py": new}, "2")
    use = use_of(function, Action.CALL, positional=positional, keywords=[name] if keywords is None else keywords)
    return Explainer()(Absent(function, name), before, after, use)


# ------------------------------------------------------------------------------------------------------------- symbols


def test_the_only_new_definition_of_a_name_is_its_new_home():
    verdict, found = explained("pkg.a.f", {"pkg/a.py": f"def f(values):{BODY}"}, {"pkg/b.py": f"def f(values):{OTHER}"})
    assert (verdict, found.text, found.certain) == (FindingKind.MOVED, "pkg.b.f", True)
    assert found.why == "only new definition of that name"


def test_a_new_home_that_needs_more_arguments_is_told_and_not_trusted():
    _, found = explained("pkg.a.f", {"pkg/a.py": "def f(x): ..."}, {"pkg/b.py": "def f(x, y): return y"})
    assert (found.text, found.certain) == ("pkg.b.f", False)


def test_a_call_must_bind_in_the_new_home_before_it_is_trusted():
    old, new = {"pkg/a.py": f"def f(values, *, n=1):{BODY}"}, {"pkg/b.py": f"def f(values):{BODY}"}
    fitting = use_of("pkg.a.f", Action.CALL, positional=1)
    other = use_of("pkg.a.f", Action.CALL, positional=1, keywords=["n"])
    assert explained("pkg.a.f", old, new, use=fitting)[1].text == "pkg.b.f"
    assert not explained("pkg.a.f", old, new, use=other)[1].certain


def test_several_homes_with_one_name_are_no_explanation():
    new = {"pkg/b.py": "def f(x): return 1", "pkg/c.py": "def f(x): return 2"}
    assert explained("pkg.a.f", {"pkg/a.py": "def f(x): ..."}, new) == (FindingKind.REMOVED, None)


def test_copies_that_were_there_before_are_no_new_home():
    copy = {"pkg/b.py": f"def f(values):{OTHER}"}
    assert explained("pkg.a.f", {"pkg/a.py": f"def f(values):{BODY}", **copy}, copy) == (FindingKind.REMOVED, None)


def test_a_copy_with_the_same_body_may_take_its_place():
    copy = {"pkg/b.py": f"def f(values):{BODY}"}
    _, found = explained("pkg.a.f", {"pkg/a.py": f"def f(values):{BODY}", **copy}, copy)
    assert (found.text, found.why) == ("pkg.b.f", "same body")


def test_among_several_homes_the_one_with_the_same_body_is_it():
    new = {"pkg/b.py": f"def f(values):{BODY}", "pkg/c.py": f"def f(values):{OTHER}"}
    _, found = explained("pkg.a.f", {"pkg/a.py": f"def f(values):{BODY}"}, new)
    assert (found.text, found.certain) == ("pkg.b.f", True)


def test_among_several_homes_the_one_that_the_importers_take_is_it():
    old = {"pkg/a.py": f"def f(values):{BODY}", "pkg/user.py": "from .a import f\n"}
    new = {"pkg/b.py": f"def f(values):{OTHER}", "pkg/c.py": "def f(x): return 2", "pkg/user.py": "from .b import f\n"}
    _, found = explained("pkg.a.f", old, new)
    assert (found.text, found.why) == ("pkg.b.f", "the package's own importers changed alike")


def importing(name, other):
    """A package whose module `user` imports a name of `a`, and then another."""
    old = {
        "pkg/a.py": f"def {name}(values):{BODY}",
        "pkg/user.py": f"from pkg.a import ({name},  # the first\n    g)\n",
    }
    new = {"pkg/a.py": f"def {other}(values):{OTHER}", "pkg/user.py": f"from pkg.a import ({other}, g)\n"}
    return old, new


def test_importers_tell_a_new_name_too():
    verdict, found = explained("pkg.a.load_rows", *importing("load_rows", "load_all_rows"))
    assert (verdict, found.text) == (FindingKind.RENAMED, "pkg.a.load_all_rows")
    assert found.why == "the package's own importers changed alike"


def test_importers_that_took_another_helper_tell_nothing():
    assert explained("pkg.a.load_rows", *importing("load_rows", "is_available")) == (FindingKind.REMOVED, None)


def test_a_dropped_re_export_leads_to_where_the_definition_always_was():
    files = {"pkg/a.py": f"def f(values):{BODY}"}
    verdict, found = explained("pkg.f", {**files, "pkg/__init__.py": "from pkg.a import f"}, files)
    assert (verdict, found.text, found.certain) == (FindingKind.MOVED, "pkg.a.f", True)


def test_a_name_that_came_from_one_of_two_places_leads_to_neither():
    files = {"pkg/a.py": f"def npu_f(values):{BODY}"}
    either = "if fast():\n    from fast import f\nif npu():\n    from pkg.a import npu_f as f\n"
    assert explained("pkg.f", {**files, "pkg/__init__.py": either}, files) == (FindingKind.REMOVED, None)


def test_a_same_body_under_a_new_name_is_a_rename():
    old, new = {"pkg/a.py": f"def f(values):{BODY}"}, {"pkg/a.py": f"def fancy(values):{BODY}"}
    verdict, found = explained("pkg.a.f", old, new)
    assert (verdict, found.text, found.certain) == (FindingKind.RENAMED, "pkg.a.fancy", True)
    assert found.why == "same body"


def test_an_edited_body_under_a_new_name_is_a_rename_if_little_changed():
    old = {"pkg/a.py": f"class Reader:\n    def read(self, values):{METHOD}"}
    edited = old["pkg/a.py"].replace("Reader", "FileReader").replace("total = 0", "total = 1")
    verdict, found = explained("pkg.a.Reader", old, {"pkg/a.py": edited})
    assert (verdict, found.text) == (FindingKind.RENAMED, "pkg.a.FileReader")


def test_another_body_under_another_name_is_nothing():
    old, new = {"pkg/a.py": f"def f(values):{BODY}"}, {"pkg/a.py": f"def g(values):{OTHER}"}
    assert explained("pkg.a.f", old, new) == (FindingKind.REMOVED, None)


def test_what_the_old_release_advises_outweighs_everything():
    old = {
        "pkg/a.py": "import warnings\ndef f(x):\n"
        "    warnings.warn('f is deprecated and will be removed in 2.0. '\n"
        "                  'Please use `pkg.c.better` instead.', DeprecationWarning)\n"
    }
    new = {"pkg/b.py": "def f(x): return 1", "pkg/c.py": "def better(x): return 2"}
    verdict, found = explained("pkg.a.f", old, new)
    assert (verdict, found.text) == (FindingKind.RENAMED, "pkg.c.better")
    assert found.why.startswith("a release says to use it")


def test_advice_of_a_release_in_between_counts():
    middle = {"pkg/a.py": "import warnings\ndef f(x):\n    warnings.warn('f moved to pkg.c.new_f', FutureWarning)\n"}
    old, new = {"pkg/a.py": f"def f(x):{OTHER}"}, {"pkg/c.py": "def new_f(x): return 2"}
    assert explained("pkg.a.f", old, new) == (FindingKind.REMOVED, None)
    assert explained("pkg.a.f", old, new, between=[middle])[1].text == "pkg.c.new_f"


SHIMS = {
    "a subclass": "class old_name(New):\n  def __init__(self, *args):\n    warn('x')\n    super().__init__(*args)\n",
    "a function": "def old_name(*args, **kw):\n    warnings.warn('x')\n    return New(*args, **kw)\n",
    "a wrapped value": "old_name = deprecated_wrapper('old_name', New)\n",
}


@pytest.mark.parametrize("shim", SHIMS)
def test_what_a_shim_passed_on_to_takes_its_place(shim):
    kept = "class New:\n    def __init__(self, size=1): ...\n"
    verdict, found = explained("pkg.a.old_name", {"pkg/a.py": kept + SHIMS[shim]}, {"pkg/a.py": kept})
    assert (verdict, found.text) == (FindingKind.RENAMED, "pkg.a.New")
    assert found.why == "the old one only passed on to it"


def test_a_class_that_adds_something_is_no_shim():
    kept = "class New:\n    def __init__(self, size=1): ...\n"
    old = f"{kept}class Old(New):\n    def extra(self):\n        return 1\n"
    assert explained("pkg.a.Old", {"pkg/a.py": old}, {"pkg/a.py": kept}) == (FindingKind.REMOVED, None)


@pytest.mark.parametrize("marker", ["class Old(New): ...", "Old = TypeVar('Old', New)", "def Old():\n    return New()"])
def test_code_that_does_not_say_it_is_a_shim_is_none(marker):
    kept = "class New:\n    def __init__(self, size=1): ...\n"
    assert explained("pkg.a.Old", {"pkg/a.py": kept + marker}, {"pkg/a.py": kept}) == (FindingKind.REMOVED, None)


def test_advice_in_the_constructor_of_a_class_counts():
    old = (
        "import warnings\nclass Params:\n    x: int = 1\n    def __post_init__(self):\n        self.y = 2\n"
        "        warnings.warn('Params is deprecated. Please use NewParams instead.', DeprecationWarning)\n"
    )
    assert (
        explained("pkg.a.Params", {"pkg/a.py": old}, {"pkg/a.py": "class NewParams: ..."})[1].text == "pkg.a.NewParams"
    )


def test_who_took_it_from_a_package_is_sent_to_a_package():
    tool = f"class Tool:\n    def m(self, values):{METHOD}"
    old = {"pkg/tools/__init__.py": "from .base import Tool", "pkg/tools/base.py": tool}
    new = {"pkg/far/tools/__init__.py": "from .base import Tool", "pkg/far/tools/base.py": tool}
    new |= {f"pkg/far/tools/t{number}.py": "from pkg.far.tools.base import Tool" for number in range(3)}
    assert explained("pkg.tools.Tool", old, new)[1].text == "pkg.far.tools.Tool"
    assert explained("pkg.tools.base.Tool", old, new)[1].text == "pkg.far.tools.base.Tool"


def test_the_root_of_the_package_is_how_it_is_written_where_it_is_exported_there():
    new = {
        "pkg/deep/_impl.py": f"class Tool:\n    def m(self, values):{METHOD}",
        "pkg/__init__.py": "from pkg.deep._impl import Tool",
    }
    old = {"pkg/a.py": f"class Tool:\n    def m(self, values):{METHOD}"}
    assert explained("pkg.a.Tool", old, new)[1].text == "pkg.Tool"


def test_what_became_private_is_told_and_not_trusted():
    old = {"pkg/a.py": f"def f(values):{BODY}"}
    assert explained("pkg.a.f", old, {"pkg/_b.py": f"def f(values):{BODY}"})[1].certain is False
    assert explained("pkg.a.f", old, {"pkg/a.py": f"def _f(values):{BODY}"})[1].certain is False


def test_tests_of_the_package_are_no_home():
    assert explained("pkg.a.f", {"pkg/a.py": "def f(): ..."}, {"pkg/tests/t.py": "def f(): ..."}) == (
        FindingKind.REMOVED,
        None,
    )


def test_values_need_an_equal_value_or_a_constant_s_name():
    old = {"pkg/a.py": "LIMIT = 10\nlogger = make()\n"}
    assert explained("pkg.a.LIMIT", old, {"pkg/b.py": "LIMIT = 20"})[1].text == "pkg.b.LIMIT"
    assert explained("pkg.a.logger", old, {"pkg/b.py": "logger = other()"}) == (FindingKind.REMOVED, None)


# ------------------------------------------------------------------------------------------------------------- modules


def test_a_module_went_where_most_of_it_is():
    old = {"pkg/a.py": "def f(): ...\ndef g(): ...\nclass H: ..."}
    new = {"pkg/sub/b.py": "def f(): ...\ndef g(): ...", "pkg/c.py": "class H: ..."}
    verdict, found = explained("pkg.a", old, new)
    assert (verdict, found.text) == (FindingKind.MOVED, "pkg.sub.b")


def test_of_a_gone_module_each_name_is_followed_by_itself():
    old = {"pkg/a.py": "def f(): ...\nclass H: ..."}
    new = {"pkg/b.py": "def f(): ...", "pkg/c.py": "class H: ..."}
    assert explained("pkg.a.H", old, new)[1].text == "pkg.c.H"


def test_a_member_of_a_moved_class_is_found_through_the_class():
    old = {"pkg/a.py": f"class H:\n    def m(self, values):{METHOD}"}
    new = {"pkg/b.py": f"class H:\n    def m(self, values):{METHOD}"}
    verdict, found = explained("pkg.a.H.m", old, new)
    assert (verdict, found.text) == (FindingKind.MOVED, "pkg.b.H.m")


# ------------------------------------------------------------------------------------------------------------- members


def member(name, old, new, action=Action.READ):
    before, after = upstream({"pkg/__init__.py": old}), upstream({"pkg/__init__.py": new}, "2")
    use = use_of(Attribute(Called(Name("pkg.C")), name), action, positional=1)
    return Explainer()(Absent("pkg.C", name), before, after, use)


def test_a_method_with_the_same_body_is_the_renamed_one():
    old, new = f"class C:\n    def run(self, values):{METHOD}", f"class C:\n    def execute(self, values):{METHOD}"
    verdict, found = member("run", old, new, Action.CALL)
    assert (verdict, found.text, found.certain) == (FindingKind.RENAMED, "pkg.C.execute", True)


def test_a_method_among_others_that_came_is_told_apart_by_its_body():
    old = f"class C:\n    def run(self, values):{METHOD}"
    new = f"class C:\n    def collect(self, values):{OTHER_METHOD}\n    def execute(self, values):{METHOD}"
    assert member("run", old, new)[1].text == "pkg.C.execute"
    assert member("run", old, f"class C:\n    def collect(self, values):{OTHER_METHOD}") == (FindingKind.REMOVED, None)


def test_an_enum_member_is_followed_by_its_value():
    old = "import enum\nclass C(enum.Enum):\n    FAST = 'fast'\n    SLOW = 'slow'\n"
    new = "import enum\nclass C(enum.Enum):\n    QUICK = 'fast'\n    SLOW = 'slow'\n    NEW = 'new'\n"
    verdict, found = member("FAST", old, new)
    assert (verdict, found.text) == (FindingKind.RENAMED, "pkg.C.QUICK")
    assert member("FAST", old, new.replace("'fast'", "'other'")) == (FindingKind.REMOVED, None)


def test_an_attribute_is_followed_by_the_lines_it_stood_in():
    old = "class C:\n    def __init__(self, config):\n        self.cfg = config\n        self.size = self.cfg.size\n"
    new = old.replace("self.cfg", "self.config")
    assert member("cfg", old, new)[1].text == "pkg.C.config"


def test_a_property_s_advice_names_its_successor():
    old = (
        "import warnings\nclass C:\n    @property\n    def size(self):\n"
        "        warnings.warn('`size` is deprecated, use `length` instead', FutureWarning)\n        return 1\n"
        "    @property\n    def length(self):\n        return 1\n"
    )
    new = "class C:\n    @property\n    def length(self):\n        return 1\n"
    assert member("size", old, new)[1].text == "pkg.C.length"


# ---------------------------------------------------------------------------------------------------------- parameters


def test_a_parameter_at_the_same_place_with_the_same_default_is_the_renamed_one():
    verdict, found = parameter("n", "def f(a, n=8): ...", "def f(a, count=8): ...", positional=1)
    assert (verdict, found.text) == (FindingKind.PARAM_RENAMED, "count")


UNRELATED = [
    ("def f(a, n=8): ...", "def f(a, count=8): ..."),
    ("def f(a, n): return a", "def f(a, logprobs): return a"),
    ("def f(a, n: int = 8): ...", "def f(a, offset: int = 8): ..."),
    ("def f(a, n):\n    return a.run(n)\n", "def f(a, top):\n    return a.limit(top) + a.size(top)\n"),
    ("def f(a, n):\n    if n is None:\n        return a\n", "def f(a, b):\n    if b is None:\n        return a\n"),
    (
        "def f(a, n):\n    log(n)\n    return a.repeat(n)\n",
        "def f(a, seed):\n    log(seed)\n    return a.shuffled(seed)\n",
    ),
]


@pytest.mark.parametrize(("old", "new"), UNRELATED)
def test_that_one_went_where_another_came_is_never_written_without_a_person(old, new):
    found = parameter("n", old, new, positional=1)[1]
    assert found is None or found.certain is False


PROVEN = [
    ("n_samples", "def f(a, n_samples: int = 8): ...", "def f(a, num_samples: int = 8): ...", "num_samples"),
    ("n", "def f(a, n):\n    return a.run(n)\n", "def f(a, count):\n    return a.run(count)\n", "count"),
    (
        "n",
        "import warnings\ndef f(a, n=8, top=8):\n    warnings.warn('`n` is deprecated, use `top` instead')\n",
        "def f(a, top=8): ...",
        "top",
    ),
]


@pytest.mark.parametrize(("name", "old", "new", "now"), PROVEN)
def test_a_parameter_is_written_where_the_release_or_its_body_say_so(name, old, new, now):
    found = parameter(name, old, new, positional=1)[1]
    assert (found.text, found.certain) == (now, True)


def test_what_a_release_in_between_says_about_a_parameter_counts():
    old, new = "def f(a, n=8):\n    return [a] * n\n", "def f(a, top=None, most=8):\n    return a\n"
    middle = (
        "import warnings\ndef f(a, n=8, most=8):\n"
        "    if n != 8:\n        warnings.warn('`n` is deprecated, use `most` instead')\n"
    )
    before, between, after = (upstream({"pkg/__init__.py": text}) for text in (old, middle, new))
    use = use_of("pkg.f", Action.CALL, positional=1, keywords=["n"])
    absent = Absent("pkg.f", "n")
    assert Explainer()(absent, before, after, use) == (FindingKind.PARAM_REMOVED, None)
    verdict, found = Explainer(lambda _: [between])(absent, before, after, use)
    assert (verdict, found.text, found.certain) == (FindingKind.PARAM_RENAMED, "most", True)


def test_advice_to_pass_something_of_another_type_is_told_and_not_trusted():
    old = (
        "import warnings\ndef f(a, n: bool = False, device: str = 'cpu'):\n"
        "    warnings.warn('`n` is deprecated, use `device` instead')\n"
    )
    found = parameter("n", old, "def f(a, device: str = 'cpu'): ...", positional=1)[1]
    assert (found.text, found.certain) == ("device", False)


def test_a_parameter_whose_lines_carry_the_new_name_is_the_renamed_one():
    old = "def f(a, *, tok=None, size=None):\n    return run(tok, a)\n"
    new = "def f(a, *, other=None, tokenizer=None, more=None):\n    return run(tokenizer, a)\n"
    verdict, found = parameter("tok", old, new)
    assert (verdict, found.text) == (FindingKind.PARAM_RENAMED, "tokenizer")
    assert found.why == "it stands where the old name stood"


def test_what_the_old_function_warns_about_its_parameter_counts():
    old = (
        "import warnings\ndef f(a, tokenizer=None, x=1, processing=None):\n    if tokenizer is not None:\n"
        "        warnings.warn('`tokenizer` is deprecated: '\n            'use `processing` instead', FutureWarning)\n"
    )
    new = "def f(a, x=1, processing=None): ...\n"
    verdict, found = parameter("tokenizer", old, new)
    assert (verdict, found.text) == (FindingKind.PARAM_RENAMED, "processing")


def test_parameters_that_were_merged_into_one_are_no_renames():
    old = "def f(a, theta=1, scaling=None):\n    return run(theta), run(scaling)\n"
    new = "def f(a, rope=None):\n    return run(rope), 0\n"
    assert parameter("theta", old, new) == (FindingKind.PARAM_REMOVED, None)


def test_equal_declarations_and_passed_on_keywords_tell_nothing():
    head = "class A:\n    def __init__(\n        self,\n        one=None,\n        two=None,\n    ):\n"
    old = head + "        super().__init__(\n            one=one,\n            two=two,\n        )\n"
    new = old.replace("one", "three").replace("two", "four")
    assert parameter("one", old, new, function="pkg.A") == (FindingKind.PARAM_REMOVED, None)


def test_a_parameter_that_became_several_is_told_and_not_trusted():
    old = "def f(a, position: int): ...\n"
    new = "def f(a, position_x: int, position_y: int): ...\n"
    verdict, found = parameter("position", old, new, positional=1)
    assert (verdict, found.text, found.certain) == (FindingKind.PARAM_RENAMED, "position_x", False)


def test_parameters_of_other_types_are_no_renames():
    assert parameter("n", "def f(a, n: int = 1): ...", "def f(a, p: str = 'x'): ...") == (
        FindingKind.PARAM_REMOVED,
        None,
    )
    assert parameter("n", "def f(a, n=None): ...", "def f(a, p=None, q=None): ...") == (FindingKind.PARAM_REMOVED, None)
    assert parameter("n", "def f(a, n=1): ...", "def f(a): ...") == (FindingKind.PARAM_REMOVED, None)


def test_the_spelling_of_a_type_does_not_matter():
    old, new = "def f(n: Optional[List[int]] = None): ...", "def f(p: list[int] | None = None): ..."
    assert parameter("n", old, new)[1].text == "p"


def test_a_renamed_parameter_is_trusted_only_if_the_call_then_binds():
    old, new = "def f(a, n=8):\n    a.run(n)\n", "def f(a, count=8):\n    a.run(count)\n"
    assert parameter("n", old, new, positional=1)[1].certain is True
    both = parameter("n", old, new, positional=2, keywords=["n"])
    assert both[1].certain is False


def test_fields_of_a_dataclass_are_parameters_where_they_are_passed_and_members_where_they_are_read():
    old = "from dataclasses import dataclass\n@dataclass\nclass C:\n    size: int = 4\n    name: str = ''\n"
    new = old.replace("size: int", "length: int")
    assert parameter("size", old, new, function="pkg.C")[1].text == "length"
    verdict, found = member("size", old, new)
    assert (verdict, found.text) == (FindingKind.RENAMED, "pkg.C.length")


@pytest.mark.parametrize("action", [Action.CALL, Action.READ])
def test_what_the_old_release_lacks_too_is_not_explained(action):
    files = {"pkg/a.py": "class C: ..."}
    use = use_of("pkg.a.gone", action)
    assert Explainer()(Absent("pkg.a", "gone"), upstream(files), upstream(files, "2"), use) is None
