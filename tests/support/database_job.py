"""A job with a connection to SQLite in rollback mode that it never closes. Argument: number of rows."""

import sqlite3
import sys
import time

count = int(sys.argv[1])
db = sqlite3.connect("rows.db", isolation_level=None)
assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
db.execute("PRAGMA synchronous = OFF")
db.execute("CREATE TABLE rows (n INTEGER)")
for number in range(count):
    db.execute("INSERT INTO rows VALUES (?)", (number,))
    print(f"{number:03}", flush=True)
    time.sleep(0.02)
assert db.execute("SELECT count(*), sum(n) FROM rows").fetchone() == (count, count * (count - 1) // 2)
