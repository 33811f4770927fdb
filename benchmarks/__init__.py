"""The benchmark: what to run, running it, keeping records, tables."""
