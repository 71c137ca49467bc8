"""Turn records into rows: frames, ranks, contests, crossings, envelopes, costs, and numbers as text."""
