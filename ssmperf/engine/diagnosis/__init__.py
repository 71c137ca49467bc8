"""What is wrong with a wrong result? Every answer here is tested against the exact numbers, never guessed."""
