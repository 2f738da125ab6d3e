"""`init`: writes an operator's first files (configuration, Terraform, systemd unit, monitoring) from those in the package."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from spotsurfer.cli.common import SESSION, examples, write
from spotsurfer.cli.printing import put, put_json
from spotsurfer.common import plugins
from spotsurfer.model.errors import UsageError

# ---- Package files: the example configuration and Terraform's modules.

PACKAGE = Path(__file__).resolve().parents[2]
# The wheel has them in a folder of the package; in a checkout they lie at the top, because people look for them there.
FOLDER = PACKAGE / "share" if (PACKAGE / "share").is_dir() else PACKAGE.parent
CONFIG = FOLDER / "config.example.toml"
TERRAFORM = FOLDER / "terraform"
MONITORING = FOLDER / "monitoring"
CLOUDS = ("aws", "gcp")  # each a module
# Files that Terraform itself leaves in a checkout.
_LEFT_BY_TERRAFORM = (".terraform", ".tfstate")


def terraform_files() -> dict[Path, bytes]:
    """Relative path -> content, of all modules and examples."""
    found = (p.relative_to(TERRAFORM) for p in sorted(TERRAFORM.rglob("*")) if p.is_file())
    return {p: (TERRAFORM / p).read_bytes() for p in found if not any(left in str(p) for left in _LEFT_BY_TERRAFORM)}


def template(name: str) -> str:
    """The text of a template that Terraform and this package fill in alike: `${name}`."""
    return (TERRAFORM / "templates" / name).read_text()


# ---- Command

UNIT = "spotsurfer.service"


def add(app: typer.Typer) -> None:
    """Register the command of this file."""
    app.command(
        epilog=examples(
            "spotsurfer init",
            "spotsurfer init ./spotsurfer.toml",
            "spotsurfer init --systemd /etc/systemd/system",
            "spotsurfer init --terraform ./terraform",
            "spotsurfer init --monitoring /etc/prometheus",
        )
    )(init)


def init(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Configuration to write.", show_default=False)] = None,
    *,
    terraform: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write Terraform's modules into this folder.", show_default=False)
    ] = None,
    systemd: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Write a systemd unit: NAME.service, or a folder that is there.", show_default=False),
    ] = None,
    monitoring: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write files for Prometheus and Grafana into this folder.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
) -> None:
    """Write a configuration with all keys, Terraform's modules, a systemd unit, files for monitoring.

    The configuration goes to FILE, else to /etc/spotsurfer/config.toml (root) or ~/.config/spotsurfer/config.toml: commands
    find it there. With --terraform or --systemd it is written if FILE is given, or if the unit needs one and there is none.
    """

    from spotsurfer.config.paths import DATA_SYSTEM, find_config, usual_config
    from spotsurfer.config.settings import load_settings

    files: dict[Path, str | bytes] = {}
    said: list[str] = []
    if systemd is not None and not systemd.is_dir() and systemd.suffix != ".service":
        remedy = "name one that ends in .service"
        raise UsageError(f"--systemd {systemd} is neither a folder that is there nor a unit file: {remedy}.")
    if SESSION.config is not None and systemd is None:
        raise UsageError(f"--config names a configuration to read; to write one: spotsurfer init {file or SESSION.config}")
    config = file or (find_config(SESSION.config) if systemd is not None else None)
    if file is not None or (config is None and (systemd is not None or (terraform is None and monitoring is None))):
        config = (file or usual_config()).absolute()
        files[config] = CONFIG.read_text()
        said.append(f"Wrote {config}: all keys with their defaults. Next: spotsurfer doctor --config {config}")
    if terraform is not None:
        folder = terraform.absolute()
        files |= {folder / path: content for path, content in terraform_files().items()}
        for cloud in CLOUDS:
            said.append(
                f"Wrote {folder}/{cloud}: begin with {folder}/{cloud}/examples/minimal; {folder}/{cloud}/README.md says how."
            )
    if monitoring is not None:
        folder = monitoring.absolute()
        files |= {folder / path.name: path.read_bytes() for path in sorted(MONITORING.iterdir())}
        said.append(f"Wrote {folder}: prometheus.yml says how Prometheus reads the controller; its rules are alerts.yml.")
        said.append(f"For Grafana: import {folder}/dashboard.json.")
    if systemd is not None and config is not None:
        unit = (systemd / UNIT if systemd.is_dir() else systemd).absolute()
        settings = load_settings(CONFIG if config in files else config)
        # With --systemd, a service's data folder is the system's unless a setting names another.
        data = settings.controller.data_dir if "data_dir" in settings.controller.model_fields_set else Path(DATA_SYSTEM)
        units = _units(unit, config.absolute(), data, settings.provider.names)
        files |= units
        said += [f"Wrote {path}." for path in units]
        if len(units) > 1:
            said.append(f"Make its user: useradd --system --create-home --home-dir {data} --shell /usr/sbin/nologin spotsurfer")
            said.append(f"Give it what root made there before: chown -R spotsurfer: {data}")
        said.append(f"Start it: systemctl daemon-reload && systemctl enable --now {unit.name}")
    _write(files, force)
    put_json({"written": [str(path) for path in files]})
    for line in said:
        put(line)


def _write(files: Mapping[Path, str | bytes], force: bool) -> None:
    """All of them, or none if one is there already."""
    if there := [path for path in files if path.exists() and not force]:
        more = f" (and {len(there) - 1} more)" if len(there) > 1 else ""
        raise UsageError(f"{there[0]} is there already{more}: --force overwrites it, or name another place.")
    for path, content in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise UsageError(f"{path.parent} can't be made: {e.strerror}. Name another place.") from e
        write(path, content)


def _units(path: Path, config: Path, data: Path, providers: Sequence[str]) -> dict[Path, str | bytes]:
    """The unit that runs this installation's controller with this configuration.

    A controller without boxes on this host gets a drop-in that removes root and nearly all other rights.
    """

    program = Path(sys.executable).with_name("spotsurfer")
    command = _word(program) if program.exists() else f"{_word(sys.executable)} -m spotsurfer"
    values = {"command": command, "config": _word(config), "data": _word(data)}

    def filled(name: str) -> str:
        return Template(template(name)).substitute(values)

    units: dict[Path, str | bytes] = {path: filled("spotsurfer.service.tftpl")}
    if not set(providers) & set(plugins.plugins(plugins.HOSTS)):  # boxes of this host need root
        units[path.with_name(f"{path.name}.d") / "unprivileged.conf"] = filled("unprivileged.conf.tftpl")
    return units


def _word(text: Path | str) -> str:
    """One word of a unit file: escapes % and $, which are special there, and spaces, which end words."""
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if re.fullmatch(r"[^\s\"';#\\]+", escaped) else f'"{escaped}"'
