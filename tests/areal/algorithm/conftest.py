"""Fixtures of the algorithm tests: the golden file, and random batches with everything an objective may need."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "rl_golden.json"


@dataclass
class Golden:
    """The golden file, as float64 tensors; remembers which entries were read."""

    content: dict[str, Any]
    inputs: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        """Groups are ids, everything else is float64."""
        self.inputs = {
            name: torch.tensor(value, dtype=torch.int64 if name == "groups" else torch.float64)
            for name, value in self.content["inputs"].items()
        }

    def __getitem__(self, path: str | tuple[str, ...]) -> Any:
        """A value under "out" by its path; lists of numbers become tensors."""
        value = self.content["out"]
        for key in (path,) if isinstance(path, str) else path:
            value = value[key]
        return torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value

    @property
    def objective_names(self) -> set[str]:
        """Entries that hold the loss and gradient of an objective."""
        return {name for name, value in self.content["out"].items() if isinstance(value, dict) and "agg" in value}

    @property
    def advantages(self) -> Tensor:
        """[S, L], the advantages all objective entries were computed with."""
        return self["adv", "grpo(std unbiased,eps1e-6)"].unsqueeze(1) * self.inputs["mask"]


@pytest.fixture(scope="session")
def _golden_content() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.fixture
def golden(_golden_content: dict[str, Any]) -> Golden:
    """Golden inputs and outputs."""
    return Golden(_golden_content)


def random_batch(
    seed: int, *, sequences: int = 7, width: int = 9, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """A batch with gaps, a sequence without policy tokens, unequal groups, and policies that differ."""
    generator = torch.Generator().manual_seed(seed)

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(sequences, width, generator=generator, dtype=torch.float64)

    mask = (torch.rand(sequences, width, generator=generator) < 0.7).double()
    mask[:, 0] = 0.0
    mask[sequences // 2] = 0.0
    behave = -normal(1.0).abs() - 0.05
    prox = (behave + normal(0.15)).clamp(max=-1e-3)
    batch = {
        "logp_behave": behave,
        "logp_prox": prox,
        "logp": (prox + normal(0.2)).clamp(max=-1e-3),
        "logp_ref": (prox + normal(0.3)).clamp(max=-1e-3),
        "entropy": normal(1.0).abs(),
        "advantages": normal(1.0) * mask,
        "mask": mask,
    }
    result = {name: tensor.to(dtype) for name, tensor in batch.items()}
    result["groups"] = torch.tensor([5, 5, 2, 5, 2, 2, -3, 8, 8, 8][:sequences])
    return result


# Session scope, so that property tests may use it.
@pytest.fixture(scope="session")
def make_batch() -> Any:
    """The function `random_batch`."""
    return random_batch
