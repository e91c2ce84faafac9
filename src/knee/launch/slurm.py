def need_slurm(): pass
