"""With what does the author of a kernel begin? A plug-in file, its tests, and a repository around them."""
