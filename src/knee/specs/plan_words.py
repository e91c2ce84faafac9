"""A plan in words, for a cell of a table."""

from __future__ import annotations

from knee.specs.plan import Plan


def plan_words(plan: Plan) -> str:
    """A plan in a cell of a table; what is usual is left out."""
    words: list[str] = [plan.sharding]
    words += [
        f"{axis} {getattr(plan, axis):,}"
        for axis in ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep", "etp")
        if getattr(plan, axis) > 1
    ]
    if plan.pp > 1:
        words.append(plan.schedule + (f" x {plan.virtual_stages}" if plan.virtual_stages > 1 else ""))
    words += [f"synchronize replicas every {plan.sync_every:,} steps"] if plan.sync_every > 1 else []
    words += [f"in {plan.sync_fragments:,} fragments"] if plan.sync_fragments > 1 else []
    words += [f"in {plan.sync_dtype}"] if plan.sync_dtype is not None else []
    words += ["hierarchical collectives"] if plan.collectives != "flat" else []
    words += ["no sequence_parallel"] if plan.tp > 1 and not plan.sequence_parallel else []
    words += [plan.cp_method] if plan.cp > 1 and plan.cp_method != "allgather" else []
    words += [plan.dispatcher] if plan.ep > 1 and plan.dispatcher != "alltoall" else []
    words += ["ep_overlap"] if plan.ep > 1 and plan.ep_overlap else []
    words.append(f"micro-batch {plan.micro_batch:,}")
    share = "" if plan.recompute_frac == 1 else f" ({plan.recompute_frac:.0%})"
    again = "+".join(plan.recompute_modules) or plan.recompute
    words += [f"recompute {again}{share}"] if plan.recompute != "none" else []
    words += [plan.precision] if plan.precision != "bf16" else []
    words += [plan.fp8_recipe] if plan.fp8_recipe != "tensorwise" else []
    return ", ".join(words)
