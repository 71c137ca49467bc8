"""Parts of a plan: what runs in one process, one after another, or on one machine."""
