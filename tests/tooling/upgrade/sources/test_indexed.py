"""Releases from an index: what is asked, what is chosen, what is kept, what the errors say. Real sockets throughout."""

from __future__ import annotations

import hashlib
import multiprocessing

import pytest

from tooling.cli.errors import UsageError
from tooling.upgrade.errors import ArchiveError, OfflineError, UpstreamError
from tooling.upgrade.sources import fetching
from tooling.upgrade.sources.index_config import IndexSettings, PackageIndex
from tooling.upgrade.sources.indexed import Catalogue

WHEEL = "pkg-1.0-py3-none-any.whl"
SOURCES = {"pkg/__init__.py": "A = 1\n", "pkg/deep/x.py": "B = 2\n"}
WRONG = f"pkg/__init__.py,sha256={'A' * 43},6\n"
"""A RECORD that disagrees with the archive."""


@pytest.fixture
def small_ranges(monkeypatch):
    """Range reads start at 100 kB instead of 30 MB."""
    monkeypatch.setattr(fetching, "RANGE_FROM", 100_000)


@pytest.mark.parametrize("dialect", ["json", "html"])
def test_a_release_is_read_in_either_dialect_of_the_index(server, wheel, catalogue, dialect):
    server.dialect = dialect
    server.files[WHEEL] = wheel(SOURCES, metadata="Requires-Dist: torch>=2\n", scripts="p = pkg.cli:main")
    release = catalogue().release("pkg", "1.0")
    assert release.files() == ("pkg/__init__.py", "pkg/deep/x.py")
    assert release.read("pkg/deep/x.py") == b"B = 2\n"
    assert release.requires() == ("torch>=2",)
    assert release.scripts() == {"p": "pkg.cli:main"}
    assert release.origin.verified == "whole"
    assert release.origin.sha256 == hashlib.sha256(server.files[WHEEL]).hexdigest()
    assert release.origin.bytes_read == len(server.files[WHEEL])


def test_what_was_read_once_costs_no_request_again(server, wheel, catalogue):
    server.files[WHEEL] = wheel(SOURCES)
    first = catalogue().release("pkg", "1.0")
    before = len(server.log)
    again = catalogue().release("pkg", "1.0")
    assert len(server.log) == before
    assert again.origin.bytes_read == 0
    assert [again.read(path) for path in again.files()] == [first.read(path) for path in first.files()]
    assert again.digest() == first.digest()


def test_of_a_large_wheel_only_the_sources_travel(server, wheel, catalogue, small_ranges):
    server.files[WHEEL] = wheel(SOURCES, filler=3_000_000)
    release = catalogue().release("pkg", "1.0")
    assert release.origin.verified == "ranged"
    assert release.origin.bytes_read < 200_000
    assert release.native() == {"pkg._C"}
    assert release.read("pkg/__init__.py") == b"A = 1\n"
    assert all("Range" in headers for method, _, headers in server.asked("/files/"))


def test_a_server_without_ranges_is_asked_for_the_whole_once(server, wheel, catalogue, small_ranges):
    server.ranges = False
    server.files[WHEEL] = wheel(SOURCES, filler=3_000_000)
    release = catalogue().release("pkg", "1.0")
    assert release.origin.verified == "whole"
    assert release.origin.bytes_read == len(server.files[WHEEL])
    assert len(server.asked("/files/")) == 1


def test_ranges_vouch_for_members_by_record_only_so_it_must_name_each(server, wheel, catalogue, small_ranges):
    server.hashes = False
    server.files[WHEEL] = wheel(SOURCES, filler=3_000_000, record="")
    with pytest.raises(ArchiveError, match="RECORD has no hash of"):
        catalogue().release("pkg", "1.0")


def test_a_forged_member_of_a_large_wheel_is_refused(server, wheel, catalogue, small_ranges, tmp_path):
    server.hashes = False
    server.files[WHEEL] = wheel(SOURCES, filler=3_000_000, record=WRONG)
    with pytest.raises(ArchiveError, match="not what RECORD says") as caught:
        catalogue().release("pkg", "1.0")
    assert "audit another version" in caught.value.fix
    assert list((tmp_path / "cache").glob("*.zip")) == []


@pytest.mark.parametrize("filler", [0, 3_000_000])
def test_a_wheel_whose_record_is_wrong_is_read_where_the_index_vouches_for_it(
    server, wheel, catalogue, small_ranges, filler
):
    server.files[WHEEL] = wheel(SOURCES, filler=filler, record=WRONG)
    for release in (catalogue().release("pkg", "1.0"), catalogue(offline=True).release("pkg", "1.0")):
        assert release.read("pkg/__init__.py") == b"A = 1\n"
        assert release.origin.verified == "whole"
        assert "'pkg/__init__.py' is not what RECORD says" in release.origin.doubt


