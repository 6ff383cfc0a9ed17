"""The workflow table: one line per workflow, sorted. User code needs no line here: any importable path works as a
name.
"""

from __future__ import annotations

from typing import Final

WORKFLOWS: Final[dict[str, str]] = {
    "agent": "areal.workflow.agent:AgentWorkflow",
    "environment": "areal.workflow.environment:EnvironmentWorkflow",
    "multi_turn": "areal.workflow.multi_turn:MultiTurnWorkflow",
    "outside_sessions": "areal.workflow.outside_sessions:OutsideSessionsWorkflow",
    "rlvr": "areal.workflow.rlvr:RLVRWorkflow",
    "vision_rlvr": "areal.workflow.vision_rlvr:VisionRlvrWorkflow",
}
