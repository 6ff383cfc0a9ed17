"""For tests of wrapped models: a tiny whole model of `transformers`, and what must hold of the text model that we load.

    theirs = reference({"model_type": "gemma3", "text_config": {...}, "vision_config": {...}})
    ours = load(theirs, tmp_path)
    assert_same_text(ours, theirs)

Only text is compared; of everything else it is checked that it comes back unchanged.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from safetensors.torch import load_file, save_file

from areal.api import ModelError
from areal.models import from_pretrained
from areal.models.loading import resolve as resolve_config
from areal.models.wrapping import TIED
from areal.porting.probe import instance as oracle
from areal.porting.records import SubjectError
from areal.porting.wrap.proof import text_logits
from areal.porting.wrap.whole import SECTION, find_wrapped
from areal.testing.families import LENGTHS, PADDING, run, tolerance

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from areal.models.blocks.decoder import DecoderModel
    from areal.models.wrapping import NameLayout, Wrapper
    from areal.porting.probe.instance import Instance

_WEIGHTS: Final = "model.safetensors"


def reference(config: Mapping[str, Any], *, seed: int = 0) -> Instance:
    """Return the whole model of `transformers` for the content of a config.json, with the weights of `seed`."""
    wrapped = find_wrapped(str(config["model_type"]), dict(config))
    if wrapped is None:
        raise SubjectError(f"{config['model_type']} holds no text model in {SECTION}")
    return oracle.build(wrapped.subject, copy.deepcopy(dict(config)), seed=seed)


def with_head(config: Mapping[str, Any], *, tied: bool) -> dict[str, Any]:
    """Return the config with a head that is the embedding, or of its own."""
    return {**config, TIED: tied, SECTION: {**config[SECTION], TIED: tied}}


def load(theirs: Instance, folder: Path) -> DecoderModel:
    """Our text model from a folder that `transformers` writes."""
    theirs.model.save_pretrained(folder)
    return from_pretrained(folder)


def documents(ours: nn.Module) -> list[Tensor]:
    """Random text, int64 [length] each: no token that stands for something else, or that is special."""
    args: Any = ours.args
    special = {token for token in args.token_ids.values() if isinstance(token, int)}
    usable = torch.tensor(sorted({*range(args.vocab_size)} - {*args.wrapping.placeholders()} - special))
    longest = args.max_position_embeddings - PADDING
    generator = torch.Generator().manual_seed(7)
    return [usable[torch.randint(len(usable), (min(length, longest),), generator=generator)] for length in LENGTHS]


@torch.no_grad()
def assert_same_text(ours: nn.Module, theirs: Instance) -> None:
    """Documents packed into one forward, and each alone, give the logits of the whole model."""
    packed = documents(ours)
    expected = [text_logits(theirs, document[None])[0] for document in packed]
    _assert_close(run(ours, packed), torch.cat(expected), "packed documents")
    for document, logits in zip(packed, expected, strict=True):
        _assert_close(run(ours, [document]), logits, f"a document of {len(document)} tokens")


@torch.no_grad()
def assert_whole_checkpoint(ours: DecoderModel, theirs: Instance, before: Path, after: Path) -> None:
    """Check that saving gives all of the checkpoint in `before`: every tensor bit by bit, every outer field, and a
    folder that `transformers` loads completely, as a model with the same text logits."""
    ours.save_pretrained(after)
    stored, written = _tensors(before), _tensors(after)
    assert written.keys() == stored.keys(), f"names differ: {sorted(written.keys() ^ stored.keys())}"
    for name, tensor in stored.items():
        assert tensor.dtype == written[name].dtype, f"{name} comes back as {written[name].dtype}"
        assert torch.equal(tensor, written[name]), f"{name} comes back changed"
    outer, again = _config(before), _config(after)
    ignored = {SECTION, "dtype", "torch_dtype", TIED}
    changed = {
        name: again.get(name) for name, value in outer.items() if name not in ignored and again.get(name) != value
    }
    assert not changed, f"outer fields come back changed: {changed}"
    loaded, info = theirs.subject.model_class.from_pretrained(after, output_loading_info=True, dtype=torch.float32)
    wrong = {kind: sorted(names) for kind, names in info.items() if names}
    assert not wrong, f"transformers reloads the checkpoint with {wrong}"
    document = documents(ours)[0][None]
    found = replace(theirs, model=loaded.eval())
    _assert_close(text_logits(found, document), text_logits(theirs, document), "the reloaded whole")
    _assert_close(run(from_pretrained(after), [document[0]]), text_logits(theirs, document)[0], "ours, reloaded")


@torch.no_grad()
def assert_layout(wrapper: Wrapper, layout: NameLayout, theirs: Instance, folder: Path) -> None:
    """Check that a checkpoint with the names of a layout is read, and written with these names again."""
    theirs.model.save_pretrained(folder / "theirs")
    usual = wrapper.layouts[0]
    other = folder / "other"
    other.mkdir()
    (other / "config.json").write_bytes((folder / "theirs" / "config.json").read_bytes())
    state = theirs.model.state_dict()
    text = {layout.outer(own) for name in _tensors(folder / "theirs") for own in usual.inner(name)}
    kept = {name: tensor.clone().contiguous() for name, tensor in state.items() if name in text or layout.keeps(name)}
    save_file(kept, other / _WEIGHTS, metadata={"format": "pt"})
    ours = from_pretrained(other)
    assert ours.args.wrapping.layout == layout
    assert_same_text(ours, theirs)
    ours.save_pretrained(folder / "again")
    assert _tensors(folder / "again").keys() == kept.keys()


def assert_text_only(wrapper: Wrapper, theirs: Instance, folder: Path) -> None:
    """Check that a token that stands for an image (a sound, a film) is refused wherever it is in a row, and that no
    position but a token's number in its text is accepted."""
    theirs.model.save_pretrained(folder)
    config, token = _config(folder), 5
    name = next(iter(wrapper.placeholders))
    (folder / "config.json").write_text(json.dumps({**config, name: token}), encoding="utf-8")
    ours = from_pretrained(folder)
    assert ours.args.wrapping.placeholders()[token] == name
    document = torch.where(documents(ours)[0] == token, token + 1, documents(ours)[0])
    run(ours, [document])
    for place in (0, len(document) // 2, len(document) - 1):
        row = document.clone()
        row[place] = token
        _assert_refused(lambda row=row: run(ours, [row]), str(token))
    positions = torch.arange(len(document)).expand(3, -1)
    bounds = torch.tensor([0, len(document)], dtype=torch.int32)
    _assert_refused(lambda: ours(document, positions, bounds, len(document)), "positions")


def assert_refusals(wrapper: Wrapper, config: Mapping[str, Any]) -> None:
    """Check that what was not compared is refused, inside and outside of the text model."""
    resolve_config(config)
    text = config[SECTION]
    for changes, named in (
        ({"mystery_scale": 2.0}, "mystery_scale"),
        ({SECTION: {**text, "mystery_scale": 2.0}}, "mystery_scale"),
        ({SECTION: {**text, "model_type": "qwen9"}}, "qwen9"),
        ({SECTION: None}, SECTION),
        ({TIED: not text[TIED]}, TIED),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        *(({name: "another"}, name) for name in wrapper.fixed),
        *(({SECTION: {**text, name: "another"}}, name) for name in wrapper.text_fixed),
    ):
        _assert_refused(lambda changes=changes: resolve_config({**config, **changes}), named)


def _assert_refused(call: Any, named: str) -> None:
    try:
        call()
        message = None
    except ModelError as error:
        message = str(error)
    assert message is not None, f"{named} is not refused"
    assert named in message, f"the refusal does not name {named}: {message}"


def _assert_close(found: Tensor, expected: Tensor, what: str) -> None:
    assert found.shape == expected.shape, f"{what}: shape {list(found.shape)}, expected {list(expected.shape)}"
    difference = (found - expected).abs().max().item()
    assert difference <= tolerance(expected), f"{what}: logits differ by {difference}, allowed {tolerance(expected)}"


def _tensors(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def _config(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return content
