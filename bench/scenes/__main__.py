"""`python -m bench.scenes ROUNDS NAME ARGUMENTS…`: one scene on this machine; its figures go into the shared folder."""

from __future__ import annotations

import json
import sys

from bench.scenes import kit, network, repos, restores, saves, torn

SCENES = {
    "freeze": saves.freeze,
    "unwatched": saves.unwatched,
    "durable": saves.durable,
    "second": saves.second,
    "final": saves.final,
    "share": saves.share,
    "dirty": saves.dirty,
    "restore": restores.restore,
    "lazy": restores.lazy,
    "stamps": restores.stamps,
    "upload": network.upload,
    "download": network.download,
    "torn": torn.torn,
    "torn_saves": torn.torn_saves,
    "repos": repos.repos,
}

if __name__ == "__main__":
    kit.ROUNDS = int(sys.argv[1])
    figures = SCENES[sys.argv[2]](*sys.argv[3:])  # type: ignore[operator]
    (kit.SHARE / "figures.json").write_text(json.dumps(figures))
