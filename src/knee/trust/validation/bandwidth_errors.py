"""Measured bandwidths against predictions on idle links: errors by source, operation, nodes and message size."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import as_file, files
from pathlib import Path
from statistics import median
from typing import get_args

import numpy as np

from knee.base.arrays import extreme_values
from knee.base.errors import InputError
from knee.engine.cost.collective_cost import OPERATIONS, Operation, ReduceAlgorithm, idle_s, reduce_by
from knee.engine.cost.placement import GroupPlacement
from knee.measure.hardware_fit.links import bus_factor
from knee.measure.hardware_fit.residuals import Residuals
from knee.specs.catalog import did_you_mean, fabric_aliases, gpu_aliases
from knee.specs.hardware import Cluster
from knee.specs.load import load_cluster
from knee.trust.validation.csv_cells import (
    Lines,
    RowFile,
    TableForm,
    check_width,
    count,
    positive,
    read_rows,
    reason_of,
)
from knee.trust.validation.run_errors import by_name
from knee.trust.validation.run_to_job import gpu_key, too_many_in_node, unknown_gpu

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
FORM = TableForm(
    required=("gpu", "n_gpus", "collective", "bytes"),
    measured=("busbw_GBps", "algbw_GBps", "time_us"),  # the first that a row has is taken
    optional=("source", "nodes", "gpus_per_node", "node_gbit_per_s", "fabric", "algorithm", "note", "reference"),
    defaults={
        "nodes": "nodes: the fewest that hold the GPUs",
        "gpus_per_node": "gpus_per_node: as in the GPU's usual server",
        "node_gbit_per_s": "network rate: as in that server",
        "fabric": "fabric: as in that server",
        "algorithm": "algorithm: the fastest",
    },
    each="message size",
)
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


class BandwidthFile(RowFile[BandwidthRow]):
    """A file of bandwidths that was read."""

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
    return "collective" in header or any(name in header for name in FORM.measured)


def read_bandwidths(path: Path, text: str | None = None, *, watch: Callable[[Lines], Lines] = iter) -> BandwidthFile:
    """Read a file in the form of ``collectives.csv``, or its text where that was read already; rows that cannot be used
    keep their reason. ``watch`` sees the lines pass."""
    return BandwidthFile(**read_rows(FORM, path, _row, text, watch=watch))


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
        remarks = (f"algorithm {word.lower()} is not modelled; the fastest modelled algorithm is used",) if left else ()
        return replace(said, setting=setting, bus_bytes_per_s=_measured(found, setting), remarks=remarks)
    except InputError as error:
        return replace(said, reason=reason_of(error))


def _setting(found: Mapping[str, str], operation: Operation, source: str) -> BandwidthSetting:
    for column in FORM.required:
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


MIB = 2.0**20
LARGE_BYTES = 16 * MIB
"""Messages from here on make the headline: below, protocols that training does not use take over."""
BANDS: tuple[tuple[str, float], ...] = (
    ("below 1 MiB", 0.0),
    ("1 to 16 MiB", MIB),
    ("16 to 256 MiB", LARGE_BYTES),
    ("256 MiB to 1 GiB", 256 * MIB),
    ("1 GiB and more", 1024 * MIB),
)
"""Name -> its smallest message."""
NO_ANSWER = "a size is so unrealistic that the prediction is not finite"


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthPrediction:
    """One reading, predicted."""

    reading: Reading
    cluster: str
    nodes: int
    bus_bytes_per_s: float

    @property
    def error_frac(self) -> float:
        """Predicted over measured less one."""
        return self.bus_bytes_per_s / self.reading.bus_bytes_per_s - 1.0

    @property
    def factor(self) -> float:
        """Predicted over measured, or the reverse where that is more."""
        ratio = self.bus_bytes_per_s / self.reading.bus_bytes_per_s
        return max(ratio, 1.0 / ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthScore:
    """Some rows of a file."""

    rows: int
    rows_used: int
    tests: int
    """Rows used, repeats as one."""
    skipped: dict[str, int]
    """Reason -> rows."""
    errors: Residuals | None
    large: Residuals | None
    """Of messages of 16 MiB and more."""
    large_factor: float | None
    """Of those the farthest: predicted over measured, or the reverse where that is more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthValidation:
    """Everything that is said of a file."""

    headline: dict[str, Residuals | None]
    """Operation -> errors of messages of 16 MiB and more."""
    all: BandwidthScore
    sources: dict[str, BandwidthScore]
    operations: dict[str, BandwidthScore]
    nodes: dict[str, dict[str, Residuals]]
    """Operation -> nodes -> errors of messages of 16 MiB and more."""
    sizes: dict[str, dict[str, Residuals]]
    """Operation -> band of message sizes -> errors."""
    assumptions: dict[str, int]
    """Sentence -> rows."""
    predictions: dict[int, BandwidthPrediction] = field(repr=False)
    """Line of the file -> its test."""
    reasons: dict[int, str] = field(repr=False)
    """Line of the file -> why it was skipped."""


