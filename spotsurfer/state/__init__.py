"""The controller's own database: jobs, attempts, journal, ledger, timeline."""
