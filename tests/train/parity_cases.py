"""Layouts in processes of their own: what every case showed, and how far two of them are apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from waiting import LIMIT_S


def shown_by(cases: dict[int, list[dict]], folder: Path) -> dict[int, dict[str, dict]]:
    """What the cases of each world size showed. A rank that failed shows its traceback; all ranks say the same."""
    (folder / "cases.json").write_text(json.dumps(cases))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    worker = [sys.executable, str(Path(__file__).with_name("parity_worker.py")), "cases.json", str(folder)]
    done = subprocess.run(
        worker, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    found = {}
    for ranks in cases:
        files = [folder / f"{ranks}.{rank}.json" for rank in range(ranks)]
        by_rank = [json.loads(f.read_text()) for f in files if f.exists()]
        errors = [x["error"] for one in by_rank for x in one.values() if "error" in x]
        assert not errors, "\n".join(errors)
        assert len(by_rank) == ranks, done.stderr
        for name, first in by_rank[0].items():
            assert all(x[name]["losses"] == first["losses"] for x in by_rank), f"{name}: ranks disagree"
            assert all(x[name]["norms"] == first["norms"] for x in by_rank), f"{name}: ranks disagree"
        found[ranks] = by_rank[0]
    return found


def apart(a: dict, b: dict) -> float:
    """Largest relative difference of losses, norms and the validation loss; of a resumed run, of its last steps."""
    last = -len(a["losses"])
    pairs = [*zip(a["losses"] + a["norms"], b["losses"][last:] + b["norms"][last:], strict=True)]
    if a["valid"] is not None and b["valid"] is not None:
        pairs.append((a["valid"], b["valid"]))
    return max(abs(x - y) / abs(y) for x, y in pairs)
