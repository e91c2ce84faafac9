"""Plans that experts cannot be trained with are refused in one sentence, before anything is started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from knee.base.errors import SpecError
from knee.specs.load import load_model
from knee.specs.model import Experts
from knee.specs.plan import Plan
from knee.training.parallelism.trainer_job import TrainJob
from refusals import refused


@pytest.mark.parametrize(
    ("words", "code", "field"),
    [
        ("llama-tiny --nproc 2 --ep 2", "contradiction", "plan.ep"),
        ("moe-tiny --nproc 3 --ep 3", "does-not-divide", "plan.ep"),
        ("moe-tiny --nproc 2 --ep 4", "does-not-divide", "plan.ep"),
        ("moe-tiny --nproc 4 --tp 4 --etp 2 --ep 2", "out-of-range", "plan.etp"),
        ("moe-tiny --nproc 2 --tp 2", "not-trained", "plan.etp"),
        ("moe-tiny --nproc 2 --tp 2 --etp 2 --no-sequence-parallel", "contradiction", "plan.sequence_parallel"),
        ("moe-tiny --nproc 4 --dp-replicate 2 --sharding hsdp --ep 4", "does-not-divide", "plan.ep"),
        ("moe-tiny --routing balanced --seq-len 3 --local-batch 1", "does-not-divide", "routing"),
        ("moe-tiny --set model.mtp_layers=1", "not-trained", "model.mtp_layers"),
        ("moe-tiny --ep 0", "out-of-range", "plan.ep"),
    ],
)
def test_what_does_not_divide_is_refused(words: str, code: str, field: str, tmp_path: Path) -> None:
    error = refused("train", *words.split(), "--device", "cpu", "--job", tmp_path / "job.json")
    assert (error.code, error.field) == (code, field)


@pytest.mark.parametrize(
    ("ffn", "etp", "code", "field"),
    [
        (18, 4, "does-not-divide", "plan.etp"),
        (20, 4, "not-trained", "model.experts.ffn"),
        (12, 1, "not-trained", "model.experts.ffn"),
    ],
)
def test_experts_that_no_grouped_product_takes_are_refused(ffn: int, etp: int, code: str, field: str) -> None:
    model = replace(load_model("moe-tiny").spec, experts=Experts(count=8, top_k=2, ffn=ffn))
    with pytest.raises(SpecError) as refusal:
        TrainJob(model=model, plan=Plan(tp=etp, etp=etp), gpus=etp, global_batch=1, seq_len=8)
    assert (refusal.value.code, refusal.value.field) == (code, field)


def test_a_split_backward_with_experts_needs_a_later_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def job(**plan: object) -> TrainJob:
        split = Plan(pp=2, dp_shard=2, schedule="zero_bubble", micro_batch=1, **plan)  # type: ignore[arg-type]
        return TrainJob(model=load_model("moe-tiny").spec, plan=split, gpus=4, global_batch=8, seq_len=8)

    job(ep=2)
    monkeypatch.setattr("knee.training.parallelism.trainer_job.version", lambda _: "2.11.0+cu130")
    job()
    with pytest.raises(SpecError) as refusal:
        job(ep=2)
    assert (refusal.value.code, refusal.value.field) == ("not-trained", "plan.schedule")
