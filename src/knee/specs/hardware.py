"""WHERE it is trained: a GPU, a node of them, the fabric between nodes, and how often these fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from knee.base.errors import FieldError, SpecError, argument, out_of_range


class Strict:
    """A spec whose table in a file may have no other keys than its fields."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}


CheckpointMethod = Literal["blocking", "async", "memory"]
Startup = Literal["nccl", "ncclx"]
Cause = Literal["gpu", "gpu_memory", "network", "host", "software"]
CAUSES: dict[Cause, str] = {
    "gpu": "gpu_failures_per_gpu_h",
    "gpu_memory": "gpu_memory_failures_per_gpu_h",
    "network": "network_failures_per_gpu_h",
    "host": "host_failures_per_gpu_h",
    "software": "software_failures_per_gpu_h",
}
"""Cause of an interruption that nobody planned -> the field with its rate."""
MOST_PER_GPU_H = 1.0
"""Failures per GPU-hour; more is a mistake of units."""
MOST = {
    "spare_nodes": (1_000_000, "more than 1,000,000 is not supported"),
    "slow_frac": (10.0, "it is a fraction of the step, so that 0.1 is 10%, and at most 10"),
}
"""Field -> the largest value, and what is said of a larger one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability(Strict):
    """Failures, restarts and checkpoints. A value that is left out has the default of catalog/reliability.toml."""

    gpu_failures_per_gpu_h: float | None = None
    """Interruptions by faulty GPUs, per GPU and hour; memory errors not included."""
    gpu_memory_failures_per_gpu_h: float | None = None
    """Interruptions by errors of the GPUs' memory, per GPU and hour."""
    network_failures_per_gpu_h: float | None = None
    """Interruptions by NICs, cables and switches, per GPU and hour."""
    host_failures_per_gpu_h: float | None = None
    """Interruptions by hosts: CPU, memory, disk, power supply, unplanned maintenance; per GPU and hour."""
    software_failures_per_gpu_h: float | None = None
    """Interruptions by software, per GPU and hour."""
    planned_stops_per_gpu_h: float | None = None
    """Planned interruptions, per GPU and hour. A checkpoint is saved before each, so no work is lost."""
    detection_s: float | None = None
    """Time from a failure until the restart begins: detection and diagnosis."""
    scheduling_s: float | None = None
    """Time until new processes run: replacement of nodes, scheduling, start of the program."""
    initialisation_s: float | None = None
    """Time to initialise the communication library. If it is left out, it grows with the number of GPUs."""
    startup: Startup | None = None
    """Communication library whose initialisation time is used: nccl, or ncclx, which starts faster on many GPUs."""
    warmup_s: float | None = None
    """Time lost in the first steps after a restart: compilation, memory allocation, data loaders."""
    checkpoint: CheckpointMethod | None = None
    """How checkpoints are saved. blocking: training waits until the storage has them. async: training waits for the
    copy to host memory. memory: the copy goes to host memory and to another node, and restarts read it from there."""
    checkpoint_interval_s: float | None = None
    """Training time between checkpoints. If it is left out, the interval with the shortest expected run is used."""
    storage_bytes_per_s: float | None = None
    """Rate of the storage per GPU: its rate for the whole run divided by the GPUs of the run."""
    host_copy_bytes_per_s: float | None = None
    """Rate per GPU of the copy from GPU memory to host memory."""
    evaluation_s: float | None = None
    """Duration of one evaluation, during which training waits."""
    evaluation_interval_s: float | None = None
    """Training time between evaluations."""
    spare_nodes: int | None = None
    """Nodes that are paid for and wait as replacements. If it is left out, a replacement is always available, and
    nothing is charged for it."""
    repair_s: float | None = None
    """Time to repair a failed node; it matters only if the number of spare nodes is given."""
    slow_nodes_per_gpu_h: float | None = None
    """Nodes that become slow, per GPU and hour, in addition to the stragglers of a normal step."""
    slow_frac: float | None = None
    """Additional step time while one node is slow, as a fraction of the step."""
    slow_detection_s: float | None = None
    """Time until a slow node is found and replaced."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, (int, float)) and not value >= 0:
                raise out_of_range(f"reliability.{name}", value, "it cannot be negative")
            most = MOST.get(name)
            if most is not None and value is not None and value > most[0]:
                raise out_of_range(f"reliability.{name}", value, most[1])
            if name.endswith("_per_gpu_h") and value is not None and value > MOST_PER_GPU_H:
                raise out_of_range(f"reliability.{name}", value, "it must be at most one per GPU-hour")
        for name in ("storage_bytes_per_s", "host_copy_bytes_per_s", "checkpoint_interval_s", "evaluation_interval_s"):
            if getattr(self, name) == 0:
                raise out_of_range(f"reliability.{name}", 0, "it must be positive")
        given = [getattr(self, field) or 0.0 for field in CAUSES.values()]
        if sum(given) > MOST_PER_GPU_H:
            rule = f"and the other causes sum to {sum(given):g} failures; there must be at most one per GPU-hour"
            raise FieldError("reliability.gpu_failures_per_gpu_h", rule, code="out-of-range")


SLOWEST_FLOP_PER_S = 1e9

Precision = Literal["bf16", "fp16", "fp8", "fp4"]
AttentionKernel = Literal["flash1", "flash2", "flash3", "cudnn", "cutlass", "unfused"]
GemmType = Literal["bf16", "fp8", "fp8_block", "nvfp4"]
"""Operands of matrix products; fp16 has bf16's rates. fp8 is scaled by tensor, fp8_block by blocks of 128 x 128."""


RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "positive": (lambda value: value > 0, "it must be positive"),
    "not negative": (lambda value: not value < 0, "it cannot be negative"),
    "fraction": (lambda value: 0 < value <= 1, "it must be above 0 and at most 1"),
    "share": (lambda value: 0 <= value <= 1, "it must be between 0 and 1"),
}


def check_range(where: str, spec: object, kind: str, *names: str) -> None:
    """Refuse a field of a spec whose number, where it has one, is outside its kind of range."""
    is_inside, rule = RANGES[kind]
    for name in names:
        value = getattr(spec, name)
        if value is not None and not is_inside(value):
            raise out_of_range(f"{where}.{name}", value, rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmRate(Strict):
    """What matrix products of one type reach on one GPU with one generation of libraries."""

    peak_frac: float
    """Fraction of the type's peak that a large matrix product reaches while the power limit does not reduce the
    clock."""
    sustained_frac: float = 1.0
    """Rate of matrix products inside a training step, divided by the rate of ``peak_frac``: the power limit reduces the
    clock when products run without pause."""
    tile_m: int = 128
    """Rows of the largest output tile that one SM computes."""
    tile_n: int = 256
    """Columns of that output tile."""
    half_k: float = 128.0
    """Inner dimension of a matrix product at which a tile reaches half of its rate, because its pipeline has to
    fill."""
    half_intensity: float = 2.1
    """FLOP per loaded element at which an output tile reaches half of its rate. Smaller tiles load more elements per
    FLOP."""
    library: str = ""
    """Library and version of the measured kernels; empty if the rate is assumed."""

    def __post_init__(self) -> None:
        check_range("gemm", self, "fraction", "peak_frac", "sustained_frac")
        check_range("gemm", self, "positive", "tile_m", "tile_n", "half_k")
        check_range("gemm", self, "not negative", "half_intensity")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRate(Strict):
    """What one attention kernel reaches on one GPU, as fractions of the dense bf16/fp16 peak.

    Rates count the work that is done (half of the square for a causal mask), at head size 128, long sequences and
    many of them; short sequences, few rows and narrow heads are slower.
    """

    forward_frac: float
    """Fraction of the peak in the forward pass."""
    backward_frac: float
    """Fraction of the peak in the backward pass, which does 2.5 times the work."""
    half_seq_len: float = 512.0
    """Sequence length at which the forward kernel reaches half of its long-sequence rate."""
    backward_half_seq_len: float | None = None
    """The same for the backward kernel; None means the same length as forward."""
    half_rows: float = 0.0
    """Number of queries (sequences x heads x length) at which the kernel reaches half of its rate. With few queries the
    last, longest tiles run alone."""
    head64_frac: float = 0.8
    """Rate at head size 64, divided by the rate at head size 128."""
    unaligned_frac: float = 1.0
    """Rate at head sizes that are not a multiple of 8, divided by the rate at other sizes. Tensor cores cannot load
    such heads in whole vectors."""
    clock_frac: float | None = None
    """Clock at which these rates were measured, divided by the highest clock; None means the clock of the matrix
    products."""
    j_per_flop: float | None = None
    """Dynamic energy of one FLOP in attention; None means the energy of a matrix product."""

    def __post_init__(self) -> None:
        check_range("attention", self, "fraction", "forward_frac", "backward_frac", "head64_frac", "unaligned_frac")
        check_range(
            "attention", self, "not negative", "half_seq_len", "backward_half_seq_len", "half_rows", "j_per_flop"
        )
        check_range("attention", self, "fraction", "clock_frac")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu(Strict):
    """One GPU. Rates are dense and per direction."""

    name: str
    """Name of the GPU. In a file of its own it defaults to the file's name."""
    vendor: str
    """Vendor, such as NVIDIA."""
    arch: str
    """Architecture, such as sm90. Ampere, Ada, Hopper and Blackwell are accepted too."""
    sms: int
    """Streaming multiprocessors (compute units on AMD)."""
    fp16_flop_per_s: float
    """Dense peak rate of fp16 matrix products, without sparsity."""
    bf16_flop_per_s: float | None = None
    """Dense peak rate in bf16; none if the chip has no bf16 tensor cores."""
    fp8_flop_per_s: float | None = None
    """Dense peak rate in fp8; none if the chip has no fp8 tensor cores."""
    fp4_flop_per_s: float | None = None
    """Dense peak rate in fp4; none if the chip has no fp4 tensor cores."""
    gemm: dict[GemmType, GemmRate]
    """Rates that matrix products reach, by data type."""
    gemm_clock_frac: float = 1.0
    """Clock at which the sustained rates of matrix products were measured, divided by the highest clock. The power
    limit keeps this clock low. Use 1 if it is not known; the simulated clock then never exceeds the measured one."""
    gemm_cap_w: float | None = None
    """Power limit of the board on which matrix products were measured; None means ``tdp_w``."""
    kernel_s: float = 2.6e-6
    """Fixed time that every kernel takes on the GPU in addition to its work: start, fill and drain."""
    hbm_bytes: float
    """Memory of the GPU, HBM or GDDR."""
    hbm_bytes_per_s: float
    """Memory bandwidth."""
    hbm_frac: float
    """Fraction of the memory bandwidth that a streaming kernel reaches."""
    attention: dict[AttentionKernel, AttentionRate]
    """Rates that attention reaches, by kernel."""
    tdp_w: float
    """Board power limit."""
    cap_sharpness: float = 8.0
    """How sharply power levels off at the limit: 1 is a slow transition, and above about 30 power is simply cut off at
    the limit."""
    idle_w: float
    """Power with a CUDA context but no work."""
    gemm_j_per_flop: float
    """Dynamic energy of one tensor-core FLOP, without memory traffic."""
    hbm_j_per_byte: float
    """Dynamic energy of one byte of memory traffic."""
    comm_w: float
    """Dynamic power while only collectives run: SMs that poll at full clock, NVLink, and the path to the NIC."""

    def __post_init__(self) -> None:
        positive = ("sms", "fp16_flop_per_s", "hbm_bytes", "hbm_bytes_per_s", "tdp_w", "idle_w", "cap_sharpness")
        check_range("gpu", self, "positive", *positive)
        check_range("gpu", self, "fraction", "hbm_frac", "gemm_clock_frac")
        if self.gemm_cap_w is not None and self.gemm_cap_w <= self.idle_w:
            raise out_of_range("gpu.gemm_cap_w", self.gemm_cap_w, "the power limit must be above the idle power")
        check_range("gpu", self, "not negative", "gemm_j_per_flop", "hbm_j_per_byte", "comm_w", "kernel_s")
        if "bf16" not in self.gemm:
            raise FieldError("gpu.gemm.bf16", "is missing; every GPU needs a 16-bit rate", code="missing-field")
        if self.idle_w >= self.tdp_w:
            predicate = f"is {self.idle_w} and gpu.tdp_w {self.tdp_w}; the idle power must be below the power limit"
            raise FieldError("gpu.idle_w", predicate, code="contradiction")
        for name in ("bf16_flop_per_s", "fp8_flop_per_s", "fp4_flop_per_s"):
            value = getattr(self, name)
            if value is not None and not value >= SLOWEST_FLOP_PER_S:
                rule = "it must be at least 1 GFLOP/s, or left out if the GPU does not support this type"
                raise out_of_range(f"gpu.{name}", value, rule)

    def peak_flop_per_s(self, precision: Precision) -> float:
        """Dense peak at a precision; refused where the chip has none."""
        names: tuple[Precision, ...] = ("bf16", "fp16", "fp8", "fp4")
        rates: dict[Precision, float | None] = {name: getattr(self, f"{name}_flop_per_s") for name in names}
        rate = rates[precision]
        if rate is None:
            others = " or ".join(name for name, value in rates.items() if value is not None)
            text = f"{self.name} has no {precision} tensor cores"
            raise SpecError(text, hint=f"use {argument('precision')} {others}", code="no-rate", field="plan.precision")
        return rate

    @property
    def half_flop_per_s(self) -> float:
        """Dense peak in 16 bit: of bf16, or of fp16 on chips without it."""
        return self.fp16_flop_per_s if self.bf16_flop_per_s is None else self.bf16_flop_per_s

    def gemm_rate(self, kind: GemmType) -> tuple[float, GemmRate]:
        """Dense peak of a type of products, and what they reach: what 16 bit does where nobody has measured it."""
        rates = {"fp8": self.fp8_flop_per_s, "fp8_block": self.fp8_flop_per_s, "nvfp4": self.fp4_flop_per_s}
        peak = self.half_flop_per_s if kind == "bf16" else rates[kind]
        if peak is None:
            raise SpecError(f"{self.name} has no {kind} tensor cores", code="no-rate", field=f"gpu.gemm.{kind}")
        return peak, self.gemm.get(kind, self.gemm["bf16"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Strict):
    """GPUs that reach each other without the network: a server, or a rack on GB200 NVL72."""

    gpus: int
    """GPUs per node."""
    link: str
    """What connects the GPUs of a node: nvlink, xgmi or pcie."""
    link_bytes_per_s: float
    """Bytes per second that one GPU can send to all other GPUs of the node together, per direction, as the vendor
    states it."""
    link_frac: float
    """Fraction of ``link_bytes_per_s`` that a large collective reaches on idle GPUs."""
    pair_bytes_per_s: float
    """Bytes per second between one pair of GPUs, per direction."""
    hop_s: float
    """Latency of one ring step inside the node on idle GPUs."""
    nvls: bool = False
    """Whether the NVLink switch can reduce and multicast (NVLink SHARP)."""
    launch_scale: float = 1.0
    """Time that this node's host takes to launch a kernel, divided by the time in the software profile."""

    def __post_init__(self) -> None:
        check_range("node", self, "positive", "gpus", "link_bytes_per_s", "pair_bytes_per_s")
        check_range("node", self, "fraction", "link_frac")
        check_range("node", self, "not negative", "hop_s", "launch_scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier(Strict):
    """One level of switches above the leaf: what crossing it costs."""

    name: str
    """Name of the tier, such as spine."""
    nodes: int
    """Nodes below one group of switches of this tier. A communication group with more nodes crosses the tier."""
    hop_s: float
    """Latency that the tier adds to a hop that crosses it."""
    oversubscription: float = 1.0
    """Bandwidth below the tier divided by the bandwidth above it; 1 is non-blocking."""

    def __post_init__(self) -> None:
        check_range("tier", self, "positive", "nodes")
        if self.oversubscription < 1:
            rule = "it must be at least 1 (1 is non-blocking, larger values are slower)"
            raise out_of_range("tier.oversubscription", self.oversubscription, rule)
        check_range("tier", self, "not negative", "hop_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric(Strict):
    """The network between nodes."""

    kind: Literal["infiniband", "roce", "efa", "slingshot", "ethernet"]
    """Network technology."""
    nic_bytes_per_s: float
    """Network rate per GPU and direction: the rate of the node's NICs divided by its GPUs. A file may give
    ``nics_per_node`` and ``nic_rate`` instead."""
    nic_frac: float
    """Fraction of ``nic_bytes_per_s`` that a large collective reaches on idle GPUs."""
    hop_s: float
    """Latency of one ring step between nodes under one leaf switch, on idle GPUs."""
    p2p_frac: float = 0.5
    """Fraction of the NIC rate that a send/receive pair reaches if it has enough NCCL channels."""
    p2p_bytes_per_s: float | None = None
    """Highest rate of a send/receive pair with the channels that NCCL gives it; None if they can fill the NIC."""
    tree_level_s: float
    """Time of one level of a tree between nodes on idle GPUs: latency and pipeline fill."""
    tiers: tuple[Tier, ...] = ()
    """Levels of switches above the leaf switches."""
    topology_aware: bool = True
    """Whether rings visit nodes in network order, so that only a few hops cross a tier."""

    def __post_init__(self) -> None:
        check_range("fabric", self, "positive", "nic_bytes_per_s", "p2p_bytes_per_s")
        check_range("fabric", self, "fraction", "nic_frac", "p2p_frac")
        check_range("fabric", self, "not negative", "hop_s", "tree_level_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNics:
    """What a fabric's table may say instead of ``nic_bytes_per_s``, which is then the NICs' rate over a node's GPUs."""

    nics_per_node: int
    """NICs per node."""
    nic_rate: float
    """Rate of one NIC, per direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(Strict):
    """A kind of cluster; how many GPUs are used is the job's business."""

    name: str
    """Name of the cluster. It defaults to the file's name."""
    gpu: Gpu
    """The GPU: a name of the catalogue, a path, or a table."""
    node: Node
    """One server."""
    fabric: Fabric
    """The network between servers."""
    usd_per_gpu_h: float | None = None
    """Rental price per GPU and hour; None if it is not known."""
    max_gpus: int = field(default=1_000_000)
    """Largest number of GPUs that may be simulated."""
    reliability: Reliability | None = None
    """How often the cluster fails, and what restarts and checkpoints take. It does not change the simulated step."""

    def __post_init__(self) -> None:
        check_range("cluster", self, "not negative", "usd_per_gpu_h")
        check_range("cluster", self, "positive", "max_gpus")
