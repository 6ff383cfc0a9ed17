"""Contracts: protocols, frozen records, errors and the config base. Nothing here computes, and nothing of ours is
imported.

Read in this order: records (what travels), generation and engine (who produces and consumes it), workflow, reward,
dataset, model (what you add), serving (engines whose servers are processes), registry (how names find it), config and
errors.
"""

from areal.api.config import Config, check_ranges, number
from areal.api.dataset import REQUIRED_COLUMNS, DatasetKind, DatasetLoader
from areal.api.engine import InferenceEngine, LossFunction, LossOutput, TrainEngine, TrainStats, WeightUpdateMeta
from areal.api.errors import (
    ArealError,
    BusyError,
    CheckpointError,
    ConfigError,
    DataError,
    EngineError,
    FaultError,
    FaultKind,
    FinishedError,
    HubError,
    ModelError,
    NumericsError,
    RegistryError,
    RolloutError,
    UsageError,
)
from areal.api.generation import GenerationConfig, ModelRequest, ModelResponse
from areal.api.model import AttentionBackend, BaseModelArgs, CausalModel, ModelSpec, StateDictAdapter
from areal.api.records import (
    NO_VERSION,
    DistilledBatch,
    Fault,
    PackedTokens,
    PaddedBatch,
    PairedBatch,
    PromptGroup,
    Provenance,
    RewardUse,
    StopReason,
    TeacherScores,
    Trajectory,
)
from areal.api.registry import load, unknown_name
from areal.api.reward import RewardFunction
from areal.api.serving import (
    BASE_VERSION,
    LowRankChange,
    PublishedWeights,
    ServerInstance,
    ServerListener,
    ServerPool,
    TensorEntry,
    WeightCarrier,
    WeightManifest,
    WeightRoute,
)
from areal.api.workflow import RolloutWorkflow

__all__ = [
    "BASE_VERSION",
    "NO_VERSION",
    "REQUIRED_COLUMNS",
    "ArealError",
    "AttentionBackend",
    "BaseModelArgs",
    "BusyError",
    "CausalModel",
    "CheckpointError",
    "Config",
    "ConfigError",
    "DataError",
    "DatasetKind",
    "DatasetLoader",
    "DistilledBatch",
    "EngineError",
    "Fault",
    "FaultError",
    "FaultKind",
    "FinishedError",
    "GenerationConfig",
    "HubError",
    "InferenceEngine",
    "LossFunction",
    "LossOutput",
    "LowRankChange",
    "ModelError",
    "ModelRequest",
    "ModelResponse",
    "ModelSpec",
    "NumericsError",
    "PackedTokens",
    "PaddedBatch",
    "PairedBatch",
    "PromptGroup",
    "Provenance",
    "PublishedWeights",
    "RegistryError",
    "RewardFunction",
    "RewardUse",
    "RolloutError",
    "RolloutWorkflow",
    "ServerInstance",
    "ServerListener",
    "ServerPool",
    "StateDictAdapter",
    "StopReason",
    "TeacherScores",
    "TensorEntry",
    "TrainEngine",
    "TrainStats",
    "Trajectory",
    "UsageError",
    "WeightCarrier",
    "WeightManifest",
    "WeightRoute",
    "WeightUpdateMeta",
    "check_ranges",
    "load",
    "number",
    "unknown_name",
]
