"""For tests of model families: tiny models of `transformers` with random weights, and comparisons of ours with them.

    theirs = reference({"model_type": "qwen3", "hidden_size": 64, ...})
    ours = load(theirs, tmp_path)                   # by way of a checkpoint folder
    assert_same_logits(ours, theirs)

Weights depend on names and a seed alone and none keeps its usual start: a parameter that is left out, or mixed up with
another, shows. Tolerances are those of float32 on a CPU.
"""

from __future__ import annotations

import copy
import json
import math
from typing import TYPE_CHECKING, Any, Final

import torch

from areal.models import from_pretrained
from areal.porting.probe import instance as oracle
from areal.porting.probe.instance import recorded_weights
from areal.porting.probe.subject import resolve
from areal.porting.probe.wide import AGREED, wide_logits
from areal.porting.probe.wide import MOST as MOST_ROUNDING
from areal.utils.special_numbers import tagged, untagged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from areal.api import BaseModelArgs, ModelSpec
    from areal.models.blocks.decoder import DecoderModel
    from areal.porting.probe.instance import Instance

TOLERANCE: Final = 5e-5
"""Largest difference of logits, over the larger of 1 and their standard deviation."""
GRADIENT_TOLERANCE: Final = 1e-4
"""Largest difference of gradients, over the larger of 1 and the largest gradient of the parameter."""
LENGTHS: Final = (40, 1, 7, 23)
"""Tokens of the documents that are packed: longer than the windows of tiny configs, of one token, and uneven."""
PADDING: Final = 5
"""Tokens to the right of a padded document."""
POSITION_LIMITS: Final = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length")
"""Names of the number of positions; for learned ones, longer documents do not run."""


def reference(config: Mapping[str, Any], *, seed: int = 0) -> Instance:
    """Return the model of `transformers` for the content of a config.json, with the weights of `seed`."""
    return oracle.build(resolve(str(config["model_type"])), dict(config), seed=seed)


def load(theirs: Instance, folder: Path) -> DecoderModel:
    """Our model from a checkpoint folder that `transformers` writes."""
    theirs.model.save_pretrained(folder)
    return from_pretrained(folder)


def documents(theirs: Instance, lengths: Sequence[int] = LENGTHS) -> list[Tensor]:
    """Random tokens, int64 [length] each; no document, padded, has more tokens than the config has positions."""
    limits = [getattr(theirs.hf_config, name, None) for name in POSITION_LIMITS]
    room = [limit - PADDING for limit in limits if isinstance(limit, int) and limit > 0]
    longest = max(1, min(room, default=max(lengths)))
    return [
        oracle.make_tokens(theirs, batch=1, length=min(length, longest), seed=number)[0]
        for number, length in enumerate(lengths)
    ]


def run(model: nn.Module, packed: Sequence[Tensor]) -> Tensor:
    """Logits [T, vocab_size] of documents in one packed forward of ours."""
    bounds = torch.tensor([0, *(len(document) for document in packed)]).cumsum(0).to(torch.int32)
    positions = torch.cat([torch.arange(len(document)) for document in packed])
    logits: Tensor = model(torch.cat(list(packed)), positions, bounds, max(map(len, packed)))
    return logits


# ------------------------------------------------------------------------------------------------------------- logits


@torch.no_grad()
def assert_same_logits(ours: nn.Module, theirs: Instance) -> None:
    """Documents packed into one forward, each alone, and padded to the right give the logits of `transformers`."""
    packed = documents(theirs)
    expected = [oracle.logits(theirs, document[None])[0] for document in packed]
    _assert_same(ours, theirs, packed, packed, torch.cat(expected), "packed documents")
    for document, logits in zip(packed, expected, strict=True):
        _assert_same(ours, theirs, [document], [document], logits, f"a document of {len(document)} tokens")
    padded = [torch.cat([document, document.new_zeros(PADDING)]) for document in packed]
    _assert_same(ours, theirs, padded, packed, torch.cat(expected), "documents with padding")


def _assert_same(
    ours: nn.Module,
    theirs: Instance,
    given: Sequence[Tensor],
    alone: Sequence[Tensor],
    expected: Tensor,
    what: str,
) -> None:
    """given: what is packed, documents with or without padding; alone: the documents, in the order of expected.

    What is larger than the tolerance has to be rounding: each document alone is compared in float64 then.
    """
    found, allowed = _without_padding(run(ours, given), given, alone), tolerance(expected)
    difference = (found - expected).abs().max().item()
    if difference <= allowed or not difference <= MOST_ROUNDING * allowed:
        _assert_close(found, expected, what)
        return
    wide = _without_padding(run(copy.deepcopy(ours).double(), given), given, alone)
    for document, logits in zip(alone, wide.split([len(each) for each in alone]), strict=True):
        exact = wide_logits(theirs, document[None])
        if exact is None or (logits - exact[0]).abs().max().item() > AGREED * max(1.0, exact.std().item()):
            _assert_close(found, expected, what)


