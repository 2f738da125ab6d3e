"""`python -m spotsurfer_agent.gpu LOCK`: the side-car with this machine's driver."""

import sys
from pathlib import Path

from spotsurfer_agent.gpu.nvidia_driver import Binding
from spotsurfer_agent.gpu.sidecar import main

if __name__ == "__main__":
    sys.exit(main(Binding, Path(sys.argv[1])))
