//! Differences between the current and the desired cluster, in both directions.

use serde::Serialize;

use crate::clusterfile::{Clusterfile, Surroundings};
use crate::context::{Host, REGISTRY, registry_hosts_of};
use imgctl_base::error::{Error, Result};
use imgctl_host::host::address::Address;

/// Changes to make to a cluster, as a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Change {
    /// The cluster must be created; everything is in `add` and `install`.
    pub create: bool,
    pub add: Vec<Host>,
    pub remove: Vec<Host>,
    /// Hosts that stay, in their desired form.
    pub(crate) altered: Vec<Altered>,
    /// Images of `spec.image` that the cluster does not have.
    pub install: Vec<String>,
    /// Images that the cluster has but that are no longer listed; they are not uninstalled.
    pub unlisted: Vec<String>,
    /// `spec.env` or `--env` has changed.
    pub environment: bool,
    pub configs: bool,
    /// kubeadm or k3s documents have changed.
    pub documents: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Altered {
    pub host: Host,
    pub what: Vec<Aspect>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Aspect {
    Port,
    Roles,
    Environment,
    Login,
}

/// Compares `current` (`None`: the cluster does not exist) with `desired`. Fails for impossible
/// changes: the first control plane leaves or is no longer the first, or a worker becomes a control
/// plane.
pub fn diff(
    current: Option<&Clusterfile>,
    desired: &Clusterfile,
    surroundings: &Surroundings<'_>,
) -> Result<Change> {
    let wanted = desired.cluster.hosts(surroundings)?;
    let Some(current) = current.filter(|current| current.exists()) else {
        return Ok(Change {
            create: true,
            add: wanted,
            install: desired.cluster.images.clone(),
            ..Change::default()
        });
    };
    let present = current.cluster.hosts(surroundings)?;
    let mut change = hosts(&present, &wanted)?;
    check_first(&present, &wanted)?;
    let (old, new) = (&current.cluster, &desired.cluster);
    let without = |images: &[String], others: &[String]| {
        images.iter().filter(|image| !others.contains(image)).cloned().collect()
    };
    change.install = without(&new.images, &old.images);
    change.unlisted = without(&old.images, &new.images);
    change.environment =
        old.environment != new.environment || old.status.environment != new.status.environment;
    change.configs = current.configs != desired.configs;
    change.documents = current.documents != desired.documents;
    Ok(change)
}

fn hosts(present: &[Host], wanted: &[Host]) -> Result<Change> {
    let mut change = Change::default();
    let (served, serving) = (registry_hosts_of(present), registry_hosts_of(wanted));
    let mut matched = vec![false; present.len()];
    // Match by address first: several hosts may share a name and differ in their port.
    let mut counterparts: Vec<Option<usize>> = Vec::with_capacity(wanted.len());
    for host in wanted {
        let at = present.iter().position(|old| old.address == host.address);
        if let Some(at) = at {
            matched[at] = true;
        }
        counterparts.push(at);
    }
    for (host, counterpart) in wanted.iter().zip(&mut counterparts) {
        if counterpart.is_none() {
            let by_name = (0..present.len())
                .find(|at| !matched[*at] && present[*at].address.name == host.address.name);
            if let Some(at) = by_name {
                matched[at] = true;
                *counterpart = Some(at);
            }
        }
        let Some(at) = *counterpart else {
            change.add.push(host.clone());
            continue;
        };
        let old = &present[at];
        let has_role = host.has_role(REGISTRY);
        // The first control plane serves with the role and without it.
        let serves_on = served.contains(&old) && serving.contains(&host);
        if old.has_role(REGISTRY) != has_role && !serves_on {
            return Err(other_registry(&host.address, has_role));
        }
        let what = aspects(old, host)?;
        if !what.is_empty() {
            let host = host.clone();
            change.altered.push(Altered { host, what });
        }
    }
    change.remove = present
        .iter()
        .zip(matched)
        .filter(|(_, matched)| !matched)
        .map(|(host, _)| host.clone())
        .collect();
    Ok(change)
}

fn aspects(old: &Host, new: &Host) -> Result<Vec<Aspect>> {
    if old.is_control_plane() != new.is_control_plane() {
        return Err(other_role(&new.address, new.is_control_plane()));
    }
    let mut roles = (old.roles.clone(), new.roles.clone());
    roles.0.sort();
    roles.1.sort();
    let differences = [
        (old.address.port != new.address.port, Aspect::Port),
        (roles.0 != roles.1, Aspect::Roles),
        (old.environment != new.environment, Aspect::Environment),
        (old.login != new.login, Aspect::Login),
    ];
    Ok(differences.into_iter().filter(|(differs, _)| *differs).map(|(_, aspect)| aspect).collect())
}

/// Returns the error for a member that is to be a control plane and is a worker, or the reverse.
pub fn other_role(host: &Address, to_control_plane: bool) -> Error {
    let (is, was) =
        if to_control_plane { ("control plane", "worker") } else { ("worker", "control plane") };
    Error::usage(format!(
        "host {host} is a {was} and cannot become a {is} while it is in the cluster"
    ))
    .hint(format!("remove it (`imgctl delete`) and add it again as a {is}"))
}

/// Returns the error for a member that is to serve the registry from now on, or no longer: its data
/// would have to move between hosts that both stay.
fn other_registry(host: &Address, takes: bool) -> Error {
    let what = if takes { "take" } else { "give up" };
    Error::usage(format!(
        "host {host} cannot {what} the role `{REGISTRY}` while it is in the cluster"
    ))
    .hint(if takes {
        "remove it (`imgctl delete`) and add it again with the role (`imgctl apply`), or give the \
         role to a host that is new"
    } else {
        "remove it (`imgctl delete`) and add it again without the role; another registry host, or the \
         first control plane, takes over"
    })
}

/// Checks that the host that bootstrapped the cluster stays, and stays the first.
fn check_first(present: &[Host], wanted: &[Host]) -> Result<()> {
    let first = |hosts: &[Host]| hosts.iter().find(|host| host.is_control_plane()).cloned();
    let (Some(old), Some(new)) = (first(present), first(wanted)) else {
        return Ok(());
    };
    if old.address.name == new.address.name {
        return Ok(());
    }
    let stays = wanted.iter().any(|host| host.address.name == old.address.name);
    Err(if stays {
        Error::usage(format!(
            "{} is the first control plane and must stay first in the list",
            old.address
        ))
        .hint(format!("put {} before {}", old.address, new.address))
    } else {
        Error::usage(format!("{} is the first control plane and cannot be removed", old.address))
            .hint("`imgctl reset` removes the whole cluster")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clusterfile::read;

    impl Change {
        fn is_empty(&self) -> bool {
            *self == Self::default()
        }
    }

    fn file(hosts: &[(&str, &str)], rest: &str) -> Clusterfile {
        let mut text = String::from(
            "apiVersion: apps.sealos.io/v1beta1\nkind: Cluster\nmetadata: {name: a, creationTimestamp: '2024-01-01T00:00:00Z'}\nspec:\n  hosts:\n",
        );
        for (ips, more) in hosts {
            text.push_str(&format!("  - {{ips: [{ips}], {more}}}\n"));
        }
        text.push_str(rest);
        read(&text, "f").unwrap().0
    }

    fn surroundings() -> Surroundings<'static> {
        Surroundings { variable: &|_| None, home: None, local: Vec::new() }
    }

    fn ips(hosts: &[Host]) -> Vec<&str> {
        hosts.iter().map(Host::ip).collect()
    }

    const MASTERS: (&str, &str) = ("10.0.0.1, 10.0.0.2, 10.0.0.3", "roles: [master]");

    #[test]
    fn additions_and_removals_are_found_together() {
        let old = file(&[MASTERS, ("10.0.0.8-10.0.0.9", "roles: [node]")], "  image: [a:v1]\n");
        let new = file(
            &[
                ("10.0.0.1, 10.0.0.3", "roles: [master]"),
                ("'10.0.0.9:22', 10.0.0.10", "roles: [node, gpu], env: [A=1]"),
            ],
            "  image: [a:v1, b:v1]\n  env: [X=1]\n",
        );
        let change = diff(Some(&old), &new, &surroundings()).unwrap();
        assert_eq!(ips(&change.add), ["10.0.0.10"]);
        assert_eq!(ips(&change.remove), ["10.0.0.2", "10.0.0.8"]);
        assert_eq!(change.install, ["b:v1"]);
        assert!(change.environment && !change.create && !change.configs);
        let [altered] = &change.altered[..] else { panic!("{:?}", change.altered) };
        assert_eq!(altered.what, [Aspect::Roles, Aspect::Environment]);
        assert!(diff(Some(&old), &old, &surroundings()).unwrap().is_empty());

        let back = diff(Some(&new), &old, &surroundings()).unwrap();
        assert_eq!(back.unlisted, ["b:v1"]);
        assert_eq!(ips(&back.add), ["10.0.0.2", "10.0.0.8"]);

        let mut unborn = old.clone();
        unborn.cluster.created = None;
        let created = diff(Some(&unborn), &old, &surroundings()).unwrap();
        assert!(created.create && created.add.len() == 5);
    }

    #[test]
    fn a_new_port_or_login_is_a_change_of_the_same_host() {
        let old = file(&[MASTERS], "");
        let new = file(
            &[
                ("10.0.0.1, '10.0.0.2:2222'", "roles: [master]"),
                ("10.0.0.3", "roles: [master], ssh: {user: ops}"),
            ],
            "",
        );
        let change = diff(Some(&old), &new, &surroundings()).unwrap();
        let what: Vec<&[Aspect]> = change.altered.iter().map(|a| &a.what[..]).collect();
        assert_eq!(what, [&[Aspect::Port][..], &[Aspect::Login]]);
        assert!(change.add.is_empty() && change.remove.is_empty());
    }

    #[test]
    fn members_neither_take_nor_give_up_the_registry() {
        let one = |roles| ("10.0.0.1", roles);
        let two = |roles| ("10.0.0.2", roles);
        let master = one("roles: [master]");
        for (old, new, refused) in [
            ([master, two("roles: [node]")], [master, two("roles: [node, registry]")], true),
            ([master, two("roles: [node, registry]")], [master, two("roles: [node]")], true),
            // It serves in any case.
            (
                [master, two("roles: [node]")],
                [one("roles: [master, registry]"), two("roles: [node]")],
                false,
            ),
        ] {
            let (old, new) = (file(&old, ""), file(&new, ""));
            match diff(Some(&old), &new, &surroundings()) {
                Ok(_) => assert!(!refused, "{new:?}"),
                Err(error) => {
                    assert!(refused && error.to_string().contains("10.0.0.2"), "{error}");
                    assert_eq!(error.hints().len(), 1);
                }
            }
        }
        // A new host may have the role, and one that leaves takes it along.
        let with = file(&[master, two("roles: [node, registry]")], "");
        let without = file(&[master], "");
        diff(Some(&without), &with, &surroundings()).unwrap();
        diff(Some(&with), &without, &surroundings()).unwrap();
    }

    #[test]
    fn the_first_control_plane_stays_and_roles_are_not_swapped() {
        let old = file(&[MASTERS, ("10.0.0.9", "roles: [node]")], "");
        for (hosts, expected) in [
            (&[("10.0.0.2, 10.0.0.3", "roles: [master]")][..], "cannot be removed"),
            (&[("10.0.0.2, 10.0.0.1", "roles: [master]")], "first in the list"),
            (&[("10.0.0.1, 10.0.0.9", "roles: [master]")], "cannot become"),
        ] {
            let error = diff(Some(&old), &file(hosts, ""), &surroundings()).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
