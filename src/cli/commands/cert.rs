//! `imgctl cert`: certificates of a cluster, shown, renewed, given more names; and their timers.

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde_json::{Value, json};

use imgctl_base::error::{Error, Result};
use imgctl_frontend::cluster_options::{ClusterArg, WorkArgs};
use imgctl_frontend::{context::Context, registry_options::RegistryArgs, ssh_options::SshArgs};
use imgctl_ops::maintain::{self, Certificates, Renewal, Timers, renew_certificates, timers};
use imgctl_ops::rotation::{Rotation, rotate};
use imgctl_runtime::certificates::{inspect::Certificate, validity};
use imgctl_ui::table::Table;

/// Show or renew certificates, or add names to the API server's certificate
#[derive(Args, Debug)]
#[command(
    after_help = "Without other flags, lists the certificates on all hosts and when they expire.

Examples:
  imgctl cert
  imgctl cert --cluster production --json
  imgctl cert --alt-names api.example.com,192.0.2.7
  imgctl cert --renew all --certificate-validity 8760h
  imgctl cert --renew admin.conf
  imgctl cert --timer on
  imgctl cert --rotate-ca --dry-run
  imgctl cert --rotate-ca kubernetes,front-proxy --keep-old-ca"
)]
pub(crate) struct CertArgs {
    #[command(flatten)]
    cluster: ClusterArg,

    /// DNS names and addresses to add to the API server's certificate
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    alt_names: Vec<String>,

    /// Certificates to renew: all, admin.conf, controller-manager.conf, apiserver, etcd/server and
    /// others
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    renew: Vec<String>,

    /// Replace CAs by new ones: all, or kubernetes, etcd, front-proxy, declared. Run it again to resume
    #[arg(
        long,
        num_args = 0..=1,
        default_missing_value = "all",
        value_delimiter = ',',
        value_name = "CA",
        conflicts_with_all = ["renew", "alt_names", "timer"]
    )]
    rotate_ca: Vec<String>,

    /// Go back to the former CAs, which is possible until they are dropped
    #[arg(long, requires = "rotate_ca")]
    undo: bool,

    /// Stop before the former CAs are dropped; the same command without this flag drops them
    #[arg(long, requires = "rotate_ca", conflicts_with = "undo")]
    keep_old_ca: bool,

    /// Do not replace Pods, which read CAs only when they start
    #[arg(long, requires = "rotate_ca")]
    keep_pods: bool,

    /// Have hosts renew their certificates themselves, by a timer on each, or no longer
    #[arg(long, value_name = "on|off", conflicts_with_all = ["renew", "alt_names"])]
    timer: Option<Switch>,

    /// Show the groups that certificates name
    #[arg(
        long,
        num_args = 0..=1,
        default_missing_value = "true",
        value_name = "BOOL",
        hide_possible_values = true
    )]
    groups: Option<String>,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    work: WorkArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

pub(crate) fn cert(args: &CertArgs, context: &Context) -> Result<()> {
    if let Some(list) = args.groups.as_deref().filter(|text| !matches!(*text, "true" | "false")) {
        return Err(Error::usage(format!(
            "--groups {list} is not supported: the groups in certificates are those that Kubernetes \
             components need"
        ))
        .hint(
            "a kubeconfig for other groups: `kubeadm kubeconfig user --client-name NAME --org GROUP` on \
             a control plane",
        ));
    }
    let session = context.session(&args.ssh, &RegistryArgs::default())?;
    let cluster = args.cluster.name(context)?;
    if !args.rotate_ca.is_empty() {
        let request = Rotation {
            cluster,
            which: args.rotate_ca.clone(),
            undo: args.undo,
            keep_former: args.keep_old_ca,
            keep_pods: args.keep_pods,
            options: args.work.options(context)?,
        };
        return rotate(&request, &session);
    }
    if let Some(timer) = args.timer {
        let request =
            Timers { cluster, renew: timer == Switch::On, options: args.work.options(context)? };
        return timers(&request, &session);
    }
    if args.renew.is_empty() && args.alt_names.is_empty() {
        return show_certificates(
            &cluster,
            &maintain::certificates(&cluster, &session)?,
            args,
            context,
        );
    }
    let request = Renewal {
        cluster,
        alt_names: args.alt_names.clone(),
        renew: args.renew.clone(),
        options: args.work.options(context)?,
    };
    renew_certificates(&request, &session)
}

fn show_certificates(
    cluster: &str,
    found: &Certificates,
    args: &CertArgs,
    context: &Context,
) -> Result<()> {
    let of_hosts = found.hosts.iter().flat_map(|(host, read)| {
        let all = read.iter().flat_map(|of_host| &of_host.certificates);
        all.map(move |one| (host.as_str(), one.file.as_str(), &one.certificate))
    });
    let own = found.controller.iter().map(|(file, one)| ("controller", *file, one));
    let rows: Vec<_> = of_hosts.chain(own).collect();
    if context.ui.is_json() {
        let renewals = found.hosts.iter().filter_map(|(host, read)| {
            let record = read.as_ref().ok()?.renewal.as_ref()?;
            Some(json!({"host": host, "renewal": record}))
        });
        let failed = found.hosts.iter().filter_map(|(host, read)| {
            Some(json!({"host": host, "message": read.as_ref().err()?.to_string()}))
        });
        context.ui.json(&json!({
            "cluster": cluster,
            "certificates": rows.iter().map(|row| certificate_json(*row)).collect::<Vec<_>>(),
            "renewals": renewals.collect::<Vec<_>>(),
            "failed": failed.collect::<Vec<_>>(),
        }))?;
        return found.check();
    }
    let has_groups = args.groups.as_deref() == Some("true");
    let mut head = vec!["HOST", "FILE", "NAME", "EXPIRES", "LEFT"];
    if has_groups {
        head.push("GROUP");
    }
    let mut table = Table::new(&head);
    for (host, file, one) in rows {
        let mut cells = vec![
            host.to_owned(),
            file.to_owned(),
            one.common_name.clone(),
            date(one.not_after),
            validity::left(one.not_after - now()),
        ];
        if has_groups {
            cells.push(one.organization.clone().unwrap_or_default());
        }
        table.row(cells);
    }
    context.ui.print(&table.render(true))?;
    found.check()
}

fn now() -> i64 {
    i64::try_from(validity::now()).unwrap_or(i64::MAX)
}

fn certificate_json((host, file, one): (&str, &str, &Certificate)) -> Value {
    json!({
        "host": host,
        "file": file,
        "commonName": one.common_name,
        "organization": one.organization,
        "issuer": one.issuer,
        "names": one.names,
        "authority": one.is_authority,
        "notBefore": date(one.not_before),
        "notAfter": date(one.not_after),
    })
}

fn date(seconds: i64) -> String {
    Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |at| at.to_string())
}
