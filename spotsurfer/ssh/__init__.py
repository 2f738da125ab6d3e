"""SSH to machines: a shell, a look at live output, a nudge. It never carries state; everything works without it, later."""
