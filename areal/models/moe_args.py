"""Arguments of a mixture of experts, and their way from and to a config.json. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from areal.models.config_fields import ConfigFields


@dataclass(frozen=True, kw_only=True)
class MoeArgs:
    """Which layers have experts, and what these are."""

    num_experts: int
    """Experts of a layer."""
    top_k: int
    """Experts that each token uses."""
    intermediate_size: int
    """Width of one expert."""
    normalize: bool
    """Whether the weights of the chosen experts are rescaled to sum to 1."""
    dense_layers: tuple[int, ...]
    """Layers with an ordinary feed-forward layer in place of experts."""
    sparse_step: int
    """Among the others, every sparse_step-th layer has experts."""

    def has_experts(self, layer: int) -> bool:
        """Whether layer number `layer`, from 0, has experts."""
        return layer not in self.dense_layers and (layer + 1) % self.sparse_step == 0


def take_moe(fields: ConfigFields) -> MoeArgs:
    """Consume the fields; num_experts is also accepted as num_local_experts, its name in files of transformers 5."""
    name = "num_local_experts" if fields.has("num_local_experts") else "num_experts"
    num_experts = fields.integer(name)
    fields.require("num_experts", (num_experts,))
    top_k = fields.integer("num_experts_per_tok", 8)
    if top_k > num_experts:
        raise fields.error("num_experts_per_tok", top_k, f"at most {name}={num_experts}")
    dense_layers = fields.optional("mlp_only_layers") or []
    if not isinstance(dense_layers, (list, tuple)) or not all(type(layer) is int for layer in dense_layers):
        raise fields.error("mlp_only_layers", dense_layers, "a list of layer numbers")
    return MoeArgs(
        num_experts=num_experts,
        top_k=top_k,
        intermediate_size=fields.integer("moe_intermediate_size"),
        normalize=fields.flag("norm_topk_prob", False),
        dense_layers=tuple(dense_layers),
        sparse_step=fields.integer("decoder_sparse_step", 1),
    )


def moe_to_hf(args: MoeArgs) -> dict[str, Any]:
    """The fields that `take_moe` reads back."""
    return {
        "decoder_sparse_step": args.sparse_step,
        "mlp_only_layers": list(args.dense_layers),
        "moe_intermediate_size": args.intermediate_size,
        "norm_topk_prob": args.normalize,
        "num_experts": args.num_experts,
        "num_experts_per_tok": args.top_k,
    }
