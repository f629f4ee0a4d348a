//! Tools that restore an etcd snapshot: stored with the backup and located before anything is
//! stopped.
//!
//! `etcdutl snapshot restore` exists since etcd 3.5, `etcdctl snapshot restore` until 3.5. The
//! images of registry.k8s.io contain etcdctl but not etcdutl, so the 3.6 images cannot restore a
//! snapshot.

use std::time::Duration;

use crate::runtime::action::{Action, Line};
use crate::runtime::kubeadm::upgrade::etcd_manifest::{Manifest, manifest, members};
use crate::runtime::kubeadm::upgrade::target::Target;
use crate::runtime::kubectl::quoted;
use imgctl_base::error::Result;

const LIMIT: Duration = Duration::from_secs(300);

/// Message if no tool is found.
const NOTHING: &str = "nothing on this host restores a snapshot of etcd: neither etcdutl nor an etcdctl up to 3.5, \
and none in the image of etcd; put etcdutl of the version of etcd into /usr/local/bin here";

/// Returns shell code that sets `tool` to the command for `snapshot restore`, or leaves it empty if
/// there is none. Prefers programs of the version that wrote the snapshot.
pub(super) fn find(target: &Target) -> String {
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

/// Like [`find`], but also searches the etcd image. Requires `$snapshot`, `$data` and `$image`.
pub(super) fn find_anywhere(target: &Target) -> String {
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
        find(target),
        nothing = quoted(NOTHING),
    )
}

/// Copies the running etcd's tools to the backup: its image can be gone when they are needed.
pub(super) fn keep(target: &Target) -> Action {
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
        find = find(target),
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
pub(super) fn check(target: &Target, snapshot: &str) -> Action {
    let says = format!(
        "check what restoring {snapshot} needs: etcdutl or etcdctl, {}/files, space for the data",
        target.backup
    );
    let (target, snapshot) = (target.clone(), snapshot.to_owned());
    Action::new("snapshot-check", says, &snapshot.clone(), move |site| {
        let own = manifest(site.agent, &target)?;
        members(site, &target)?;
        let line = Line::repeatable(line(&target, &snapshot, &own)?);
        site.run_on(site.agent, &line, "").map(|_| ())
    })
    .within(LIMIT)
}

fn line(target: &Target, snapshot: &str, own: &Manifest) -> Result<String> {
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
        find = find_anywhere(target),
    ))
}
