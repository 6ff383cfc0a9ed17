"""Let a torchvision that was built for CUDA be imported beside a torch without it; see `setup_vllm.sh --images`.

Its operations cannot be loaded there, and its import fails at the first of them that it registers something for. Image
processors use none: it is enough that the two have a signature before torchvision is imported.
"""

from __future__ import annotations

import importlib.abc
import sys
from typing import Any


class _Signatures(importlib.abc.MetaPathFinder):
    """Declares the operations when torchvision is first looked for; finds nothing itself."""

    library: Any = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Return None always."""
        del path, target
        if name != "torchvision" or self.library is not None:
            return
        import torch

        self.library = torch.library.Library("torchvision", "DEF")
        for operation in ("nms", "qnms"):
            self.library.define(f"{operation}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, _Signatures())
