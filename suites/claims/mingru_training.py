"""Were RNNs all we needed: minimal RNNs train hundreds of times as fast as GRU and LSTM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssmperf.suitekit import ClaimSetting, Finding, claim

from . import _papers as papers
from ._pieces import of_pieces
from ._timing import faster, timed

LENGTHS = {"standard": (512, 4096), "smoke": (32,)}
SIZES = {"standard": (64, 128), "smoke": (2, 8)}  # B, C
PAIRS = (("mingru", "gru"), ("minlstm", "lstm"))
# factors as printed, by model and length
PRINTED = {("mingru", 512): "175", ("minlstm", 512): "235", ("minlstm", 4096): "1361"}
PARALLEL = ("triton", "blelloch")  # the second where there is no GPU
CELLS, CUDNN = "sequential", "torch_rnn"
LAYERS = 2


@claim(
    "mingru:training",
    paper=papers.MIN_RNN,
    place="Section 4.1 and Fig. 1",
    statement="A training step of minGRU and minLSTM is hundreds of times as fast as one of GRU and LSTM.",
    printed="175× (minGRU), 235× (minLSTM) at T = 512; 1,361× at T = 4,096, the larger of the two",
    runs="training steps on bytes of text of a network of two blocks with embedding and head, float32, "
    "B = 64, 128 channels, T = 512 and 4,096: `mingru` and `minlstm` by our Triton scan; `gru` and `lstm` by "
    "a loop over cells and by cuDNN",
    scaled="two of our blocks instead of the paper's network, and another device; the paper's GRU and LSTM "
    "are loops over cells without fused kernels. The factors are shown, the order decides",
    doubts="Whoever trains a GRU by cuDNN, as most do: against it the factor is small. A loop over cells "
    "costs the host's time, which differs between machines",
    version=2,
    changed="each was timed in one process only",
    rule="agrees: the minimal RNN is faster than the loop over cells at each length, with disjoint "
    "intervals; cuDNN, which the paper does not compare with, is shown beside it",
    device="cuda",
    budget_s=720,
    budget_of="piece",
    has_smoke=True,
)
class Training:
    """One piece per length and pair."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return names(setting.preset)

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        minimal, _, length = piece.partition("-T")
        B, C = SIZES[setting.preset]
        return timed(
            setting,
            "times",
            suite="training",
            models=[minimal, dict(PAIRS)[minimal]],
            backends=[PARALLEL[0] if setting.on_gpu else PARALLEL[1], CELLS, CUDNN],
            layers=LAYERS,
            dtype="float32",
            axis=[f"B={B}", f"T={length}", f"C={C}"],
        )

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        for piece, numbers in of_pieces(found, names("standard")).items():
            minimal, _, length = piece.partition("-T")
            full, T = dict(PAIRS)[minimal], int(length)
            backends = {case["backend"] for case in numbers.get("cases", ())}
            parallel = next((each for each in PARALLEL if each in backends), PARALLEL[0])
            printed = PRINTED.get((minimal, T), "")
            for slow in (CELLS, CUDNN):
                factor = float(printed) if printed and slow == CELLS else None
                yield from faster(
                    f"{minimal} against {full} by {'cells' if slow == CELLS else 'cuDNN'}, T = {T:,}",
                    f"{factor:,.0f}×" if factor else "",
                    numbers,
                    {"model": full, "backend": slow},
                    {"model": minimal, "backend": parallel},
                    times=(factor, factor) if factor else None,
                    decides=slow == CELLS,
                )


def names(preset: str) -> list[str]:
    """Name the pieces of a preset."""
    return [f"{minimal}-T{T}" for T in LENGTHS[preset] for minimal, _ in PAIRS]
