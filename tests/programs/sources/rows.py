"""Writes rows over one connection in SQLite's usual mode, with a transaction each. Argument: how many."""

import sqlite3
import sys
import time
from pathlib import Path

db = sqlite3.connect("rows.db", isolation_level=None)
db.execute("PRAGMA synchronous = OFF")  # a power cut is not what is tried
db.execute("CREATE TABLE rows (n INTEGER PRIMARY KEY, square INTEGER)")
for number in range(int(sys.argv[1])):
    db.execute("INSERT INTO rows VALUES (?, ?)", (number, number * number))
    print(number, flush=True)
    time.sleep(0.02)
Path("dump.sql").write_text("\n".join(db.iterdump()))