def _without_padding(logits: Tensor, given: Sequence[Tensor], alone: Sequence[Tensor]) -> Tensor:
    """Return the rows of the documents in the logits of what is packed."""
    parts = zip(logits.split([len(each) for each in given]), alone, strict=True)
    return torch.cat([part[: len(document)] for part, document in parts])


def assert_recorded_logits(ours: nn.Module, recorded: Mapping[str, Any]) -> None:
    """Return the logits that were recorded when the family was made: "tokens" [B, T], "logits" [B, T, vocab_size]."""
    tokens, expected = torch.tensor(recorded["tokens"]), torch.tensor(recorded["logits"])
    with torch.no_grad():
        _assert_close(run(ours, list(tokens)), expected.flatten(0, 1), "recorded documents")


def recorded_model(spec: ModelSpec, config: Mapping[str, Any], recorded: Mapping[str, Any]) -> DecoderModel:
    """Our model of a family whose reference cannot run here, with the weights that the recording was made with.

    recorded: "shapes" (name on disk to shape) and "seed"; see `areal.porting.probe.instance`.
    """
    return _from_stored(spec, spec.args_class.from_hf_config(config), recorded_weights(recorded))


def assert_recorded_checkpoint(spec: ModelSpec, ours: DecoderModel, recorded: Mapping[str, Any]) -> None:
    """Check that the model writes exactly the recorded weights: names and shapes, but for names that hold nothing."""
    stored = recorded_weights(recorded)
    adapter: Any = spec.state_dict_adapter(ours.args)
    written = adapter.to_hf(ours.state_dict())
    left_out = [name for name in stored.keys() - written.keys() if not adapter.is_skipped(name)]
    assert not left_out, f"not written back: {sorted(left_out)}"
    for name, tensor in written.items():
        assert name in stored, f"{name} was not recorded"
        assert torch.equal(tensor, stored[name]), f"{name} comes back changed"


def built(spec: ModelSpec, theirs: Instance) -> DecoderModel:
    """Our model of a family that is not registered, with the weights of `theirs`."""
    return _from_stored(spec, spec.args_class.from_hf_config(theirs.config), oracle.export(theirs))


def _from_stored(spec: ModelSpec, args: BaseModelArgs, stored: Mapping[str, Tensor]) -> DecoderModel:
    with torch.device("meta"):
        model: DecoderModel = spec.model_class(args)
    model.load_state_dict(spec.state_dict_adapter(args).from_hf(stored), strict=True, assign=True)
    return model


def tolerance(logits: Tensor) -> float:
    """Largest difference that rounding explains."""
    return TOLERANCE * max(1.0, logits.std().item())


def _assert_close(found: Tensor, expected: Tensor, what: str) -> None:
    assert found.shape == expected.shape, f"{what}: shape {list(found.shape)}, expected {list(expected.shape)}"
    difference = (found - expected).abs().max().item()
    assert difference <= tolerance(expected), f"{what}: logits differ by {difference}, allowed {tolerance(expected)}"


# ---------------------------------------------------------------------------------------------------------- gradients


def assert_same_gradients(spec: ModelSpec, ours: DecoderModel, theirs: Instance) -> None:
    """Every parameter gets the gradient that it has in `transformers`, compared under the names on disk.

    Both models are changed: their parameters get gradients.
    """
    document = documents(theirs)[0]
    theirs.model.requires_grad_(True)
    weights = torch.randn(len(document), ours.args.vocab_size, generator=torch.Generator().manual_seed(2))
    options = oracle.call_options(theirs.model)
    expected_logits = oracle.logits_of(theirs.model(document[None], **options))[0]
    for logits in (run(ours, [document]), expected_logits):
        (logits.log_softmax(-1) * weights).sum().backward()
    adapter = spec.state_dict_adapter(ours.args)
    found = adapter.to_hf(_gradients(ours))
    with torch.no_grad():  # a copy of the model whose weights are gradients is exported as any model is
        for parameter in theirs.model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    expected = oracle.export(theirs)
    buffers = adapter.to_hf(dict(ours.state_dict())).keys() - found.keys()
    found, expected = _uncut(found, expected)
    for name, gradient in expected.items():
        if name in buffers or name not in found:
            continue
        scale = max(1.0, gradient.abs().max().item())
        difference = (found[name] - gradient).abs().max().item()
        assert math.isfinite(difference), f"{name}: the gradient is not finite"
        assert difference <= GRADIENT_TOLERANCE * scale, f"{name}: gradients differ by {difference}"
    missing = [name for name in found if name not in expected]
    assert not missing, f"transformers stores no gradient of {missing}"


