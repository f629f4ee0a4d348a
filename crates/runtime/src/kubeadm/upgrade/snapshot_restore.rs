//! Restores the whole cluster from an etcd snapshot. Data written since the snapshot is lost.
//!
//! The tools that restore it are stored with the backup and located before anything is stopped.

use std::time::Duration;

use crate::action::{Action, Line};
use crate::kubeadm::upgrade::etcd_manifest::{
    MANIFESTS, Manifest, Member, manifest, member, members,
};
use crate::kubeadm::upgrade::{restore, target::Target};
use crate::kubectl::quoted;
use imgctl_base::error::Result;

const STOP_LIMIT: Duration = Duration::from_secs(300);
const LONG: Duration = Duration::from_secs(15 * 60);

pub(super) fn phases(target: &Target, snapshot: &str) -> Result<[Vec<Action>; 3]> {
    Ok([
        vec![stop(target)],
        vec![restore(target, snapshot)],
        vec![restore::files(target, true), restore::api_again(target), done(target)],
    ])
}

/// Stops the control plane. The kubelet stops static Pods whose manifests are gone; the runtime
/// stops the remaining ones.
fn stop(target: &Target) -> Action {
    let line = format!(
        "stopped={backup}/stopped; mkdir -p -m 0700 \"$stopped\"\n\
         for name in kube-controller-manager kube-scheduler kube-apiserver etcd; do\n\
         if [ -e {MANIFESTS}/$name.yaml ]; then mv -f {MANIFESTS}/$name.yaml \"$stopped/\"; fi\n\
         done\n\
         sync -f \"$stopped\"\n\
         running() {{\n\
         if command -v crictl >/dev/null 2>&1; then crictl ps --state Running -q --name '^(etcd|kube-apiserver|kube-controller-manager|kube-scheduler)$'\n\
         else for port in 2379 6443; do (exec 3<>/dev/tcp/127.0.0.1/$port) 2>/dev/null && echo \"port $port\"; done; true; fi\n\
         }}\n\
         for second in $(seq 120); do\n\
         left=$(running)\n\
         if [ -z \"$left\" ]; then echo 'the control plane of this host is stopped'; exit 0; fi\n\
         if [ \"$second\" = 60 ] && command -v crictl >/dev/null 2>&1; then crictl stop $left || true; fi\n\
         sleep 1\n\
         done\n\
         echo \"still running: $left\" >&2; exit 1",
        backup = target.backup,
    );
    Action::command("restore-stop", Line::repeatable(line)).within(STOP_LIMIT).saying(format!(
        "move etcd.yaml and kube-*.yaml out of {MANIFESTS}; wait until they have stopped"
    ))
}

fn restore(target: &Target, snapshot: &str) -> Action {
    let says = format!(
        "etcdutl (or etcdctl) snapshot restore {snapshot} as a new cluster (token imgctl-{}), \
         replacing the data of etcd, which is kept in {}/etcd-before",
        target.id, target.backup
    );
    let (target, snapshot) = (target.clone(), snapshot.to_owned());
    Action::depending_on("restore-etcd", says, &snapshot.clone(), move |site| {
        let own = manifest(site.agent, &target)?;
        let members = members(site, &target)?;
        let line = line(&target, &snapshot, &own, &members)?;
        let line = Line::repeatable(line);
        site.run_on(site.agent, &line, "").map(|_| ())
    })
    .within(LONG)
}

