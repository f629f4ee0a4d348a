//! Upgrades of clusters of any kind: labels of the rootfs images name the script for each phase.
//!
//! `backup` and `before` come from the running image (the software that wrote the data knows it;
//! without a script of its own, `before` comes from the new one), `upgrade` and `health` from the
//! new one, `rollback` and `restore` from the image that the host is rolled back to.

use std::{cmp::Ordering, time::Duration};

use crate::script::{Script, rootfs};
use crate::upgrade::{Move, NO_BACKUP, Place, Restoration, Upgrader};
use crate::{Action, action::Line, version};
use imgctl_base::error::{Error, Result};
use imgctl_model::{context::ClusterContext, image::ClusterImage, variables::Variables};

const LONG: Duration = Duration::from_secs(30 * 60);

/// A script's image and its location on the host.
struct Moment<'a> {
    step: &'a Move<'a>,
    context: &'a ClusterContext,
    image: &'a ClusterImage,
    /// Directory of the tree whose scripts run.
    tree: String,
}

impl<'a> Moment<'a> {
    /// Selects the running image, before the rootfs is switched.
    fn leaving(step: &'a Move<'a>) -> Result<Self> {
        Ok(Self {
            step,
            context: step.from,
            image: rootfs(step.from)?,
            tree: step.from.paths.rootfs(),
        })
    }

    /// Selects the host's new image, after the rootfs is switched.
    fn arrived(step: &'a Move<'a>) -> Result<Self> {
        Ok(Self { step, context: step.to, image: rootfs(step.to)?, tree: step.to.paths.rootfs() })
    }

    /// Selects the host's new image, whether or not the rootfs is switched.
    fn staged(step: &'a Move<'a>) -> Result<Self> {
        Ok(Self { tree: step.tree.clone(), ..Self::arrived(step)? })
    }

    /// Returns the script of `label`; `None` if the image has none.
    fn script(
        &self,
        name: &str,
        label: &str,
        phase: &str,
        more: &[(&str, &str)],
    ) -> Result<Option<Action>> {
        let Some(value) = self.image.label(&[label]) else {
            return Ok(None);
        };
        let mut environment = self.environment(phase)?;
        environment
            .extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let scripts = format!("{}/scripts", self.tree);
        Ok(Some(Action::script(name, value, scripts, environment).within(LONG)))
    }

