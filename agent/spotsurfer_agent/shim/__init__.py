"""The small process beside each job that outlives agents. Standard library only, but for `client`, which is the agent's end."""