/// Returns the shell line that restores the data beside the old data and replaces it at the end. If
/// etcdutl supports it, revisions are bumped, so that watchers do not mistake old objects for new
/// ones.
fn line(target: &Target, snapshot: &str, own: &Manifest, members: &[Member]) -> Result<String> {
    let me = member(own, "this host")?;
    let all: Vec<String> =
        members.iter().map(|member| format!("{}={}", member.name, member.peer)).collect();
    let data = own.flag("data-dir").unwrap_or("/var/lib/etcd");
    Ok(format!(
        "snapshot={snapshot} data={data} backup={backup} image={image}\n\
         [ -s \"$snapshot\" ] || {{ echo \"there is no snapshot $snapshot on this host\" >&2; exit 1; }}\n\
         digest=$(sha256sum <\"$snapshot\")\n\
         if [ \"$(cat \"$backup/restored\" 2>/dev/null)\" = \"$digest\" ]; then echo 'restored already'; exit 0; fi\n\
         if (exec 3<>/dev/tcp/127.0.0.1/2379) 2>/dev/null; then echo 'etcd still runs here' >&2; exit 1; fi\n\
         new=$(dirname \"$data\")/imgctl-etcd-restore; rm -rf \"$new\"\n\
         arguments=(--name {name} --initial-cluster {all} --initial-cluster-token {token} --initial-advertise-peer-urls {peer} --data-dir \"$new\")\n\
         {find}\
         if \"${{tool[@]}}\" snapshot restore --help 2>&1 | grep -e --bump-revision >/dev/null; then arguments+=(--bump-revision 1000000000 --mark-compacted); fi\n\
         \"${{tool[@]}}\" snapshot restore \"$snapshot\" \"${{arguments[@]}}\"\n\
         [ -d \"$new/member\" ] || {{ echo 'nothing was restored' >&2; exit 1; }}\n\
         if [ -e \"$data/member\" ]; then\n\
         rm -rf \"$backup/etcd-before\"; mkdir -m 0700 \"$backup/etcd-before\"; mv \"$data/member\" \"$backup/etcd-before/\"\n\
         fi\n\
         mkdir -p -m 0700 \"$data\"; mv \"$new/member\" \"$data/member\"; rm -rf \"$new\"\n\
         sync -f \"$data\"\n\
         # Members of a restored cluster have other ids than before.\n\
         rm -f {members}\n\
         printf '%s\\n' \"$digest\" >\"$backup/restored\"; sync -f \"$backup\"\n\
         echo \"the data of etcd is that of $snapshot\"",
        find = find_tool_anywhere(target),
        snapshot = quoted(snapshot),
        data = quoted(data),
        backup = quoted(&target.backup),
        image = quoted(own.image()?),
        name = quoted(&me.name),
        peer = quoted(&me.peer),
        members = quoted(&target.known_members()),
        all = quoted(&all.join(",")),
        token = quoted(&format!("imgctl-{}", target.id)),
    ))
}

/// Removes the restore's marks, so that a later restore starts from the beginning.
fn done(target: &Target) -> Action {
    Action::command(
        "restore-done",
        Line::repeatable(format!("rm -rf {0}/restored {0}/stopped", target.backup)),
    )
}

/// Restarts all watchers. Revisions continue from the snapshot unless etcdutl can bump them. A
/// watch from a later revision that resumes after the API server's restart receives no events until
/// that revision is reached, so the kubelets and the Pods in kube-system must list all objects
/// again.
pub(super) fn watch_again() -> Action {
    let line = "systemctl restart kubelet\n\
         command -v crictl >/dev/null 2>&1 || exit 0\n\
         for id in $(crictl ps --state Running -q --label io.kubernetes.pod.namespace=kube-system); do\n\
         name=$(crictl inspect -o go-template --template '{{.status.metadata.name}}' \"$id\" 2>/dev/null || true)\n\
         case $name in etcd | kube-apiserver | kube-controller-manager | kube-scheduler | kube-lvscare) continue ;; esac\n\
         crictl stop -t 10 \"$id\" >/dev/null || true; echo \"$name starts anew\"\n\
         done";
    Action::command("watch-anew", Line::repeatable(line.to_owned())).within(STOP_LIMIT).saying(
        "systemctl restart kubelet; crictl stop <containers of kube-system except the control \
         plane>: they hold API data that no longer exists",
    )
}

const LIMIT: Duration = Duration::from_secs(300);

/// Message if no tool is found.
const NOTHING: &str = "nothing on this host restores a snapshot of etcd: neither etcdutl nor an etcdctl up to 3.5, \
and none in the image of etcd; put etcdutl of the version of etcd into /usr/local/bin here";

/// Returns shell code that sets `tool` to the command for `snapshot restore`, or leaves it empty if
/// there is none. Prefers programs of the version that wrote the snapshot.
fn find_tool(target: &Target) -> String {
    format!(
        "can() {{ {{ \"$@\" snapshot restore --help 2>&1 || true; }} | grep -e --data-dir >/dev/null; }}\n\
         tool=()\n\
         find_tool() {{\n\
         local folder program\n\
         for folder in {backup}/bin {tree}/bin /usr/local/bin /usr/bin /opt/bin {rootfs}/bin; do\n\
         for program in etcdutl etcdctl; do\n\
         if [ -x \"$folder/$program\" ] && can \"$folder/$program\"; then tool=(\"$folder/$program\"); return; fi\n\
         done; done\n\
         for program in etcdutl etcdctl; do\n\
         if command -v $program >/dev/null 2>&1 && can $program; then tool=($program); return; fi\n\
         done\n\
         }}\n",
        backup = quoted(&target.backup),
        tree = quoted(&target.tree),
        rootfs = quoted(&target.rootfs),
    )
}

