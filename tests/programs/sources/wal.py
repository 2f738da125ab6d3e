"""wal.py ROUNDS: SQLite with a write-ahead log, a writer and a reader whose connections stay open."""

import sqlite3
import sys
import threading

rounds = int(sys.argv[1])
writer = sqlite3.connect("data.db", isolation_level=None)
print(writer.execute("PRAGMA journal_mode = WAL").fetchone()[0])
writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, word TEXT, n INTEGER)")
writer.execute("CREATE INDEX words ON t (word)")
stop, seen = threading.Event(), []


def read() -> None:
    reader = sqlite3.connect("data.db")
    last = 0
    while not stop.wait(0.02):
        count = reader.execute("SELECT count(*) FROM t").fetchone()[0]
        if count % 500 or count < last:
            seen.append(count)
        last = count


thread = threading.Thread(target=read)
thread.start()
x = 12345
for r in range(rounds):
    writer.execute("BEGIN")
    for _ in range(500):
        x = (x * 1103515245 + 12345) & 0x7FFFFFFF
        writer.execute("INSERT INTO t (word, n) VALUES (?, ?)", (f"{x >> 12:x}", x % 1000))
    writer.execute("COMMIT")
    found = writer.execute("SELECT word, sum(n), count(*) FROM t GROUP BY word ORDER BY 3 DESC, 1 LIMIT 1").fetchone()
    if r % 20 == 19:
        print(r, *found, flush=True)
stop.set()
thread.join()
print("torn reads", len(seen))
print(
    *writer.execute("SELECT count(*), sum(n), max(word) FROM t").fetchone(),
    *writer.execute("PRAGMA integrity_check").fetchone(),
)
writer.close()
