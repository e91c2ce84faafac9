"""Layouts in processes of their own: what every case showed, and how far two of them are apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waiting import LIMIT_S

Shown = dict[int, dict[str, dict]]
"""World size -> case -> what it showed."""


@dataclass(kw_only=True)
class TorchWork:
    """What the one process with torch is asked; see torch_worker.py."""

    cases: dict[int, list[dict]] = field(default_factory=dict)
    traces: dict[str, dict] = field(default_factory=dict)
    without_values: dict[str, dict] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)

    def add(self, other: TorchWork) -> None:
        """Take what the other asks as well; a case of the same name is the same case."""
        for ranks, some in other.cases.items():
            own = self.cases.setdefault(ranks, [])
            known = {case["name"] for case in own}
            own += [case for case in some if case["name"] not in known]
        for name in ("traces", "without_values", "commands"):
            getattr(self, name).update(getattr(other, name))


class TorchPool:
    """Runs the work, once, and reads what it left."""

    def __init__(self, work: TorchWork, folder: Path) -> None:
        self.folder = folder
        plain = {**work.__dict__, "cases": {ranks: work.cases[ranks] for ranks in sorted(work.cases)}}
        (folder / "work.json").write_text(json.dumps(plain))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("torch_worker.py")), "work.json", str(folder)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        self.said = done.stderr
        self.by_rank = {ranks: self._ranks(ranks) for ranks in work.cases}

    def _ranks(self, ranks: int) -> list[dict[str, dict]]:
        """What each rank saw. One that failed shows its traceback; all ranks say the same of losses and norms."""
        files = [self.folder / f"{ranks}.{rank}.json" for rank in range(ranks)]
        found = [json.loads(f.read_text()) for f in files if f.exists()]
        errors = [x["error"] for one in found for x in one.values() if "error" in x]
        assert not errors, "\n".join(errors)
        assert len(found) == ranks, self.said
        for name, first in found[0].items():
            assert all(x[name]["losses"] == first["losses"] for x in found), f"{name}: ranks disagree"
            assert all(x[name]["norms"] == first["norms"] for x in found), f"{name}: ranks disagree"
        return found

    def shown(self) -> Shown:
        """What rank 0 of each case saw."""
        return {ranks: found[0] for ranks, found in self.by_rank.items()}

    def left(self, kind: str) -> dict[str, Any]:
        """What the processes of fake ranks wrote."""
        files = [self.folder / f"{kind}.{part}.json" for part in range(2)]
        assert all(f.exists() for f in files), self.said
        return {name: one for f in files for name, one in json.loads(f.read_text()).items()}


def apart(a: dict, b: dict) -> float:
    """Largest relative difference of losses, norms and the validation loss; of a resumed run, of its last steps."""
    last = -len(a["losses"])
    pairs = [*zip(a["losses"] + a["norms"], b["losses"][last:] + b["norms"][last:], strict=True)]
    if a["valid"] is not None and b["valid"] is not None:
        pairs.append((a["valid"], b["valid"]))
    return max(abs(x - y) / abs(y) for x, y in pairs)
