"""Fields of a plan that only some models have a use for: the routing of experts, and modules that are recomputed."""

from __future__ import annotations

from dataclasses import fields

from knee.errors import SpecError, argument
from knee.specs.model.decoder import Model
from knee.specs.plan import ROUTED, Plan, RecomputeModule

DEFAULTS = {field.name: field.default for field in fields(Plan)}


def check_routed(model: Model, plan: Plan) -> None:
    """Refuse a routing of a dense model, which has none."""
    given = [name for name in ROUTED if getattr(plan, name) != DEFAULTS[name]]
    if given and model.experts is None:
        raise SpecError(
            f"plan.{given[0]} is {str(getattr(plan, given[0])).lower()}, but {model.name} has no experts",
            hint=f"leave {argument(given[0])} out, or use a mixture of experts",
            code="contradiction",
            field=f"plan.{given[0]}",
        )


def check_modules(model: Model, plan: Plan) -> None:
    """Refuse to recompute modules that the model does not have."""
    for module in plan.recompute_modules:
        if missing := _missing(model, module):
            raise SpecError(
                f"plan.recompute_modules has {module}, but {model.name} has {missing}",
                hint=f"leave {module} out of {argument('recompute_modules')}",
                code="contradiction",
                field="plan.recompute_modules",
            )


def _missing(model: Model, module: RecomputeModule) -> str | None:
    """What the model would need to have this module."""
    experts = model.experts
    if module == "mla_up_proj" and model.latent_attention is None:
        return "no latent attention"
    if module in ("moe", "moe_act", "shared_experts") and experts is None:
        return "no experts"
    if module == "shared_experts" and experts is not None and not experts.shared_ffn:
        return "no shared experts"
    if module == "mlp" and model.expert_layers == model.layers:
        return "experts in every layer and no dense MLP"
    return None
