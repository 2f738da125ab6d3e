"""Jobs on real GPUs through the engine and the store: see `python -m bench.gpu --help`."""