    fn environment(&self, phase: &str) -> Result<Variables> {
        let step = self.step;
        let mut environment = self.context.environment_on(step.host, Some(self.image));
        let role = match step.place {
            Place::First | Place::ControlPlane => "control-plane",
            Place::Worker => "worker",
        };
        environment.extend(
            [
                ("IMGCTL_PHASE", phase.to_owned()),
                ("IMGCTL_FROM_VERSION", version::of(rootfs(step.from)?)?),
                ("IMGCTL_TO_VERSION", version::of(rootfs(step.to)?)?),
                ("IMGCTL_NODE", step.host.id()),
                ("IMGCTL_ROLE", role.to_owned()),
                ("IMGCTL_ROOTFS", self.tree.clone()),
                ("IMGCTL_UPGRADE_ID", step.id.to_owned()),
                ("IMGCTL_BACKUP", step.backup()),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        Ok(environment)
    }
}

/// Creates the directory that scripts write their backup to.
fn backup_folder(step: &Move<'_>) -> Action {
    Action::command(
        "backup-folder",
        Line::repeatable(format!("mkdir -p -m 0700 {0} && chmod 0700 {0}", step.backup())),
    )
}

impl Upgrader for Script {
    fn version(&self, image: &ClusterImage) -> Result<String> {
        version::of(image)
    }

    fn permits(&self, from: &str, to: &str) -> Result<()> {
        match version::order_of(to, from) {
            Some(Ordering::Less) => {
                Err(Error::usage(format!("{to} is older than {from}, which the cluster runs"))
                    .hint("`imgctl rollback` restores the previous version of a cluster"))
            }
            _ => Ok(()),
        }
    }

    fn accepts(&self, image: &ClusterImage, from: &str) -> Result<()> {
        if image.label(&["upgrade"]).is_none() {
            return Err(cannot(image, "upgrade"));
        }
        version::accepts(image, from)
    }

    fn backup(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        if step.place != Place::First {
            return Ok(Vec::new());
        }
        let moment = Moment::leaving(step)?;
        match moment.script("backup", "backup", "backup", &[])? {
            Some(action) => Ok(vec![backup_folder(step), action]),
            None => {
                let note = format!(
                    "no backup is created: image {} has no label `backup`",
                    moment.image.name
                );
                Ok(vec![Action::new(NO_BACKUP, note.clone(), move |site| {
                    site.say(&note);
                    Ok(())
                })])
            }
        }
    }

    fn save(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let moment = Moment::leaving(step)?;
        let action = moment.script("backup", "backup", "backup", &[])?;
        let action = action.ok_or_else(|| cannot(moment.image, "backup"))?;
        Ok(vec![backup_folder(step), action])
    }

    fn restore_cluster(&self, step: &Move<'_>, folder: &str) -> Result<Restoration> {
        self.restore_snapshot(step, &format!("{folder}/snapshot.db")).map(Restoration::Together)
    }

    fn pull(&self, _step: &Move<'_>) -> Result<Vec<Action>> {
        Ok(Vec::new())
    }

    fn before(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let own = Moment::leaving(step)?.script("before", "before", "before", &[])?;
        let action = match own {
            Some(action) => Some(action),
            None => Moment::staged(step)?.script("before", "before", "before", &[])?,
        };
        Ok(action.into_iter().collect())
    }

    fn apply(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let moment = Moment::arrived(step)?;
        let action = moment.script("upgrade", "upgrade", "upgrade", &[])?;
        action.map(|action| vec![action]).ok_or_else(|| cannot(moment.image, "upgrade"))
    }

    fn gate(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let action = Moment::arrived(step)?.script("health", "health", "health", &[])?;
        Ok(action.into_iter().collect())
    }

    fn restore(&self, step: &Move<'_>) -> Result<Vec<Action>> {
        let moment = Moment::arrived(step)?;
        let own = moment.script("rollback", "rollback", "rollback", &[])?;
        let action = match own {
            Some(action) => Some(action),
            None => moment.script("rollback", "upgrade", "rollback", &[])?,
        };
        action.map(|action| vec![action]).ok_or_else(|| cannot(moment.image, "rollback"))
    }

    fn restore_snapshot(&self, step: &Move<'_>, snapshot: &str) -> Result<[Vec<Action>; 3]> {
        let moment = Moment::staged(step)?;
        let phase = |phase: &str| -> Result<Vec<Action>> {
            let name = format!("restore-{phase}");
            let more = [("IMGCTL_SNAPSHOT", snapshot)];
            let action = moment.script(&name, "restore", phase, &more)?;
            action.map(|action| vec![action]).ok_or_else(|| cannot(moment.image, "restore"))
        };
        Ok([phase("stop")?, phase("restore")?, phase("start")?])
    }

    /// The scripts `before` and `upgrade` decide what happens before a host is changed.
    fn drains(&self) -> bool {
        false
    }
}

fn cannot(image: &ClusterImage, label: &str) -> Error {
    let what = match label {
        "upgrade" => "a cluster cannot be upgraded to it",
        "rollback" => "a host cannot be rolled back to it",
        "backup" => "nothing says how to back up its cluster",
        _ => "a cluster cannot be restored from a snapshot with it",
    };
    Error::usage(format!("image {} has no label `{label}`: {what}", image.name)).hint(format!(
        "name the script in the Kubefile: LABEL {label}=\"{label}.sh\" (docs/cluster-image.md)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::validity::Validity;
    use crate::upgrade::Renewal;
    use imgctl_model::image::ImageKind;
    use imgctl_model::testing::{context, image};

    fn script() -> Script {
        Script { validity: Validity::default() }
    }

    fn context_of(version: &str, labels: &[&str]) -> ClusterContext {
        let mut context = context(&["master", "node"]);
        let mut image = image(&format!("etcd:{version}"), ImageKind::Rootfs);
        for label in labels {
            let value = format!("{label}.sh --of {version}");
            image.labels.insert((*label).to_owned(), value);
        }
        context.images = vec![image];
        context
    }

    fn step<'a>(from: &'a ClusterContext, to: &'a ClusterContext, place: Place) -> Move<'a> {
        let at = usize::from(place == Place::Worker);
        Move {
            from,
            to,
            host: &to.hosts[at],
            tree: "/var/lib/sealos/data/test/rootfs.new".to_owned(),
            place,
            id: "3.5.0-0badcafe",
            renewal: Renewal::default(),
            external_etcd: false,
            keeps_corefile: false,
            back: false,
        }
    }

    fn shown(actions: &[Action]) -> Vec<&str> {
        actions.iter().flat_map(|action| action.says.iter().map(String::as_str)).collect()
    }

    #[test]
    fn each_moment_has_its_script() {
        let old = context_of("3.4.23", &["backup", "before", "upgrade", "restore"]);
        let new = context_of("3.5.0", &["upgrade", "health", "before", "rollback"]);
        let first = step(&old, &new, Place::First);
        let current = "cd /var/lib/sealos/data/test/rootfs/scripts && ";
        assert_eq!(
            shown(&script().backup(&first).unwrap())[1],
            format!("{current}bash backup.sh --of 3.4.23")
        );
        assert_eq!(
            shown(&script().before(&first).unwrap()),
            [format!("{current}bash before.sh --of 3.4.23")]
        );
        assert_eq!(
            shown(&script().apply(&first).unwrap()),
            [format!("{current}bash upgrade.sh --of 3.5.0")]
        );
        assert_eq!(
            shown(&script().gate(&first).unwrap()),
            [format!("{current}bash health.sh --of 3.5.0")]
        );
        let worker = step(&old, &new, Place::Worker);
        assert!(script().backup(&worker).unwrap().is_empty());

        // Rollback: the old image has no `rollback`, so its `upgrade` runs.
        let back = Move { back: true, ..step(&new, &old, Place::Worker) };
        assert_eq!(
            shown(&script().restore(&back).unwrap()),
            [format!("{current}bash upgrade.sh --of 3.4.23")]
        );
        let named = Move { id: "3.5.0-0badcafe-back-12", ..back.clone() };
        assert_eq!(named.backup(), first.backup(), "what the upgrade kept");
        let phases = script().restore_snapshot(&back, "/b/snapshot.db").unwrap();
        assert_eq!(
            shown(&phases[1]),
            ["cd /var/lib/sealos/data/test/rootfs.new/scripts && bash restore.sh --of 3.4.23"]
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        let old = context_of("3.4.23", &[]);
        let new = context_of("3.5.0", &["upgrade", "before"]);
        let there = step(&old, &new, Place::First);
        // The running image has no `before`: the new image's script runs from its staged tree.
        assert_eq!(
            shown(&script().before(&there).unwrap()),
            ["cd /var/lib/sealos/data/test/rootfs.new/scripts && bash before.sh --of 3.5.0"]
        );
        let backup = script().backup(&there).unwrap();
        assert!(shown(&backup)[0].contains("etcd:3.4.23 has no label `backup`"));
        assert!(script().gate(&there).unwrap().is_empty());
        let back = step(&new, &old, Place::First);
        for (error, label) in [
            (script().apply(&back).err(), "`upgrade`"),
            (script().restore(&back).err(), "`rollback`"),
            (script().restore_snapshot(&back, "s").err(), "`restore`"),
            (script().accepts(&old.images[0], "3.5.0").err(), "`upgrade`"),
        ] {
            let error = error.unwrap();
            assert!(error.to_string().contains(label), "{error}");
        }
    }

    #[test]
    fn only_forward() {
        script().permits("3.4.23", "3.5.0").unwrap();
        script().permits("3.5.0", "3.5.0").unwrap();
        script().permits("blue", "green").unwrap();
        let error = script().permits("3.5.1", "3.5.0").unwrap_err();
        assert!(error.hints()[0].contains("imgctl rollback"), "{error}");
    }

    #[test]
    fn scripts_know_where_they_are() {
        let old = context_of("3.4.23", &[]);
        let new = context_of("3.5.0", &["upgrade"]);
        let step = step(&old, &new, Place::Worker);
        let environment = Moment::arrived(&step).unwrap().environment("upgrade");
        let environment = environment.unwrap();
        for (name, value) in [
            ("IMGCTL_PHASE", "upgrade"),
            ("IMGCTL_FROM_VERSION", "3.4.23"),
            ("IMGCTL_TO_VERSION", "3.5.0"),
            ("IMGCTL_NODE", "10.0.0.2"),
            ("IMGCTL_ROLE", "worker"),
            ("IMGCTL_ROOTFS", "/var/lib/sealos/data/test/rootfs"),
            ("IMGCTL_UPGRADE_ID", "3.5.0-0badcafe"),
            ("IMGCTL_BACKUP", "/var/lib/sealos/data/test/backup/3.5.0-0badcafe"),
            ("HOST_IP", "10.0.0.2"),
        ] {
            assert_eq!(environment.get(name).unwrap(), value, "{name}");
        }
    }
}
