"""A hub on loopback for the real client of the Hugging Face hub, with an empty cache."""

import pytest
from hub_server import HubServer

from areal.hub import names


@pytest.fixture
def hub(monkeypatch, tmp_path):
    from huggingface_hub import constants

    cache = tmp_path / "cache"
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        # The client reads its environment when it is imported, which other tests did with another one.
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        # With xet the client uploads to its chunk store, never over LFS, and does not fall back where there is none.
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(names, "_commits", {})
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        yield server


@pytest.fixture
def offline(monkeypatch):
    """Return what takes the network away, as a new process with HF_HUB_OFFLINE=1 has it."""
    from huggingface_hub import constants

    def leave() -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(names, "_commits", {})

    return leave
