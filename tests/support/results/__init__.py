"""Made-up results, and what the forms in which they are shown say."""
