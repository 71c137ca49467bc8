"""The papers that models cite, each as `title (year), arXiv:number`; a model adds the place in the paper.

The year is that of the arXiv number. Where a paper is not on arXiv, its venue stands in place of the number.
"""

from __future__ import annotations

ALIBI = (
    "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation (2021), "
    "arXiv:2108.12409"
)
ATTENTION = "Attention Is All You Need (2017), arXiv:1706.03762"
BASED = (
    "Simple linear attention language models balance the recall-throughput tradeoff (2024), arXiv:2402.18668"
)
COSFORMER = "cosFormer: Rethinking Softmax in Attention (2022), arXiv:2202.08791"
DECAYING = "Fine-Tuning Pre-trained Transformers into Decaying Fast Weights (2022), arXiv:2210.04243"
DELTANET = (
    "Parallelizing Linear Transformers with the Delta Rule over Sequence Length (2024), arXiv:2406.06484"
)
DELTAPRODUCT = (
    "DeltaProduct: Improving State-Tracking in Linear RNNs via Householder Products (2025), arXiv:2502.10297"
)
DSS = "Diagonal State Spaces are as Effective as Structured State Spaces (2022), arXiv:2203.14343"
EAGLE = "Eagle and Finch: RWKV with Matrix-Valued States and Dynamic Recurrence (2024), arXiv:2404.05892"
ETSC = "Accelerating Toeplitz Neural Network with Constant-time Inference Complexity (2023), arXiv:2311.08756"
FAST_WEIGHTS = "Linear Transformers Are Secretly Fast Weight Programmers (2021), arXiv:2102.11174"
FORGET_GATE = "Learning to Forget: Continual Prediction with LSTM (2000), Neural Computation 12(10)"
FORGETTING = "Forgetting Transformer: Softmax Attention with a Forget Gate (2025), arXiv:2503.02130"
GATED_DELTANET = "Gated Delta Networks: Improving Mamba2 with Delta Rule (2024), arXiv:2412.06464"
GATELOOP = "GateLoop: Fully Data-Controlled Linear Recurrence for Sequence Modeling (2023), arXiv:2311.01927"
GFW = "Gated Fast Weights for Associative Retrieval (2018), OpenReview HJ8W1Q-0Z"
GLA = "Gated Linear Attention Transformers with Hardware-Efficient Training (2023), arXiv:2312.06635"
GRIFFIN = (
    "Griffin: Mixing Gated Linear Recurrences with Local Attention for Efficient Language Models (2024), "
    "arXiv:2402.19427"
)
GRU = (
    "Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine Translation (2014), "
    "arXiv:1406.1078"
)
GSA = "Gated Slot Attention for Efficient Linear-Time Sequence Modeling (2024), arXiv:2409.07146"
HGRN = "Hierarchically Gated Recurrent Neural Network for Sequence Modeling (2023), arXiv:2311.04823"
HGRN2 = "HGRN2: Gated Linear RNNs with State Expansion (2024), arXiv:2404.07904"
KIMI = "Kimi Linear: An Expressive, Efficient Attention Architecture (2025), arXiv:2510.26692"
LCSM = (
    "Unlocking the Secrets of Linear Complexity Sequence Model from A Unified Perspective (2024), "
    "arXiv:2405.17383"
)
LINEARIZATION = "On the Linearization of Recurrent Modeling (undated), no arXiv number"
LINEAR_RNN = "Parallelizing Linear Recurrent Neural Nets Over Sequence Length (2017), arXiv:1709.04057"
LINEAR_TRANSFORMER = (
    "Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention (2020), arXiv:2006.16236"
)
LONGHORN = "Longhorn: State Space Models are Amortized Online Learners (2024), arXiv:2407.14207"
LRPE = "Linearized Relative Positional Encoding (2023), arXiv:2307.09270"
LRU = "Resurrecting Recurrent Neural Networks for Long Sequences (2023), arXiv:2303.06349"
LSTM = "Long Short-Term Memory (1997), Neural Computation 9(8)"
MAMBA = "Mamba: Linear-Time Sequence Modeling with Selective State Spaces (2023), arXiv:2312.00752"
MAMBA2 = (
    "Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State Space "
    "Duality (2024), arXiv:2405.21060"
)
MAMBA3 = "Mamba-3: Improved Sequence Modeling using State Space Principles (2026), arXiv:2603.15569"
MIN_RNN = "Were RNNs All We Needed? (2024), arXiv:2410.01201"
RETNET = "Retentive Network: A Successor to Transformer for Large Language Models (2023), arXiv:2307.08621"
ROFORMER = "RoFormer: Enhanced Transformer with Rotary Position Embedding (2021), arXiv:2104.09864"
RWKV = "RWKV: Reinventing RNNs for the Transformer Era (2023), arXiv:2305.13048"
RWKV7 = 'RWKV-7 "Goose" with Expressive Dynamic State Evolution (2025), arXiv:2503.14456'
S4 = "Efficiently Modeling Long Sequences with Structured State Spaces (2021), arXiv:2111.00396"
S4D = "On the Parameterization and Initialization of Diagonal State Space Models (2022), arXiv:2206.11893"
S5 = "Simplified State Space Layers for Sequence Modeling (2022), arXiv:2208.04933"
SASHIMI = "It's Raw! Audio Generation with State-Space Models (2022), arXiv:2202.09729"
TFLA = "Tiled Flash Linear Attention: More Efficient Linear RNN and xLSTM Kernels (2025), arXiv:2503.14376"
TNL = (
    "TransNormerLLM: A Faster and Better Large Language Model with Improved TransNormer (2023), "
    "arXiv:2307.14995"
)
TNN = "Toeplitz Neural Network for Sequence Modeling (2023), arXiv:2305.04749"
TTT = "Learning to (Learn at Test Time): RNNs with Expressive Hidden States (2024), arXiv:2407.04620"
XLSTM = "xLSTM: Extended Long Short-Term Memory (2024), arXiv:2405.04517"
