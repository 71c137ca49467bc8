"""The operands and incoming gradients of calls that differ from a plain one."""
