"""Where packages are searched: pip and uv settings count, in their own order, and secrets stay secret."""

from __future__ import annotations

import pytest

from tooling.upgrade.sources.index_config import PUBLIC_INDEX, read_settings


@pytest.fixture
def world(tmp_path):
    """Writes files below a home and a project, and reads the settings there."""
    (tmp_path / "home").mkdir()
    (tmp_path / "project").mkdir()

    def read(files=None, **environ):
        for name, text in (files or {}).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        base = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_DIRS": str(tmp_path / "xdg")}
        return read_settings(tmp_path / "project", {**base, **environ})

    return read


def urls(settings):
    # /etc/pip.conf of the machine that runs this counts too; the tests name their own defaults.
    return [index.url for index in settings.indexes]


def test_pip_and_its_environment_win_over_its_files_and_user_files_over_global_ones(world):
    files = {
        "xdg/pip/pip.conf": "[global]\nindex-url = https://global/simple\n",
        "home/.config/pip/pip.conf": "[global]\nindex-url = https://user/simple/\n[install]\nfind_links = /a\n  /b\n",
    }
    settings = world(files)
    assert urls(settings)[0] == "https://user/simple"
    assert settings.find_links == ("/a", "/b")
    changed = world(
        files, PIP_INDEX_URL="https://env/simple", PIP_FIND_LINKS="/c /d", PIP_EXTRA_INDEX_URL="https://x https://y"
    )
    assert urls(changed)[:3] == ["https://env/simple", "https://x", "https://y"]
    assert changed.find_links == ("/c", "/d")


def test_the_environment_of_the_project_and_a_named_file_count(world, tmp_path):
    files = {
        "project/.venv/pip.conf": "[global]\nindex-url = https://site/simple\ntimeout = 7\nretries = 1\n",
        "named.conf": "[global]\nindex-url = https://named/simple\n",
    }
    settings = world(files)
    assert urls(settings)[0] == "https://site/simple"
    assert (settings.timeout, settings.retries) == (7.0, 1)
    assert urls(world(files, PIP_CONFIG_FILE=str(tmp_path / "named.conf")))[0] == "https://named/simple"


def test_with_indexes_forbidden_only_folders_are_left(world):
    settings = world(PIP_NO_INDEX="1", PIP_FIND_LINKS="/wheels")
    assert (settings.indexes, settings.find_links) == ((), ("/wheels",))
    assert world(UV_NO_INDEX="true").indexes == ()


def test_of_a_uv_project_uv_is_asked_first_and_its_indexes_in_order(world):
    project = """
[tool.uv]
find-links = ["wheels"]
[[tool.uv.index]]
name = "torch-cpu"
url = "https://torch/whl/cpu"
explicit = true
[[tool.uv.index]]
name = "company"
url = "https://company/simple/"
[[tool.uv.index]]
name = "mirror"
url = "https://mirror/simple"
default = true
[tool.uv.sources]
torch = [{ index = "torch-cpu", marker = "sys_platform == 'linux'" }, { index = "other" }]
Local_Pkg = { path = "dist/local_pkg-1.0-py3-none-any.whl" }
checkout = { git = "https://example.org/x" }
"""
    settings = world({"project/pyproject.toml": project}, PIP_INDEX_URL="https://pip/simple")
    assert urls(settings) == ["https://torch/whl/cpu", "https://company/simple", "https://mirror/simple"]
    assert settings.first_index
    assert [index.url for index in settings.indexes_for("torch")] == ["https://torch/whl/cpu"]
    assert [index.name for index in settings.indexes_for("vllm")] == ["company", "mirror"]
    assert settings.find_links[0].endswith("/project/wheels")
    assert settings.files["local-pkg"].endswith("/project/dist/local_pkg-1.0-py3-none-any.whl")
    assert "checkout" not in settings.files


def test_a_uv_toml_replaces_the_table_in_pyproject(world):
    files = {
        "project/pyproject.toml": '[tool.uv]\nindex-url = "https://table/simple"\n',
        "project/uv.toml": 'index-url = "https://file/simple"\n',
        "home/.config/uv/uv.toml": 'extra-index-url = ["https://user/simple"]\n',
    }
    assert urls(world(files)) == ["https://user/simple", "https://file/simple"]
    assert urls(world(files, UV_NO_CONFIG="1", UV_INDEX="named=https://env/simple")) == [
        "https://env/simple",
        PUBLIC_INDEX,
    ]


def test_the_public_index_is_not_asked_by_one_tool_when_the_other_names_a_default(world):
    assert PUBLIC_INDEX not in urls(world({"project/uv.lock": ""}, PIP_INDEX_URL="https://private/simple"))
    assert PUBLIC_INDEX not in urls(world(UV_DEFAULT_INDEX="private=https://private/simple"))


def test_credentials_are_kept_apart_from_addresses_and_never_printed(world):
    settings = world(
        {"project/uv.toml": '[[index]]\nname = "my-company"\nurl = "https://Company:8443/simple"\ndefault = true\n'},
        PIP_EXTRA_INDEX_URL="https://me:p%40ss@extra/simple",
        PIP_FIND_LINKS="https://you:w0rd@links/page.html",
        UV_INDEX_MY_COMPANY_USERNAME="bot",
        UV_INDEX_MY_COMPANY_PASSWORD="t0ken",
    )
    assert settings.credentials["extra"] == ("me", "p@ss")
    assert settings.credentials["company:8443"] == ("bot", "t0ken")
    assert settings.credentials["links"] == ("you", "w0rd")
    for secret in ("p@ss", "p%40ss", "w0rd", "t0ken"):
        assert secret not in repr(settings)


@pytest.mark.parametrize(
    "text", ["[global\nindex-url", "\x00\xff", "[tool.uv]\nindex = 3\nfind-links = {}\nsources = []\n"]
)
def test_damaged_configuration_counts_as_none(world, text):
    files = dict.fromkeys(("home/.config/pip/pip.conf", "project/pyproject.toml", "project/uv.toml"), text)
    assert urls(world(files, PIP_INDEX_URL="https://still/simple")) == ["https://still/simple"]
