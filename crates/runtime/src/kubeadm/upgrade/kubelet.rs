//! Stops, replaces and starts the kubelet and, if the image requires it, the container runtime.

use std::time::Duration;

use crate::kubeadm::upgrade::{
    target,
    target::{Target, evictable},
};
use crate::{
    action,
    action::{Action, Line, Site},
};
use crate::{upgrade::Move, version::order};
use imgctl_base::error::{Error, Result};
use imgctl_base::semver::Version;

const LIMIT: Duration = Duration::from_secs(300);

/// Starts the kubelet and waits until the running binary is the installed one.
pub(super) const STARTED: &str = r#"systemctl daemon-reload
date -u +%Y-%m-%dT%H:%M:%S >"$started.new"; mv -f "$started.new" "$started"
systemctl start kubelet
for second in $(seq 60); do
  pid=$(systemctl show -p MainPID --value kubelet)
  if systemctl is-active --quiet kubelet && [ "${pid:-0}" != 0 ] && cmp -s "/proc/$pid/exe" "$(where kubelet)"; then
    echo "kubelet runs: $("$(where kubelet)" --version)"; exit 0
  fi
  sleep 1
done
systemctl --no-pager --lines=20 status kubelet >&2 || true
echo 'kubelet does not start; see journalctl -u kubelet' >&2
exit 1
"#;

/// Replaces the kubelet. kubeadm has already written the new configuration; nothing reads it before
/// the new kubelet starts.
pub(super) fn swap(target: &Target) -> Action {
    let line = format!(
        "{functions}tree={tree} root={root} started={restarted}\n\
         pid=$(systemctl show -p MainPID --value kubelet)\n\
         if cmp -s \"$tree/bin/kubelet\" \"$(where kubelet)\" && [ -e \"$started\" ] &&\n\
         systemctl is-active --quiet kubelet && cmp -s \"/proc/${{pid:-0}}/exe\" \"$tree/bin/kubelet\"; then\n\
         echo 'kubelet runs already'; exit 0\n\
         fi\n\
         systemctl stop kubelet\n\
         put \"$tree/bin/kubelet\" \"$(where kubelet)\" 0755\n\
         for file in etc/systemd/system/kubelet.service etc/systemd/system/kubelet.service.d/10-kubeadm.conf; do\n\
         [ -f \"$tree/$file\" ] && [ -f \"/$file\" ] || continue\n\
         if ours \"/$file\" \"$root\" \"$file\"; then put \"$tree/$file\" \"/$file\" 0644\n\
         else echo \"/$file was changed on this host: it stays\"; fi\n\
         done\n\
         {STARTED}",
        functions = action::PUT,
        tree = target.tree,
        root = target.root,
        restarted = target.restarted(),
    );
    Action::command("kubelet", Line::repeatable(line)).within(LIMIT).saying(format!(
        "systemctl stop kubelet; replace kubelet and its unit with those of {}; systemctl start \
         kubelet",
        target.tree
    ))
}

/// Replaces containerd and runc, only if the image's label requires a newer version than the
/// running one.
pub(super) fn runtime(step: &Move<'_>, target: &Target) -> Option<Action> {
    let wanted = target::wanted_runtime(step)?.to_owned();
    let says = format!(
        "replace the container runtime with that of {}/cri if it is older than {wanted}",
        target.tree
    );
    let target = target.clone();
    let action = Action::depending_on("runtime", says, &wanted.clone(), move |site| {
        replace_runtime(site, &target, &wanted)
    });
    Some(action.within(LIMIT))
}

fn replace_runtime(site: &Site<'_>, target: &Target, wanted: &str) -> Result<()> {
    let line = Line::query("containerd --version");
    let text = site.run_on(site.agent, &line, "-version")?;
    // Output: containerd github.com/containerd/containerd v1.7.27 <commit>; on Debian: 1.6.20~ds1
    // 1.6.20~ds1-1
    let runs =
        text.split_whitespace().filter_map(|word| word.split('~').next()).find_map(Version::parse);
    let (Some(runs), Some(wanted_version)) = (runs, Version::parse(wanted)) else {
        return Err(Error::failed(format!(
            "{}: cannot compare `{}` with {wanted}, which the image requires",
            site.agent.host(),
            text.trim()
        ))
        .hint(format!("check the image's label {}", target::RUNTIME_LABEL)));
    };
    if order(&runs, &wanted_version).is_ge() {
        return Ok(());
    }
    let left = evictable(site)?;
    if !left.is_empty() {
        return Err(Error::failed(format!(
            "{}: the container runtime is replaced only on a drained Node, and these Pods are on \
             it: {}",
            site.agent.host(),
            left.join(", ")
        ))
        .hint(
            "omit --kubelet-swap in-place, or use an image that does not require a newer container \
             runtime",
        ));
    }
    let line = format!(
        "{functions}tree={tree}\n\
         systemctl stop kubelet\n\
         for file in \"$tree\"/cri/*; do\n\
         there=$(type -P \"$(basename \"$file\")\" || true)\n\
         if [ -f \"$file\" ] && [ -n \"$there\" ]; then put \"$file\" \"$there\" 0755; fi\n\
         done\n\
         {RESTART_RUNTIME}",
        functions = action::PUT,
        tree = target.tree,
    );
    let line = Line::repeatable(line);
    site.run_on(site.agent, &line, "-replace").map(|_| ())
}

/// Restarts the runtime. Containers keep running, because their shims are separate processes of the
/// old runtime.
pub(super) const RESTART_RUNTIME: &str = r#"systemctl daemon-reload
systemctl restart containerd
for second in $(seq 60); do
  if ctr version >/dev/null 2>&1; then echo "containerd runs: $(containerd --version)"; break; fi
  if [ "$second" = 60 ]; then echo 'containerd does not answer; see journalctl -u containerd' >&2; exit 1; fi
  sleep 1
done
"#;
