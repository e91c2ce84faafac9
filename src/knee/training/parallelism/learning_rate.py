"""The learning rate of a step: warm-up, then constant, linear, cosine, or stable with a decay at the end (WSD)."""

from __future__ import annotations

import math

from knee.training.parallelism.trainer_job import TrainJob


def learning_rate(job: TrainJob, step: int) -> float:
    """The learning rate of step ``step``, counted from 0. It depends on nothing else, so a resumed run goes on alike.

    Formula: lr * (step + 1) / warm-up in the warm-up; then lr * (min + (1 - min) * f(t)), where t goes from 0 to 1
             linear f = 1 - t, cosine f = (1 + cos(pi t)) / 2, wsd f = min(1, (1 - t) / decay)
    Source:  cosine: Loshchilov and Hutter, SGDR (arXiv 1608.03983); WSD: Hu et al., MiniCPM (arXiv 2404.06395)
    """
    if step < job.lr_warmup:
        return job.lr * (step + 1) / job.lr_warmup
    done = min(1.0, (step - job.lr_warmup) / max(1, job.steps - job.lr_warmup))
    shape = {
        "constant": 1.0,
        "linear": 1.0 - done,
        "cosine": (1.0 + math.cos(math.pi * done)) / 2,
        "wsd": min(1.0, (1.0 - done) / job.lr_decay_frac),
    }[job.lr_schedule]
    return job.lr * (job.lr_min_frac + (1.0 - job.lr_min_frac) * shape)
