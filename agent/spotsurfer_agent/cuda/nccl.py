"""NCCL so that a job on several GPUs can be saved: between processes by sockets alone.

The driver can't save memory that GPUs share. A job that asks for two GPUs or more gets these settings, and one that has
SPOTSURFER_NCCL=sockets in its environment; SPOTSURFER_NCCL=own keeps them away. What a job sets itself stays. They cost speed:
docs/gpu.md has the figures.
"""

from __future__ import annotations

from collections.abc import Mapping

ASKED, SOCKETS = "SPOTSURFER_NCCL", "sockets"
SETTINGS = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_CUMEM_HOST_ENABLE": "0",
}


def environment(own: Mapping[str, str], gpus: int = 0) -> dict[str, str]:
    """What is added to a job with this environment of its own that asked for so many GPUs."""
    return SETTINGS if own.get(ASKED, SOCKETS if gpus > 1 else "") == SOCKETS else {}
