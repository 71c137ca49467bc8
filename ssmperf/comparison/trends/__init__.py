"""What changed over many runs: at which commit did a case become slower, and does it creep?"""
