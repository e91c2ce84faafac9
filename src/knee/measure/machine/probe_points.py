"""What a probe measures: a point for each reading, told apart by its key."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

Layout = Literal["forward", "dgrad", "wgrad"]
StreamName = Literal["rmsnorm", "rope", "swiglu", "residual", "loss", "adamw", "copy"]
Beside = Literal["nothing", "gemm"]
Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmPoint:
    """A product as the cost model describes it: (m x k)(k x n), and which of a linear map's three it is."""

    kind: str = "gemm"
    m: int
    n: int
    k: int
    layout: Layout
    dtype: str = "bf16"

    @property
    def weight(self) -> tuple[int, int]:
        """Shape of the weight matrix: what a held-out set leaves out whole."""
        return {"forward": (self.n, self.k), "dgrad": (self.k, self.n), "wgrad": (self.m, self.n)}[self.layout]

    @property
    def flop(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.m * self.n * self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedPoint:
    """The products of experts as one: each of ``experts`` groups of rows with a weight of its own, (n x k)."""

    kind: str = "grouped"
    rows: int
    """Of all experts together."""
    experts: int
    n: int
    k: int
    layout: Layout
    even: bool = True
    """Whether experts have equally many rows; else one of them has half of what is left, and so on."""
    dtype: str = "bf16"

    @property
    def flop(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.rows * self.n * self.k

    @property
    def counts(self) -> list[int]:
        """Rows of each expert."""
        if self.even:
            return [(i + 1) * self.rows // self.experts - i * self.rows // self.experts for i in range(self.experts)]
        left, counts = self.rows, []
        for _ in range(self.experts - 1):
            counts.append((left + 1) // 2)
            left -= counts[-1]
        return [*counts, left]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPoint:
    """An attention kernel on (batch, heads, seq_len, head_dim)."""

    kind: str = "attention"
    kernel: str
    batch: int
    heads: int
    seq_len: int
    head_dim: int
    forward: bool
    causal: bool = True
    dtype: str = "bf16"

    @property
    def flop(self) -> float:
        """Work done, mask respected; the backward pass has five products for the forward's two."""
        square = 4.0 * self.batch * self.heads * float(self.seq_len) ** 2 * self.head_dim
        return square * (0.5 if self.causal else 1.0) * (1.0 if self.forward else 2.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPoint:
    """A memory-bound operation of a layer, eager or compiled, forward or backward."""

    kind: str = "stream"
    operation: StreamName
    tokens: int
    width: int
    forward: bool
    compiled: bool

    @property
    def tensor_bytes(self) -> float:
        """One 16-bit tensor of that shape."""
        return 2.0 * self.tokens * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPoint:
    """A training step so small that the host's launches are all it takes."""

    kind: str = "host"
    compiled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """A whole training step of a Llama-family model on one device."""

    kind: str = "step"
    model: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    seq_len: int
    micro_batch: int
    compiled: bool
    master: str = "fp32"
    """Type of the parameters and moments: fp32 with 16-bit compute, or bf16 throughout."""
    attention: str = "flash2"


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerPoint:
    """A load at a nominal duty."""

    kind: str = "power"
    load: str
    duty_frac: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePoint:
    """A collective of so many bytes over a group of ranks."""

    kind: str = "collective"
    collective: str
    size_bytes: int
    """As nccl-tests count: the whole buffer, all ranks' parts together."""
    axis: str
    """How the group's ranks lie: "world", "node", or strided as an axis of a plan ("tp", "dp", "cp", "pp") has them."""
    group: int
    """Ranks in the group."""
    stride: int
    """Distance between neighbours in the group."""
    groups: int = 1
    """Groups of that axis, which all run the collective at the same time, as in training."""
    nodes: int = 1
    """Nodes that one group reaches over."""
    beside: Beside = "nothing"
    """What runs at the same time: "nothing" or "gemm"."""


Point = GemmPoint | GroupedPoint | AttentionPoint | StreamPoint | HostPoint | StepPoint | PowerPoint | CollectivePoint

KINDS: dict[str, type[Point]] = {str(fields(point)[0].default): point for point in get_args(Point)}
"""By their ``kind``, which is the first field of each."""


def key_of(point: Point) -> str:
    """A name that tells points apart in a file."""
    return "/".join(f"{value}" for value in asdict(point).values())


def point_of(record: Record) -> Point:
    """The point that a record was made from."""
    kind = KINDS[record["kind"]]
    return kind(**{field.name: record[field.name] for field in fields(kind) if field.name in record})