def test_a_file_with_another_hash_than_the_index_says_leaves_nothing_behind(server, wheel, catalogue, tmp_path):
    server.files[WHEEL] = wheel(SOURCES)
    server.facts[WHEEL] = {"hashes": {"sha256": "0" * 64}}
    with pytest.raises(ArchiveError, match=f"sha256 is [0-9a-f]+, the index says {'0' * 64}"):
        catalogue().release("pkg", "1.0")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["pages"]


def test_a_page_is_asked_for_again_only_whether_it_changed(server, wheel, catalogue, monkeypatch):
    server.files[WHEEL] = wheel(SOURCES)
    catalogue().versions("pkg")
    monkeypatch.setattr("tooling.upgrade.sources.pages.FRESH_SECONDS", 0)
    assert [str(version.version) for version in catalogue().versions("pkg")] == ["1.0"]
    assert [request[2].get("If-None-Match") is not None for request in server.asked("/simple/")] == [False, True]


def test_a_version_published_since_the_page_was_kept_is_found(server, wheel, catalogue):
    server.files[WHEEL] = wheel(SOURCES)
    catalogue().versions("pkg")
    server.files["pkg-1.1-py3-none-any.whl"] = wheel(SOURCES, version="1.1")
    assert catalogue().release("pkg", "1.1").origin.version == "1.1"


def test_a_package_published_since_it_was_missed_is_found(server, wheel, catalogue):
    with pytest.raises(UpstreamError, match="no package of that name"):
        catalogue().versions("pkg")
    server.files[WHEEL] = wheel(SOURCES)
    assert catalogue().release("pkg", "1.0").files()


def test_one_run_asks_once_for_the_page_of_a_package(server, wheel, catalogue):
    for version in ("1.0", "1.1"):
        server.files[f"pkg-{version}-py3-none-any.whl"] = wheel(SOURCES, version=version)
    run = catalogue()
    assert run.release("pkg", "1.0").origin.version == "1.0"
    assert run.release("pkg", "1.1").origin.version == "1.1"
    assert len(server.asked("/simple/")) == 1


def test_a_page_that_comes_compressed_unasked_is_read(server, wheel, catalogue):
    server.compress = True
    server.files[WHEEL] = wheel(SOURCES)
    assert [str(version.version) for version in catalogue().versions("pkg")] == ["1.0"]


def test_a_proxy_is_used_where_one_is_configured(server, wheel, catalogue):
    server.files[WHEEL] = wheel(SOURCES)
    elsewhere = (PackageIndex("http://elsewhere.invalid/simple"),)
    assert catalogue(indexes=elsewhere, proxy=server.url).release("pkg", "1.0").files()
    assert {headers["Host"] for _, _, headers in server.log} == {"elsewhere.invalid"}


def test_a_file_that_changes_while_it_is_read_by_ranges_is_noticed(server, wheel, catalogue, small_ranges, monkeypatch):
    server.files[WHEEL] = wheel({f"pkg/m{number}.py": f"x = {number}" * 99 for number in range(999)}, filler=3_000_000)
    prepare = fetching.RangeReader.prepare

    def replaced_first(self, parts):
        server.files[WHEEL] += b"more"
        prepare(self, parts)

    monkeypatch.setattr(fetching.RangeReader, "prepare", replaced_first)
    with pytest.raises(ArchiveError, match="changed while it was read"):
        catalogue().release("pkg", "1.0")


def test_versions_between_two_that_are_here_already_are_known(server, wheel, catalogue):
    for version in ("1.0", "1.1", "1.2", "2.0"):
        server.files[f"pkg-{version}-py3-none-any.whl"] = wheel(SOURCES, version=version)
    for version in ("2.0", "1.2", "1.0"):
        catalogue().release("pkg", version)
    assert catalogue().cached_between("pkg", "1.0", "2.0") == ["1.2"]


def test_failures_that_pass_are_tried_again(server, wheel, catalogue):
    server.files[WHEEL] = wheel(SOURCES)
    server.failures = [503, 429]
    assert catalogue().release("pkg", "1.0").files()
    server.failures = [500, 500, 500]
    with pytest.raises(UpstreamError, match="status 500"):
        catalogue().versions("other")


