"""Words that an option takes, in the order in which help lists them. It imports no other module of knee."""

from __future__ import annotations

from typing import Literal, get_args

Objective = Literal["tokens_per_s", "tokens_per_j", "usd_per_mtoken"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
"""What a plan may be best at."""
Launcher = Literal["local", "torchrun", "slurm"]
LAUNCHERS: tuple[Launcher, ...] = get_args(Launcher)
"""What starts the runs of a sweep."""
StudyLauncher = Literal["simulate", "local"]
STUDY_LAUNCHERS: tuple[StudyLauncher, ...] = get_args(StudyLauncher)
"""What answers the points of a study."""
Device = Literal["cuda", "cpu"]
DEVICES: tuple[Device, ...] = get_args(Device)
"""What is trained on and measured."""
Backend = Literal["nccl", "gloo"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
"""What runs collectives that are measured."""
