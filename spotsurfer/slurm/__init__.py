"""Slurm's commands on top of the controller's API: `sbatch`, `squeue`, `sacct`, `scancel`, `scontrol`, `sinfo`, `srun`.

The truth is Debian's Slurm 22.05.8: docs/slurm.md lists what differs. These programs are called thousands of times by others,
so they load little: no typer, no pydantic.
"""
