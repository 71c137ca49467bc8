"""Which of two versions is faster, and what can this machine tell apart?"""
