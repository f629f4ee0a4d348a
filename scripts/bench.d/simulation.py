"""Thousands of simulated hosts: how plan, journal, executor and sync grow. The hosts are a simulation inside
imgctl (`imgctl simulate`); what is measured is the controller."""

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path

import report
from conditions import Conditions


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


def main(words):
    parser = argparse.ArgumentParser(prog="scripts/bench sim")
    report.options(parser, runs=1)
    parser.add_argument("--hosts", default="10,100,1000,10000")
    parser.add_argument("--takes", type=int, default=5, help="milliseconds each command takes")
    parser.add_argument("--parallel", type=int, default=32)
    parser.add_argument("--dir", default="/var/tmp/imgctl-bench-sim", help="a folder on a disk: journals are synced")
    chosen = report.parsed(parser, words)
    base, watch = Path(chosen.dir), Conditions()
    measured = [
        one(os.environ.get("IMGCTL_TESTING") or os.environ["IMGCTL"], base, int(hosts), chosen.takes, chosen.parallel)
        for hosts in chosen.hosts.split(",")
    ]
    shutil.rmtree(base, ignore_errors=True)
    made = report.Report("sim", 1, chosen.quick, [], watch.end(), table(measured), where="journals on the disk",
                         discarded=False)
    report.publish(made, chosen)


def table(measured):
    lines = [
        "| hosts | steps | plan | execute | µs a step | journal | sync of 30 layers | uplink | peak memory | memory a host |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    first = measured[0]
    for each in measured:
        step = each["execute_ms"] * 1000 / max(1, each["done"])
        more = each["hosts"] - first["hosts"]
        memory = f"{(each['peak_kib'] - first['peak_kib']) / more:.1f} KiB" if more else "-"
        lines.append(
            f"| {each['hosts']} | {each['steps']} | {each['plan_ms']} ms | {each['execute_ms'] / 1000:.2f} s "
            f"| {step:.0f} | {each['journal_bytes'] / 1e6:.2f} MB "
            f"| {(each['sync_plan_ms'] + each['sync_ms']) / 1000:.2f} s | {each['uplink_bytes'] / 2**20:.0f} MiB | {each['peak_kib'] / 1024:.1f} MiB | {memory} |"
        )
    return lines