def _uncut(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return both with tensors of other shapes end to end in one: filters in several tensors are read so, wherever
    transformers cuts what it saves."""
    cut = [name for name in ours if name in theirs and ours[name].shape != theirs[name].shape]
    if not cut:
        return dict(ours), dict(theirs)
    ours, theirs = (
        {name: tensor for name, tensor in each.items() if name not in cut}
        | {", ".join(cut): torch.cat([each[name] for name in cut])}
        for each in (ours, theirs)
    )
    return ours, theirs


def assert_gradients(ours: DecoderModel) -> None:
    """Every parameter gets a finite gradient that is not all zeros."""
    tokens = torch.arange(ours.args.vocab_size).repeat(2)[: LENGTHS[0]]
    logits = run(ours, [tokens])
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
    (logits.log_softmax(-1) * weights).sum().backward()
    frozen = {name for name, parameter in ours.named_parameters() if not parameter.requires_grad}
    for name, gradient in _gradients(ours).items():
        assert torch.isfinite(gradient).all(), f"{name}: the gradient is not finite"
        assert name in frozen or gradient.abs().max() > 0, f"{name} takes no part in the logits"


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return those of all parameters: zeros for what only chooses tokens, which is frozen."""
    found = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert parameter.grad is None, f"{name} is frozen, and has a gradient"
            found[name] = torch.zeros_like(parameter)
            continue
        assert parameter.grad is not None, f"{name} takes no part in the logits"
        found[name] = parameter.grad
    return found


# --------------------------------------------------------------------------------------------------------- checkpoints


def assert_same_checkpoint(spec: ModelSpec, theirs: Instance) -> None:
    """Check that names on disk are exactly those that transformers writes; reading and writing loses no bit; and every
    parameter of ours is read (which one with no memory at all shows by its shape)."""
    args = spec.args_class.from_hf_config(theirs.config)
    adapter: Any = spec.state_dict_adapter(args)
    stored = oracle.export(theirs)
    ours = adapter.from_hf(stored)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in spec.model_class(args).state_dict().items()}
    assert {name: tensor.shape for name, tensor in ours.items()} == shapes
    written = adapter.to_hf(ours)
    left_out = stored.keys() - written.keys()
    assert written.keys() <= stored.keys(), f"transformers stores no {sorted(written.keys() - stored.keys())}"
    assert all(adapter.is_skipped(name) for name in left_out), f"not written back: {sorted(left_out)}"
    written, stored = _uncut(written, stored)
    for name, tensor in written.items():
        assert torch.equal(tensor, stored[name]), f"{name} comes back changed"


@torch.no_grad()
def assert_reloads_in_transformers(ours: DecoderModel, theirs: Instance, folder: Path) -> None:
    """Check that what we write is a checkpoint that `transformers` loads as the same model."""
    ours.save_pretrained(folder)
    config = untagged(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    again, info = theirs.subject.model_class.from_pretrained(
        folder, config=theirs.subject.config_class.from_dict(config), output_loading_info=True, dtype=torch.float32
    )
    wrong = {kind: sorted(names) for kind, names in info.items() if names}
    assert not wrong, f"transformers reloads the checkpoint with {wrong}"
    document = documents(theirs)[0]
    expected = oracle.logits(theirs, document[None])[0]
    found = oracle.logits_of(again.eval()(document[None], **oracle.call_options(again)))[0]
    _assert_close(found, expected, "the reloaded model")


# ---------------------------------------------------------------------------------------------------------- arguments


def assert_config_round_trip(args_class: type[BaseModelArgs], config: Mapping[str, Any]) -> None:
    """Check that a config is read, written and read again as the same arguments."""
    args = args_class.from_hf_config(config)
    written = args.to_hf_config()
    assert args_class.from_hf_config(written) == args
    assert untagged(json.loads(json.dumps(tagged(written)))) == written, "the config that is written is not plain JSON"


def assert_same_numbers(args_class: type[BaseModelArgs], config: Mapping[str, Any]) -> None:
    """Numbers, flags and words that `config` leaves out are those that `transformers` writes out, or become those when
    it reads what we write (some classes put a window to 0 while a switch is off); nulls may stand for something else on
    either side, which only logits can tell."""
    subject = resolve(str(config["model_type"]))
    ours = args_class.from_hf_config(config).to_hf_config()
    theirs, read_again = (
        untagged(json.loads(subject.config_class.from_dict(dict(values)).to_json_string(use_diff=False)))
        for values in (config, ours)
    )
    plain = {name: value for name, value in ours.items() if isinstance(value, (bool, int, float, str))}
    wrong = {
        name: (value, theirs[name])
        for name, value in plain.items()
        if isinstance(theirs.get(name), (bool, int, float, str)) and theirs[name] not in (value, read_again[name])
    }
    assert not wrong, f"absent fields mean (to us, to transformers): {wrong}"
