"""Watts of what stands beside the GPUs: hosts and the switches of the network."""

from __future__ import annotations

import math

from knee.specs.constants import constant
from knee.specs.hardware import Cluster


def host_w_per_gpu(cluster: Cluster) -> float:
    """A GPU's share of its node's other parts.

    Formula: host_frac * tdp_w
    Source:  ``site.host_frac`` in catalog/constants.toml, measured on a node of eight H100
    Valid:   nodes at work; hosts draw nearly as much whatever the GPUs do
    """
    return constant("site", "host_frac") * cluster.gpu.tdp_w


def network_w_per_gpu(cluster: Cluster, gpus: int) -> float:
    """A GPU's share of the switches between nodes; NICs belong to the host.

    Formula: (2 L - 1) ports * W per port * NIC rate / port rate
    Where:   L levels of switches: one, and one for each tier that a job of so many nodes crosses; a path up and down
             passes two ports a level, and its uppermost switch one on each side
    Source:  ``site.switch_port_w`` in catalog/constants.toml
    Valid:   a fabric without oversubscription, of the size that the job needs; 0 within a node
    """
    nodes = math.ceil(gpus / cluster.node.gpus)
    if nodes == 1:
        return 0.0
    levels = 1 + sum(nodes > tier.nodes for tier in cluster.fabric.tiers)
    rate = cluster.fabric.nic_bytes_per_s / constant("site", "switch_port_bytes_per_s")
    return (2 * levels - 1) * constant("site", "switch_port_w") * rate
