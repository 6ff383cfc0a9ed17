"""Hostile and damaged archives: each is refused with a reason, and nothing of it is kept."""

from __future__ import annotations

import gzip
import io
import stat
import struct
import tarfile
import zipfile

import pytest

from tooling.upgrade.errors import ArchiveError
from tooling.upgrade.sources.archive import reading
from tooling.upgrade.sources.archive.reading import ArchiveFile, merged
from tooling.upgrade.sources.archive.sdist import read_sdist
from tooling.upgrade.sources.archive.wheel import read_wheel

NAME = "pkg-1.0-py3-none-any.whl"
SOURCES = {"pkg/__init__.py": "A = 1\n", "pkg/x.py": "B = 2\n" * 500}


@pytest.fixture
def read(tmp_path):
    """Reads the bytes of a wheel."""

    def run(content, *, vouched=True):
        path = tmp_path / "archive"
        path.write_bytes(content)
        with ArchiveFile(path) as stream:
            return read_wheel(stream, NAME, vouched=vouched)

    return run


@pytest.fixture
def read_tar(tmp_path):
    def run(content, name="pkg-1.0.tar.gz"):
        path = tmp_path / "archive"
        path.write_bytes(content)
        return read_sdist(path, name, "pkg")

    return run


def test_a_plain_wheel_is_read(read, wheel):
    found = read(wheel(SOURCES, filler=10), vouched=False)
    assert dict(found.files) == {path: text.encode() for path, text in SOURCES.items()}
    assert found.native == ("pkg/_C.abi3.so",)


def test_folders_of_data_land_where_an_installation_puts_them(read, wheel):
    found = read(wheel({"pkg-1.0.data/purelib/pkg/a.py": "", "pkg-1.0.data/scripts/run.py": "", "pkg/b.py": ""}))
    assert sorted(found.files) == ["pkg/a.py", "pkg/b.py"]


def test_stored_members_and_data_descriptors_are_read(read, tmp_path):
    class Pipe(io.RawIOBase):
        """Cannot seek, so that zipfile writes descriptors behind the members."""

        def __init__(self):
            self.written = b""

        def writable(self):
            return True

        def write(self, data):
            self.written += bytes(data)
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w") as archive:
        archive.writestr("pkg/__init__.py", "A = 1", compress_type=zipfile.ZIP_DEFLATED)
        archive.writestr("pkg/s.py", "S = 1", compress_type=zipfile.ZIP_STORED)
        archive.writestr("pkg-1.0.dist-info/METADATA", "Name: pkg\n")
    assert dict(read(pipe.written).files) == {"pkg/__init__.py": b"A = 1", "pkg/s.py": b"S = 1"}


