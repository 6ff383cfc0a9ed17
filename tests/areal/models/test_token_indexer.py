"""Attention to the tokens that an indexer chooses: equal to its plainest form, whatever is packed beside a document."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

from areal.api import ModelError
from areal.models.blocks import selection
from areal.models.blocks.alibi import alibi_slopes
from areal.models.blocks.attention import PackedAttention
from areal.models.blocks.block import PreNormBlock
from areal.models.blocks.decoder import DecoderModel
from areal.models.blocks.indexer import TokenIndexer
from areal.models.blocks.latent_attention import LatentAttention
from areal.models.blocks.mlp import GatedMLP
from areal.models.blocks.norms import RMSNorm
from areal.models.blocks.packed_backend import PackedBackend, SharedPrefixBackend
from areal.models.blocks.rotary import Rotary, rotate
from areal.models.blocks.shared_prefix import Branch
from areal.models.decoder_args import RotaryArgs
from areal.models.flops import attention_products
from areal.models.loading import initialize
from areal.models.parallel.pipeline import take_part

CPU = torch.device("cpu")
HIDDEN, RANK, NOPE, ROPE, VALUE, HEADS = 20, 12, 6, 4, 5, 3
INDEX_HEADS, INDEX_DIM, TOP_K = 8, 8, 4
ARGS = SimpleNamespace(
    vocab_size=24, hidden_size=HIDDEN, num_layers=4, num_heads=HEADS, num_kv_heads=HEADS, head_dim=ROPE,
    max_position_embeddings=64, tie_word_embeddings=False,
)  # fmt: skip


def indexer(**changes):
    sizes = {"num_heads": INDEX_HEADS, "head_dim": INDEX_DIM, "top_k": TOP_K, "norm_eps": 1e-6, "rope_dim": ROPE}
    return TokenIndexer(HIDDEN, RANK, **sizes | {"interleaved": False} | changes)


def attention(layer=0, *, shares=False, interleaved=False, **changes):
    parts = {
        "query_rank": RANK, "kv_rank": 10, "nope_dim": NOPE, "rope_dim": ROPE, "value_dim": VALUE,
        "query_norm": RMSNorm(RANK, 1e-6), "kv_norm": RMSNorm(10, 1e-6), "scale": 0.3,
        "indexer": None if shares else indexer(interleaved=interleaved), "shares_selection": shares,
    }  # fmt: skip
    return LatentAttention(layer, ARGS, **parts | changes)


def drawn(module, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5 + (parameter.dim() < 2))
    return module.to(dtype)


def hidden_states(total, seed=1, dtype=torch.float64):
    return torch.randn(total, HIDDEN, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def turning(positions, interleaved, dtype=torch.float64):
    return Rotary(RotaryArgs(theta=100.0), ROPE, interleaved=interleaved)(positions, dtype)


def plainly(module, hidden, *, interleaved):
    """One document [T, hidden], one query after the other: its candidates sorted by score, a softmax over the best."""
    positions, rotation = torch.arange(len(hidden)), turning(torch.arange(len(hidden)), True, hidden.dtype)
    own = turning(positions, interleaved, hidden.dtype)
    narrow = module.q_a_norm(module.q_a_proj(hidden))
    query = module.q_b_proj(narrow).view(-1, HEADS, NOPE + ROPE)
    latent, shared_key = module.kv_a_proj(hidden).split((10, ROPE), -1)
    key_value = module.kv_b_proj(module.kv_a_norm(latent)).view(-1, HEADS, NOPE + VALUE)
    turned_query, turned_key = rotate(query[..., NOPE:], rotation), rotate(shared_key[:, None], rotation)
    index_query = rotate(module.indexer.q_proj(narrow).view(-1, INDEX_HEADS, INDEX_DIM), own)
    index_key = rotate(module.indexer.k_norm(module.indexer.k_proj(hidden))[:, None], own)[:, 0]
    weight = module.indexer.weight_proj(hidden)
    outputs = []
    for now in range(len(hidden)):
        ranked = sorted(
            range(now + 1),
            key=lambda then: (-float((weight[now] * (index_query[now] @ index_key[then]).relu()).sum()), then),
        )
        chosen = sorted(ranked[: module.indexer.top_k])
        heads = []
        for head in range(HEADS):
            scores = query[now, head, :NOPE] @ key_value[chosen, head, :NOPE].T
            scores = (scores + turned_query[now, head] @ turned_key[chosen, 0].T) * 0.3
            heads.append(scores.softmax(-1) @ key_value[chosen, head, NOPE:])
        outputs.append(module.o_proj(torch.cat(heads)))
    return torch.stack(outputs)


def packed(module, hidden, lengths):
    bounds = torch.tensor(list(itertools.accumulate(lengths, initial=0)), dtype=torch.int32)
    positions = torch.cat([torch.arange(length) for length in lengths])
    rotation = turning(positions, True, hidden.dtype)
    return module(hidden, rotation, PackedBackend(bounds, len(hidden), CPU))


@pytest.mark.sample(4)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("lengths", [[1], [1, 4, 5, 1], [13, 2, 40]])
def test_packed_documents_attend_as_the_plainest_form_does_with_each_alone(dtype, tolerance, interleaved, lengths):
    module, hidden = drawn(attention(interleaved=interleaved), dtype=dtype), hidden_states(sum(lengths), dtype=dtype)
    expected = torch.cat([plainly(module, part, interleaved=interleaved) for part in hidden.split(lengths)])
    torch.testing.assert_close(packed(module, hidden, lengths), expected, rtol=tolerance, atol=tolerance)


def test_gradients_are_those_of_the_plainest_form_and_the_indexer_has_none():
    module, hidden = drawn(attention()), hidden_states(16).requires_grad_()
    trained = [hidden, *(parameter for parameter in module.parameters() if parameter.requires_grad)]
    factor = hidden_states(16, seed=5)
    expected = torch.cat([plainly(module, part, interleaved=False) for part in hidden.split([11, 5])])
    found = packed(module, hidden, [11, 5])
    for ours, theirs in zip(
        torch.autograd.grad((found * factor).sum(), trained),
        torch.autograd.grad((expected * factor).sum(), trained),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    assert frozen == {f"indexer.{name}" for name, _ in module.indexer.named_parameters()}


@pytest.mark.parametrize(
    ("roots", "branches"),
    [([9], [(0, 3), (0, 6), (0, 1)]), ([2, 11], [(0, 7), (1, 2), (0, 0), (1, 9)]), ([1], [(0, 1)]), ([3, 6], [])],
)
def test_branches_choose_from_their_root_and_themselves(roots, branches):
    module, total = drawn(attention()), sum(roots) + sum(length for _, length in branches)
    hidden = hidden_states(total).requires_grad_()
    backend = SharedPrefixBackend(roots, [Branch(*branch) for branch in branches], CPU)
    positions = [torch.arange(length) for length in roots]
    positions += [torch.arange(roots[root], roots[root] + length) for root, length in branches]
    found = module(hidden, turning(torch.cat(positions), True), backend)
    pieces = hidden.split([*roots, *(length for _, length in branches)])
    expected = [packed(module, piece, [len(piece)]) for piece in pieces[: len(roots)]]
    for (root, length), piece in zip(branches, pieces[len(roots) :], strict=True):
        whole = torch.cat((pieces[root], piece))
        expected.append(packed(module, whole, [len(whole)])[len(whole) - length :])
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-10, atol=1e-10)
    factor = hidden_states(total, seed=4)
    ours, theirs = (torch.autograd.grad((each * factor).sum(), hidden)[0] for each in (found, torch.cat(expected)))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("feature", ["window", "chunk", "softcap", "sinks", "alibi", "alibi in bfloat16"])
def test_a_choice_combines_with_every_other_feature(feature):
    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if "bfloat16" in feature else torch.float64
    query, key, value = (torch.randn(12, 2, 4, generator=generator).to(dtype) for _ in range(3))
    index = [torch.randn(shape, generator=generator) for shape in ((12, 3, 4), (12, 4), (12, 3))]
    backend = PackedAttention(torch.tensor([0, 12]), 12, CPU)
    backend.select(0, *index, count=5)
    options = {
        "window": {"window": 6}, "chunk": {"chunk": 5}, "softcap": {"softcap": 0.7},
        "sinks": {"sinks": torch.tensor([0.3, -0.8]).to(dtype)},
    }.get(feature, {"alibi": alibi_slopes(2, 1.0, CPU)})  # fmt: skip
    found = backend(0, query, key, value, scale=0.5, selected=True, **options)
    seen = torch.ones(12, 12, dtype=torch.bool).tril()
    scores = (index[2][:, :, None] * torch.einsum("qhd,kd->qhk", index[0], index[1]).relu()).sum(1)
    for row in range(12):
        seen[row, sorted(range(row + 1), key=lambda then, row=row: -scores[row, then])[5:]] = False
    distance = torch.arange(12) - torch.arange(12)[:, None]
    if feature == "window":
        seen &= distance > -6
    if feature == "chunk":
        seen &= torch.arange(12) // 5 == (torch.arange(12) // 5)[:, None]
    logits = torch.einsum("qhd,khd->hqk", query.double(), key.double()) * 0.5
    if feature == "softcap":
        logits = 0.7 * torch.tanh(logits / 0.7)
    if "alibi" in feature:
        logits = logits + options["alibi"].double()[:, None, None] * distance
    logits = logits.masked_fill(~seen, -torch.inf)
    if feature == "sinks":
        logits = torch.cat((logits, options["sinks"].double()[:, None, None].expand(-1, 12, 1)), -1)
    expected = torch.einsum("hqk,khd->qhd", logits.softmax(-1)[..., :12], value.double())
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-2 if dtype == torch.bfloat16 else 1e-7)


def test_scores_made_in_parts_choose_the_same(monkeypatch):
    generator = torch.Generator().manual_seed(2)
    query, key = torch.randn(2, 30, 3, 4, generator=generator), torch.randn(2, 30, 4, generator=generator)
    weight, causal = torch.randn(2, 30, 3, generator=generator), torch.ones(30, 30, dtype=torch.bool).tril()
    whole = selection.choose(query, key, weight, causal, 6)
    monkeypatch.setattr(selection, "MAX_SCORES", 1000)
    assert torch.equal(selection.choose(query, key, weight, causal, 6), whole)
    assert whole.sum(-1).tolist() == [[[min(row + 1, 6) for row in range(30)]]] * 2


def test_of_equal_scores_the_earliest_are_taken():
    scores = torch.tensor([[0.0, 2.0, 0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    assert selection.largest(scores, 4).int().tolist() == [[1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 0, 0]]


def test_as_many_keys_as_are_chosen_leave_attention_as_it_is():
    dense, module = attention(indexer=None), attention(indexer=indexer(top_k=9))
    drawn(module)
    dense.to(torch.float64).load_state_dict({k: v for k, v in module.state_dict().items() if "indexer" not in k})
    hidden = hidden_states(15)
    assert torch.equal(packed(module, hidden, [9, 6]), packed(dense, hidden, [9, 6]))
    assert not torch.allclose(packed(module, hidden, [15]), packed(dense, hidden, [15]))


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_rotation_can_be_paired_in_both_ways(interleaved):
    positions = torch.arange(7)
    found = turning(positions, not interleaved).paired(interleaved=interleaved)
    for ours, theirs in zip(found[:3], turning(positions, interleaved)[:3], strict=True):
        assert torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))


def decoder(*shares, dtype=torch.float64):
    layers = [
        PreNormBlock(
            input_layernorm=RMSNorm(HIDDEN, 1e-6),
            self_attn=attention(number, shares=share),
            post_attention_layernorm=RMSNorm(HIDDEN, 1e-6),
            mlp=GatedMLP(HIDDEN, 24),
        )
        for number, share in enumerate(shares)
    ]
    args = SimpleNamespace(**vars(ARGS) | {"num_layers": len(shares)})
    rotary = Rotary(RotaryArgs(), ROPE, interleaved=True)
    model = DecoderModel(args, layers=layers, norm=RMSNorm(HIDDEN, 1e-6), rotary=rotary)
    initialize(model, std=0.4, seed=3)
    return model.to(dtype)


def logits(model, lengths, **options):
    bounds = torch.tensor(list(itertools.accumulate(lengths, initial=0)), dtype=torch.int32)
    tokens = torch.arange(sum(lengths)) * 7 % 24
    positions = torch.cat([torch.arange(length) for length in lengths])
    return model(tokens, positions, bounds, max(lengths), **options)


def test_a_layer_takes_over_what_the_last_one_with_an_indexer_chose():
    model = decoder(False, True, False, True)
    found = logits(model, [3, 14])
    assert model.layers[1].self_attn.indexer is None
    with torch.no_grad():  # where nothing is recomputed, only the last choice is kept
        torch.testing.assert_close(logits(model, [3, 14]), found, rtol=0, atol=0)
    # The same indexer in the second layer chooses otherwise, since that layer reads other hidden states.
    own = decoder(False, False, False, False)
    own.load_state_dict(
        model.state_dict() | {name: each for name, each in own.state_dict().items() if "indexer" in name}
    )
    assert not torch.allclose(logits(own, [3, 14]), found)


def test_recomputed_blocks_choose_the_same_tokens():
    model = decoder(False, True, False, True)
    gradients = []
    for enabled in (False, True):
        model.zero_grad()
        model.set_gradient_checkpointing(enabled)
        logits(model, [3, 14]).square().mean().backward()
        gradients.append({name: each.grad for name, each in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert ("indexer" in name) == (gradient is None), name
        if gradient is not None:
            torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: decoder(True, False),
            "layer 0 attends to the tokens that an earlier layer chose, but no layer before",
        ),
        (lambda: attention(query_rank=None, query_norm=None), "layer 0 has an indexer and queries that are not compr"),
        (lambda: attention(shares_selection=True), "layer 0 has an indexer and another layer's choice beside it"),
        (lambda: indexer(top_k=0), "an indexer that chooses 0 tokens leaves none to attend to, expected at least 1"),
        (lambda: indexer(num_heads=7), "an indexer of 7 heads gives many tokens the same score of zero, and which of"),
        (lambda: indexer(rope_dim=9), "an indexer with heads of 8 dimensions cannot turn 9 of them"),
        (lambda: take_part(decoder(False, True, False, True), [0], 4), "a piece has to begin with a layer that has"),
    ],
)
def test_what_nothing_chooses_is_refused_by_name(make, message):
    with pytest.raises(ModelError, match=message):
        make()


def test_a_pipeline_may_be_cut_before_layers_with_an_indexer():
    part = take_part(decoder(False, True, False, True), [1], 2)
    assert list(part.layers) == ["2", "3"]


def test_a_backend_that_cannot_choose_refuses():
    def dense(layer, query, key, value, **options):
        raise AssertionError("not reached")

    with pytest.raises(
        ModelError, match="layer 0 attends to the tokens that its indexer chooses, which function cannot"
    ):
        drawn(attention())(hidden_states(3), turning(torch.arange(3), True), dense)


def test_a_choice_that_was_never_made_is_an_error():
    backend = PackedBackend(torch.tensor([0, 5]), 5, CPU)
    with pytest.raises(ModelError, match="layer 3 attends to tokens that an earlier layer chose, but none before it"):
        drawn(attention(3, shares=True))(hidden_states(5), turning(torch.arange(5), True), backend)


def test_only_chosen_pairs_and_those_that_were_ranked_count_as_operations():
    seen, causal = 1 + 2 + 3 + 4 + 4 + 4, 21
    per_pair, ranked = HEADS * (NOPE + ROPE + VALUE), INDEX_HEADS * (INDEX_DIM + 1)
    assert attention_products(decoder(False, True), [6]) == 2 * seen * per_pair + causal * ranked
