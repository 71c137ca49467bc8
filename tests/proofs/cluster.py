"""A node of a cluster dies during a run, then the driver: no finished case is lost or doubled.

    python tests/proofs/cluster.py FOLDER

On two local nodes of Ray, a run of small cases is begun. Once it has some records, a node is killed; once it
has more, the driver is. `--resume` then completes the run on one node. Every planned case must have one
record, `ok`, and those that were there before must be there still, to the byte.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from ray.cluster_utils import Cluster

CHOSEN = "--suite throughput --models gla,mingru,hgrn --backends sequential,blelloch,chunkwise --pass forward"
SIZES = "--axis T=8,16,24,32 --time 0.02 --device cpu"
BEFORE_NODE, BEFORE_DRIVER = 4, 8  # records after which the node, and the driver, are killed
PATIENCE_S = 240.0


def main(out: Path) -> int:
    run = out / "run"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    command = [sys.executable, "-m", "ssmperf.shell.cli", "run", *CHOSEN.split(), *SIZES.split()]
    command += ["--executor", "ray", "--address", cluster.address, "--out", str(run)]
    with (out / "driver.log").open("wb") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for(run, BEFORE_NODE, driver)
        cluster.remove_node(second, allow_graceful=False)
        wait_for(run, BEFORE_DRIVER, driver)
        driver.kill()
        driver.wait()
    kept = whole_lines(run)
    print(f"{len(kept)} records when a node and the driver were dead", flush=True)
    subprocess.run([*command, "--resume"], check=True, timeout=PATIENCE_S)
    cluster.shutdown()
    return judged(run, kept)


def judged(run: Path, kept: list[str]) -> int:
    """Compare the records with the plan and with those from before; 1 if something is wrong."""
    lines = whole_lines(run)
    planned = json.loads((run / "run.json").read_text())["plan"]["case_ids"]
    records = [json.loads(line) for line in lines]
    counts = Counter(record["case_id"] for record in records)
    wrong = [record for record in records if record["status"] != "ok"]
    faults = [f"{id_}: {counts[id_]} records" for id_ in planned if counts[id_] != 1]
    faults += [f"{record['case_id']}: {record['status']}, {record['reason']}" for record in wrong]
    faults += [] if lines[: len(kept)] == kept else ["a record from before has changed"]
    faults += [] if len(kept) < len(planned) else ["the run had ended before the driver was killed"]
    print("\n".join(faults) or f"{len(planned)} cases, each with one record")
    return 1 if faults else 0


def wait_for(run: Path, count: int, driver: subprocess.Popen[bytes]) -> None:
    """Wait until a run has so many records."""
    end = time.monotonic() + PATIENCE_S
    while len(whole_lines(run)) < count:
        if driver.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"the driver has ended, or is too slow: {len(whole_lines(run))} records")
        time.sleep(0.1)


def whole_lines(run: Path) -> list[str]:
    """Read the records of a run that are written to the end."""
    file = run / "records.jsonl"
    text = file.read_text() if file.exists() else ""
    return text.splitlines()[: text.count("\n")]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    raise SystemExit(main(folder))
