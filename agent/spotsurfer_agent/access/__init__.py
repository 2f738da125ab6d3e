"""Rights to the store that are handed out for a while and renewed; see `purse` for how, `handout` for what travels."""
