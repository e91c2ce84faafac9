"""How often a tensor-parallel group exchanges in each part of the model: the one place that counts it."""

from __future__ import annotations

from dataclasses import dataclass

from knee.specs.profile import Profile

LOSS_ALL_REDUCES = 3
"""Of the loss over a vocabulary that is cut: maximum, sum of exponentials and the target's logit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TpMessages:
    """Of one pass through a part: gathers and scatters with sequence parallelism, all-reduces without."""

    gathers: int = 0
    scatters: int = 0
    all_reduces: int = 0

    @property
    def collectives(self) -> int:
        """Gathers and scatters, which take equally long."""
        return self.gathers + self.scatters


LAYER_FORWARD = TpMessages(gathers=2, scatters=2, all_reduces=2)
"""Before and after attention, and before and after the MLP."""
OPS_AGAIN = TpMessages(gathers=2, all_reduces=1)
"""Of a layer's forward, what recomputing "ops" sends again: outputs of reduce-scatters are kept, and torch stops before
the MLP's last message."""
EMBEDDING_FORWARD = HEAD_BACKWARD = TpMessages(scatters=1, all_reduces=1)
EMBEDDING_BACKWARD = HEAD_FORWARD = TpMessages(gathers=1)
ENDS = (EMBEDDING_FORWARD, HEAD_FORWARD, HEAD_BACKWARD, EMBEDDING_BACKWARD)


def layer_backward(profile: Profile) -> TpMessages:
    """As forward, and two more gathers where inputs were kept cut: the weight gradients need them whole."""
    kept = LAYER_FORWARD.gathers if profile.keeps_gathered else 2 * LAYER_FORWARD.gathers
    return TpMessages(gathers=kept, scatters=LAYER_FORWARD.scatters, all_reduces=LAYER_FORWARD.all_reduces)
