"""Models: one file a paper. Each lowers to a recurrence and carries its literal definition."""