def validate_bandwidths(file: BandwidthFile) -> BandwidthValidation:
    """Predict every row of a file and score it."""
    found, refused = predict(file.readings)
    predictions = {line: p for p in found for line in p.reading.lines}
    reasons = {row.line: row.reason for row in file.rows if row.reason is not None}
    reasons |= {line: reason for reading, reason in refused for line in reading.lines}
    large = [p for p in found if p.reading.setting.message_bytes >= LARGE_BYTES]
    said = Counter(remark for row in file.rows if row.line in predictions for remark in row.remarks)
    defaults = {file.defaults: len(predictions)} if file.defaults else {}

    def scores(name_of: Callable[[BandwidthRow], str]) -> dict[str, BandwidthScore]:
        return {name: _score(rows, reasons, predictions) for name, rows in by_name(file.rows, name_of).items()}

    return BandwidthValidation(
        headline={name: _residuals(p for p in large if _operation(p) == name) for name in OPERATIONS},
        all=_score(file.rows, reasons, predictions),
        sources=scores(lambda row: row.source),
        operations=scores(lambda row: row.operation),
        nodes=_by(large, lambda p: (p.nodes, str(p.nodes))),
        sizes=_by(found, _band),
        assumptions=(defaults if predictions else {}) | dict(said.most_common()),
        predictions=predictions,
        reasons=reasons,
    )


def predict(readings: Iterable[Reading]) -> tuple[list[BandwidthPrediction], list[tuple[Reading, str]]]:
    """All tests, a column for each cluster, operation and algorithm; those that cannot be asked with the reason."""
    columns: dict[tuple[str, str, str | None], list[tuple[Reading, int]]] = {}
    clusters: dict[str, Cluster] = {}
    refused: list[tuple[Reading, str]] = []
    for reading in readings:
        try:
            cluster = cluster_of(reading.setting)
            nodes = _nodes(reading.setting, cluster)
        except InputError as error:
            refused.append((reading, reason_of(error)))
            continue
        clusters[cluster.name] = cluster
        key = (cluster.name, reading.setting.operation, reading.setting.algorithm)
        columns.setdefault(key, []).append((reading, nodes))
    found: list[BandwidthPrediction] = []
    for (name, _, _), pairs in columns.items():
        rates = _rates(clusters[name], pairs)
        for (reading, nodes), rate in zip(pairs, rates, strict=True):
            if 0 < rate < np.inf:
                found.append(BandwidthPrediction(reading=reading, cluster=name, nodes=nodes, bus_bytes_per_s=rate))
            else:
                refused.append((reading, NO_ANSWER))
    return sorted(found, key=lambda p: p.reading.lines), refused


def _rates(cluster: Cluster, pairs: Sequence[tuple[Reading, int]]) -> list[float]:
    settings = [reading.setting for reading, _ in pairs]
    ranks = np.array([setting.n_gpus for setting in settings], dtype=np.float64)
    nodes = np.array([n for _, n in pairs], dtype=np.float64)
    size = np.array([setting.message_bytes for setting in settings])
    group = GroupPlacement(ranks=ranks, per_node=ranks / nodes, nodes=nodes, span=nodes)
    operation, algorithm = settings[0].operation, settings[0].algorithm
    with extreme_values():
        seconds = idle_s(cluster, group, operation, size)
        if algorithm is not None:
            told = reduce_by(cluster, group, size, algorithm)
            # NCCL falls back where it has no such algorithm
            seconds = np.where(np.isfinite(told), told, seconds)
        factors = np.array([bus_factor(operation, setting.n_gpus) for setting in settings])
        return [float(rate) for rate in size * factors / seconds]


