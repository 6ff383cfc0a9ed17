"""Keeps the last whole version inside a worker process of an inference server, so that the next one may consist of the
tensors that differ.

Runs in the server's own environment (see `receiver`): standard library and torch only. The copy is in host memory that
is taken once and written in place, whatever number of versions goes by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from areal.utils.tensors import listing_digest


class KeptVersion:
    """The version in use, as it was announced and verified. Empty, with identity "", before the first one."""

    def __init__(self) -> None:
        self.identity = ""
        self._entries: dict[str, dict[str, Any]] = {}
        self._tensors: dict[str, torch.Tensor] = {}

    def problems(self, manifest: Mapping[str, Any]) -> list[str]:
        """Describe why the tensors that a manifest does not send cannot be taken from here; empty when they can."""
        if manifest["since"] != self.identity:
            return [f"it goes on top of {manifest['since']}, but {self.identity or 'nothing'} is kept here"]
        changed = set(manifest["changed"])
        return [
            f"{entry['name']} is not sent, and not the one that is kept here"
            for entry in manifest["tensors"]
            if entry["name"] not in changed and self._entries.get(entry["name"]) != entry
        ]

    def put(self, manifest: Mapping[str, Any], sent: Mapping[str, torch.Tensor]) -> WholeVersion:
        """Take over a version; the tensors are copied. Returns all of it, in the order of the manifest."""
        entries = {entry["name"]: entry for entry in manifest["tensors"]}
        since = self.identity if manifest.get("since") else ""
        # Until all tensors are in place it is no version at all.
        self.identity = ""
        self._tensors = {name: self._own(name, sent) for name in entries}
        self._entries, self.identity = entries, listing_digest(manifest["tensors"])
        return WholeVersion(self._tensors, since=since, identity=self.identity, changed=list(sent))

    def forget(self) -> None:
        """Free the memory."""
        self.identity, self._entries, self._tensors = "", {}, {}

    def _own(self, name: str, sent: Mapping[str, torch.Tensor]) -> torch.Tensor:
        held, new = self._tensors.get(name), sent.get(name)
        if new is None:
            return self._tensors[name]
        if held is None or held.shape != new.shape or held.dtype != new.dtype:
            return new.detach().clone(memory_format=torch.contiguous_format)
        return held.copy_(new)


class WholeVersion(Mapping[str, torch.Tensor]):
    """A version that is kept.

    since: identity of the version that only `changed` differ from; "" when anything may differ. identity: of this one.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], *, since: str, identity: str, changed: list[str]) -> None:
        self._tensors, self.changed = tensors, changed
        # Not what a base of adapters with the same tensors is called: a model with adapters is another.
        self.since = f"whole {since}" if since else ""
        self.identity = f"whole {identity}"

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return the tensor to load."""
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._tensors)
