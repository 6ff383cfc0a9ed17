"""Releases from folders and from memory: what counts as part of an installation."""

from __future__ import annotations

import pytest

from tooling.upgrade.sources.folder import installed_release, memory_release


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_of_an_installation_only_recorded_files_belong_to_the_distribution(tmp_path):
    metadata = "Name: our-dist\nVersion: 2.0\nRequires-Dist: torch>=2\nRequires-Dist: x; extra=='e'\n\nbody\n"
    scripts = "[console_scripts]\nours = ours.cli:main [extra]\n[gui_scripts]\ng = a:b\n"
    root = write(
        tmp_path,
        {
            "ours/__init__.py": "",
            "theirs/__init__.py": "",
            "our_dist-2.0.dist-info/RECORD": "ours/__init__.py,,\n../../bin/ours.py,,\nours/gone.py,,\n",
            "our_dist-2.0.dist-info/METADATA": metadata,
            "our_dist-2.0.dist-info/entry_points.txt": scripts,
        },
    )
    release = installed_release("our-dist", [tmp_path / "gone", root])
    assert release is not None
    assert (release.origin.distribution, release.origin.version, release.origin.verified) == (
        "our-dist",
        "2.0",
        "folder",
    )
    assert release.files() == ("ours/__init__.py",)
    assert release.requires() == ("torch>=2", "x; extra=='e'")
    assert release.scripts() == {"ours": "ours.cli:main"}


def test_what_is_not_installed_or_a_link_to_a_checkout_is_not_a_release(tmp_path):
    link = "__editable___ours_finder.py,,\n"
    root = write(tmp_path, {"ours-1.dist-info/RECORD": link, "__editable___ours_finder.py": "", "secret.py": "s"})
    assert installed_release("ours", [root]) is None
    assert installed_release("theirs", [root]) is None


def test_unlisted_files_are_not_read():
    release = memory_release({"pkg/__init__.py": "", "secret.txt": "s"}, "pkg", "1")
    with pytest.raises(KeyError):
        release.read("secret.txt")


def test_a_namespace_shared_by_distributions_is_owned_from_below():
    megatron = memory_release({"megatron/core/__init__.py": "", "megatron/core/x.py": ""}, "megatron-core", "1")
    assert megatron.roots() == {"megatron.core"}
    old_style = "from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n"
    google = memory_release({"google/__init__.py": old_style, "google/auth/__init__.py": ""}, "google-auth", "1")
    assert google.roots() == {"google.auth"}
    whole = f"{old_style}from lightning.core import Module\n"
    files = {"lightning/__init__.py": whole, "lightning/core/__init__.py": "class Module: ..."}
    assert memory_release(files, "lightning", "1").roots() == {"lightning"}


def test_a_package_without_init_that_holds_modules_is_owned_whole():
    release = memory_release({"plain/x.py": "", "plain/sub/y.py": "", "single.py": ""}, "plain", "1")
    assert release.roots() == {"plain", "single"}
    assert release.folders() == {"plain", "plain/sub"}


def test_compiled_modules_exist_by_name_only():
    files = {
        "v/__init__.py": "",
        "v/_C.abi3.so": b"\x7fELF",
        "v/k.cpython-311-x86_64-linux-gnu.so": b"",
        "v/w.cp311-win_amd64.pyd": b"",
        "v.libs/libfoo-1.2.so": b"",
    }
    release = memory_release(files, "v", "1")
    assert release.native() == {"v._C", "v.k", "v.w"}
    assert release.files() == ("v/__init__.py",)
    assert release.roots() == {"v"}


def test_tests_and_examples_beside_a_package_are_not_its_own_but_those_inside_are():
    files = {"pkg/__init__.py": "", "pkg/tests/t.py": "", "tests/t.py": "", "examples/e.py": ""}
    release = memory_release(files, "pkg", "1")
    assert release.files() == ("pkg/__init__.py", "pkg/tests/t.py")
    assert release.roots() == {"pkg"}
    assert memory_release({"tests/__init__.py": ""}, "tests", "1").roots() == {"tests"}
    assert memory_release({}, "libraries", "1").roots() == frozenset()


def test_equal_content_has_an_equal_digest_and_other_content_another():
    first = memory_release({"a/__init__.py": "x = 1"}, "a", "1")
    same = memory_release({"a/__init__.py": b"x = 1"}, "a", "2")
    other = memory_release({"a/__init__.py": "x = 2"}, "a", "1")
    moved = memory_release({"a/b.py": "x = 1"}, "a", "1")
    assert first.digest() == same.digest()
    assert len({first.digest(), other.digest(), moved.digest()}) == 3
