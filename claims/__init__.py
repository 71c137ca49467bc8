"""What papers claim, one file per claim: what is printed, what runs, how it is scaled down, and the rule."""
