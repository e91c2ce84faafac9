"""Words for keys and columns whose declarations have none, for the reference of JSON and CSV outputs."""

from __future__ import annotations

WORDS = {
    # a step
    "kind": "`simulated`, `measured` or `published`; in tables also `impossible`, for a point that cannot be run.",
    "comm_loads": "Communication by collective and group; see CommLoad.",
    "memory": "Memory by part; see Memory.",
    "assumptions": "Values that the user did not give, and how knee chose them, as sentences.",
    "weights_bytes": "Parameters.",
    "gradients_bytes": "Gradients at the moment of the highest memory use.",
    "optimizer_bytes": "States of the optimizer.",
    "activations_bytes": "Activations that are kept for the backward pass.",
    "logits_bytes": "Logits and their gradient.",
    "comm_buffers_bytes": "Buffers of gathers and reductions.",
    "group_size": "GPUs per group.",
    # trust
    "label": "`validated`, `near` or `extrapolated`.",
    "high_frac": "Upper end of the error band of throughput.",
    "memory_runs": "Number of runs behind the error band of memory.",
    "memory_high_frac": "Upper end of the error band of memory.",
    # labels of rows
    "study": "Study that the row belongs to.",
    "series": "Curve or group that it is drawn with.",
    "model": "Model, by name or path.",
    "cluster": "Cluster, by name or path.",
    "profile": "Software profile, by name or path.",
    "gpus": "GPUs of the job.",
    "nodes": "Number of nodes.",
    "global_batch": "Sequences per step over all GPUs.",
    "local_batch": "Sequences per GPU and step.",
    "seq_len": "Tokens per sequence.",
    "set": "Values that were changed, as `--set` takes them.",
    "plan": "The plan in words.",
    "tp": "Degree of tensor parallelism.",
    "pp": "Pipeline stages.",
    "cp": "Degree of context parallelism.",
    "sharding": "What data parallelism shards.",
    "schedule": "Pipeline schedule.",
    "cp_method": "How context parallelism shares keys and values.",
    "recompute": "What the backward pass recomputes.",
    "precision": "Type of the matrix products.",
    "degree": "Model parallelism: tp x pp x cp.",
    "trust": "Trust label.",
    "experts": "Experts per layer; empty for a dense model.",
    "gpu": "GPU of the cluster.",
    "node_gpus": "GPUs per node.",
    # bandwidths
    "collective": "Collective operation.",
    "message": "Message size with its unit.",
    "compared": "Whether the row counts in the error. Small messages do not.",
    # budgets
    "size": "Number of parameters in short form, such as 7B.",
    "flop_size": "Parameters that counting FLOP chooses, in short form.",
    "span": "What a stretch of the run is: steps, a checkpoint, a failure or a restart.",
    "cause": "What takes the time or ended the stretch.",
    "cells": "Cells of the published table.",
    "dp": "Data-parallel ranks.",
}
"""Key -> one sentence."""
