"""For a kernel's author: verify a kernel, time it, call it, and begin one."""
