"""Published runs: a CSV with one training run a row -> what was run, and what it measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

from knee.base.errors import InputError
from knee.trust.validation.csv_cells import (
    Lines,
    RowFile,
    TableForm,
    check_width,
    count,
    positive,
    read_rows,
    reason_of,
    unknown_choice,
)

Status = Literal["ok", "oom", "failed"]
"""``failed``: out of memory or a crash, not told apart."""
STATUSES: tuple[Status, ...] = get_args(Status)
GIB = 2.0**30
GBIT = 1e9 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What was run, in the words of the file. None: the file does not say."""

    source: str = "unnamed"
    model: str = "model"
    layers: int
    hidden: int
    heads: int
    ffn: int | None = None
    kv_heads: int | None = None
    vocab: int | None = None
    mlp: str = "swiglu"
    tied_embeddings: bool = False
    gpu: str
    gpus_per_node: int | None = None
    node_bytes_per_s: float | None = None
    """Injection bandwidth of a node, one direction."""
    n_gpus: int
    seq_len: int
    global_batch: int
    micro_batch: int | None = None
    tp: int = 1
    pp: int = 1
    cp: int = 1
    virtual_pp: int = 1
    dp: int | None = None
    shard_group: int | None = None
    sharding: str | None = None
    sequence_parallel: bool = True
    recompute: str = "none"
    precision: str | None = None
    compile: bool = False
    attention: str = "flash"
    kernel: str = ""
    """What the source says of its kernels."""
    async_tp: bool = False
    stack: str = ""
    """Software, by its name; empty: unknown."""
    software: str = ""
    """Its version or release."""
    fabric: str = ""
    """Kind of network: infiniband, roce, efa, ..."""
    reduce_dtype: str | None = None
    """Type in which gradients are reduced."""
    state_dtype: str | None = None
    """Type of the parameters that the optimizer updates; moment_dtype: of its moments."""
    moment_dtype: str | None = None
    tp_overlap: bool | None = None
    """Whether tensor-parallel communication runs beside products; dp_overlap: that of gradients and parameters beside
    compute."""
    dp_overlap: bool | None = None
    cuda_graphs: bool | None = None
    sharp: bool | None = None
    """Whether switches reduce."""
    fp8_recipe: str = ""
    head_dim: int | None = None
    mtp_layers: int = 0
    window: int = 0
    """Keys that a query sees at most, in the layers that ``layer_pattern`` marks with s; 0: all."""
    layer_pattern: str = "s"
    mlp_bias: bool = False
    """Whether the linear layers of the MLP, or of experts, have biases."""
    deals_by_cost: bool | None = None
    """Whether the layout of pipeline stages counts the loss as layers; None: as the stack does."""
    experts: int | None = None
    """Routed experts of a layer; the fields below mean nothing without them."""
    top_k: int | None = None
    expert_ffn: int | None = None
    shared_experts: int = 0
    """In units of ``expert_ffn``."""
    dense_layers: int = 0
    """Leading ones."""
    moe_every: int = 1
    """One layer in so many has experts."""
    ep: int = 1
    etp: int = 1
    dispatcher: str = ""
    ep_overlap: bool = False
    router_fusion: bool | None = None
    """Whether the router runs in fused kernels; rope_fusion: the rotation of latent attention. None: as the stack
    does."""
    rope_fusion: bool | None = None
    routing: str = ""
    """forced_balance, dropless, drop; empty: not stated."""
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    """Of latent attention; None: there is none."""
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    v_head_dim: int | None = None
    note: str = field(default="", compare=False)
    """Free text: two runs that differ only in it are repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """One setting and the median of what was measured of it."""

    setting: Setting
    lines: tuple[int, ...]
    """Lines of the file that repeat it."""
    status: Status
    """``ok`` where one of the repeats ran: what ran once fits."""
    tokens_per_s_per_gpu: float | None
    memory_bytes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvRow:
    """One line of the file: its run, or why there is none."""

    line: int
    id: str
    source: str
    status: Status | None = None
    tokens_per_s_per_gpu: float | None = None
    memory_bytes: float | None = None
    setting: Setting | None = None
    reason: str | None = None
    remarks: tuple[str, ...] = ()
    """What is odd about a row that is used all the same."""


class RunFile(RowFile[CsvRow]):
    """A file of runs that was read."""

    @property
    def runs(self) -> tuple[PublishedRun, ...]:
        """Usable rows, repeats as one."""
        repeats: dict[Setting, list[CsvRow]] = {}
        for row in self.rows:
            if row.setting is not None:
                repeats.setdefault(row.setting, []).append(row)
        return tuple(_one_run(setting, rows) for setting, rows in repeats.items())


def read_runs(
    path: Path, text: str | None = None, *, most: int | None = None, watch: Callable[[Lines], Lines] = iter
) -> RunFile:
    """Read a file in the form of ``published_runs.csv``, or its text where that was read already; rows that cannot be
    used keep their reason. ``watch`` sees the lines pass."""
    return RunFile(**read_rows(FORM, path, _row, text, most=most, watch=watch))


def _row(line: int, header: Sequence[str], cells: Sequence[str]) -> CsvRow:
    """One line; what is wrong with it becomes its reason."""
    found = {name: cell.strip() for name, cell in zip(header, cells, strict=False)}
    said = CsvRow(line=line, id=found.get("id", ""), source=found.get("source", "") or "unnamed")
    try:
        check_width(header, cells)
        setting = _setting(found)
        status, rate, memory_bytes, remarks = _measured(found, setting)
    except InputError as error:
        return replace(said, reason=reason_of(error))
    measured = replace(said, status=status, tokens_per_s_per_gpu=rate, memory_bytes=memory_bytes)
    return replace(measured, setting=setting, remarks=remarks)


def _setting(found: Mapping[str, str]) -> Setting:
    values: dict[str, Any] = {}
    for column, (name, parse) in _COLUMNS.items():
        text = found.get(column, "")
        if text:
            values[name] = parse(column, text)
        elif column in REQUIRED:
            raise InputError(f"{column} is empty", code="missing-field", field=column)
    return Setting(**values)


def _measured(found: Mapping[str, str], setting: Setting) -> tuple[Status, float | None, float | None, tuple[str, ...]]:
    """Status, tokens per second and GPU, bytes, and what is odd; a step's time stands for the rate where that is
    missing."""
    rate, step_s, gib = (
        positive(column, found[column]) if found.get(column) else None
        for column in ("tokens_per_s_per_gpu", "step_time_s", "memory_gib")
    )
    if step_s is not None:
        by_step = setting.global_batch * setting.seq_len / step_s / setting.n_gpus
        if rate is not None and not 1.0 - AGREE < rate / by_step < 1.0 + AGREE:
            text = f"tokens_per_s_per_gpu {rate:,.5g} contradicts step_time_s {step_s:g}"
            text = f"{text}, for which global_batch, seq_len and n_gpus are {by_step:,.5g}"
            raise InputError(text, code="contradiction", field="tokens_per_s_per_gpu")
        rate = by_step if rate is None else rate
    memory_bytes = None if gib is None else gib * GIB
    written = found.get("status", "").lower()
    if not written and rate is None and memory_bytes is None:
        text = "nothing was measured: neither throughput, memory nor status is given"
        raise InputError(text, code="missing-field", field="measured")
    for status in STATUSES:
        if (written or "ok") == status:
            if status == "ok":
                return status, rate, memory_bytes, ()
            # numbers beside a failure are not those of a whole step
            odd = f"status is {status} but throughput or memory is given; these values are not compared"
            return status, None, None, (odd,) if rate is not None or memory_bytes is not None else ()
    raise unknown_choice("status", written, STATUSES)


def _one_run(setting: Setting, rows: Sequence[CsvRow]) -> PublishedRun:
    notes = dict.fromkeys(row.setting.note for row in rows if row.setting is not None)
    return PublishedRun(
        setting=setting if len(notes) == 1 else replace(setting, note=" | ".join(notes)),
        lines=tuple(row.line for row in rows),
        status=next(status for status in STATUSES if any(row.status == status for row in rows)),
        tokens_per_s_per_gpu=median_of([row.tokens_per_s_per_gpu for row in rows]),
        memory_bytes=median_of([row.memory_bytes for row in rows]),
    )


def median_of(values: Sequence[float | None]) -> float | None:
    """The median of the known values; None where there are none."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _flag(column: str, text: str) -> bool:
    words = {"0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}
    if text.lower().removesuffix(".0") not in words:
        raise InputError(f"{column} is {text!r}; it must be 0 or 1", code="not-a-flag", field=column)
    return words[text.lower().removesuffix(".0")]


def _word(column: str, text: str) -> str:  # noqa: ARG001 - as the others
    return sys.intern(text.lower())


def _text(column: str, text: str) -> str:  # noqa: ARG001 - as the others
    return sys.intern(text)  # a few words in a million rows


REQUIRED = ("layers", "hidden", "heads", "gpu", "n_gpus", "seq_len", "global_batch")
"""Columns without which a row means nothing."""
MEASURED = ("tokens_per_s_per_gpu", "step_time_s", "memory_gib", "status")
"""Of these one is needed."""
AGREE = 0.05
"""Rates of one row that differ by more contradict each other."""
DEFAULTS = {
    "tp": "tp 1",
    "pp": "pp 1",
    "cp": "cp 1",
    "precision": "precision bf16 (fp16 on GPUs without bf16)",
    "recompute": "recompute none",
    "compile": "no torch.compile",
    "attention": "attention flash",
    "stack": "unknown stack: its profile follows from kernel, attention and compile",
    "mlp": "mlp swiglu",
    "gpus_per_node": "gpus_per_node as in the GPU's usual server",
    "node_gbit_per_s": "the network rate of that server",
}
"""Column -> what is taken where a file does not have it."""


_PARSERS: dict[str, Callable[[str, str], Any]] = {"int": count, "bool": _flag}
_MAY_BE_ZERO = ("mtp_layers", "window", "shared_experts", "dense_layers", "experts")
_TEXTS = ("source", "model", "kernel", "stack", "software", "note")


def _parser(name: str, kind: str) -> Callable[[str, str], Any]:
    if name in _MAY_BE_ZERO:
        return lambda column, text: 0 if text in ("0", "0.0") else count(column, text)
    return _text if name in _TEXTS else _PARSERS.get(kind.removesuffix(" | None"), _word)


_COLUMNS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    f.name: (f.name, _parser(f.name, str(f.type))) for f in fields(Setting) if f.name != "node_bytes_per_s"
} | {"node_gbit_per_s": ("node_bytes_per_s", lambda column, text: positive(column, text) * GBIT)}
"""Column -> field of ``Setting``, and how it is read."""
FORM = TableForm(
    required=REQUIRED,
    measured=MEASURED,
    optional=(*_COLUMNS, "id", "fabric_stated"),
    defaults=DEFAULTS,
    each="training run",
)
_EXPERTS = ("experts", "top_k", "expert_ffn")
_OPTIONAL = [name for name in _COLUMNS if name not in REQUIRED]
DENSE = (*_OPTIONAL[: _OPTIONAL.index("experts")], "note", "node_gbit_per_s")
"""Optional columns of every run."""
SPARSE = tuple(name for name in _OPTIONAL if name not in (*DENSE, *_EXPERTS))
"""Optional columns of mixtures of experts."""


def column_words(names: Sequence[str]) -> str:
    """Columns for the help, with the unit or the words that some have."""
    said = {"micro_batch": "in sequences", "routing": "forced_balance, dropless, drop"}
    return ", ".join(f"{name} ({said[name]})" if name in said else name for name in names)
