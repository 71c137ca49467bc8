"""The papers whose claims are put to the test, each as `title (year), arXiv:number`."""

from __future__ import annotations

GATELOOP = "GateLoop: Fully Data-Controlled Linear Recurrence for Sequence Modeling (2023), arXiv:2311.01927"
HGRN2 = "HGRN2: Gated Linear RNNs with State Expansion (2024), arXiv:2404.07904"
LCSM = (
    "Unlocking the Secrets of Linear Complexity Sequence Model from A Unified Perspective (2024), "
    "arXiv:2405.17383"
)
LINEARIZATION = "On the Linearization of Recurrent Modeling (undated), no arXiv number"
LONGHORN = "Longhorn: State Space Models are Amortized Online Learners (2024), arXiv:2407.14207"
MAMBA = "Mamba: Linear-Time Sequence Modeling with Selective State Spaces (2023), arXiv:2312.00752"
MAMBA2 = (
    "Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State Space "
    "Duality (2024), arXiv:2405.21060"
)
MIN_RNN = "Were RNNs All We Needed? (2024), arXiv:2410.01201"
