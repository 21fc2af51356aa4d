"""One command a benchmark: `python -m benchmarks.NAME`. Each prints a table and writes build/bench/NAME.json."""
