"""What holds jobs back before their first machine, as values: arrays and their limits, dependencies, licences."""
