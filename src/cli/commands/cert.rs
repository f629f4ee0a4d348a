//! `imgctl cert`.

use clap::Args;
use serde_json::{Value, json};

use crate::cli::{
    cluster_options::WorkArgs, context::Context, registry_options::RegistryArgs,
    ssh_options::SshArgs,
};
use crate::ui::table::Table;
use imgctl_base::error::Result;
use imgctl_cluster::runtime::certificates::{inspect::Certificate, validity};
use imgctl_ops::maintain::{self, Renewal, renew_certificates};

/// Show or renew certificates, or add names to the API server's certificate
#[derive(Args, Debug)]
#[command(
    after_help = "Without --renew and --alt-names, lists the controller's certificates and when they expire.

Examples:
  imgctl cert
  imgctl cert --cluster production --json
  imgctl cert --alt-names api.example.com,192.0.2.7
  imgctl cert --renew all --certificate-validity 8760h
  imgctl cert --renew admin.conf"
)]
pub(crate) struct CertArgs {
    /// Name of the cluster
    #[arg(short, long, default_value = "default", value_name = "NAME")]
    cluster: String,

    /// DNS names and addresses to add to the API server's certificate
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    alt_names: Vec<String>,

    /// Certificates to renew: all, admin.conf, controller-manager.conf, apiserver, etcd/server and
    /// others
    #[arg(long, value_name = "WHAT")]
    renew: Vec<String>,

    /// Show the groups that certificates name
    #[arg(long)]
    groups: bool,

    #[command(flatten)]
    ssh: SshArgs,

    #[command(flatten)]
    work: WorkArgs,
}

pub(crate) fn run(args: &CertArgs, context: &Context) -> Result<()> {
    let session = context.session(&args.ssh, &RegistryArgs::default())?;
    if args.renew.is_empty() && args.alt_names.is_empty() {
        return show(&maintain::certificates(&args.cluster, &session)?, args, context);
    }
    let request = Renewal {
        cluster: args.cluster.clone(),
        alt_names: args.alt_names.clone(),
        renew: args.renew.clone(),
        options: args.work.options(context)?,
    };
    renew_certificates(&request, &session)
}

fn show(found: &[(&str, Certificate)], args: &CertArgs, context: &Context) -> Result<()> {
    if context.ui.is_json() {
        let rows: Vec<Value> = found.iter().map(|(file, one)| row(file, one)).collect();
        return context.ui.json(&json!({"cluster": args.cluster, "certificates": rows}));
    }
    let mut head = vec!["FILE", "NAME", "EXPIRES", "LEFT"];
    if args.groups {
        head.push("GROUP");
    }
    let mut table = Table::new(&head);
    for (file, one) in found {
        let left = one.not_after - i64::try_from(validity::now()).unwrap_or(i64::MAX);
        let mut cells = vec![
            (*file).to_owned(),
            one.common_name.clone(),
            date(one.not_after),
            match left {
                ..=0 => "expired".to_owned(),
                left => format!("{} days", left / 86_400),
            },
        ];
        if args.groups {
            cells.push(one.organization.clone().unwrap_or_default());
        }
        table.row(cells);
    }
    context.ui.print(&table.render(true))
}

fn row(file: &str, one: &Certificate) -> Value {
    json!({
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
    jiff::Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |at| at.to_string())
}