/// Like [`find_tool`], but also searches the etcd image. Requires `$snapshot`, `$data` and `$image`.
pub(super) fn find_tool_anywhere(target: &Target) -> String {
    format!(
        "export ETCDCTL_API=3\n{}\
         folder=$(dirname \"$snapshot\") parent=$(dirname \"$data\")\n\
         inside() {{ ctr -n k8s.io run --rm --mount \"type=bind,src=$folder,dst=$folder,options=rbind:ro\" --mount \"type=bind,src=$parent,dst=$parent,options=rbind:rw\" \"$image\" \"imgctl-etcd-restore-$$-$RANDOM\" \"$@\"; }}\n\
         find_tool\n\
         if [ \"${{#tool[@]}}\" = 0 ] && command -v ctr >/dev/null 2>&1; then\n\
         if ! ctr -n k8s.io images ls -q | grep -xF \"$image\" >/dev/null; then crictl pull \"$image\" >/dev/null || true; fi\n\
         for program in etcdutl etcdctl; do\n\
         if can inside $program; then tool=(inside $program); break; fi\n\
         done\n\
         fi\n\
         [ \"${{#tool[@]}}\" != 0 ] || {{ echo {nothing} >&2; exit 1; }}\n",
        find_tool(target),
        nothing = quoted(NOTHING),
    )
}

/// Copies the running etcd's tools to the backup: its image can be gone when they are needed.
pub(super) fn keep_tool(target: &Target) -> Action {
    let line = format!(
        "{find}export ETCDCTL_API=3\n\
         backup={backup}; mkdir -p -m 0700 \"$backup/bin\"\n\
         if command -v crictl >/dev/null 2>&1; then\n\
         container=$(crictl ps --name '^etcd$' --state Running -q | head -n 1)\n\
         pid=$(crictl inspect -o go-template --template '{{{{.info.pid}}}}' \"$container\" 2>/dev/null || true)\n\
         for program in etcdutl etcdctl; do\n\
         file=/proc/${{pid:-none}}/root/usr/local/bin/$program\n\
         [ -f \"$file\" ] || continue\n\
         cp \"$file\" \"$backup/bin/$program.new\"; chmod 0700 \"$backup/bin/$program.new\"\n\
         if can \"$backup/bin/$program.new\"; then mv -f \"$backup/bin/$program.new\" \"$backup/bin/$program\"; else rm -f \"$backup/bin/$program.new\"; fi\n\
         done\n\
         sync -f \"$backup\"\n\
         fi\n\
         find_tool\n\
         if [ \"${{#tool[@]}}\" != 0 ]; then echo \"${{tool[0]}} restores snapshots of etcd\"\n\
         else echo 'warning: '{nothing}', or `imgctl rollback --from-snapshot` is refused'; fi",
        find = find_tool(target),
        backup = quoted(&target.backup),
        nothing = quoted(NOTHING),
    );
    Action::command("backup-etcd-tools", Line::repeatable(line)).within(LIMIT).saying(format!(
        "back up to {}/bin the tool that restores a snapshot of etcd: etcdutl or etcdctl of the \
         running etcd",
        target.backup
    ))
}

/// Checks that this host has everything that the restore needs and that the snapshot is intact.
pub(super) fn check_tool(target: &Target, snapshot: &str) -> Action {
    let says = format!(
        "check what restoring {snapshot} needs: etcdutl or etcdctl, {}/files, space for the data",
        target.backup
    );
    let (target, snapshot) = (target.clone(), snapshot.to_owned());
    Action::depending_on("snapshot-check", says, &snapshot.clone(), move |site| {
        let own = manifest(site.agent, &target)?;
        members(site, &target)?;
        let line = Line::repeatable(check_line(&target, &snapshot, &own)?);
        site.run_on(site.agent, &line, "").map(|_| ())
    })
    .within(LIMIT)
}

fn check_line(target: &Target, snapshot: &str, own: &Manifest) -> Result<String> {
    Ok(format!(
        "snapshot={snapshot} data={data} backup={backup} image={image}\n\
         [ -s \"$snapshot\" ] || {{ echo \"there is no snapshot $snapshot on this host\" >&2; exit 1; }}\n\
         [ -s \"$backup/host.sha256\" ] || {{ echo \"there is no backup in $backup: what this host was before is not known\" >&2; exit 1; }}\n\
         (cd \"$backup\" && sha256sum --quiet -c host.sha256)\n\
         {find}\
         \"${{tool[@]}}\" snapshot status \"$snapshot\" -w json\n\
         needed=$(($(stat -c %s \"$snapshot\") / 1024 + 131072)) free=$(df -Pk \"$parent\" | awk 'NR == 2 {{ print $4 }}')\n\
         [ \"$free\" -ge \"$needed\" ] || {{ echo \"$parent has $free KiB free, and the restored data needs $needed\" >&2; exit 1; }}\n\
         echo \"${{tool[*]}} restores $snapshot\"",
        snapshot = quoted(snapshot),
        data = quoted(own.flag("data-dir").unwrap_or("/var/lib/etcd")),
        backup = quoted(&target.backup),
        image = quoted(own.image()?),
        find = find_tool_anywhere(target),
    ))
}
