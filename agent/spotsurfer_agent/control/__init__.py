"""What the agent decides and when: its loop, the state machine of an attempt, notices, forecasts, reports."""
