"""What a command loads, in a process of its own: seconds are the machine's, what is imported is ours."""

from __future__ import annotations

import json
import subprocess
import sys

# What trains, computes ε or draws; each takes a good part of a second to import, torch several.
HEAVY = ("torch", "scipy", "sklearn", "dp_accounting", "onnx", "onnxruntime", "matplotlib", "pandas", "sqlalchemy",
         "fastapi", "uvicorn")  # fmt: skip
_CODE = """
import json, sys
from airlock.cli import app
try:
    app(sys.argv[2:])
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps([name for name in json.loads(sys.argv[1]) if name in sys.modules]), file=sys.stderr)
"""


def heavy(*arguments: object) -> list[str]:
    """Which of `HEAVY` are imported once `airlock ARGUMENTS` is done."""
    asked = [sys.executable, "-c", _CODE, json.dumps(HEAVY), *map(str, arguments)]
    run = subprocess.run(asked, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found: list[str] = json.loads(run.stderr.splitlines()[-1])
    return found
