"""The commands of the laboratory: `spotsurfer backtest …` and `spotsurfer policies`."""
