"""`python -m spotsurfer_agent.cuda LOCK`: the side-car with this machine's driver."""

import sys
from pathlib import Path

from spotsurfer_agent.cuda.binding import Binding
from spotsurfer_agent.cuda.sidecar import main

if __name__ == "__main__":
    sys.exit(main(Binding, Path(sys.argv[1])))