def cluster_of(setting: BandwidthSetting) -> Cluster:
    """The catalogue's cluster with the row's own nodes and network."""
    return _cluster(setting.gpu, setting.gpus_per_node, setting.node_bytes_per_s, setting.fabric)


@lru_cache(maxsize=4096)
def _cluster(gpu: str, gpus_per_node: int | None, node_bytes_per_s: float | None, word: str | None) -> Cluster:
    known = gpu_aliases()
    begins = next((key for key in known if key == gpu or key.startswith(f"{gpu}-")), None) if gpu else None
    key = begins or gpu_key(gpu)
    if key is None:
        raise unknown_gpu(gpu)
    cluster = load_cluster(known[key]).spec
    like = fabric_aliases()[word] if word else None
    if like is not None:
        other = load_cluster(like).spec
        # NICs and nodes go with the GPU; latency and efficiency are the network's own
        same = other if other.gpu.name == cluster.gpu.name else cluster
        fabric = replace(other.fabric, nic_bytes_per_s=same.fabric.nic_bytes_per_s, tiers=cluster.fabric.tiers)
        cluster = replace(cluster, fabric=fabric, node=replace(cluster.node, gpus=same.node.gpus))
    per_node = gpus_per_node or cluster.node.gpus
    if per_node > max(cluster.node.gpus, load_cluster(known[key]).spec.node.gpus):
        raise too_many_in_node(per_node, cluster)
    if node_bytes_per_s is not None:
        cluster = replace(cluster, fabric=replace(cluster.fabric, nic_bytes_per_s=node_bytes_per_s / per_node))
    fabric = cluster.fabric
    name = f"{gpu}, {per_node} per node, {word or fabric.kind} at {fabric.nic_bytes_per_s * 8e-9:g} Gbit/s per GPU"
    return replace(cluster, name=name, node=replace(cluster.node, gpus=per_node))


def _nodes(setting: BandwidthSetting, cluster: Cluster) -> int:
    """Nodes that were used; as few as hold the GPUs where the file does not say."""
    nodes = setting.nodes or -(-setting.n_gpus // cluster.node.gpus)
    if setting.n_gpus > nodes * cluster.node.gpus:
        text = f"{setting.n_gpus} GPUs do not fit into {nodes} nodes of {cluster.node.gpus} GPUs"
        raise InputError(text, code="contradiction", field="n_gpus")
    return nodes


def _score(
    rows: Sequence[BandwidthRow], reasons: Mapping[int, str], predictions: Mapping[int, BandwidthPrediction]
) -> BandwidthScore:
    used = [row for row in rows if row.line in predictions]
    found = {p.reading.lines: p for p in (predictions[row.line] for row in used)}
    large = [p for p in found.values() if p.reading.setting.message_bytes >= LARGE_BYTES]
    return BandwidthScore(
        rows=len(rows),
        rows_used=len(used),
        tests=len(found),
        skipped=dict(Counter(reasons[row.line] for row in rows if row.line in reasons).most_common()),
        errors=_residuals(found.values()),
        large=_residuals(large),
        large_factor=max((p.factor for p in large), default=None),
    )


def _residuals(found: Iterable[BandwidthPrediction]) -> Residuals | None:
    found = list(found)
    return Residuals.of_measured([p.bus_bytes_per_s for p in found], [p.reading.bus_bytes_per_s for p in found])


def _by(
    found: Sequence[BandwidthPrediction], key_of: Callable[[BandwidthPrediction], tuple[int, str]]
) -> dict[str, dict[str, Residuals]]:
    """Operation -> name of what differs -> errors; ``key_of`` has its place and its name."""
    cells: dict[str, dict[str, Residuals]] = {}
    for operation in OPERATIONS:
        mine: dict[tuple[int, str], list[BandwidthPrediction]] = {}
        for p in found:
            if _operation(p) == operation:
                mine.setdefault(key_of(p), []).append(p)
        if mine:
            cells[operation] = {name: r for (_, name), ps in sorted(mine.items()) if (r := _residuals(ps)) is not None}
    return cells


def _operation(p: BandwidthPrediction) -> Operation:
    return p.reading.setting.operation


def _band(p: BandwidthPrediction) -> tuple[int, str]:
    return [(i, name) for i, (name, least) in enumerate(BANDS) if p.reading.setting.message_bytes >= least][-1]
