"""WHAT is asked: model, hardware, software profile, plan and job."""

from knee.specs.hardware import AttentionRate, Cluster, Fabric, Gpu, Node, Tier
from knee.specs.job import Job
from knee.specs.model import Model
from knee.specs.plan import Plan
from knee.specs.profile import Profile

__all__ = ["AttentionRate", "Cluster", "Fabric", "Gpu", "Job", "Model", "Node", "Plan", "Profile", "Tier"]
