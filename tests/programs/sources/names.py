"""Lists a folder while it works on what it finds. Argument: how many names there are."""

import os
import sys
import time
from pathlib import Path

count = int(sys.argv[1])
Path("many").mkdir()
for number in range(count):
    Path("many", f"result-{number:06}.json").touch()
seen = []
with os.scandir("many") as found:
    for entry in found:
        seen.append(entry.name)
        time.sleep(0.0025)
print(len(seen), len(set(seen)))
print("\n".join(sorted(seen)))
