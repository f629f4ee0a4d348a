"""What imgctl is measured against, and whether the figures of a report reach it. A goal without figures
says so."""

from report import row

MB = 1_000_000


def ratio(report, workload, job, over, against="imgctl", what="wall", limit_job=None):
    """imgctl's figure divided by that of `over` (a tool, or a limit's job)."""
    ours = report.median(workload, job, against, what)
    theirs = report.median(workload, limit_job or job, over, what)
    return ours / theirs if ours is not None and theirs else None


def value(report, name):
    return report.values.get(name)


def fraction(report, name, over):
    one, other = value(report, name), value(report, over)
    return one / other if one is not None and other else None


# Part, what, how to take it from the part's report, the most that is allowed, how to show it.
GOALS = [
    ("rebuild", "unchanged rebuild, against `find` (W1)", lambda r: ratio(r, "w1", "rebuild", "limit", limit_job="stat walk"), 1.5, "{:.2f}x"),
    ("rebuild", "unchanged rebuild, against `find` (W2)", lambda r: ratio(r, "w2", "rebuild", "limit", limit_job="stat walk"), 1.5, "{:.2f}x"),
    ("build", "memory of a build, MiB beyond 64 + 300 bytes a file (W1)", lambda r: memory(r, "w1", 20_000), 0, "{:+.0f} MiB"),
    ("build", "memory of a build, MiB beyond 64 + 300 bytes a file (W2)", lambda r: memory(r, "w2", 100_000), 0, "{:+.0f} MiB"),
    ("build", "`load`, against buildah (W1)", lambda r: ratio(r, "w1", "load", "buildah"), 1 / 8, "{:.3f}"),
    ("build", "`load`, against buildah (W3)", lambda r: ratio(r, "w3", "load", "buildah"), 1 / 8, "{:.3f}"),
    ("build", "EROFS mount of an image never unpacked (W1)", lambda r: r.median("w1", "erofs mount", "imgctl"), 1.0, "{:.2f} s"),
    ("rebuild", "`--version`", lambda r: r.median("-", "--version", "imgctl"), 0.002, "{:.4f} s"),
    ("rebuild", "the binary", lambda r: value(r, "binary") and value(r, "binary") / MB, 22, "{:.1f} MB"),
    ("ship", "pull (gzip) until mountable, against `tar x` (W1)",
     lambda r: ratio(r, "w1", "pull gzip, mountable", "limit", limit_job="tar x"), 1.4, "{:.2f}x"),
    ("ship", "pull (zstd) until mountable, against `tar x` (W1)",
     lambda r: ratio(r, "w1", "pull zstd, mountable", "limit", limit_job="tar x"), 1.4, "{:.2f}x"),
    ("ship", "pull (gzip) until mountable, against podman (W1)", lambda r: ratio(r, "w1", "pull gzip, mountable", "podman"), 1 / 3, "{:.3f}"),
    ("ship", "push, against buildah (W1)", lambda r: ratio(r, "w1", "push", "buildah"), 1 / 4, "{:.3f}"),
    ("ship", "push when nothing changed (W1)", lambda r: r.median("w1", "push, nothing changed", "imgctl"), 0.2, "{:.3f} s"),
    ("ship", "CPU of a push, against crane (W1)", lambda r: ratio(r, "w1", "push", "crane", what="cpu"), 1.0, "{:.2f}x"),
    ("ship", "`save`, against buildah (W1)", lambda r: ratio(r, "w1", "save", "buildah"), 1 / 5, "{:.3f}"),
    ("ci", "unchanged build with a signed cache, against buildah (W1)", lambda r: ratio(r, "w1", "unchanged", "buildah"), 1 / 20, "{:.3f}"),
    ("ci", "one file changed, against buildah (W1)", lambda r: ratio(r, "w1", "one file changed", "buildah"), 1 / 10, "{:.3f}"),
    ("ci", "export of an unchanged cache (W1)", lambda r: value(r, "w1 export"), 0.05, "{:.3f} s"),
    ("ci", "two platforms, against one (W3)", lambda r: value(r, "w3 two platforms"), 1.15, "{:.2f}x"),
    ("sync", "a registry's host, against `tar` over ssh", lambda r: ratio(r, "w1", "registry host", "tar|ssh"), 1.0, "{:.2f}x"),
    ("sync", "another host, against rsync", lambda r: ratio(r, "w1", "other host", "rsync"), 0.5, "{:.2f}x"),
    ("sync", "four hosts, against rsync", lambda r: ratio(r, "w1", "four hosts", "rsync"), 0.5, "{:.2f}x"),
    ("sync", "eight hosts behind 1 Gbit/s, against one",
     lambda r: ratio(r, "w1", "eight hosts", "imgctl", limit_job="one, shaped"), 2.0, "{:.2f}x"),
    ("sync", "second run of four hosts", lambda r: r.median("w1", "second run", "imgctl"), 0.3, "{:.2f} s"),
    ("delta", "pull of the next version: bytes, against the whole pull",
     lambda r: fraction(r, "pull old imgctl bytes", "pull nothing imgctl bytes"), 0.1, "{:.3f}"),
    ("delta", "pull of the next version: time, against podman",
     lambda r: fraction(r, "pull old imgctl wall", "pull old podman wall"), 0.1, "{:.3f}"),
    ("delta", "four hosts: bytes sent, against `rsync -az`",
     lambda r: fraction(r, "hosts imgctl bytes", "hosts rsync -az bytes"), 0.1, "{:.3f}"),
    ("delta", "bundle with deltas, against one without", lambda r: fraction(r, "delta", "bundle"), 1 / 3, "{:.3f}"),
    ("delta", "bundle with deltas, against `zstd -19 --patch-from` of the files", lambda r: fraction(r, "delta", "patches"), 1.3, "{:.2f}x"),
    ("delta", "etcd 3.5.0 to 3.5.1", lambda r: value(r, "etcd") and value(r, "etcd") / MB, 3.2, "{:.2f} MB"),
    ("delta", "applying a delta, s per 150 MB on a core", lambda r: value(r, "apply MB/s of a core") and 150 / value(r, "apply MB/s of a core"),
     1.0, "{:.2f} s"),
    ("delta", "memory of applying a delta", lambda r: value(r, "apply MiB"), 256, "{:.0f} MiB"),
    *(("backup", f"backup{what} of 2 GB of etcd to a {place}, against `etcdctl snapshot save` and one upload",
       lambda r, place=place, tool=tool: ratio(r, "backup", place, "etcdctl", tool), 1.3, "{:.2f}x")
      for place in ("registry", "directory") for tool, what in (("imgctl", ""), ("imgctl, encrypted", ", encrypted,"))),
    ("pages", "`report image` of 20,000 files", lambda r: r.median("pages", "image, 20,000 files", "imgctl"), 0.3, "{:.2f} s"),
    ("pages", "`report image` of 100,000 files", lambda r: r.median("pages", "image, 100,000 files", "imgctl"), 1.0, "{:.2f} s"),
    ("pages", "first paint of the slowest page", lambda r: value(r, "slowest paint"), 1000, "{:.0f} ms"),
    ("pages", "slowest interaction, 500 hosts and 100,000 files", lambda r: value(r, "slowest interaction"), 100, "{:.0f} ms"),
    ("pages", "CPU of a run that a console follows, against one by itself", lambda r: value(r, "run followed, in pairs"), 1.02, "{:.3f}x"),
    ("pages", "console in 10 s without a run", lambda r: value(r, "idle"), 0.01, "{:.2f} s of CPU"),
]


def memory(report, workload, files):
    peak = max((report.median(workload, job, "imgctl", "rss") or 0 for job in ("build", "rebuild", "rebuild one file")), default=0)
    return peak - 64 - 300 * files / (1 << 20) if peak else None


def table(reports):
    """Every goal with its figure. What was measured on a twentieth of the data proves nothing."""
    lines = [row(["goal", "at most", "measured", ""]), row(["---", "---:", "---:", "---"])]
    for part, what, take, most, shown in GOALS:
        report = reports.get(part)
        figure = take(report) if report and not report.quick else None
        if figure is None:
            lines.append(row([what, shown.format(most), "", "not measured"]))
        else:
            lines.append(row([what, shown.format(most), shown.format(figure), "met" if figure <= most else "missed"]))
    return lines
