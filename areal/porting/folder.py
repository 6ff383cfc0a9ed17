"""`python -m areal.porting.folder FOLDER [--trust-source]`: whether a registered family loads a checkpoint folder.

    {"ok": true, "read": "config, 42 tensors", "parity": 0.04, "reloaded": 0.03}

Beside its generated test a family made of a folder has to load that very folder: its config.json with whatever it
holds, every tensor by name and shape, and, where the model is small and its code may run, with the logits of the code
(`parity`, in units of the tolerance); what it saves must load in that code again (`reloaded`). Exit codes: 0 it does; 1
it does not, and `error` says why.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

MAX_BYTES: Final = 2 * 1024**3
"""Of weights that are loaded whole, twice; of larger models names and shapes are compared only."""
TOKENS: Final = 24


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m areal.porting.folder", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trust-source", action="store_true", help="run the modeling code of the folder")
    parser.add_argument("--modeling", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        found = {"ok": True, **check(options.folder, modeling=options.modeling, trust=options.trust_source)}
    except Exception as error:  # noqa: BLE001 - whatever goes wrong with the folder is what was asked for
        found = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0 if found["ok"] else 1


def check(folder: Path, *, modeling: Path | None = None, trust: bool = False) -> dict[str, Any]:
    """Return what was read and compared. Raises ModelError, SubjectError or AssertionError where the family does not
    load the folder, or computes something else."""
    from areal.models.loading import SlicedFolder, blank_model, read_config, weight_files
    from areal.models.registry import get_spec

    config = read_config(folder)
    model = blank_model(config)
    if not any(folder.glob("*.safetensors")):
        return {"read": "config"}
    files = weight_files(folder)
    size = sum(file.stat().st_size for file in files)
    if size > MAX_BYTES:
        adapter: Any = get_spec(str(config["model_type"])).state_dict_adapter(model.args)
        tensors = SlicedFolder(folder)
        adapter.locate(tensors)
        return {"read": f"config, names and shapes of {len(tensors)} tensors"}
    return _compared(folder, config, modeling=modeling, trust=trust)


def _compared(folder: Path, config: dict[str, Any], *, modeling: Path | None, trust: bool) -> dict[str, Any]:
    import torch

    from areal.models import from_pretrained
    from areal.porting.probe.lookup import UntrustedSourceError
    from areal.porting.probe.subject import quiet, resolve

    ours = from_pretrained(folder).eval()
    found: dict[str, Any] = {"read": f"config, {len(ours.state_dict())} tensors"}
    try:
        subject = resolve(str(folder), modeling=modeling, trust=trust)
    except UntrustedSourceError:
        return found
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, int(ours.args.vocab_size), (2, TOKENS), generator=generator)
    rows, length = tokens.shape
    bounds = torch.arange(rows + 1, dtype=torch.int32) * length
    with torch.no_grad(), quiet():
        actual = ours(tokens.flatten(), torch.arange(length).repeat(rows), bounds, length)
        found["parity"] = _over_tolerance(actual, _theirs(subject, folder, tokens))
        with tempfile.TemporaryDirectory() as saved:
            ours.save_pretrained(f"{saved}/model")
            found["reloaded"] = _over_tolerance(actual, _theirs(subject, Path(saved) / "model", tokens))
    for what in ("parity", "reloaded"):
        assert found[what] <= 1, f"logits of the checkpoint differ by {found[what]:.3g} times the tolerance ({what})"
    return found


def _theirs(subject: Any, folder: Path, tokens: Tensor) -> Tensor:
    """Return the logits of the folder's own class, loaded as `transformers` loads it."""
    import torch

    from areal.porting.probe.instance import call_options, logits_of

    model = subject.model_class.from_pretrained(folder, config=subject.config_class.from_pretrained(folder))
    model = model.to(torch.float32).eval()
    return logits_of(model(tokens, **call_options(model))).flatten(0, 1)


def _over_tolerance(actual: Tensor, expected: Tensor) -> float:
    difference = float((actual - expected).abs().max())
    return round(difference / (5e-5 * max(1.0, float(expected.std()))), 4)


if __name__ == "__main__":
    if "--trust-source" not in sys.argv:
        raise SystemExit(main())
    from areal.porting.confine import confined

    with confined():
        raise SystemExit(main())
