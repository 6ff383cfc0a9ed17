"""The folder that most agents read skills from (agentskills.io). It knows no experts."""

from __future__ import annotations

from typing import Final

from tooling.harness.platforms.records import Platform

PLATFORM: Final = Platform(name="agents", title="the .agents standard", skills=".agents/skills")
