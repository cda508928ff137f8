"""Dashboards and alerts: `deploy_dashboards.py` checks deploy/grafana against docs/metrics.md and the alerts.

check_answers(URL, FOLDER) asks a Prometheus that watches a cluster for all that the panels show."""

import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Prometheus looks every second, and some series begin late.
PATIENCE_S = 120
# Metrics that are there only after something that a short run does not have: nodes with too much to do, transactions on a
# chain, deposits, backups.
RARE = {
    "covault_signer_busy_total",
    "covault_signing_second_teams_total",
    "covault_signing_waiting",
    "covault_open_transactions",
    "covault_deposits_block",
    "covault_deposits_failures_total",
    "covault_deposits_stopped",
    "covault_deposits_reconciled_timestamp_seconds",
    "covault_deposits_traces",
    "covault_sweeps_oldest_wait_timestamp_seconds",
    "covault_webhooks_waiting",
    "covault_console_wrong_tries_total",
    "covault_backup_age_seconds",
    # With PostgreSQL there is no file.
    "covault_store_bytes",
}


def documented():
    """The metrics of docs/metrics.md: the first column of its tables."""
    lines = (ROOT / "docs/metrics.md").read_text().splitlines()
    return {match[1] for line in lines if (match := re.match(r"\| `(covault_[a-z_]+)` \|", line))}


def named(expression):
    """The metrics that an expression names, a histogram by its name."""
    found = set(re.findall(r"\bcovault_[a-z_]+\b", re.sub(r'"[^"]*"', '""', expression)))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


def dashboards(folder):
    boards = {path.name: json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))}
    assert set(boards) == {"overview.json", "vaults.json", "nodes.json", "chains.json"}, set(boards)
    return boards


def expressions(boards):
    for name, board in boards.items():
        for panel in board["panels"]:
            for target in panel["targets"]:
                yield f"{name}: {panel['title']}", target["expr"].replace("$__rate_interval", "1m")


def check_layout(name, board):
    """Each panel has a title, an explanation and a place of its own in a grid of 24 columns."""
    assert board["uid"] == f"covault-{name.removesuffix('.json')}", name
    taken, seen = set(), set()
    for panel in board["panels"]:
        where = f"{name}: {panel['title']}"
        assert panel["title"] and panel["description"].endswith("."), where
        assert panel["id"] not in seen, f"{where}: its id is another one's"
        seen.add(panel["id"])
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24, f"{where}: its place is another one's"
        taken |= cells
        letters = [target["refId"] for target in panel["targets"]]
        assert letters and len(set(letters)) == len(letters), where
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source["uid"] == "${datasource}" for source in sources), where


def check_syntax(asked):
    """As rules of Prometheus, whose own program reads them."""
    rules = [{"record": f"panel:number:{number}", "expr": expression} for number, (_, expression) in enumerate(asked)]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        # JSON is YAML.
        json.dump({"groups": [{"name": "panels", "rules": rules}]}, file)
        file.flush()
        checked = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def check_files():
    boards, known = dashboards(ROOT / "deploy/grafana"), documented()
    assert len(known) > 30, known
    for name, board in boards.items():
        check_layout(name, board)
    asked = list(expressions(boards))
    check_syntax(asked)
    shown = set()
    for where, expression in asked:
        assert named(expression) <= known, f"{where} shows what docs/metrics.md has not: {named(expression) - known}"
        shown |= named(expression)
    alerts = (ROOT / "deploy/prometheus/alerts.yaml").read_text()
    assert named(alerts) <= known, named(alerts) - known
    missing = known - shown - named(alerts)
    assert not missing, f"in no panel and no alert: {sorted(missing)}"
    print(f"tests/deploy: {len(asked)} expressions of four dashboards show every metric of docs/metrics.md")


def check_answers(prometheus, folder):
    """Every expression is answered, and with something as soon as it was looked at twice, except about what rarely happens."""
    for where, expression in expressions(dashboards(folder)):
        query = urllib.parse.urlencode({"query": expression})
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with urllib.request.urlopen(f"{prometheus}/api/v1/query?{query}") as answer:
                said = json.load(answer)
            assert said["status"] == "success", f"{where}: {said}"
            if said["data"]["result"] or named(expression) & RARE:
                break
            assert time.monotonic() < deadline, f"{where}: nothing is found for {expression}"
            time.sleep(0.5)
    print("tests/deploy: a Prometheus that watches the cluster answers every panel")


if __name__ == "__main__":
    try:
        check_files()
    except AssertionError as wrong:
        sys.exit(f"tests/deploy: {wrong}")
