"""Files that come with the package to be copied: the example of the configuration, Terraform's modules."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
# The wheel has them in a folder of the package; in a checkout they stand where people look for them, at the top.
FOLDER = PACKAGE / "share" if (PACKAGE / "share").is_dir() else PACKAGE.parent
CONFIG = FOLDER / "config.example.toml"
TERRAFORM = FOLDER / "terraform"
# What Terraform itself leaves beside its files when it is used in a checkout.
_LEFT_BY_TERRAFORM = (".terraform", ".tfstate")


def terraform_files() -> dict[Path, bytes]:
    """Relative path -> content, of all modules and examples."""
    found = (p.relative_to(TERRAFORM) for p in sorted(TERRAFORM.rglob("*")) if p.is_file())
    return {p: (TERRAFORM / p).read_bytes() for p in found if not any(left in str(p) for left in _LEFT_BY_TERRAFORM)}


def template(name: str) -> str:
    """The text of a template that Terraform and this package fill in alike: `${name}`."""
    return (TERRAFORM / "aws" / "templates" / name).read_text()
