"""Host code that the backends in Triton share: launch plans, the launcher, compiling ahead, small helpers.

`plan` keeps what a call decides about `slots` (both know no Triton, and kernels in CUDA C++ use them too),
`together` makes all launches of a plan in one call of C, `launch`
enqueues kernels of Triton, `ahead` compiles a backward pass beside the first forward pass, `host` and
`arithmetic` hold helpers of host code and of kernels. Import the modules: this file imports none of them, so
that listing the backends costs no import of Triton.

Words that the kernels use:

- checkpoint: a state, or an exponent, that forward stores every so many steps, for backward to start from.
- segment: a stretch of time that one program walks while others walk theirs. Segments need what those before
  them add, which a first launch finds.
- step block: the consecutive steps that a program holds in registers at a time.
- items per thread: consecutive steps of a thread's own, composed before threads exchange anything.
- ZOH: zero-order hold, the discretization that keeps the input constant during a step.
- fused epilogue: what a kernel does to its result before it stores it, such as an output gate.
- chained scan with decoupled look-back: tiles of a sequence run side by side, and each learns the state
  before it from what the tiles before it published (Merrill and Garland, Single-pass Parallel Prefix Scan
  with Decoupled Look-back, NVIDIA technical report NVR-2016-002, 2016).
"""
