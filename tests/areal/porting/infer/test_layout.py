"""Names on disk are found by the values of weights, for installed types and for layouts that no type has."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaForCausalLM

from areal.api import ModelError
from areal.models.adapter import (
    QueryKeyValue,
    Renamed,
    Rows,
    SeparateExperts,
    StackedExperts,
    SwappedHalves,
    Transposed,
)
from areal.porting.family import LayoutEntry
from areal.porting.infer.infer import infer
from areal.porting.infer.layout import adapter, anchored, canonical, infer_layout, shortest_table, skipped_names, tables
from areal.porting.infer.stored import StoredTensors, find_all, row_of
from areal.porting.probe.instance import build, export
from areal.porting.records import UnsupportedError

MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
ATTENTION = "layers.*.self_attn"


def named(layout: tuple[LayoutEntry, ...]) -> dict[str, tuple[str, str]]:
    return {" ".join(entry.ours): (entry.kind, entry.on_disk) for entry in layout if not entry.implied}


def without_implied(layout: tuple[LayoutEntry, ...]) -> list[LayoutEntry]:
    return [entry for entry in layout if not entry.implied]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("model_type", "fields", "rows"),
    [
        ("llama", {}, {}),
        pytest.param("qwen2", {"num_key_value_heads": 1}, {}, marks=pytest.mark.exhaustive),
        (
            "phi3",
            {},
            {
                f"{ATTENTION}.q_proj {ATTENTION}.k_proj {ATTENTION}.v_proj": (
                    "query_key_value",
                    "model.layers.*.self_attn.qkv_proj",
                ),
                "layers.*.mlp.gate_proj layers.*.mlp.up_proj": ("rows", "model.layers.*.mlp.gate_up_proj"),
            },
        ),
        (
            "mixtral",
            MOE,
            {
                "layers.*.mlp.router": ("renamed", "model.layers.*.block_sparse_moe.gate"),
                "layers.*.mlp.experts.gate_proj": (
                    "experts",
                    "model.layers.*.block_sparse_moe.experts.{expert}.w1.weight",
                ),
                "layers.*.mlp.experts.up_proj": (
                    "experts",
                    "model.layers.*.block_sparse_moe.experts.{expert}.w3.weight",
                ),
                "layers.*.mlp.experts.down_proj": (
                    "experts",
                    "model.layers.*.block_sparse_moe.experts.{expert}.w2.weight",
                ),
            },
        ),
    ],
)
def test_layouts_of_installed_types(inferred, model_type, fields, rows):
    instance, inference = inferred(model_type, **fields)
    layout = infer_layout(instance, inference)
    assert named(layout) == rows
    for stored in (export(instance), instance.model.state_dict()):
        read = canonical(layout, stored, inference.spec)
        assert read.keys() == inference.weights.keys()
        assert all(torch.equal(read[name], weight) for name, weight in inference.weights.items())


def test_what_a_layout_writes_is_what_transformers_writes(inferred):
    instance, inference = inferred("mixtral", **MOE)
    written = adapter(infer_layout(instance, inference), inference.spec).to_hf(inference.weights)
    expected = export(instance)
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in expected.items())


def test_gpt2_is_transposed_and_its_biases_are_not(installed):
    instance = installed("gpt2", n_embd=64, n_head=4, n_layer=2, n_positions=64, n_inner=96)
    inference = infer(instance)
    layout = infer_layout(instance, inference)
    assert named(layout)["layers.*.mlp.up_proj"] == ("transposed", "transformer.h.*.mlp.c_fc")
    assert not any(entry.ours[0].endswith(".bias") for entry in layout)
    read = canonical(layout, export(instance), inference.spec)
    assert all(torch.equal(read[name], weight) for name, weight in inference.weights.items())


@pytest.mark.exhaustive
def test_one_key_head_leaves_an_arrangement_open_that_another_config_decides(installed):
    one, several = (installed("phi3", num_key_value_heads=heads) for heads in (1, 2))
    first, second = infer(one), infer(several)
    assert without_implied(infer_layout(one, first))[0].arrangement == "per_group"
    assert without_implied(infer_layout(one, first, others=[(several, second)]))[0].arrangement == "concat"


@pytest.mark.exhaustive
def test_a_missing_tensor_is_named_by_the_adapter(inferred):
    instance, inference = inferred("phi3")
    layout = infer_layout(instance, inference)
    tensors = export(instance)
    del tensors["model.layers.1.mlp.gate_up_proj.weight"]
    with pytest.raises(ModelError, match=r"missing model\.layers\.1\.mlp\.gate_up_proj\.weight"):
        canonical(layout, tensors, inference.spec)


def test_a_tensor_that_nothing_reads_is_refused(installed, inferred):
    instance, (_, inference) = installed("llama"), inferred("llama")
    instance.model.model.extra = torch.nn.Linear(3, 5)
    with pytest.raises(UnsupportedError, match=r"model\.extra\.weight"):
        infer_layout(instance, inference)


def test_a_changed_tensor_is_refused(installed, inferred):
    instance, (_, inference) = installed("llama"), inferred("llama")
    with torch.no_grad():
        instance.model.model.layers[1].mlp.up_proj.weight[0, 0] += 1
    with pytest.raises(UnsupportedError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        infer_layout(instance, inference)


# --------------------------------------------------------------------------------------------- made-up arrangements

HEADS, KEY_HEADS, DIM, HIDDEN = 4, 2, 6, 16
QKV = tuple(f"layers.3.self_attn.{part}_proj.weight" for part in "qkv")
GATE_UP = ("layers.3.mlp.experts.gate_proj", "layers.3.mlp.experts.up_proj")


def values(names: tuple[str, ...], *shapes: tuple[int, ...]) -> dict[str, torch.Tensor]:
    torch.manual_seed(11)
    return {name: torch.randn(shape) for name, shape in zip(names, shapes, strict=True)}


@pytest.mark.parametrize(
    ("row", "names", "shapes"),
    [
        (QueryKeyValue(QKV, "x", "per_group"), QKV, ((HEADS * DIM, HIDDEN), *[(KEY_HEADS * DIM, HIDDEN)] * 2)),
        (QueryKeyValue(QKV, "x", "concat"), QKV, ((HEADS * DIM, HIDDEN), *[(KEY_HEADS * DIM, HIDDEN)] * 2)),
        (QueryKeyValue(QKV, "x", "per_head", True), QKV, [(HEADS * DIM, HIDDEN)] * 3),
        (QueryKeyValue((QKV[0], QKV[2], QKV[1]), "x", "2_blocks"), QKV, [(HEADS * DIM, HIDDEN)] * 3),
        (StackedExperts(GATE_UP, "x", "interleaved", True), GATE_UP, [(3, 10, HIDDEN)] * 2),
        (StackedExperts(GATE_UP[::-1], "x", "concat"), GATE_UP, [(3, 10, HIDDEN)] * 2),
        (StackedExperts(GATE_UP[0], "x", "flattened", True), GATE_UP[:1], [(3, 10, HIDDEN)]),
        (SeparateExperts(GATE_UP, "x.{expert}.y", "concat"), GATE_UP, [(3, 10, HIDDEN)] * 2),
        (SeparateExperts(GATE_UP[1], "x.{expert}.y", transposed=True), GATE_UP[1:], [(3, 10, HIDDEN)]),
        (SwappedHalves(QKV[0], "x"), QKV[:1], [(HEADS * DIM, HIDDEN)]),
        (
            Rows(("layers.3.a.weight", "layers.3.b.weight"), "x"),
            ("layers.3.a.weight", "layers.3.b.weight"),
            ((5, 7), (2, 7)),
        ),
    ],
)
def test_every_kind_of_row_is_found_again(row, names, shapes):
    weights = values(names, *shapes)
    stored = row.write([weights[name] for name in row.targets], DIM)
    tensors = dict(zip(row.names(row.on_disk, [weights[name].shape for name in row.targets]), stored, strict=True))
    found = find_all(weights, StoredTensors(tensors), {"layers.3.self_attn": SimpleNamespace(head_dim=DIM)})
    assert len(found) == 1
    assert row in [row_of(entry) for entry in found[0].entries]
    assert found[0].stored == tensors.keys()


@pytest.mark.parametrize("cuts", [(12, 12, 24), (16, 16, 16)], ids=["where they end", "equal thirds"])
def test_filters_in_several_tensors_are_found_wherever_they_are_cut(cuts):
    names = tuple(f"layers.3.self_attn.{part}_conv.weight" for part in "qkv")
    weights = values(names, (12, 4), (12, 4), (24, 4))
    whole = torch.cat([weights[name] for name in names])[:, None]
    stored = [f"model.layers.3.linear.{part}_conv1d.weight" for part in "qkv"]
    tensors = dict(zip(stored, whole.split(cuts), strict=True))

    found = find_all(weights, StoredTensors(tensors), {})

    if cuts == (12, 12, 24):
        assert [match.entries[0].kind for match in found] == ["filters"] * 3
    else:
        (match,) = found
        assert match.entries[0].on_disk == "model.layers.3.linear.{q,k,v}_conv1d.weight"
        row = row_of(match.entries[0])
        sizes = [weights[name].shape for name in names]
        assert row.names(row.on_disk, sizes) == tuple(stored)
        for pieces in (list(tensors.values()), row.write(list(weights.values()), 0)):
            assert row.accepts([piece.shape for piece in pieces], [piece.shape for piece in whole.split((12, 12, 24))])
            read = row.read(pieces, sizes, 0)
            assert all(map(torch.equal, read, weights.values()))
        assert not row.accepts([whole.shape, whole.shape], [piece.shape for piece in whole.split(cuts)])


def test_vectors_that_are_stored_as_rows_are_reshaped():
    weights = values(("layers.0.mlp.router.selection_bias",), (7,))
    found = find_all(weights, StoredTensors({"bias": weights["layers.0.mlp.router.selection_bias"][None]}), {})
    assert [(entry.kind, entry.shape) for entry in found[0].entries] == [("reshaped", (1, -1))]


# ------------------------------------------------------------------------------------------------------ short tables


def renamed(ours: str, on_disk: str) -> LayoutEntry:
    return LayoutEntry(kind="renamed", ours=(ours,), on_disk=on_disk)


def test_a_table_says_nothing_of_usual_names():
    entries = [renamed("norm.weight", "model.norm.weight"), renamed("lm_head.weight", "lm_head.weight")]
    table = shortest_table(entries, [], {})
    assert named(table) == {}
    assert {entry.ours for entry in table} == {("norm",), ("lm_head",)}


def test_one_row_stands_for_a_module_and_one_for_a_branch():
    ours = ["layers.*.self_attn.q_proj.weight", "layers.*.self_attn.q_proj.bias", "layers.*.self_attn.k_proj.weight"]
    entries = [renamed(name, name.replace("layers.*.self_attn", "h.*.attn")) for name in ours]
    entries += [renamed("layers.*.norm.weight", "h.*.norm.scale"), renamed("norm.bias", "model.last.bias")]
    assert named(shortest_table(entries, [*ours, "layers.*.norm.weight", "norm.bias"], {})) == {
        "layers.*.self_attn": ("renamed", "h.*.attn"),
        "layers.*.norm.weight": ("renamed", "h.*.norm.scale"),
        "norm": ("renamed", "model.last"),
    }


def test_a_transposed_module_has_one_row():
    entries = [
        LayoutEntry(kind="transposed", ours=("layers.*.fc.weight",), on_disk="h.*.c.weight"),
        renamed("layers.*.fc.bias", "h.*.c.bias"),
    ]
    table = shortest_table(entries, [], {})
    assert [row_of(entry) for entry in table] == [Transposed("layers.*.fc", "h.*.c")]


def test_a_layout_in_memory_becomes_the_alternative():
    entries = [renamed("lm_head.weight", "embed_out.weight")]
    table = shortest_table(entries, ["lm_head.weight"], {"lm_head.weight": renamed("lm_head.weight", "lm_head.weight")})
    assert [row_of(entry) for entry in table] == [
        Renamed("lm_head", "embed_out", alternative=Renamed("lm_head", "lm_head"))
    ]


# ------------------------------------------------------------------------------------------------- what is passed over


@pytest.mark.parametrize(
    ("declared", "matches", "differs"),
    [
        (r"model\.layers\.61.*", "model.layers.61.mlp.gate.weight", "model.layers.610.mlp.gate.weight"),
        (r"^mtp.*", "mtp.0.weight", "model.mtpx.weight"),
        (r"(^|\.)mtp\..*", "model.mtp.fc.weight", "model.smtp.fc.weight"),
        ("attn.bias", "transformer.h.0.attn.bias", "transformer.h.0.attnxbias"),
        (r"layers\.\d+\.shared_head\.", "model.layers.3.shared_head.norm.weight", "model.layers.x.shared_head.norm"),
    ],
)
def test_declared_names_match_whole_parts(declared, matches, differs):
    assert re.search(anchored(declared), matches)
    assert not re.search(anchored(declared), differs)


def test_names_that_a_class_ignores_are_skipped_unless_they_are_needed(installed):
    instance = installed("gpt_neox", hidden_size=64)
    patterns = skipped_names(instance, export(instance))
    assert any(re.search(pattern, "gpt_neox.layers.0.attention.masked_bias") for pattern in patterns)
    assert not any(re.search(pattern, name) for pattern in patterns for name in export(instance))
    assert (
        skipped_names(instance, ["gpt_neox.layers.0.attention.bias", "gpt_neox.layers.0.attention.masked_bias"]) == ()
    )


class MaskedLlama(LlamaForCausalLM):
    """A model that keeps its mask in the checkpoint."""

    def __init__(self, config) -> None:
        super().__init__(config)
        self.register_buffer("causal", torch.ones(4, 4).tril())


@pytest.mark.exhaustive
def test_computed_buffers_are_no_weights(installed):
    plain = installed("llama")
    instance = build(replace(plain.subject, model_class=MaskedLlama), plain.config, attention="eager")
    assert tables(instance) == {"causal"}
    inference = infer(instance)
    layout = infer_layout(instance, inference)
    stored = export(instance)
    skipped = skipped_names(instance, stored)
    assert "causal" in stored
    assert skipped == ("^causal$",)
    assert canonical(layout, stored, inference.spec, skipped=skipped).keys() == inference.weights.keys()
    with pytest.raises(ModelError, match="unexpected causal"):
        canonical(layout, stored, inference.spec)
