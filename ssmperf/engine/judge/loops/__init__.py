"""How is a literal loop run, in bounded memory and with few launches?"""
