"""The virtual world: policies are tried on recorded and made-up markets, on a virtual clock, without a cloud."""
