"""Kernels of a trace: each takes what its operation takes, and recomputation adds those of forward again."""

from __future__ import annotations

from collections import defaultdict

import pytest

from knee.engine.one_job import events_of
from knee.specs.load import load_model, load_profile
from tables import job

TINY = load_model("llama-tiny").spec
MLP = {"gate", "up", "down", "swiglu"}
EVERY_SECOND_PRODUCT = {"eager": {"k", "attention_out", "up"}, "megatron-2021": {"attention_out", "up", "attention"}}
"""Selective recomputation saves the other products, and attention where it is fused."""
BETWEEN = {"norm", "rope", "swiglu", "residual"}


def kernels(profile: str, **plan: object) -> dict[str, list[float]]:
    """Durations of a step's kernels by name, in order, over all stages."""
    found = defaultdict[str, list[float]](list)
    for events in events_of(job(model=TINY, profile=load_profile(profile).spec, seq_len=1024, **plan)):  # type: ignore[arg-type]
        for name, duration_s, is_comm in zip(events.name_id, events.duration_s, events.is_comm, strict=True):
            if not is_comm:
                found[events.names[name]].append(float(duration_s))
    return found


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
@pytest.mark.parametrize("profile", ["eager", "megatron-2021"])
@pytest.mark.parametrize(
    ("recompute", "modules", "share"),
    [("full", (), 1.0), ("blocks", (), 0.5), ("attention", (), 1.0), ("ops", (), 1.0), ("modules", ("mlp",), 1.0)],
)
def test_recomputation_runs_kernels_of_forward_again(
    profile: str, sharding: str, recompute: str, modules: tuple[str, ...], share: float
) -> None:
    none = kernels(profile, sharding=sharding)
    names = list(none)
    layer = set(names[names.index("embedding") + 1 : names.index("logits")]) - {"copy_out"}
    casts = {"cast"} & layer
    again = {
        "full": layer,
        "blocks": layer,
        "attention": {"attention"},
        "ops": EVERY_SECOND_PRODUCT[profile] | BETWEEN | casts,
        "modules": MLP,
    }[recompute]
    found = kernels(profile, sharding=sharding, recompute=recompute, recompute_modules=modules, recompute_frac=share)
    assert set(found) == set(none)
    for name, durations in found.items():
        more = [share * none[name][0]] * TINY.layers if name in again else []
        assert sorted(durations) == pytest.approx(sorted(none[name] + more)), name


def test_gradients_of_weights_are_computed_once_where_they_wait() -> None:
    """Zero-bubble schedules split backward into two passes: the same kernels, in another order."""
    together, apart = (
        kernels("eager", pp=2, microbatches=4, schedule=schedule, sharding="ddp")
        for schedule in ("1f1b", "zero_bubble")
    )
    assert set(together) == set(apart)
    for name in together:
        assert sorted(apart[name]) == pytest.approx(sorted(together[name])), name
