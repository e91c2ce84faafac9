"""Bandwidths of collectives that others measured: a CSV in nccl-tests' words -> what ran, and its bus bandwidth."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from statistics import median
from typing import get_args

from knee.base.errors import InputError
from knee.engine.cost.nccl_tests import Operation, ReduceAlgorithm
from knee.measure.hardware_fit.links import bus_factor
from knee.specs.catalog import did_you_mean, fabric_aliases
from knee.trust.validation.csv_cells import Lines, check_columns, check_width, count, positive, read_table, reason_of

REQUIRED = ("gpu", "n_gpus", "collective", "bytes")
"""Columns without which a row means nothing."""
MEASURED = ("busbw_GBps", "algbw_GBps", "time_us")
"""Of these one is needed; the first that a row has is taken."""
OPTIONAL = ("source", "nodes", "gpus_per_node", "node_gbit_per_s", "fabric", "algorithm", "note", "reference")
GB = 1e9
GBIT = 1e9 / 8
WORDS: dict[str, Operation] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "sendrecv": "send_receive",
    "sendreceive": "send_receive",
}
"""A file's word, without its dashes and underscores -> knee's."""
NOT_MODELLED = ("pat", "collnet", "collnetdirect", "collnetchain", "auto", "default")
"""Algorithms, or none, that leave the choice to knee."""
DEFAULTS = {
    "nodes": "nodes: the fewest that hold the GPUs",
    "gpus_per_node": "gpus_per_node: as in the GPU's usual server",
    "node_gbit_per_s": "network rate: as in that server",
    "fabric": "fabric: as in that server",
    "algorithm": "algorithm: the fastest",
}
"""Column -> what is taken where a file does not have it."""
BROKEN = ("misconfigured", "broken")
"""Words of a note with which a source itself says that its system did not run as it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthSetting:
    """What was run, in the words of the file. None: the file does not say."""

    source: str
    gpu: str
    nodes: int | None
    n_gpus: int
    operation: Operation
    message_bytes: float
    """The whole buffer: all ranks' parts of a gather together."""
    algorithm: ReduceAlgorithm | None
    gpus_per_node: int | None
    node_bytes_per_s: float | None
    """Injection bandwidth of a node, one direction."""
    fabric: str | None
    """The catalogue's word for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One test and the median of what it reached."""

    setting: BandwidthSetting
    lines: tuple[int, ...]
    """Lines of the file that repeat it."""
    bus_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthRow:
    """One line of the file: its test, or why there is none."""

    line: int
    source: str
    operation: str
    """In knee's word, or the file's where knee has none."""
    bus_bytes_per_s: float | None = None
    setting: BandwidthSetting | None = None
    reason: str | None = None
    remarks: tuple[str, ...] = ()
    """What was assumed of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthFile:
    """A file that was read."""

    rows: tuple[BandwidthRow, ...]
    ignored: tuple[str, ...] = ()
    """Columns that mean nothing to knee."""
    missing: tuple[str, ...] = ()
    """Columns that no row has and that stand for something."""

    @property
    def defaults(self) -> str | None:
        """One sentence for what is taken in place of columns that are missing altogether."""
        taken = [DEFAULTS[name] for name in self.missing]
        return f"defaults for missing columns: {', '.join(taken)}" if taken else None

    @property
    def readings(self) -> tuple[Reading, ...]:
        """Usable rows, repeats as one."""
        repeats: dict[BandwidthSetting, list[tuple[int, float]]] = {}
        for row in self.rows:
            if row.setting is not None and row.bus_bytes_per_s is not None:
                repeats.setdefault(row.setting, []).append((row.line, row.bus_bytes_per_s))
        return tuple(
            Reading(
                setting=setting,
                lines=tuple(line for line, _ in found),
                bus_bytes_per_s=median(rate for _, rate in found),
            )
            for setting, found in repeats.items()
        )


def carried_bandwidths() -> BandwidthFile:
    """The bandwidths that knee carries: public readings with a source each, figure 2a of the paper among them."""
    with as_file(files("knee") / "catalog" / "validation" / "collectives.csv") as path:
        return read_bandwidths(path)


def is_bandwidths(header: Sequence[str]) -> bool:
    """Whether a file's header is that of bandwidths rather than of training runs."""
    return "collective" in header or any(name in header for name in MEASURED)


def read_bandwidths(path: Path, text: str | None = None, *, watch: Callable[[Lines], Lines] = iter) -> BandwidthFile:
    """Read a file in the form of ``collectives.csv``, or its text where that was read already; rows that cannot be used
    keep their reason. ``watch`` sees the lines pass."""
    header, lines = read_table(path, REQUIRED, text)
    check_columns(path, header, REQUIRED, MEASURED)
    rows = tuple(_row(line, header, cells) for line, cells in watch(lines))
    if not rows:
        raise InputError(f"{path} has a header but no rows", hint="give one message size per row", code="empty")
    known = {*REQUIRED, *MEASURED, *OPTIONAL}
    return BandwidthFile(
        rows=rows,
        ignored=tuple(name for name in header if name and name not in known),
        missing=tuple(name for name in DEFAULTS if name not in header),
    )


