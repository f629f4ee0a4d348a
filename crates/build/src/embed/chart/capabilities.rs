//! `.Capabilities`, `.Release` and `.Chart`: template data in addition to values and files.

use super::metadata::Metadata;
use super::objects::{ApiVersions, Struct};
use super::{Chart, RenderOptions};
use imgctl_template::Value;
use imgctl_template::value::Numbers;

/// API versions of Kubernetes itself, which `helm template` assumes without a cluster.
const API_VERSIONS: [&str; 56] = [
    "v1",
    "admissionregistration.k8s.io/v1",
    "admissionregistration.k8s.io/v1alpha1",
    "admissionregistration.k8s.io/v1beta1",
    "internal.apiserver.k8s.io/v1alpha1",
    "apps/v1",
    "apps/v1beta1",
    "apps/v1beta2",
    "authentication.k8s.io/v1",
    "authentication.k8s.io/v1alpha1",
    "authentication.k8s.io/v1beta1",
    "authorization.k8s.io/v1",
    "authorization.k8s.io/v1beta1",
    "autoscaling/v1",
    "autoscaling/v2",
    "autoscaling/v2beta1",
    "autoscaling/v2beta2",
    "batch/v1",
    "batch/v1beta1",
    "certificates.k8s.io/v1",
    "certificates.k8s.io/v1beta1",
    "certificates.k8s.io/v1alpha1",
    "coordination.k8s.io/v1alpha2",
    "coordination.k8s.io/v1beta1",
    "coordination.k8s.io/v1",
    "discovery.k8s.io/v1",
    "discovery.k8s.io/v1beta1",
    "events.k8s.io/v1",
    "events.k8s.io/v1beta1",
    "extensions/v1beta1",
    "flowcontrol.apiserver.k8s.io/v1",
    "flowcontrol.apiserver.k8s.io/v1beta1",
    "flowcontrol.apiserver.k8s.io/v1beta2",
    "flowcontrol.apiserver.k8s.io/v1beta3",
    "networking.k8s.io/v1",
    "networking.k8s.io/v1alpha1",
    "networking.k8s.io/v1beta1",
    "node.k8s.io/v1",
    "node.k8s.io/v1alpha1",
    "node.k8s.io/v1beta1",
    "policy/v1",
    "policy/v1beta1",
    "rbac.authorization.k8s.io/v1",
    "rbac.authorization.k8s.io/v1beta1",
    "rbac.authorization.k8s.io/v1alpha1",
    "resource.k8s.io/v1beta1",
    "resource.k8s.io/v1alpha3",
    "scheduling.k8s.io/v1alpha1",
    "scheduling.k8s.io/v1beta1",
    "scheduling.k8s.io/v1",
    "storage.k8s.io/v1beta1",
    "storage.k8s.io/v1",
    "storage.k8s.io/v1alpha1",
    "storagemigration.k8s.io/v1alpha1",
    "apiextensions.k8s.io/v1beta1",
    "apiextensions.k8s.io/v1",
];

/// Helm version that templates see.
const HELM: &str = "v3.17.3";

fn object(type_name: &'static str, shown: String, fields: Vec<(&'static str, Value)>) -> Value {
    Value::object(Struct { type_name, fields, shown })
}

/// Returns `.Capabilities`.
pub(super) fn capabilities(options: &RenderOptions) -> Value {
    let version = options.kubernetes.as_str();
    let version = format!("v{}", version.strip_prefix('v').unwrap_or(version));
    let mut parts = version.trim_start_matches('v').split('.');
    let major = Value::text(parts.next().unwrap_or("1"));
    let minor = parts.next().unwrap_or("0");
    let minor = Value::text(minor.split(['-', '+']).next().unwrap_or(minor));
    let kube = object(
        "chartutil.KubeVersion",
        version.clone(),
        vec![
            ("Version", Value::text(&version)),
            ("GitVersion", Value::text(&version)),
            ("String", Value::text(&version)),
            ("Major", major),
            ("Minor", minor),
        ],
    );
    let helm = object(
        "version.BuildInfo",
        format!("{{{HELM}   }}"),
        vec![
            ("Version", Value::text(HELM)),
            ("GitCommit", Value::text("")),
            ("GitTreeState", Value::text("clean")),
            ("GoVersion", Value::text("")),
        ],
    );
    let known = API_VERSIONS.iter().map(|version| (*version).to_owned());
    let versions = known.chain(options.api_versions.iter().cloned()).collect();
    let versions = Value::object(ApiVersions(versions));
    object(
        "*chartutil.Capabilities",
        "capabilities".to_owned(),
        vec![("KubeVersion", kube), ("APIVersions", versions), ("HelmVersion", helm)],
    )
}

/// Returns `.Release`.
pub(super) fn release(options: &RenderOptions) -> Value {
    Value::map([
        ("Name", Value::text(&options.release)),
        ("Namespace", Value::text(&options.namespace)),
        ("IsUpgrade", Value::Bool(false)),
        ("IsInstall", Value::Bool(true)),
        ("Revision", Value::Int(1)),
        ("Service", Value::text("Helm")),
    ])
}

/// Returns `.Chart`.
pub(super) fn chart(chart: &Chart, is_root: bool) -> Value {
    let Metadata { api_version, name, version, app_version, kube_version, .. } = &chart.metadata;
    let meta = &chart.metadata;
    let optional = |text: &Option<String>| Value::text(text.as_deref().unwrap_or(""));
    let texts = |list: &Option<Vec<String>>| Value::list(list.iter().flatten().map(Value::text));
    let annotations = meta.annotations.as_ref().map(|all| Value::from_json(all, Numbers::Floats));
    let maintainers = meta.maintainers.iter().flatten().map(|maintainer| {
        let text = |key: &str| {
            let value = maintainer.get(key).and_then(|value| value.as_str());
            Value::text(value.unwrap_or(""))
        };
        object(
            "*chart.Maintainer",
            "maintainer".to_owned(),
            vec![("Name", text("name")), ("Email", text("email")), ("URL", text("url"))],
        )
    });
    let dependencies = meta.dependencies.iter().flatten().map(|dependency| {
        object(
            "*chart.Dependency",
            "dependency".to_owned(),
            vec![
                ("Name", Value::text(&dependency.name)),
                ("Version", Value::text(&dependency.version)),
                ("Repository", optional(&dependency.repository)),
                ("Condition", optional(&dependency.condition)),
                ("Tags", texts(&dependency.tags)),
                ("Enabled", Value::Bool(dependency.enabled)),
                ("Alias", optional(&dependency.alias)),
            ],
        )
    });
    let fields = vec![
        ("Name", Value::text(name)),
        ("Version", Value::text(version)),
        ("AppVersion", Value::text(app_version)),
        ("APIVersion", Value::text(api_version)),
        ("KubeVersion", Value::text(kube_version)),
        ("Description", optional(&meta.description)),
        ("Home", optional(&meta.home)),
        ("Icon", optional(&meta.icon)),
        ("Sources", texts(&meta.sources)),
        ("Keywords", texts(&meta.keywords)),
        ("Maintainers", Value::list(maintainers)),
        ("Annotations", annotations.unwrap_or_else(|| Value::map::<&str>([]))),
        ("Deprecated", Value::Bool(meta.deprecated)),
        ("Condition", optional(&meta.condition)),
        ("Tags", optional(&meta.tags)),
        ("Type", optional(&meta.kind)),
        ("Dependencies", Value::list(dependencies)),
        ("IsRoot", Value::Bool(is_root)),
    ];
    object("struct { chart.Metadata; IsRoot bool }", format!("{{{name} {version}}}"), fields)
}
