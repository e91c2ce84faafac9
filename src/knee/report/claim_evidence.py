"""What claims are worth, on the page: the baseline of random profiles, and what hangs on assumptions."""

from __future__ import annotations

from collections.abc import Sequence

from knee.evidence.carried import carried_evidence
from knee.evidence.claim_draws import CANNOT_FAIL_FRAC
from knee.report.claim_tables import of_role
from knee.report.tables import Table, kind_table
from knee.studies.claims import Verdict


def baseline_sentence(verdicts: Sequence[Verdict]) -> str:
    """How many independent claims a random profile reproduces, beside the one at hand."""
    found = carried_evidence()
    base = found.baseline
    mine = [v for v in of_role(verdicts, "independent") if v.id in found.held_frac]
    if len(mine) < base.independent:  # not the whole paper
        return ""
    held = sum(not v.failed for v in mine)
    return (
        f"Baseline: of the {base.independent} independent claims that depend on the profile, {base.draws} profiles "
        f"drawn at random reproduce {base.reproduced_mean:.1f} on average and {base.reproduced_most} at most; this one "
        f"reproduces {held}."
    )


def chance(claim: str) -> str:
    """In what share of random profiles a claim holds."""
    share = carried_evidence().held_frac.get(claim)
    return "" if share is None else f"{share:.0%}"


def chance_words() -> str:
    """What the column says."""
    found = carried_evidence()
    return (
        f"By chance: the share of {found.baseline.draws} profiles, drawn at random from the whole range of every "
        f"parameter, under which the claim holds; empty where no profile enters. What holds in {CANNOT_FAIL_FRAC:.0%} "
        f"of them cannot fail and is not called independent. To repeat it: {found.command}."
    )


def flip_table(study: str) -> Table | None:
    """Every assumption of a study that was tried otherwise, and the verdicts that flip."""
    some = [flip for flip in carried_evidence().flip if flip.study == study]
    rows = [(f.assumed, f.instead, ", ".join(f.holds) or "none", ", ".join(f.fails) or "none") for f in some]
    kinds = dict.fromkeys(("assumed", "instead", "would hold", "would fail"), "words")
    return kind_table("What was assumed, and which verdicts another assumption flips", kinds, rows) if rows else None
