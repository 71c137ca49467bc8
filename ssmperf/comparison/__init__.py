"""Is it slower: two runs or two versions, case by case; the commit that did it; runs over time."""
