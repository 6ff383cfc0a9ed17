"""Make the run directories of the tests of diagnoses importable: `import scenes`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "infra" / "diagnosis"))
