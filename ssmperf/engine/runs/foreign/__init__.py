"""How is a file of another program read as a run?"""
