"""The Terraform module without a cloud: layout, types, its own tests with a mocked provider."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from spotsurfer_providers.aws.settings import AwsSettings
from spotsurfer_wire.doors import DOOR
from support.terraform import Terraform, mirror
from support.tree import ROOT

from spotsurfer.jobspec.sections import PORTS_MAX

ROOTS = ["terraform/aws", "terraform/aws/examples/minimal", "terraform/aws/examples/existing-fleet"]


def test_files_are_laid_out(tmp_path: Path) -> None:
    done = Terraform(tmp_path, "terraform/aws").run("fmt", "-check", "-diff", "-recursive", "-no-color", codes=(0, 3))
    assert done.returncode == 0, f"call terraform fmt -recursive terraform\n{done.stdout}"


def test_layout_is_really_looked_at(tmp_path: Path) -> None:
    module = Terraform(tmp_path, "terraform/aws")
    (module.root / "untidy.tf").write_text("locals {\na=1\n}\n")
    assert module.run("fmt", "-check", "-no-color", codes=(3,)).stdout.split() == ["untidy.tf"]


def test_the_front_may_reach_all_ports_that_a_job_can_declare() -> None:
    doors = re.search(r"doors = \{ from = (\d+), to = (\d+) \}", (ROOT / "terraform/aws/network.tf").read_text())
    assert doors is not None and [int(x) for x in doors.groups()] == [DOOR, DOOR + PORTS_MAX - 1]


@pytest.mark.slow
@pytest.mark.parametrize("root", ROOTS)
def test_configuration_is_valid(root: str, tmp_path: Path) -> None:
    module = Terraform(tmp_path, root)
    module.init()
    module.run("validate", "-no-color")


@pytest.mark.slow
def test_module_does_what_its_tests_say(tmp_path: Path) -> None:
    module = Terraform(tmp_path, "terraform/aws")
    module.init()
    assert "0 failed" in module.run("test", "-no-color").stdout


def test_mirror_is_the_one_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".terraform.d/plugins/registry/hashicorp/aws").mkdir(parents=True)
    (tmp_path / "own").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert mirror({"SPOTSURFER_TEST_TF_MIRROR": str(tmp_path / "own")}) == tmp_path / "own"
    assert mirror({}) == tmp_path / ".terraform.d/plugins"
    with pytest.raises(AssertionError, match="there is no such folder"):
        mirror({"SPOTSURFER_TEST_TF_MIRROR": str(tmp_path / "absent")})


@pytest.mark.parametrize(("ci", "kind"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_terraform_ci_fails_and_others_are_told(
    ci: str, kind: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CI", ci)
    with pytest.raises(kind, match="no terraform on the PATH"):
        Terraform(tmp_path, "terraform/aws")


def test_configuration_names_keys_that_the_provider_knows() -> None:
    """What they hold is read with the provider's own settings after an apply; this catches a slip in seconds."""
    text = (ROOT / "terraform/aws/templates/config.toml.tftpl").read_text()
    table = text.partition("[provider.aws]\n")[2]
    keys = re.findall(r"^(\w+) = ", table, re.MULTILINE)
    assert {"region", "subnets", "queue_url", "tags"} <= set(keys)
    assert set(keys) <= set(AwsSettings.model_fields)


def test_set_up_of_the_controllers_machine_is_sound_shell(tmp_path: Path) -> None:
    """`${…}` are Terraform's here; what is the shell's own has no braces."""
    text = (ROOT / "terraform/templates/controller.sh.tftpl").read_text()
    assert set(re.findall(r"\$\{(\w+)\}", text)) == {"config", "disk", "extras", "package", "unit", "unprivileged"}
    script = tmp_path / "setup.sh"
    script.write_text(re.sub(r"\$\{(\w+)\}", r"a-\1", text))
    done = subprocess.run([Path(sys.executable).parent / "shellcheck", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
