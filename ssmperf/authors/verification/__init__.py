"""Is this one function right? A judgement in the calling process, for a test or a notebook."""
