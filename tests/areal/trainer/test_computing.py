"""A run says by which library its linear layers computed, and a continued one keeps it."""

from __future__ import annotations

import pytest
import runs
import torch

from areal.api import ModelError
from areal.models.blocks.linear import current_products, measure_products, use_products
from areal.trainer.configuration.computing import PRODUCTS, computing, keep_computing, start_computing


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    before = current_products()
    yield
    use_products(before)


def test_what_is_set_wins_and_what_is_measured_comes_next(tmp_path, monkeypatch):
    for library in ("onednn", "torch"):
        start_computing(runs.tiny(tmp_path, matrix_products=library))
        assert current_products() == library == computing()[PRODUCTS]
    measured = measure_products()  # once: beside other work a second time may have another winner
    monkeypatch.setattr("areal.models.blocks.linear.measure_products", lambda: measured)
    start_computing(runs.tiny(tmp_path))
    assert current_products() == measured.fastest


def test_ranks_of_a_run_and_bfloat16_stay_with_torch(tmp_path, monkeypatch):
    start_computing(runs.tiny(tmp_path, actor__dtype="bfloat16"))
    assert current_products() == "torch"
    monkeypatch.setenv("WORLD_SIZE", "2")
    use_products("onednn")
    start_computing(runs.tiny(tmp_path))
    assert current_products() == "torch"


def test_a_continued_run_keeps_the_library(tmp_path):
    for measured, before in (("torch", "onednn"), ("onednn", "torch")):
        use_products(measured)
        keep_computing(runs.tiny(tmp_path), {PRODUCTS: before})
        assert current_products() == before
    use_products("onednn")
    keep_computing(runs.tiny(tmp_path), {})
    assert current_products() == "torch", "checkpoints without an entry are older than the setting"
    keep_computing(runs.tiny(tmp_path, matrix_products="torch"), {PRODUCTS: "onednn"})
    assert current_products() == "torch"


def test_a_run_that_continues_where_its_library_is_missing_says_what_to_set(tmp_path, monkeypatch):
    use_products("torch")
    with monkeypatch.context() as without:
        without.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        with pytest.raises(ModelError, match="'onednn'") as caught:
            keep_computing(runs.tiny(tmp_path), {PRODUCTS: "onednn"})
    assert (caught.value.where, "matrix_products to torch" in caught.value.fix) == ("matrix_products", True)
    keep_computing(runs.tiny(tmp_path, matrix_products="torch"), {PRODUCTS: "onednn"})
