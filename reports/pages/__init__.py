"""Pages of HTML: one each for runs, a comparison, a history and claims of papers."""
