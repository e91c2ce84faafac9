"""How often a tensor-parallel group exchanges in each part of the model: the one place that counts it."""

from __future__ import annotations

from dataclasses import dataclass

from knee.engine.workload.projections import expert_share
from knee.specs.model import Model
from knee.specs.profile import Profile

LOSS_ALL_REDUCES = 3
"""Of the loss over a vocabulary that is cut: maximum, sum of exponentials and the target's logit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TpMessages:
    """Of one pass through a part: gathers and scatters with sequence parallelism, all-reduces without."""

    gathers: float = 0
    scatters: float = 0
    all_reduces: float = 0
    sums: int = 0
    """All-reduces of one number per token, with sequence parallelism and without."""

    @property
    def collectives(self) -> float:
        """Gathers and scatters, which take equally long."""
        return self.gathers + self.scatters


EMBEDDING_FORWARD = HEAD_BACKWARD = TpMessages(scatters=1, all_reduces=1)
EMBEDDING_BACKWARD = HEAD_FORWARD = TpMessages(gathers=1)
ENDS = (EMBEDDING_FORWARD, HEAD_FORWARD, HEAD_BACKWARD, EMBEDDING_BACKWARD)


def layer_forward(model: Model) -> TpMessages:
    """Before and after attention, and before and after the MLP. Blocks with a parallel residual add what attention and
    the MLP put out before one message; if the two share a norm, they share its gather. A norm over all heads sums the
    squares of queries, and those of keys."""
    sums = 2 if model.qk_norm == "full" else 0
    if not model.parallel_residual:
        # routed experts take their tokens from where sequence parallelism has them; shared ones are split like an MLP
        routed = model.experts is not None and not model.experts.shared_ffn
        each = 1 + (1 - expert_share(model) if routed else 1)
        return TpMessages(gathers=each, scatters=each, all_reduces=each, sums=sums)
    return TpMessages(gathers=min(model.layer_norms, 2), scatters=1, all_reduces=1, sums=sums)


def ops_again(model: Model) -> TpMessages:
    """Of a layer's forward, what recomputing "ops" sends again: outputs of reduce-scatters are kept, and torch stops
    before the layer's last message."""
    forward = layer_forward(model)
    return TpMessages(gathers=forward.gathers, all_reduces=max(forward.all_reduces - 1, 0), sums=forward.sums)


def layer_backward(model: Model, profile: Profile) -> TpMessages:
    """Gradients go the other way: a gather for each scatter and a scatter for each gather. Inputs that were kept cut
    are gathered again, because the weight gradients need them whole."""
    forward = layer_forward(model)
    again = 0 if profile.keeps_gathered else forward.gathers
    gathers = forward.scatters + again
    return TpMessages(gathers=gathers, scatters=forward.gathers, all_reduces=forward.gathers, sums=forward.sums)
