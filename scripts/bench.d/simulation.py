"""A thousand simulated hosts: how plan, journal and executor grow. The hosts are a simulation inside
imgctl (`imgctl simulate`); what is measured is the controller."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path


def one(imgctl, base, hosts, takes, parallel):
    directory = base / f"sim-{hosts}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    command = [
        imgctl, "--json", "--root", directory / "store", "simulate", "--dir", directory,
        "--hosts", str(hosts), "--takes", str(takes), "--parallel", str(parallel),
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    shutil.rmtree(directory, ignore_errors=True)
    return json.loads(done.stdout)


def main(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench sim")
    parser.add_argument("--hosts", default="10,100,1000")
    parser.add_argument("--takes", type=int, default=5, help="milliseconds each command takes")
    parser.add_argument("--parallel", type=int, default=32)
    parser.add_argument("--dir", default="/var/tmp/imgctl-bench-sim", help="a folder on a disk: journals are synced")
    chosen = parser.parse_args(arguments)
    base = Path(chosen.dir)
    rows = [
        one(os.environ["IMGCTL"], base, int(hosts), chosen.takes, chosen.parallel)
        for hosts in chosen.hosts.split(",")
    ]
    shutil.rmtree(base, ignore_errors=True)
    print("| hosts | steps | plan | execute | µs a step | journal | peak memory | memory a host |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    first = rows[0]
    for row in rows:
        each = row["execute_ms"] * 1000 / max(1, row["done"])
        grown = row["peak_kib"] - first["peak_kib"]
        more = row["hosts"] - first["hosts"]
        memory = f"{grown / more:.1f} KiB" if more else "-"
        print(
            f"| {row['hosts']} | {row['steps']} | {row['plan_ms']} ms | {row['execute_ms'] / 1000:.2f} s "
            f"| {each:.0f} | {row['journal_bytes'] / 1e6:.2f} MB | {row['peak_kib'] / 1024:.1f} MiB | {memory} |"
        )
    sys.stdout.flush()
