"""Places other than an index on a server: folders of wheels, file: indexes, pages of links. Which file is chosen."""

from __future__ import annotations

import hashlib

import pytest
from packaging.version import Version

from tooling.upgrade.errors import ArchiveError, UpstreamError
from tooling.upgrade.sources.cache import Cache, default_folder
from tooling.upgrade.sources.index_config import PackageIndex
from tooling.upgrade.sources.links import FileLink, choose
from tooling.upgrade.sources.pages import read_page

WHEEL = "pkg-1.0-py3-none-any.whl"
SOURCES = {"pkg/__init__.py": "A = 1\n"}


@pytest.fixture
def folder(tmp_path, wheel):
    path = tmp_path / "wheels"
    path.mkdir()
    (path / WHEEL).write_bytes(wheel(SOURCES))
    return path


def test_a_folder_of_wheels_needs_no_network_and_works_offline(catalogue, folder, server):
    release = catalogue(indexes=(), find_links=(str(folder),), offline=True).release("pkg", "1.0")
    assert release.read("pkg/__init__.py") == b"A = 1\n"
    assert (release.origin.bytes_read, release.origin.filename) == (0, WHEEL)
    assert server.log == []


def test_a_wheel_that_was_built_anew_in_place_is_read_anew(catalogue, folder, wheel):
    places = {"indexes": (), "find_links": (str(folder),)}
    assert len(catalogue(**places).release("pkg", "1.0").files()) == 1
    (folder / WHEEL).write_bytes(wheel({**SOURCES, "pkg/new.py": ""}))
    assert len(catalogue(**places).release("pkg", "1.0").files()) == 2


def test_an_index_may_be_a_folder_with_pages(catalogue, folder, tmp_path):
    page = tmp_path / "simple/pkg/index.html"
    page.parent.mkdir(parents=True)
    digest = hashlib.sha256((folder / WHEEL).read_bytes()).hexdigest()
    page.write_text(f'<a href="../../wheels/{WHEEL}#sha256={digest}">{WHEEL}</a>')
    index = PackageIndex((tmp_path / "simple").as_uri())
    assert catalogue(indexes=(index,)).release("pkg", "1.0").origin.verified == "whole"
    page.write_text(f'<a href="../../wheels/{WHEEL}#sha256={"0" * 64}">{WHEEL}</a>')
    with pytest.raises(ArchiveError, match="the index says"):
        catalogue(indexes=(index,)).release("pkg", "1.0")


def test_an_index_may_be_flat(catalogue, folder):
    assert catalogue(indexes=(PackageIndex(folder.as_uri(), flat=True),)).versions("pkg")[0].version == Version("1.0")


def test_a_page_of_links_is_read(catalogue, folder, tmp_path):
    page = tmp_path / "links.html"
    page.write_text(f'<a href="wheels/{WHEEL}">x</a><a href="wheels/other-1.0-py3-none-any.whl">y</a>')
    assert [str(v.version) for v in catalogue(indexes=(), find_links=(str(page),)).versions("pkg")] == ["1.0"]
    assert [str(v.version) for v in catalogue(indexes=(), find_links=(page.as_uri(),)).versions("pkg")] == ["1.0"]


def test_a_file_that_the_project_pins_replaces_every_index(catalogue, folder, server, wheel):
    server.files["pkg-2.0-py3-none-any.whl"] = wheel(SOURCES, version="2.0")
    pinned = catalogue(files={"pkg": str(folder / WHEEL)})
    assert [str(version.version) for version in pinned.versions("pkg")] == ["1.0"]


def test_a_wheel_that_vanished_since_the_page_was_read_is_an_error(catalogue, folder, tmp_path):
    page = tmp_path / "links.html"
    page.write_text('<a href="wheels/pkg-3.0-py3-none-any.whl">x</a>')
    with pytest.raises(UpstreamError, match="unreadable archive"):
        catalogue(indexes=(), find_links=(str(page),)).release("pkg", "3.0")


def test_with_no_place_configured_the_error_says_so(catalogue):
    with pytest.raises(UpstreamError, match="no index and no folder"):
        catalogue(indexes=()).release("pkg", "1.0")


def test_a_name_is_taken_from_the_first_index_only_where_uv_would(catalogue, server, folder, wheel):
    server.files["pkg-9.0-py3-none-any.whl"] = wheel(SOURCES, version="9.0")
    indexes = (PackageIndex(folder.as_uri(), flat=True), PackageIndex(f"{server.url}/simple"))
    assert [str(v.version) for v in catalogue(indexes=indexes, first_index=True).versions("pkg")] == ["1.0"]
    assert [str(v.version) for v in catalogue(indexes=indexes).versions("pkg")] == ["1.0", "9.0"]


def test_what_the_first_index_cannot_give_is_read_from_the_next_and_said(catalogue, server, folder, wheel):
    server.files["pkg-9.0-py3-none-any.whl"] = wheel(SOURCES, version="9.0")
    silent, public = PackageIndex("http://127.0.0.1:1/simple"), PackageIndex(f"{server.url}/simple")
    for first in (silent, PackageIndex(folder.as_uri(), flat=True)):
        said: list[str] = []
        found = catalogue(indexes=(first, public), first_index=True, retries=0, report=said.append)
        assert found.release("pkg", "9.0").origin.url.startswith(server.url)
        assert any("asking the other indexes" in line for line in said)


