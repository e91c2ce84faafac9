"""What claims are worth: roles against random profiles, assumptions tried otherwise, ladders and the conflict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from claim_evidence import DRAWN, LeanRuns, alternatives, as_toml, draw, flips

from knee.commands.study.claims import Verdict
from knee.commands.study.ladder_section import LADDERS, equal_loads, published_rungs
from knee.commands.study.paper_conflict import GAP, MFU_16, MFU_256, SMALL, least_exposed_16, most_exposed_256, subsets
from knee.commands.study.record_store import Store
from knee.commands.study.run_study import points_to_run, recorded, results
from knee.commands.study.study_file import load_study, study_names
from knee.commands.study.summary_section import CANNOT_FAIL_FRAC, FILE, carried_evidence
from knee.specs.load import load_cluster, load_profile
from knee.specs.profile_parameters import value_of

CLAIMS = {claim.id: claim for name in study_names("paper") for claim in load_study(name).claim}
DRAWN_CLAIMS = {c.id for name in study_names("paper") if load_study(name).grid for c in load_study(name).claim}


def test_a_claim_that_cannot_fail_is_not_independent() -> None:
    held = carried_evidence().held_frac
    assert held.keys() == DRAWN_CLAIMS
    sure = {id for id, share in held.items() if share >= CANNOT_FAIL_FRAC}
    assert not [id for id in sure if CLAIMS[id].role == "independent"]


def test_the_baseline_counts_the_independent_claims() -> None:
    counted = [id for id in DRAWN_CLAIMS if CLAIMS[id].role == "independent"]
    base = carried_evidence().baseline
    assert base.independent == len(counted)
    assert base.reproduced_mean <= base.reproduced_most <= base.independent


def test_drawn_values_are_inside_their_bounds() -> None:
    specs = load_cluster("dgx-h100").spec, load_profile("paper").spec
    changed = draw(np.random.default_rng(0))(*specs)
    for parameter in DRAWN:
        assert parameter.low <= value_of(*changed, parameter.path) <= parameter.high


def test_lean_runs_say_what_the_study_says() -> None:
    names = ["fig1", "fig4", "table1"]
    whole = results(names, recorded(points_to_run(names), Store().record))
    lean = LeanRuns([load_study(name) for name in names]).verdicts()
    assert {v.id: v for one in whole for v in one.verdicts} == {
        id: v if v.study != "table1" else _of_sheet(v) for id, v in lean.items()
    }


def _of_sheet(verdict: Verdict) -> Verdict:
    return replace(verdict, kind="catalogue")


def test_alternatives_are_of_studies_and_their_claims() -> None:
    for one in alternatives():
        ids = {claim.id for name in one.studies for claim in load_study(name).claim}
        assert one.test.keys() <= ids
        for name in one.studies:
            assert one.applied(load_study(name)).name == name
    tried = [(flip.study, flip.assumed, flip.instead) for flip in carried_evidence().flip]
    assert tried == [(name, one.assumed, one.instead) for one in alternatives() for name in one.studies]
    figures = {name for name in study_names("paper") if load_study(name).grid}
    assert {study for study, _, _ in tried} >= figures


def test_a_flip_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    strict = next(one for one in alternatives() if one.instead == "less than 2%")
    monkeypatch.setattr("claim_evidence.alternatives", lambda: (strict,))
    now = LeanRuns([load_study("fig1"), load_study("fig3")]).verdicts()
    found = {flip.study: flip for flip in flips(now)}
    for study, id in (("fig1", "T17"), ("fig3", "T29")):
        assert (id in found[study].fails) is (now[id].verdict == "reproduced" and float(now[id].found[:-1]) >= 2.0)


def test_the_file_is_what_it_was_made_from() -> None:
    found = carried_evidence()
    assert as_toml(found.baseline, found.held_frac, found.flip) == FILE.read_text(encoding="utf-8")


def test_the_conflict_by_hand() -> None:
    assert least_exposed_16(0.40) == pytest.approx(1 - 0.40 / 0.4077 * (1 - 0.1283))
    assert most_exposed_256(SMALL, MFU_16) == pytest.approx(1 - 0.4077 / 0.40 * 0.95)
    # each gives back the other: on the line both of T09 and T12 hold
    assert most_exposed_256(least_exposed_16(MFU_16, GAP), MFU_16) == pytest.approx(GAP)
    assert least_exposed_16() > SMALL
    assert pytest.approx(0.4443, abs=1e-4) == MFU_256 * (1 - SMALL) / (1 - GAP)
    assert [given_up for given_up, *_ in subsets()] == ["T17 and T29", "T12", "T09", "T10", "T24", "T10 in points"]


def test_ladders_begin_at_one_and_are_measured() -> None:
    rungs = published_rungs()
    assert {rung.ladder for rung in rungs} == set(LADDERS.values())
    for ladder in LADDERS.values():
        first, *rest = [rung for rung in rungs if rung.ladder == ladder]
        assert (first.published_frac, first.predicted_frac) == (1.0, 1.0)
        assert all(rung.gpus > first.gpus and rung.published_frac for rung in rest)
    assert (rungs[0].gpus, max(rung.gpus for rung in rungs)) == (512, 10752)
    for load in equal_loads(rungs):
        assert load.from_gpus < load.to_gpus
        assert abs(load.measured_frac) < 0.05


def test_the_conflict_is_of_the_claims_numbers() -> None:
    tests = {id: CLAIMS[id].test[0] for id in ("T09", "T10", "T12", "T17")}
    assert [getattr(tests[id], "equals", None) for id in ("T09", "T10", "T12")] == [MFU_256, GAP, MFU_16]
    assert getattr(tests["T17"], "below", None) == SMALL
