"""Kernels of the `triton` backend, and the host code that launches them.

Words that these files share:

- step block: STEPS consecutive steps, whose operands are loaded together, one block ahead of their use.
- segment: a stretch of time that one program walks; the whole, unless batch and channels are too few.
- summary of a segment: its final state from no state, and the product of its gates.
- checkpoint: a state that forward saves, one per `tiles.CHECKPOINT` steps; backward recomputes from it.
- group: lanes that hold the same states, STATES of each of their channels; GROUPS of them have them all.
- spread: each group of lanes holds other steps of a channel's values, so that each is formed once.
- plane: a state in the kernels' own memory, (states, D), channels innermost.
- ZOH: zero-order hold, the discretisation that holds an input over its step.
- fused options: step sizes by bias and softplus, skip, output gate, packed sequences.
- μ: the adjoint of the state before a step, a ⊙ Λ.
"""
