"""Models: one file per paper. Each lowers to a recurrence and carries its literal definition."""
