"""LCSM, Tables 4 to 6: the parameters of the language models of the grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssmperf.suitekit import Agreement, ClaimSetting, Finding, claim, registry

from . import _papers as papers
from ._counting import COUNTS, count, of_count

K, D, LAYERS, VOCABULARY = 128, 512, 10, 50265
WIDTH = 682  # inside the GLU, 4/3 of the width of the layer
# rows of Table 4: code, printed count in millions, and the width inside the GLU
TABLE_4 = {
    "0-0-0-0": ("43.45", 682), "1-0-0-0": ("43.45", 682), "0-0-1-0": ("43.45", 682),
    "0-1-0-0": ("44.04", 550), "1-1-0-0": ("44.04", 550), "1-0-1-0": ("43.45", 682),
    "1-0f-1-0": ("43.45", 682), "0-1-1-0": ("44.04", 550), "1-1-1-0": ("44.04", 550),
    "1-2-1-0": ("43.45", 554), "1-3-1-0": ("43.45", 682), "1-4-1-0": ("44.50", 793),
    "1-5-1-0": ("44.51", 793), "1-6-1-0": ("44.11", 682), "1-7-1-0": ("44.04", 550),
    "1-8-1-0": ("43.45", 554), "1-9-1-0": ("43.46", 682), "1-10-1-0": ("43.45", 682),
    "1-11-1-0": ("44.11", 682),
}  # fmt: skip
# gates that are no parameters here, and frozen ones in the published code, which counts them
FROZEN = {"0f": K * D, "10": K * D, "11": 2 * K * D}
SSM, SSM_RANK = "1-ssm-1-0", 32
ACTIVATION = "1-1-1-1"
FITTED_WIDTH = "the width inside the GLU, which the paper does not state, was fitted to this very number"
FITTED_RANK = (
    f"the rank of the step size, {SSM_RANK}, was fitted to this very number: the released code has 16, "
    "which gives 43.615 M"
)


@claim(
    "lcsm:parameters",
    paper=papers.LCSM,
    place="Tables 4, 5 and 6",
    statement="The language models of the grid have 43 to 46 million parameters.",
    printed="Table 4: 19 rows, 43.45 to 44.51 M; Table 5: 43.78 M; Table 6: 46.07 M",
    runs=f"parameters of networks of {LAYERS} blocks, d = {D}, k = {K}, with tied embeddings",
    scaled="nothing. The rows' codes are read off their order and counts, since the printed ones were "
    "lost. Nine rows need widths of the GLU (550, 554, 793) that the paper does not state, and Table 5 needs "
    "a rank of 32 where the released code has 16",
    rule="agrees: our count rounds to the printed one. Rows with a fitted width or rank are shown and decide "
    "nothing",
    doubts="Whoever has the codes of the rows, which were lost in print, or the widths of the nine rows "
    "that need others",
    budget_s=60,
)
class Parameters:
    """One count per row."""

    def pieces(self, setting: ClaimSetting) -> Sequence[str]:
        return (COUNTS,)

    def measure(self, piece: str, setting: ClaimSetting) -> Mapping[str, Any]:
        found = {code: network(code, width) for code, (_, width) in TABLE_4.items()}
        found["table 5"] = network(SSM, WIDTH, delta_rank=SSM_RANK)
        found["table 6"] = network(ACTIVATION, WIDTH)
        return found

    def conclude(self, found: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
        counts = found.get(COUNTS, {})
        for code, (printed, width) in TABLE_4.items():
            row = f"Table 4, {code}", printed, counts.get(code)
            yield of_count(*row) if width == WIDTH else of_fitted_count(*row, FITTED_WIDTH)
        yield of_fitted_count("Table 5, SSM parameterisation", "43.78", counts.get("table 5"), FITTED_RANK)
        yield of_count("Table 6, activations", "46.07", counts.get("table 6"))


def of_fitted_count(what: str, printed: str, counted: Any, fitted: str) -> Finding:
    """Compare a count of fitted sizes with the printed one: it decides nothing, and cannot agree."""
    finding = of_count(what, printed, counted, decides=False)
    if finding.agreement is not Agreement.AGREES:
        return finding
    judged = Agreement.CANNOT_TELL, fitted
    return Finding(finding.what, finding.printed, finding.ours, judged, decides=False)


def network(code: str, hidden: int, **options: int) -> int:
    """Count the paper's network of a code: tied embeddings, and no parameters in the last norm."""
    name = f"lcsm:{code}"
    sizes = {"scan": {"C": K * D, "K": K}, "selective_scan": {"D": D, "N": K}}
    parameters = count(
        name,
        sizes.get(registry.model(name).recurrence, {"H": 1, "K": K, "V": D}),
        layers=LAYERS,
        vocabulary=VOCABULARY,
        tied=True,
        final_norm=False,
        options=options,
        block_options={"hidden": hidden},
    )
    return parameters + LAYERS * FROZEN.get(code.split("-")[1], 0)
