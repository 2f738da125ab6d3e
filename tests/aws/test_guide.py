"""docs/guides/aws.md, as it stands: a shell types it, with the real Terraform, against the test EC2."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ec2.client import KEYS, REGION, serve
from support.page_runs import reader
from support.terraform import environment_of, lay_override, program
from support.tree import ROOT

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(900)]
PAGE = ROOT / "docs/guides/aws.md"
IMAGE = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
# As the page says: the profile takes the controller's role.
PROFILES = """\
[default]
aws_access_key_id = {aws_access_key_id}
aws_secret_access_key = {aws_secret_access_key}
region = {region}
[profile surf]
role_arn = arn:aws:iam::123456789012:role/spotsurfer-controller
source_profile = default
region = {region}
"""
MINIMAL, SERVE = "terraform/aws/examples/minimal", "spotsurfer serve --config ~/spotsurfer.toml"


def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    program()
    home = tmp_path / "home"
    (home / ".aws").mkdir(parents=True)
    (home / ".aws/config").write_text(PROFILES.format(**KEYS, region=REGION))
    with serve(tmp_path / "ec2") as cloud:
        answers = f"-auto-approve -input=false -var=image={IMAGE} -var=endpoint_url={cloud.endpoint}"
        given = environment_of(tmp_path, cloud.endpoint) | {"TF_CLI_ARGS_apply": answers, "HOME": str(home)}
        given |= {"AWS_CONFIG_FILE": str(home / ".aws/config"), "SPOTSURFER_CONTROLLER__DATA_DIR": str(tmp_path / "data")}
        given = {k: v for k, v in given.items() if k not in ("PATH", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        with reader(tmp_path / "shell", home, **given) as person:
            person.type("unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY\n")

            def enter() -> None:
                lay_override(home / MINIMAL)
                person.type(f"cd {MINIMAL}\n")

            def begin() -> None:
                person.type(
                    f"{SERVE} >~/serve.log 2>&1 &\nuntil spotsurfer --config ~/spotsurfer.toml list; do sleep 1; done\n"
                )

            person.acts = {f"cd {MINIMAL}": enter, SERVE: begin}
            said = person.follow(PAGE)
        assert "Apply complete!" in said
        assert "This machine is fit." in said
        assert cloud.log("sts:AssumeRole"), "the profile took the controller's role"