def _row(line: int, header: Sequence[str], cells: Sequence[str]) -> BandwidthRow:
    """One line; what is wrong with it becomes its reason."""
    found = {name: cell.strip() for name, cell in zip(header, cells, strict=False)}
    word = found.get("collective", "").lower()
    operation = WORDS.get(re.sub(r"[^a-z]", "", word.removesuffix("_perf")))
    said = BandwidthRow(
        line=line, source=found.get("source", "") or "unnamed", operation=operation or word or "unnamed"
    )
    try:
        check_width(header, cells)
        if operation is None:
            text = f"{word} is not modelled" if word else "collective is empty"
            raise InputError(text, code="not-modelled" if word else "missing-field", field="collective")
        setting = _setting(found, operation, said.source)
        word = found.get("algorithm", "")
        left = word and operation == "all_reduce" and setting.algorithm is None
        return replace(
            said,
            setting=setting,
            bus_bytes_per_s=_measured(found, setting),
            remarks=(f"algorithm {word.lower()} is not modelled; the fastest modelled algorithm is used",)
            if left
            else (),
        )
    except InputError as error:
        return replace(said, reason=reason_of(error))


def _setting(found: Mapping[str, str], operation: Operation, source: str) -> BandwidthSetting:
    for column in REQUIRED:
        if not found[column]:
            raise InputError(f"{column} is empty", code="missing-field", field=column)
    note = found.get("note", "").lower()
    if any(word in note for word in BROKEN):
        raise InputError("the source says that its system is misconfigured", code="misconfigured", field="note")
    nodes, per_node = (count(c, found[c]) if found.get(c) else None for c in ("nodes", "gpus_per_node"))
    n_gpus = count("n_gpus", found["n_gpus"])
    if n_gpus < 2:
        raise InputError("a single GPU has nothing to send", code="out-of-range", field="n_gpus")
    if nodes is not None and nodes > n_gpus:
        raise InputError("there are more nodes than GPUs", code="contradiction", field="nodes")
    rate = found.get("node_gbit_per_s", "")
    return BandwidthSetting(
        source=source,
        gpu=re.sub(r"\(.*", "", found["gpu"].lower()).strip(),
        nodes=nodes,
        n_gpus=n_gpus,
        operation=operation,
        message_bytes=_whole("bytes", found["bytes"]),
        algorithm=_algorithm(found.get("algorithm", "")) if operation == "all_reduce" else None,
        gpus_per_node=per_node,
        node_bytes_per_s=positive("node_gbit_per_s", rate) * GBIT if rate else None,
        fabric=_fabric(found.get("fabric", "")),
    )


def _whole(column: str, text: str) -> float:
    value = positive(column, text)
    if value != int(value):
        raise InputError(f"{column} is {text}; it must be a whole number of bytes", code="not-a-count", field=column)
    return value


def _algorithm(text: str) -> ReduceAlgorithm | None:
    """What NCCL was told or seen to use; those that knee has no model of leave the choice to it."""
    word = re.sub(r"[^a-z ]", "", text.lower()).split(" ")[0]
    if word == "nvlstree":
        return "tree"
    known = get_args(ReduceAlgorithm)
    if text and word not in (*known, *NOT_MODELLED):
        close = did_you_mean(word, (*known, "nvlstree"))
        guess = f"did you mean {close}?" if close else f"known: {', '.join(known)}"
        raise InputError(f"algorithm is {text!r}; {guess}", code="unknown-choice", field="algorithm")
    return next((name for name in known if name == word), None)


def _fabric(text: str) -> str | None:
    """The catalogue's word for the network of a file's column; None for that of the GPU's usual server."""
    words, known = re.findall(r"[a-z]+", text.lower()), fabric_aliases()
    found = next((word for word in known if word in words), None)
    if text and found is None:
        close = did_you_mean(text, known)
        guess = f"did you mean {close}?" if close else f"known: {', '.join(known)}"
        raise InputError(f"fabric is {text!r}; {guess}", code="unknown-choice", field="fabric")
    return found if found and known[found] else None


def _measured(found: Mapping[str, str], setting: BandwidthSetting) -> float:
    """Bus bandwidth; from the algorithm's, or from the time, where the row does not have it."""
    factor = bus_factor(setting.operation, setting.n_gpus)
    for column, bus in (("busbw_GBps", 1.0), ("algbw_GBps", factor)):
        if found.get(column):
            return positive(column, found[column]) * GB * bus
    if found.get("time_us"):
        return setting.message_bytes * factor / (positive("time_us", found["time_us"]) * 1e-6)
    raise InputError("nothing was measured", code="missing-field", field="measured")
