"""The agent's runtime: one tarball with its own Python, CRIU and network tools, for any x86-64 Linux with a /bin/sh."""

from spotsurfer.agent_runtime.builder import Runtime, build, find, unpack
from spotsurfer.agent_runtime.package_pins import Pins

__all__ = ["Pins", "Runtime", "build", "find", "unpack"]
