"""The part of a published run that mixtures of experts have: the file's words in knee's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knee.errors import SpecError
from knee.specs.model import Experts, LatentAttention
from knee.specs.plan import DISPATCHERS, Routing
from knee.validation.csv_cells import unknown_choice
from knee.validation.published_runs import Setting

ROUTING_WORDS: dict[str, Routing] = {
    "forced_balance": "balanced",
    "balanced": "balanced",
    "drop": "balanced",
    "dropless": "dropless",
}
"""A file's word -> knee's. Tokens above the capacity are dropped, so that the load of each expert is its capacity."""


def experts_of(setting: Setting) -> Experts | None:
    """The experts of the row's model; None for a dense one."""
    if not setting.experts:
        return None
    if setting.top_k is None or setting.expert_ffn is None:
        name = "top_k" if setting.top_k is None else "expert_ffn"
        raise SpecError(f"experts is {setting.experts}, but {name} is empty", code="missing-field", field=name)
    return Experts(
        count=setting.experts,
        top_k=setting.top_k,
        ffn=setting.expert_ffn,
        shared_ffn=setting.shared_experts * setting.expert_ffn,
        dense_layers=setting.dense_layers,
        every=setting.moe_every,
    )


def latent_of(setting: Setting) -> LatentAttention | None:
    """The latent attention of the row's model; None where it has full keys and values."""
    if not setting.kv_lora_rank:
        return None
    sizes = {name: getattr(setting, name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
    for name, size in sizes.items():
        if size is None:
            text = f"kv_lora_rank is {setting.kv_lora_rank}, but {name} is empty"
            raise SpecError(text, code="missing-field", field=name)
    nope, rope, value = sizes.values()
    return LatentAttention(
        kv_rank=setting.kv_lora_rank, q_rank=setting.q_lora_rank or 0, nope_size=nope, rope_size=rope, value_size=value
    )


def expert_options(setting: Setting, notes: list[str]) -> Mapping[str, Any]:
    """The plan's part: degrees, dispatcher, overlap and routing."""
    if setting.dispatcher not in ("", *DISPATCHERS):
        raise unknown_choice("dispatcher", setting.dispatcher, DISPATCHERS)
    if setting.routing not in ("", *ROUTING_WORDS):
        raise unknown_choice("routing", setting.routing, ROUTING_WORDS)
    if not setting.dispatcher:
        notes.append("dispatcher defaulted to alltoall: the source does not state it")
    if not setting.routing:
        notes.append("routing defaulted to balanced: the source does not state it")
    return {
        "ep": setting.ep,
        "etp": setting.etp,
        "dispatcher": setting.dispatcher or "alltoall",
        "ep_overlap": setting.ep_overlap,
        "routing": ROUTING_WORDS.get(setting.routing, "balanced"),
    }
