"""Batches with groups of rows, and nothing else: only how rows are divided is asked of them here."""

import pytest
import torch

from areal.api import PaddedBatch


@pytest.fixture(scope="session")
def batch_of():
    """`batch_of(lengths, groups)`: zeros everywhere but in lengths and groups."""

    def build(lengths, groups):
        rows, width = len(lengths), max(lengths)
        zeros, ids = torch.zeros(rows, width), torch.zeros(rows, width, dtype=torch.int64)
        return PaddedBatch(
            tokens=ids,
            lengths=torch.tensor(lengths),
            loss_mask=zeros,
            logp_behave=zeros,
            versions=ids,
            turn_ids=ids,
            rewards=torch.zeros(rows),
            groups=torch.tensor(groups),
            truncated=torch.zeros(rows, dtype=torch.bool),
        )

    return build
