"""What proves rather than measures, and takes too long for every run: `ci/proofs` runs it."""
