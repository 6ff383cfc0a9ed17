"""Make the run directories that these tests share importable: `import scenes`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