def test_a_download_that_breaks_off_starts_again(server, wheel, catalogue):
    server.files[WHEEL] = wheel(SOURCES, filler=50_000)
    server.facts[WHEEL] = {"size": len(server.files[WHEEL])}
    server.cut = 1
    assert catalogue().release("pkg", "1.0").origin.verified == "whole"
    assert len(server.asked("/files/")) == 2


def test_redirects_are_followed_and_credentials_stay_with_their_host(server, wheel, catalogue):
    server.files[WHEEL] = wheel(SOURCES)
    server.facts[WHEEL] = {"url": "/there"}
    server.moved["/there"] = f"{server.url.replace('127.0.0.1', 'localhost')}/files/{WHEEL}"
    credentials = {server.url.removeprefix("http://"): ("me", "s3cret")}
    catalogue(credentials=credentials).release("pkg", "1.0")
    sent = {path: "Authorization" in headers for _, path, headers in server.log if "/simple/" not in path}
    assert sent == {"/there": True, f"/files/{WHEEL}": False}


def test_credentials_open_a_guarded_index_and_are_never_shown(server, wheel, catalogue):
    server.files[WHEEL] = wheel(SOURCES)
    server.password = "s3cret"
    host = server.url.removeprefix("http://")
    release = catalogue(credentials={host: ("me", "s3cret")}).release("pkg", "1.0")
    assert "s3cret" not in repr(release.origin)
    with pytest.raises(UpstreamError, match="access was refused") as caught:
        catalogue(credentials={host: ("me", "wr0ng")}).versions("another")
    assert "wr0ng" not in str(caught.value)


def test_credentials_come_from_netrc_too(server, wheel, catalogue, tmp_path, monkeypatch):
    server.files[WHEEL] = wheel(SOURCES)
    server.password = "s3cret"
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password s3cret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert catalogue().release("pkg", "1.0").files()


def test_an_unknown_package_is_told_with_the_nearest_name(catalogue):
    with pytest.raises(UpstreamError, match="did you mean 'transformers'") as caught:
        catalogue(known=["torch", "transformers"]).release("transformrs", "5.0")
    assert caught.value.exit_code == 11
    assert not isinstance(caught.value, OfflineError)


def test_an_unknown_version_is_told_with_those_around_it(server, wheel, catalogue):
    for version in ("0.9", "1.0", "1.2", "2.0"):
        server.files[f"pkg-{version}-py3-none-any.whl"] = wheel(SOURCES, version=version)
    with pytest.raises(UpstreamError, match=r"1\.1; the nearest versions are 0\.9, 1\.0, 1\.2, 2\.0"):
        catalogue().release("pkg", "1.1")


def test_a_version_that_has_neither_wheel_nor_sdist_is_unknown(server, wheel, catalogue):
    server.files["pkg-1.0-py3-none-any.whl"] = wheel(SOURCES)
    server.files["pkg-1.1.win32.exe"] = b"MZ"
    with pytest.raises(UpstreamError, match="no wheel or source distribution of version"):
        catalogue().release("pkg", "1.1")


@pytest.mark.parametrize("dialect", ["json", "html"])
def test_a_yanked_release_is_given_when_asked_for_and_says_so(server, wheel, catalogue, dialect):
    server.dialect = dialect
    server.files[WHEEL] = wheel(SOURCES)
    server.facts[WHEEL] = {"yanked": "broken on import"}
    assert catalogue().release("pkg", "1.0").origin.yanked == "broken on import"
    assert catalogue().release("pkg", "1.0").origin.yanked == "broken on import"
    assert [version.yanked for version in catalogue().versions("pkg")] == ["broken on import"]


@pytest.mark.parametrize(("name", "version"), [("pkg", ""), ("pkg", "1.*"), ("pkg", "new"), ("p g", "1"), ("", "1")])
def test_what_is_not_a_name_or_a_version_is_refused(catalogue, name, version):
    with pytest.raises(UsageError):
        catalogue().release(name, version)


def test_offline_the_cache_answers_and_nothing_is_asked(server, wheel, catalogue):
    server.files[WHEEL] = wheel(SOURCES)
    catalogue().release("pkg", "1.0")
    before = len(server.log)
    assert catalogue(offline=True).release("pkg", "1.0").read("pkg/__init__.py") == b"A = 1\n"
    assert [str(version.version) for version in catalogue(offline=True).versions("pkg")] == ["1.0"]
    assert len(server.log) == before


