"""What a run left behind in its folder: its record, the pieces of its ranks, heartbeats, and the ends of its logs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knee.training.launch.sweep_folder import ENVIRONMENT, read_record
from knee.training.run.run_record import HEARTBEATS, LOGS, read_pieces

TAIL_BYTES = 65_536
ALL_TAILS_BYTES = 32 << 20
SILENT_S = 5.0
"""A rank whose last heartbeat is so much older than the newest has stopped before the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a run left behind."""

    record: dict[str, Any]
    pieces: list[dict[str, Any]]
    beats: dict[int, tuple[int, float]]
    """Rank -> step and time of its last heartbeat."""
    nodes: dict[int, str]
    """Rank -> node."""
    stalled_s: dict[int, int]
    """Rank -> how long it waited for a step to end, of those that gave up: they are not the ones at fault."""
    refusals: dict[int, str]
    """Rank -> why it refused its job before it began."""
    pids: dict[int, int]
    """Rank -> its process on its node."""
    logs: dict[str, str]
    """Name -> its last part; those of ranks first."""

    @classmethod
    def of(cls, run: Path) -> Evidence:
        """Read the run's folder."""
        places = dict(files_of_ranks(run / ENVIRONMENT))
        beats = dict(files_of_ranks(run / HEARTBEATS))
        return cls(
            record=read_record(run),
            pieces=read_pieces(run),
            beats={rank: beat for rank, plain in beats.items() if (beat := _beat(plain)) is not None},
            stalled_s={
                rank: waited for rank, plain in beats.items() if isinstance(waited := plain.get("stalled_s"), int)
            },
            refusals={rank: str(plain["refused"]) for rank, plain in places.items() if "refused" in plain},
            logs=_tails(run / LOGS),
            nodes={rank: str(plain.get("node", "")) for rank, plain in places.items()},
            pids={rank: pid for rank, plain in places.items() if isinstance(pid := plain.get("pid"), int)},
        )

    @property
    def errors(self) -> dict[int, str]:
        """Rank -> its error; without those that only lost another rank."""
        return {
            int(piece["rank"]): str(piece.get("error") or "")
            for piece in self.pieces
            if piece.get("status") == "failed" and not piece.get("lost_peer")
        }

    @property
    def lost_peers(self) -> dict[int, str]:
        """Rank -> its error, of those that failed because they lost another rank."""
        return {int(piece["rank"]): str(piece.get("error") or "") for piece in self.pieces if piece.get("lost_peer")}

    def logs_of(self, ranks: Iterable[int]) -> dict[str, str]:
        """Return the logs of some ranks."""
        return {name: self.logs[name] for name in map(log_of, sorted(ranks)) if name in self.logs}

    @property
    def never_started(self) -> set[int]:
        """Ranks that have a log, and neither began to beat nor left a piece."""
        ranks = {rank for name in self.logs if (rank := rank_of(name)) is not None}
        return ranks - set(self.beats) - {int(piece["rank"]) for piece in self.pieces}

    @property
    def silent(self) -> list[int]:
        """Ranks that stopped beating before the others did."""
        if not self.beats:
            return []
        newest = max(time_s for _, time_s in self.beats.values())
        return sorted(rank for rank, (_, time_s) in self.beats.items() if newest - time_s > SILENT_S)


def rank_of(log: str) -> int | None:
    """Return the rank whose log has this name; None for other logs."""
    name = re.fullmatch(r"rank(\d+)\.log", log)
    return int(name[1]) if name else None


def log_of(rank: int) -> str:
    """Return the name of a rank's log."""
    return f"rank{rank}.log"


def _beat(plain: Mapping[str, Any]) -> tuple[int, float] | None:
    try:
        return int(plain["step"]), float(plain["time_s"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def files_of_ranks(folder: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    """Yield each rank with the JSON object of its file in a folder; files that cannot be read are skipped."""
    for path in folder.glob("rank*.json"):
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            yield int(path.stem.removeprefix("rank")), plain if isinstance(plain, dict) else {}
        except (OSError, ValueError, RecursionError):
            continue


def _tails(folder: Path) -> dict[str, str]:
    """Return the ends of all logs; those of ranks come first, by their number."""
    paths = sorted(folder.glob("*.log"), key=lambda p: (not p.stem.startswith("rank"), len(p.stem), p.stem))
    size = min(TAIL_BYTES, ALL_TAILS_BYTES // max(1, len(paths)))
    found = {}
    for path in paths:
        try:
            with path.open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - size))
                found[path.name] = file.read(size).decode(errors="replace")
        except OSError:
            continue
    return found
