"""`python -m spotsurfer` is the command line."""

from __future__ import annotations

import sys

from spotsurfer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
