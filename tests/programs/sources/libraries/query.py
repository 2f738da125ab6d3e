"""query.py ROUNDS: an analytical database in a file, its connection open all the time; a line a round.

Two threads; integers alone, so the order of the sums does not matter.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path("lib").resolve()))
import duckdb

db = duckdb.connect("facts.duckdb", config={"threads": 2, "memory_limit": "400MB"})
db.execute("create table facts as select i, i * 7919 % 1009 as kind, i * 104729 % 99991 as size from range(600000) t(i)")
for round_ in range(int(sys.argv[1])):
    new = [round_ * 5000, round_ * 5000 + 5000]
    db.execute("insert into facts select i, i * 31 % 1009, i * 17 % 99991 from range(?, ?) t(i)", new)
    db.execute("update facts set size = (size + ?) % 99991 where kind = ?", [round_, round_ % 1009])
    print(
        round_,
        *db.execute(
            "select count(*), sum(total), max(top), sum(most) from (select kind, sum(size) as total, max(i) as top, "
            "count(distinct size) as most from facts group by kind)"
        ).fetchone(),
        flush=True,
    )
    if round_ % 20 == 19:
        db.execute("checkpoint")
db.close()