def test_a_source_distribution_is_read_where_there_is_no_wheel(catalogue, server, tar):
    members = [("pkg-1.0/PKG-INFO", b"Requires-Dist: torch\n"), ("pkg-1.0/src/pkg/__init__.py", b"A = 1")]
    server.files["pkg-1.0.tar.gz"] = tar(members)
    release = catalogue().release("pkg", "1.0")
    assert (release.files(), release.requires()) == (("pkg/__init__.py",), ("torch",))
    assert release.origin.verified == "whole"


def test_a_version_with_a_local_label_answers_for_the_plain_one(catalogue, server, wheel):
    server.files["pkg-1.0+cpu-py3-none-any.whl"] = wheel(SOURCES, version="1.0+cpu")
    assert catalogue().release("pkg", "1.0").origin.version == "1.0+cpu"


def test_versions_are_sorted(catalogue, server, wheel):
    for version in ("1.10", "1.9", "1.9rc1", "not-a-version"):
        server.files[f"pkg-{version}-py3-none-any.whl"] = wheel(SOURCES, version=version)
    assert [str(version.version) for version in catalogue().versions("pkg")] == ["1.9rc1", "1.9", "1.10"]


# -------------------------------------------------------------------------------------------------------------- choice


def link(filename, **facts):
    return FileLink(filename=filename, url="", version="1.0", **facts)


def chosen(*names, **facts):
    return choose([link(name, **facts) for name in names], "3.11").filename


def test_a_pure_wheel_is_chosen_before_others_and_any_wheel_before_an_sdist():
    pure, mac = "p-1.0-py3-none-any.whl", "p-1.0-cp311-cp311-macosx_11_0_arm64.whl"
    linux = "p-1.0-cp38-abi3-manylinux_2_31_x86_64.whl"
    assert chosen(mac, linux, pure, "p-1.0.tar.gz") == pure
    assert chosen("p-1.0.tar.gz", mac) == mac


def test_for_a_python_that_is_not_this_one_linux_on_x86_64_is_chosen():
    names = [f"p-1.0-cp{version}-cp{version}-manylinux_2_17_x86_64.whl" for version in ("39", "313", "27")]
    assert choose([link(name) for name in names], "3.9").filename == names[0]
    assert choose([link("p-1.0-cp27-cp27-win32.whl"), link(names[2])], "3.8").filename == names[2]


def test_yanked_files_and_those_for_another_python_come_last():
    first, second = link("p-1.0-1-py3-none-any.whl", yanked="bad"), link("p-1.0-py2.py3-none-any.whl")
    assert choose([first, second], "3.11") is second
    other = link("p-1.0-2-py3-none-any.whl", requires_python=">=3.12")
    assert choose([other, second], "3.11") is second
    assert choose([], "3.11") is None


# --------------------------------------------------------------------------------------------------------------- pages


@pytest.mark.parametrize(
    "body",
    [
        "",
        "\ufffd\ufffe",
        "[]",
        '{"files": 3}',
        '{"files": [3, {}, {"filename": 1}]}',
        "{" * 100_000,
        "<a href=//[>x",
    ],
)
@pytest.mark.parametrize("kind", ["application/vnd.pypi.simple.v1+json", "text/html"])
def test_no_page_makes_reading_it_raise(body, kind):
    assert read_page(body, kind, "https://index/simple/pkg/", "pkg") == []


def test_links_of_a_page_are_relative_to_its_base_and_other_schemes_are_left_out():
    page = (
        f'<base href="https://files/a/"><a href="b/{WHEEL}#md5={"0" * 32}" data-yanked="">x</a>'
        '<a href="ftp://files/pkg-1.1-py3-none-any.whl">y</a><a href="javascript:pkg-1.2.tar.gz">z</a>'
    )
    (found,) = read_page(page, "text/html", "https://index/simple/pkg/", "pkg")
    assert (found.url, found.yanked) == (f"https://files/a/b/{WHEEL}", "no reason given")
    assert not found.is_vouched_for


# --------------------------------------------------------------------------------------------------------------- cache


def test_the_cache_lies_where_the_user_wants_caches(tmp_path):
    assert default_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "areal" / "upgrade"
    assert default_folder({"HOME": str(tmp_path)}).is_relative_to(tmp_path)


def test_what_was_used_longest_ago_is_removed_when_the_cache_is_full(tmp_path):
    import os

    cache = Cache(tmp_path)
    old, middle, new = (f"{digit * 64}.zip" for digit in "abc")
    for number, name in enumerate([old, middle, new]):
        cache.write(name, bytes(100))
        os.utime(tmp_path / name, (number, number))
    cache.prune(most=250)
    assert sorted(path.name for path in tmp_path.iterdir()) == [middle, new]
    cache.prune(most=10)
    assert [path.name for path in tmp_path.iterdir()] == [new]


def test_records_that_point_out_of_the_cache_are_not_believed(catalogue, folder, tmp_path):
    import json

    places = {"indexes": (), "find_links": (str(folder),)}
    catalogue(**places).release("pkg", "1.0")
    (record,) = (tmp_path / "cache/releases/pkg").iterdir()
    facts = json.loads(record.read_text())
    record.write_text(json.dumps({**facts, "packed": "../../evil.zip"}))
    assert list(Cache(tmp_path / "cache").entries("pkg")) == []
    assert catalogue(**places).release("pkg", "1.0").files() == ("pkg/__init__.py",)
