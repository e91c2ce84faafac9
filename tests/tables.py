"""Small tables of plans for unit tests."""

from __future__ import annotations

from knee.specs import Cluster, Job, Model, Plan, Profile
from knee.specs.load import load_cluster, load_model, load_profile
from knee.specs.plan_table import PlanTable, table_of

H100 = load_cluster("dgx-h100").spec
LLAMA_7B = load_model("llama2-7b").spec
EAGER = load_profile("eager").spec


def job(
    *,
    model: Model = LLAMA_7B,
    cluster: Cluster = H100,
    profile: Profile = EAGER,
    microbatches: int = 1,
    seq_len: int = 4096,
    **plan: object,
) -> Job:
    """A job of one plan, as large as the plan is."""
    cut = Plan(**plan)  # type: ignore[arg-type]
    return Job(
        model=model,
        cluster=cluster,
        profile=profile,
        plan=cut,
        gpus=cut.gpus,
        seq_len=seq_len,
        global_batch=cut.dp * cut.micro_batch * microbatches,
    )


def table(*jobs: Job) -> PlanTable:
    """Their table."""
    return table_of(jobs)
