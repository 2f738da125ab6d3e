"""The laboratory: plays policies on recorded and made-up markets, on a virtual clock, without a cloud."""
