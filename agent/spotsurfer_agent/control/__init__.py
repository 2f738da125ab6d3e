"""The agent's decisions: its loop, the state machine of an attempt, notices, forecasts and reports."""
