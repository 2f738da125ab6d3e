"""Variants of each sample, as Snakemake's `script:` runs it."""

from pathlib import Path

with Path(snakemake.output[0]).open("w") as out:  # type: ignore[name-defined]  # noqa: F821
    for path in sorted(snakemake.input):  # type: ignore[name-defined]  # noqa: F821
        lines = [line for line in Path(path).read_text().splitlines() if not line.startswith("#")]
        print(Path(path).stem, len(lines), sum(int(line.split("\t")[1]) for line in lines), file=out)
