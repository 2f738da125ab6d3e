"""The real terraform, offline where a mirror of its providers is at hand, against a test EC2."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.ec2.client import ENVIRONMENT, REGION
from support.tree import ROOT

MODULES = ROOT / "terraform"
MIRROR = "SPOTSURFER_TEST_TF_MIRROR"
# Where terraform itself looks for providers that lie on the machine: "CLI configuration: implied local mirror directories".
IMPLIED = (
    "~/.terraform.d/plugins",
    "~/.local/share/terraform/plugins",
    "/usr/local/share/terraform/plugins",
    "/usr/share/terraform/plugins",
)
_WITH_MIRROR = """disable_checkpoint = true
provider_installation {
  filesystem_mirror {
    path    = "%s"
    include = ["hashicorp/*"]
  }
}
"""
# Laid beside an example: any credentials will do, and buckets are named in the path. Services are found by AWS_ENDPOINT_URL.
OVERRIDE = """provider "aws" {
  access_key              = "%(key)s"
  secret_key              = "%(secret)s"
  s3_use_path_style       = true
  skip_metadata_api_check = true
}
"""


def program() -> str:
    """terraform on the PATH. Without it the test does not run, which fails in CI and is listed elsewhere."""
    found = shutil.which("terraform")
    if found is None:
        words = "no terraform on the PATH: install Terraform 1.7 or newer"
        if os.environ.get("CI") == "true":
            pytest.fail(words)
        pytest.skip(words)
    return found


def mirror(environment: Mapping[str, str]) -> Path | None:
    """A folder with providers: the one that the environment names, else a place of terraform's own; None: whatever it likes."""
    named = environment.get(MIRROR)
    if named:
        assert Path(named).is_dir(), f"{MIRROR} is {named}, and there is no such folder"
        return Path(named).resolve()
    places = (Path(p).expanduser() for p in IMPLIED)
    return next((p for p in places if any(p.glob("*/hashicorp/aws"))), None)


class Terraform:
    """A root module in a folder of its own, with the modules where it expects them. Nothing is written into the checkout."""

    def __init__(self, folder: Path, root: str, endpoint: str | None = None, attached: str | None = None) -> None:
        """`root` is a path below the checkout, like terraform/aws/examples/minimal; `attached`: providers that run already."""
        self._program = program()
        shutil.copytree(MODULES, folder / "terraform", ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"))
        if not root.startswith("terraform/"):
            shutil.copytree(ROOT / root, folder / root)
        self.root = folder / root
        self._environment = environment_of(folder, endpoint)
        if attached is not None:
            self._environment["TF_REATTACH_PROVIDERS"] = attached
        if endpoint is not None:
            lay_override(self.root)

    def run(self, *arguments: str, codes: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[str]:
        """One command. Raises AssertionError with what it said where its exit code is none of `codes`."""
        command = [self._program, *arguments]
        done = subprocess.run(command, cwd=self.root, env=self._environment, capture_output=True, text=True, check=False)
        assert done.returncode in codes, (
            f"{' '.join(command)} ended with {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        )
        return done

    def init(self) -> None:
        """Fetches providers."""
        done = self.run("init", "-input=false", "-no-color", codes=(0, 1))
        hint = f"name a folder with terraform's providers in {MIRROR} where they can't be fetched"
        assert done.returncode == 0, f"{hint}\n{done.stdout}\n{done.stderr}"

    def apply(self, **variables: Any) -> None:
        """Makes everything."""
        self.run("apply", "-auto-approve", "-input=false", "-no-color", *_variables(variables))

    def drift(self, **variables: Any) -> str:
        """What a plan would change; empty: nothing."""
        done = self.run(
            "plan", "-detailed-exitcode", "-input=false", "-no-color", "-lock=false", *_variables(variables), codes=(0, 2)
        )
        return done.stdout.partition("will perform")[2] or done.stdout if done.returncode == 2 else ""

    def destroy(self, **variables: Any) -> None:
        """Removes everything."""
        self.run("destroy", "-auto-approve", "-input=false", "-no-color", *_variables(variables))

    def output(self, name: str) -> Any:
        """An output's value."""
        return json.loads(self.run("output", "-json", name).stdout)

    def raw(self, name: str) -> str:
        """A text, as people get it."""
        return self.run("output", "-raw", name).stdout


def lay_override(root: Path) -> None:
    """Beside a root module: what lets it speak to a test EC2."""
    words = {"key": ENVIRONMENT["AWS_ACCESS_KEY_ID"], "secret": ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]}
    (root / "aws_override.tf").write_text(OVERRIDE % words)


def environment_of(folder: Path, endpoint: str | None) -> dict[str, str]:
    """That of terraform, which keeps its settings in `folder`."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "TF_VAR_", "TF_CLI_ARGS"))}
    environment = {**own, **ENVIRONMENT, "AWS_REGION": REGION, "TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1"}
    if (found := mirror(os.environ)) is not None:
        settings = folder / "terraform.rc"
        settings.write_text(_WITH_MIRROR % found)
        environment["TF_CLI_CONFIG_FILE"] = str(settings)
    elif not Path(environment.get("TF_CLI_CONFIG_FILE", "")).is_file():
        environment.pop("TF_CLI_CONFIG_FILE", None)
    if endpoint is not None:
        environment["AWS_ENDPOINT_URL"] = endpoint
    return environment


def _variables(values: Mapping[str, Any]) -> list[str]:
    return [f"-var={name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in values.items()]
