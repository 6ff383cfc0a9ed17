"""What is kept between runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tooling.python.symbols.symbol import Found, Signature
from tooling.python.symbols.tree import SymbolTree
from tooling.upgrade.sources.folder import installed_release

FILES = {
    "root": "from .core import Engine\ndef f(x=2 ** 3): ...\n",
    "core": "class Engine:\n    def run(self, a): ...\n    def __init__(self): self.x = Engine()\n",
}


def answers(release):
    return (
        release.way("pkg.Engine"),
        release.found("pkg.Engine.x"),
        release.signature("pkg.f"),
        release.upstream.names().by_name["Engine"],
        release.upstream.calls_of("run"),
    )


def test_a_second_run_parses_nothing_and_answers_alike(package, tmp_path):
    first = package(cache=tmp_path, **FILES)
    told = answers(first)
    first.upstream.save()
    second = package(cache=tmp_path, **FILES)
    assert answers(second) == told
    assert second.upstream.store.parsed == []


def test_what_is_kept_is_of_this_content_only(package, tmp_path):
    package(cache=tmp_path, **FILES).upstream.save()
    changed = package(cache=tmp_path, **{**FILES, "core": "class Engine: ...\n"})
    assert changed.absent("pkg.Engine.run").container == "pkg.core.Engine"


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 400])
def test_a_damaged_cache_is_made_anew(package, tmp_path, damage):
    first = package(cache=tmp_path, **FILES)
    told = answers(first)
    first.upstream.save()
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(damage)
    assert answers(package(cache=tmp_path, **FILES)) == told


def test_a_cache_that_cannot_be_written_is_no_error(package, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    release = package(cache=blocked / "folder", **FILES)
    release.found("pkg.Engine")
    release.upstream.save()
    assert release.text("pkg.f") == "f(x=2 ** 3)"


SITE = Path(__file__).resolve().parents[4] / ".venv/lib/python3.11/site-packages"


@pytest.mark.sample(1)
@pytest.mark.skipif(not (SITE / "transformers").is_dir(), reason="needs the packages that scripts/setup.sh installs")
@pytest.mark.parametrize(
    ("distribution", "names", "most"),
    [
        ("transformers", ["transformers.AutoModelForCausalLM.from_pretrained", "transformers.PreTrainedConfig"], 40),
        ("torch", ["torch.nn.Linear", "torch.zeros", "torch.optim.AdamW", "torch.nn.functional.softmax"], 40),
    ],
)
def test_a_few_names_of_a_large_package_need_a_few_of_its_files(distribution, names, most):
    release = installed_release(distribution, [SITE])
    assert release is not None
    upstream = SymbolTree(release)
    for name in names:
        resolution = upstream.resolve(name)
        assert isinstance(resolution, Found), resolution
        assert isinstance(upstream.signature(resolution.symbol), Signature)
    assert len(upstream.store.parsed) <= most
