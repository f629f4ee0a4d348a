//! Rotation of the authorities that an image declares.

use std::time::Duration;

use crate::action::{Action, Line, Site};
use crate::certificates::again;
use crate::certificates::declared::Declared;
use crate::certificates::{
    rotation,
    rotation::{Pair, Signs, Trust},
};
use crate::rotation::{Rotator, Which};
use crate::script::certificates::{controller_file, declared_file, read, text, write};
use crate::script::{Script, rootfs};
use imgctl_base::error::{Error, Result};
use imgctl_model::context::{ClusterContext, Host};

const LONG: Duration = Duration::from_secs(10 * 60);

/// Reads what is declared on the host of `site`.
fn declared(site: &Site<'_>) -> Result<Declared> {
    let file = declared_file(site.context)?
        .ok_or_else(|| Error::usage("the image of this cluster declares no certificates"))?;
    let declared = read(site.agent, &file)?;
    if declared.authorities.is_empty() {
        return Err(Error::usage(format!(
            "{file} declares no authority on {}: there is nothing to rotate",
            site.agent.host()
        )));
    }
    Ok(declared)
}

/// Runs a line of the image.
fn changed(site: &Site<'_>, line: &str, number: usize) -> Result<()> {
    let line = Line {
        workdir: Some(site.context.paths.scripts()),
        environment: site.context.environment_on(site.host, site.context.rootfs()),
        ..Line::repeatable(line)
    };
    site.run_on(site.agent, &line, &format!("-changed{number}")).map(|_| ())
}

impl Rotator for Script {
    fn authorities(&self, _context: &ClusterContext) -> Vec<Which> {
        vec![Which::Declared]
    }

    fn begin(&self, _which: &[Which]) -> Action {
        Action::new("begin", "make new authorities, on the controller", |site| {
            for one in declared(site)?.authorities {
                Pair::of(site.state(), &controller_file(&one.name))?;
            }
            rotation::open(site.state())
        })
    }

    fn trust(
        &self,
        _context: &ClusterContext,
        _host: &Host,
        _which: &[Which],
        trust: Trust,
    ) -> Result<Vec<Action>> {
        let says = match trust {
            Trust::Both => "write the former and the new authority, and have services read them",
            Trust::New => "write the new authority alone, and have services read it",
            Trust::Former => "write the former authority alone, and have services read it",
        };
        let action = Action::new("trust", says, move |site| {
            for (number, one) in declared(site)?.authorities.iter().enumerate() {
                let pair = Pair::of(site.state(), &controller_file(&one.name))?;
                write(site.agent, &one.certificate, 0o644, &pair.bundle(trust))?;
                if let Some(line) = &one.changed {
                    changed(site, line, number)?;
                }
            }
            Ok(())
        });
        Ok(vec![action.within(LONG)])
    }

    fn sign(
        &self,
        _context: &ClusterContext,
        host: &Host,
        _which: &[Which],
        signs: Signs,
    ) -> Result<Vec<Action>> {
        let says = match signs {
            Signs::New => "sign all certificates again, by the new authority; keys stay",
            Signs::Former => "sign all certificates again, by the former authority; keys stay",
        };
        let with_keys = host.is_control_plane();
        let action = Action::new("sign", says, move |site| {
            let declared = declared(site)?;
            for (number, one) in declared.certificates.iter().enumerate() {
                let pair = Pair::of(site.state(), &controller_file(&one.authority))?;
                let signer = pair.signer(signs);
                let missing = |path: &str| {
                    Error::not_found(format!("{}: there is no {path}", site.agent.host()))
                };
                let old =
                    text(site.agent, &one.certificate)?.ok_or_else(|| missing(&one.certificate))?;
                if !again::is_signed_by(&old, signer) {
                    let key = text(site.agent, &one.key)?.ok_or_else(|| missing(&one.key))?;
                    let new = again::renew(signer, &old, &key, None)?;
                    write(site.agent, &one.certificate, 0o644, &new.certificate)?;
                }
                if let Some(line) = &one.changed {
                    changed(site, line, number)?;
                }
            }
            for one in &declared.authorities {
                let pair = Pair::of(site.state(), &controller_file(&one.name))?;
                write(site.agent, &one.certificate, 0o644, &pair.signed_bundle(signs))?;
                if with_keys {
                    write(site.agent, &one.key, 0o600, pair.signer(signs).key.pem.expose())?;
                }
            }
            Ok(())
        });
        Ok(vec![action.within(LONG)])
    }

    fn gate(&self, context: &ClusterContext, host: &Host) -> Result<Vec<Action>> {
        let image = rootfs(context)?;
        let Some(value) = image.label(&["health"]) else { return Ok(Vec::new()) };
        let mut environment = context.environment_on(host, Some(image));
        environment.insert("IMGCTL_UPGRADE_ID".to_owned(), "certificates".to_owned());
        let line = Line {
            workdir: Some(context.paths.scripts()),
            environment,
            ..Line::repeatable(format!("bash {value}"))
        };
        Ok(vec![Action::command("gate", line).within(LONG)])
    }

    fn end(&self, _which: &[Which], signs: Signs) -> Action {
        let says = match signs {
            Signs::New => "the new authorities are those of the cluster; forget the former ones",
            Signs::Former => "forget the new authorities",
        };
        Action::new("end", says, move |site| {
            let names: Vec<String> =
                declared(site)?.authorities.iter().map(|one| controller_file(&one.name)).collect();
            match signs {
                Signs::New => rotation::finish(site.state(), &names),
                Signs::Former => rotation::discard(site.state()),
            }
        })
    }
}
