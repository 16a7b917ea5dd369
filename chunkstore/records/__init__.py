"""Plain values that every layer shares: records, names, chunks, block checksums, framing, reports, checks of arguments, log lines."""
