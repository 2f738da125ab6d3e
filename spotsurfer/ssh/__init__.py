"""SSH to machines: a shell, live output, a nudge for the agent. It carries no state; without it everything works, but later."""