def test_zip64_records_are_read(read, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        with archive.open("pkg/__init__.py", "w", force_zip64=True) as member:
            member.write(b"A = 1")
        archive.writestr("pkg-1.0.dist-info/METADATA", "Name: pkg\n")
    assert b"PK\x06\x06" in target.getvalue()
    assert dict(read(target.getvalue()).files) == {"pkg/__init__.py": b"A = 1"}


@pytest.mark.parametrize(
    "name", ["../evil.py", "/etc/evil.py", "pkg/../../evil.py", "C:/evil.py", "pkg//evil.py", "./evil.py"]
)
def test_names_that_lead_out_are_refused(read, wheel, name):
    member = zipfile.ZipInfo("placeholder")
    member.filename = name
    with pytest.raises(ArchiveError, match="leads out"):
        read(wheel(SOURCES, extra=[(member, b"")]))


def test_backslashes_are_refused(read, wheel):
    content = wheel(SOURCES, extra=[(zipfile.ZipInfo("pkg/back_slash.py"), b"")])
    with pytest.raises(ArchiveError, match="leads out"):
        read(content.replace(b"pkg/back_slash.py", b"pkg\\back_slash.py"))


def test_links_are_refused(read, wheel):
    member = zipfile.ZipInfo("pkg/link.py")
    member.create_system = 3
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    with pytest.raises(ArchiveError, match="link"):
        read(wheel(SOURCES, extra=[(member, b"/etc/passwd")]))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_is_there_twice_is_refused(read, wheel):
    with pytest.raises(ArchiveError, match="twice"):
        read(wheel(SOURCES, extra=[(zipfile.ZipInfo("pkg/x.py"), b"other")]))


def test_two_members_for_one_place_are_refused(read, wheel):
    with pytest.raises(ArchiveError, match="one place"):
        read(wheel({"pkg/a.py": "", "pkg-1.0.data/platlib/pkg/a.py": "x"}))


def test_members_that_share_bytes_are_refused(read, wheel):
    """The overlapping bomb: many entries of the directory over one piece of data."""
    content = bytearray(wheel(SOURCES))
    first = content.find(b"PK\x01\x02")
    second = content.find(b"PK\x01\x02", first + 1)
    content[second + 42 : second + 46] = content[first + 42 : first + 46]
    with pytest.raises(ArchiveError, match="overlaps"):
        read(bytes(content))


def test_a_member_that_grows_too_large_is_refused_before_it_is_inflated(read, wheel):
    with pytest.raises(ArchiveError, match="more than 16 MB"):
        read(wheel({"pkg/__init__.py": b"#" * (17 << 20)}))


def test_many_members_that_grow_too_large_together_are_refused(read, wheel, monkeypatch):
    monkeypatch.setattr(reading, "MAX_TOTAL", 5 << 20)
    with pytest.raises(ArchiveError, match="more than 5 MB"):
        read(wheel({f"pkg/m{number}.py": b"#" * (1 << 20) for number in range(8)}))


def test_a_member_that_inflates_to_more_than_it_says_is_refused(read, wheel):
    content = wheel(SOURCES)
    size = struct.pack("<L", len(SOURCES["pkg/x.py"]))
    with pytest.raises(ArchiveError, match="another length"):
        read(content.replace(size, struct.pack("<L", 100)))


@pytest.mark.parametrize(
    ("offset", "value", "words"),
    [(8, 0x01, "encrypted"), (10, 99, "unknown method"), (16, 0, "differs|checksum"), (34, 3, "another part")],
)
def test_directories_with_other_features_or_values_are_refused(read, wheel, offset, value, words):
    content = bytearray(wheel(SOURCES))
    entry = content.find(b"PK\x01\x02")
    content[entry + offset : entry + offset + 2] = struct.pack("<H", value)
    with pytest.raises(ArchiveError, match=words):
        read(bytes(content))


def test_a_changed_byte_in_a_member_is_noticed(read, wheel):
    content = bytearray(wheel(SOURCES))
    member = content.find(b"pkg/x.py")
    content[member + 20] ^= 0x55
    with pytest.raises(ArchiveError, match="damaged"):
        read(bytes(content))


def test_a_wrong_checksum_on_both_sides_is_noticed(read, wheel):
    content = wheel(SOURCES)
    crc = content[content.find(b"PK\x03\x04") + 14 :][:4]
    with pytest.raises(ArchiveError, match="checksum"):
        read(content.replace(crc, b"\1\2\3\4"))


@pytest.mark.parametrize("keep", [0, 10, 0.3, 0.9, 0.999])
def test_archives_that_end_early_are_refused(read, wheel, keep):
    content = wheel(SOURCES)
    with pytest.raises(ArchiveError):
        read(content[: int(keep * len(content)) if keep < 1 else keep])


def test_bytes_before_and_behind_an_archive_are_refused(read, wheel):
    with pytest.raises(ArchiveError, match="not where it says"):
        read(b"#!/bin/sh\n" + wheel(SOURCES))
    with pytest.raises(ArchiveError, match="follows its end"):
        read(wheel(SOURCES) + b"more")


def test_each_single_changed_byte_gives_the_sources_or_an_error_and_nothing_else(read, wheel):
    content = wheel({"pkg/__init__.py": "A = 1\n"})
    expected = {"pkg/__init__.py": b"A = 1\n"}
    refused = 0
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 0x01 if position % 2 else 0x80
        try:
            found = read(bytes(changed), vouched=False)
        except ArchiveError:
            refused += 1
        else:
            refused += bool(found.doubt)
            assert found.files == expected or found.doubt, position
    assert refused > len(content) / 2


def test_the_wheel_of_another_distribution_or_version_is_refused(read, wheel):
    for other in (wheel(SOURCES, name="evil"), wheel(SOURCES, version="2.0")):
        with pytest.raises(ArchiveError, match=r"expected the metadata of pkg 1\.0"):
            read(other)


def test_a_member_that_is_not_what_record_says_is_doubted(read, wheel):
    wrong = wheel(SOURCES, record=f"pkg/x.py,sha256={'A' * 43},1")
    assert read(wrong).doubt == "'pkg/x.py' is not what RECORD says (hash mismatch)"
    assert read(wheel(SOURCES)).doubt == ""


def test_a_member_without_a_hash_is_doubted_where_nothing_else_vouches_for_it(read, wheel):
    bare = wheel(SOURCES, record="pkg/x.py,,")
    assert read(bare).doubt == ""
    assert read(bare, vouched=False).doubt.startswith("RECORD has no hash of 'pkg/__init__.py'")
    more = wheel({"pkg/a.py": ""}, record=f"pkg/gone.py,sha256={'A' * 43},1")
    assert read(more, vouched=False).doubt == "RECORD names 'pkg/gone.py', which the archive lacks"


def test_directories_with_too_many_members_are_refused(read, wheel, monkeypatch):
    monkeypatch.setattr(reading, "MAX_MEMBERS", 3)
    with pytest.raises(ArchiveError, match="too many members"):
        read(wheel(SOURCES))


def test_near_parts_are_fetched_together():
    assert merged([(0, 10), (300_000, 300_010), (20, 30), (90_000, 90_001)]) == [
        (0, 30),
        (90_000, 90_001),
        (300_000, 300_010),
    ]
    assert merged([(0, 10), (60_000, 60_010)]) == [(0, 60_010)]


# ------------------------------------------------------------------------------------------------ source distributions


def link(name, target, kind=tarfile.SYMTYPE):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


PLAIN = [("pkg-1.0/PKG-INFO", b"Name: pkg\nRequires-Dist: torch\n"), ("pkg-1.0/pkg/__init__.py", b"A = 1")]


def test_of_a_flat_layout_the_package_counts_and_tests_do_not(read_tar, tar):
    found = read_tar(tar([*PLAIN, ("pkg-1.0/tests/t.py", b""), ("pkg-1.0/setup.py", b"raise SystemExit")]))
    assert dict(found.files) == {"pkg/__init__.py": b"A = 1"}
    assert b"Requires-Dist: torch" in found.metadata


def test_of_a_src_layout_what_is_in_src_counts(read_tar, tar):
    found = read_tar(tar([("pkg-1.0/src/pkg/__init__.py", b"A"), ("pkg-1.0/pkg/__init__.py", b"old")]))
    assert dict(found.files) == {"pkg/__init__.py": b"A"}


def test_names_that_setuptools_recorded_win(read_tar, tar):
    members = [
        ("pkg-1.0/pkg.egg-info/top_level.txt", b"other\n_single\n"),
        ("pkg-1.0/pkg.egg-info/entry_points.txt", b"[console_scripts]\np = other:main\n"),
        ("pkg-1.0/pkg/__init__.py", b""),
        ("pkg-1.0/other/__init__.py", b""),
        ("pkg-1.0/_single.py", b""),
    ]
    found = read_tar(tar(members))
    assert sorted(found.files) == ["_single.py", "other/__init__.py"]
    assert b"other:main" in found.entry_points


def test_packages_that_the_build_system_declares_are_found(read_tar, tar):
    declared = b'[project.scripts]\np = "odd.cli:main"\n[tool.hatch.build.targets.wheel]\npackages = ["code/odd"]\n'
    found = read_tar(tar([("pkg-1.0/pyproject.toml", declared), ("pkg-1.0/code/odd/__init__.py", b"A")]))
    assert dict(found.files) == {"odd/__init__.py": b"A"}
    assert found.scripts == {"p": "odd.cli:main"}


def test_zipped_source_distributions_are_read(read_tar):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("pkg-1.0/pkg/__init__.py", "A = 1")
    assert dict(read_tar(target.getvalue(), "pkg-1.0.zip").files) == {"pkg/__init__.py": b"A = 1"}


def test_links_inside_are_followed(read_tar, tar):
    members = [*PLAIN, (link("pkg-1.0/pkg/b.py", "__init__.py"), b""), (link("pkg-1.0/pkg/c.py", "b.py"), b"")]
    assert read_tar(tar(members)).files["pkg/c.py"] == b"A = 1"


def test_links_in_a_circle_end(read_tar, tar):
    members = [*PLAIN, (link("pkg-1.0/pkg/b.py", "c.py"), b""), (link("pkg-1.0/pkg/c.py", "b.py"), b"")]
    assert sorted(read_tar(tar(members)).files) == ["pkg/__init__.py"]


@pytest.mark.parametrize(
    "member",
    [
        link("pkg-1.0/pkg/evil.py", "/etc/passwd"),
        link("pkg-1.0/pkg/evil.py", "../../../etc/passwd"),
        link("pkg-1.0/pkg/evil.py", "../outside", tarfile.LNKTYPE),
        link("pkg-1.0/dev", "", tarfile.CHRTYPE),
        link("pkg-1.0/fifo", "", tarfile.FIFOTYPE),
        tarfile.TarInfo("/etc/evil.py"),
        tarfile.TarInfo("pkg-1.0/../../evil.py"),
    ],
    ids=["absolute", "upwards", "hard", "device", "fifo", "rooted", "dotted"],
)
def test_members_that_lead_out_or_are_no_files_are_refused(read_tar, tar, member):
    with pytest.raises(ArchiveError):
        read_tar(tar([*PLAIN, (member, b"")]))


def test_a_file_that_is_there_twice_is_refused(read_tar, tar):
    with pytest.raises(ArchiveError, match="twice"):
        read_tar(tar([*PLAIN, PLAIN[1]]))


def test_tar_bombs_are_refused(read_tar, tar, monkeypatch):
    with pytest.raises(ArchiveError, match="more than 16 MB"):
        read_tar(tar([*PLAIN, ("pkg-1.0/pkg/big.py", b"#" * (17 << 20))]))
    monkeypatch.setattr("tooling.upgrade.sources.archive.sdist._MAX_STREAM", 1 << 20)
    with pytest.raises(ArchiveError, match="more than 1 MB"):
        read_tar(tar([*PLAIN, ("pkg-1.0/data.bin", bytes(3 << 20))]))


def test_an_endless_header_is_refused(read_tar):
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 1 << 40
    with pytest.raises(ArchiveError, match="header is too long"):
        read_tar(gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20)))


@pytest.mark.parametrize("keep", [0, 5, 0.5, 0.95])
def test_tars_that_end_early_are_refused(read_tar, tar, keep):
    content = tar([*PLAIN, ("pkg-1.0/pkg/x.py", bytes(range(256)) * 40)])
    with pytest.raises(ArchiveError):
        read_tar(content[: int(keep * len(content)) if keep < 1 else keep])


def test_a_source_distribution_without_a_package_is_refused(read_tar, tar):
    with pytest.raises(ArchiveError, match="no package was found"):
        read_tar(tar([("pkg-1.0/PKG-INFO", b""), ("pkg-1.0/setup.py", b"")]))