def test_offline_a_release_that_was_never_read_is_missed_with_what_to_do(server, wheel, catalogue):
    for version in ("1.0", "1.1"):
        server.files[f"pkg-{version}-py3-none-any.whl"] = wheel(SOURCES, version=version)
    catalogue().release("pkg", "1.0")
    with pytest.raises(OfflineError, match=r"the cache lacks it.*run once without --offline"):
        catalogue(offline=True).release("pkg", "1.1")
    with pytest.raises(OfflineError, match="nothing of it is in the cache"):
        catalogue(offline=True).release("other", "1.0")


def test_with_the_network_gone_the_cache_still_answers(server, wheel, catalogue):
    server.files[WHEEL] = wheel(SOURCES)
    catalogue().release("pkg", "1.0")
    gone = (PackageIndex("http://127.0.0.1:1/simple"),)
    assert catalogue(indexes=gone, retries=0).release("pkg", "1.0").files()
    with pytest.raises(OfflineError, match="no answer"):
        catalogue(indexes=gone, retries=0).release("other", "1.0")


def test_a_damaged_cache_entry_is_noticed_and_fetched_again(server, wheel, catalogue, tmp_path):
    server.files[WHEEL] = wheel(SOURCES)
    catalogue().release("pkg", "1.0")
    (packed,) = (tmp_path / "cache").glob("*.zip")
    whole = packed.read_bytes()
    for damaged in (whole[:-10], whole.replace(b"pkg/deep", b"pkg/evil"), b""):
        packed.write_bytes(damaged)
        assert catalogue().release("pkg", "1.0").read("pkg/deep/x.py") == b"B = 2\n"
        assert packed.read_bytes() == whole
    packed.write_bytes(b"")
    with pytest.raises(OfflineError, match="the cache lacks it"):
        catalogue(offline=True).release("pkg", "1.0")


def test_equal_content_gives_equal_bytes_in_the_cache(server, wheel, catalogue, tmp_path):
    server.files[WHEEL] = wheel(SOURCES)
    catalogue().release("pkg", "1.0")
    (packed,) = (tmp_path / "cache").glob("*.zip")
    assert packed.stem == hashlib.sha256(server.files[WHEEL]).hexdigest()
    first = packed.read_bytes()
    packed.unlink()
    catalogue().release("pkg", "1.0")
    assert packed.read_bytes() == first


def test_a_changed_file_without_a_stated_hash_is_read_anew(server, wheel, catalogue):
    server.hashes = False
    server.files[WHEEL] = wheel(SOURCES)
    assert catalogue().release("pkg", "1.0").origin.verified == "ranged"
    server.files[WHEEL] = wheel({**SOURCES, "pkg/new.py": "C = 3"})
    assert "pkg/new.py" in catalogue().release("pkg", "1.0").files()


def test_two_indexes_may_have_different_files_under_one_name(server, wheel, catalogue):
    server.files[WHEEL] = wheel(SOURCES)
    assert len(catalogue().release("pkg", "1.0").files()) == 2
    server.files[WHEEL] = wheel({"pkg/__init__.py": ""})
    server.url = server.url.replace("127.0.0.1", "localhost")
    assert len(catalogue().release("pkg", "1.0").files()) == 1


def read_once(arguments):
    folder, url = arguments
    settings = IndexSettings(indexes=(PackageIndex(f"{url}/simple"),))
    return Catalogue(folder, settings=settings).release("pkg", "1.0").digest()


@pytest.mark.exhaustive
def test_processes_share_one_cache(server, wheel, tmp_path):
    files = {f"pkg/m{number}.py": f"x = {number}\n" * 200 for number in range(200)}
    server.files[WHEEL] = wheel(files)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        digests = pool.map(read_once, [(tmp_path / "cache", server.url)] * 6, chunksize=1)
    assert len(set(digests)) == 1
    assert [path.suffix for path in (tmp_path / "cache").iterdir() if path.is_file()] == [".zip"]


def test_the_functions_do_what_the_catalogue_does(server, wheel, tmp_path):
    server.files[WHEEL] = wheel(SOURCES)
    settings = IndexSettings(indexes=(PackageIndex(f"{server.url}/simple"),))
    lines = []
    release = Catalogue(tmp_path, settings=settings, report=lines.append).release("Pkg", "1.0")
    assert release.origin.distribution == "pkg"
    assert lines == [f"{WHEEL}: fetching"]
    assert [str(found.version) for found in Catalogue(tmp_path, offline=True, settings=settings).versions("pkg")] == [
        "1.0"
    ]
