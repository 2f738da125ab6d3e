"""`make bench-policies`: policies on recorded and made-up markets, against baselines and what hindsight would have paid."""
