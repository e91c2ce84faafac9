"""Kernels' classes on names from public traces and sources, labelled by hand.

The list was split at random into two halves before the table was written, which was then written on one of them
(tests/data/kernel_names/written.csv) and scored once on the other.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from knee.measure.traces.kernel_classes import kernel_name, known_classes

NAMES = Path(__file__).parents[2] / "data" / "kernel_names"
COMMUNICATION = {"nccl", "deepep", "nvshmem", "mscclpp", "oneccl", "ucx", "quickreduce", "custom_all_reduce"}
COMMUNICATION |= {"symmetric_memory", "other_collective", "gloo"}


def labelled(half: str) -> list[dict[str, str]]:
    with (NAMES / f"{half}.csv").open() as file:
        return list(csv.DictReader(file))


def class_of(*names: str) -> list[str]:
    classes = known_classes()
    return [classes.names[i] for i in classes.of_names(names).tolist()]


@pytest.mark.parametrize(("half", "least_frac"), [("written", 1.0), ("unseen", 0.97)])
def test_names_of_public_traces_and_sources(half: str, least_frac: float) -> None:
    rows = labelled(half)
    assert len(rows) >= 150
    found = class_of(*(row["name"] for row in rows))
    wrong = [(row["name"], of) for row, of in zip(rows, found, strict=True) if of != row["class"]]
    assert len(wrong) <= (1 - least_frac) * len(rows), wrong
    for row, of in zip(rows, found, strict=True):  # exposed communication rests on it: no mistake at all
        assert (of in COMMUNICATION) == (row["class"] in COMMUNICATION), row["name"]


def test_what_communicates() -> None:
    assert {entry.name for entry in known_classes().entries if entry.communication} == COMMUNICATION
    assert not any(entry.side_only for entry in known_classes().entries)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("flux::cutlass_allgather_gemm", "gemm"),  # computes while it communicates
        ("void block_all_reduce_sum_f32<256>(float*)", "reduction"),  # of a block's threads
        ("dlslime::intranode_alltoall_kernel", "other_collective"),
        ("c10d::allreduce_", "reduction"),  # the host's operator, which gloo's own annotation stands for
        ("gloo:all_reduce", "gloo"),
        ("fsdp::all_gather_copy_in", "elementwise"),  # the local copy before the collective
        ("aten::_scaled_dot_product_flash_attention", "attention"),
        ("aten::addmm", "gemm"),
        ("aten::copy_", "elementwise"),
        ("a_kernel_of_no_known_kind", "other"),
        ("", "other"),
    ],
)
def test_other_names(name: str, expected: str) -> None:
    assert class_of(name) == [expected]


def test_the_simulators_own_kernels() -> None:
    products = ("q", "k", "v", "qkv", "attention_out", "gate", "up", "down", "logits")
    backward = tuple(f"{name}_{grad}" for name in products for grad in ("dgrad", "wgrad"))
    assert set(class_of(*products, *backward)) == {"gemm"}
    others = ("attention", "norm", "embedding", "loss", "adamw", "outer", "fp8_cast", "copy_in", "residual", "gelu")
    assert class_of(*others) == [
        *("attention", "norm", "embedding", "softmax_loss", "optimizer", "optimizer", "quantization"),
        *("elementwise",) * 3,
    ]


def test_the_parts_of_a_name() -> None:
    wrapped = kernel_name("void cutlass::Kernel2<cutlass_80_s16816gemm_relu_tn>(cutlass_80_s16816gemm_relu_tn::Params)")
    assert (wrapped.scope, wrapped.function, wrapped.target) == (
        "cutlass::",
        "kernel2",
        "cutlass_80_s16816gemm_relu_tn",
    )
    conditional = "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
    plain = kernel_name(conditional + "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)")
    assert (plain.scope, plain.function, plain.target) == ("vllm::", "fused_add_rms_norm_kernel", "")
    assert kernel_name("void (anonymous namespace)::f<1>(int)").function == "f"
    assert kernel_name("_ZN5aiter24bf16gemm_bf16_tn_256x256E.kd")[:2] == ("bf16gemm_bf16_tn_256x256", "aiter::")
    assert kernel_name("triton_poi_fused_add_all_reduce_2").fused


def test_the_argument_of_a_mangled_name() -> None:
    """As the linker has it; arguments that are numbers are passed over."""
    target = "cutlass_80_s16816gemm_relu_tn"
    for arguments in (f"{len(target)}{target}", f"Li4E{len(target)}{target}"):
        found = kernel_name(f"_ZN7cutlass7Kernel2I{arguments}EEvNT_6ParamsE")
        assert (found.scope, found.function) == ("cutlass::", "kernel2")
    assert kernel_name(f"_ZN7cutlass7Kernel2I{len(target)}{target}EEvNT_6ParamsE").target == target
    assert kernel_name("_ZN7cutlass7Kernel2EvNT_6ParamsE").target == ""
