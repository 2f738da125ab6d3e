"""Options of the command line. Snakemake reads the types of the fields, so they must not be text."""

from dataclasses import dataclass, field

from snakemake_interface_executor_plugins.settings import ExecutorSettingsBase


def _option(text: str) -> str:
    return field(default="", metadata={"help": text, "env_var": False})


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Options `--spotsurfer-…`. The controller is that of SPOTSURFER_URL and SPOTSURFER_TOKEN, else the one of this host."""

    python: str = _option("Python with Snakemake on the machines, or in the image (default: python)")
    image: str = _option("Container image with Snakemake for rules that bring none, as docker://…")
    project: str = _option("Project that pays for the jobs")
    market: str = _option("spot-first (default), spot or on-demand; a rule's resource wins")
