//! Data of templates with fields and methods of its own: Go structs, `.Files`,
//! `.Capabilities`, and the versions and APIs behind it.

use std::collections::BTreeMap;
use std::rc::Rc;

use base64::Engine as _;

use super::{Chart, Metadata, RenderOptions, glob};
use imgctl_template::value::{Numbers, Object, text_argument};
use imgctl_template::{Value, encode};

/// Name, JSON tag as Go has it, and value of a field. The tag of a method is [`METHOD`].
type Field = (&'static str, &'static str, Value);

/// JSON tag of what is not a part of the data: a method without arguments, an embedded struct.
const METHOD: &str = "-";
/// End of the JSON tag of a field that is left out if it is empty.
const OMIT_EMPTY: &str = ",omitempty";

/// A Go struct: accessing a field that does not exist is an error.
pub(super) struct Struct {
    type_name: &'static str,
    fields: Vec<Field>,
    /// Output of `%v`.
    shown: String,
}

impl Object for Struct {
    fn kind(&self) -> &'static str {
        if self.type_name.starts_with('*') { "ptr" } else { "struct" }
    }

    fn type_name(&self) -> &'static str {
        self.type_name
    }

    fn show(&self) -> String {
        self.shown.clone()
    }

    fn data(&self) -> Value {
        let members = self.fields.iter().filter(|(_, tag, _)| *tag != METHOD);
        Value::map(members.filter_map(|(_, tag, value)| match tag.strip_suffix(OMIT_EMPTY) {
            Some(key) => value.is_true().then(|| (key, value.clone())),
            None => Some((*tag, value.clone())),
        }))
    }

    fn member(&self, name: &str, _: &[Value]) -> Option<Result<Value, String>> {
        let found = self.fields.iter().find(|(field, ..)| *field == name);
        found.map(|(.., value)| Ok(value.clone()))
    }
}

/// `.Capabilities.APIVersions`.
pub(super) struct ApiVersions(pub(super) Vec<String>);

impl Object for ApiVersions {
    fn kind(&self) -> &'static str {
        "slice"
    }

    fn type_name(&self) -> &'static str {
        "chartutil.VersionSet"
    }

    fn items(&self) -> Option<usize> {
        Some(self.0.len())
    }

    fn show(&self) -> String {
        format!("[{}]", self.0.join(" "))
    }

    fn data(&self) -> Value {
        Value::list(self.0.iter().map(Value::text))
    }

    fn member(&self, name: &str, arguments: &[Value]) -> Option<Result<Value, String>> {
        (name == "Has").then(|| {
            let wanted = text_argument(name, arguments)?;
            Ok(Value::Bool(self.0.iter().any(|version| *version == *wanted)))
        })
    }
}

/// Maximum number of lines that `.Files.Lines` divides a file into.
const MOST_LINES: usize = 500_000;

/// `.Files`: contents by path within the chart.
pub(super) struct Files(pub(super) Contents);

type Contents = BTreeMap<String, Rc<[u8]>>;

impl Object for Files {
    fn kind(&self) -> &'static str {
        "map"
    }

    fn type_name(&self) -> &'static str {
        "engine.files"
    }

    fn items(&self) -> Option<usize> {
        Some(self.0.len())
    }

    fn show(&self) -> String {
        "map[]".to_owned()
    }

    fn data(&self) -> Value {
        let files = self.0.iter();
        Value::map(files.map(|(path, content)| (path.as_str(), Value::Bytes(content.clone()))))
    }

    /// A name that is not a method is a path, as in Go's map.
    fn member(&self, name: &str, arguments: &[Value]) -> Option<Result<Value, String>> {
        let files = &self.0;
        let text = || text_argument(name, arguments);
        let content = |path: &str| files.get(path).cloned();
        Some(match name {
            "Get" => text().map(|path| {
                let bytes = content(&path).unwrap_or_default();
                Value::text(String::from_utf8_lossy(&bytes))
            }),
            "GetBytes" => text().map(|path| Value::Bytes(content(&path).unwrap_or_default())),
            "Lines" => text().and_then(|path| match content(&path) {
                // Helm stops here.
                Some(bytes) if bytes.is_empty() => Err(format!("{path} has no lines")),
                bytes => lines(&bytes.unwrap_or_default()),
            }),
            "Glob" => text().map(|pattern| glob(files, &pattern)),
            "AsConfig" => as_map(files, |bytes| String::from_utf8_lossy(bytes).into_owned()),
            "AsSecrets" => {
                as_map(files, |bytes| base64::engine::general_purpose::STANDARD.encode(bytes))
            }
            path => Ok(content(path).map_or(Value::Nil, Value::Bytes)),
        })
    }
}

fn lines(bytes: &[u8]) -> Result<Value, String> {
    if bytes.iter().filter(|byte| **byte == b'\n').count() > MOST_LINES {
        return Err(format!("the file has more than {MOST_LINES} lines"));
    }
    let text = String::from_utf8_lossy(bytes);
    if text.is_empty() {
        return Ok(Value::list([]));
    }
    Ok(Value::list(text.strip_suffix('\n').unwrap_or(&text).split('\n').map(Value::text)))
}

fn glob(files: &Contents, pattern: &str) -> Value {
    let chosen = files
        .iter()
        .filter(|(path, _)| glob::matches(pattern, path))
        .map(|(path, content)| (path.clone(), content.clone()))
        .collect();
    Value::object(Files(chosen))
}

/// Entries of a ConfigMap or Secret: base names and contents.
fn as_map(files: &Contents, show: impl Fn(&[u8]) -> String) -> Result<Value, String> {
    let members = files.iter().map(|(path, content)| {
        let base = path.rsplit('/').next().unwrap_or(path);
        (base, Value::text(show(content)))
    });
    encode::to_yaml(&Value::map(members)).map(Value::text)
}

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

fn object(type_name: &'static str, shown: String, fields: Vec<Field>) -> Value {
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
            ("Version", "Version", Value::text(&version)),
            ("Major", "Major", major),
            ("Minor", "Minor", minor),
            ("GitVersion", METHOD, Value::text(&version)),
            ("String", METHOD, Value::text(&version)),
        ],
    );
    let helm = object(
        "version.BuildInfo",
        format!("{{{HELM}   }}"),
        vec![
            ("Version", "version,omitempty", Value::text(HELM)),
            ("GitCommit", "git_commit,omitempty", Value::text("")),
            ("GitTreeState", "git_tree_state,omitempty", Value::text("clean")),
            ("GoVersion", "go_version,omitempty", Value::text("")),
        ],
    );
    let known = API_VERSIONS.iter().map(|version| (*version).to_owned());
    let versions = known.chain(options.api_versions.iter().cloned()).collect();
    let versions = Value::object(ApiVersions(versions));
    let mut fields = vec![
        ("KubeVersion", "KubeVersion", kube),
        ("APIVersions", "APIVersions", versions),
        ("HelmVersion", "HelmVersion", helm),
    ];
    let all = |fields| object("*chartutil.Capabilities", "capabilities".to_owned(), fields);
    fields.push(("Copy", METHOD, all(fields.clone())));
    all(fields)
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
    let annotations = meta.annotations.iter().flatten();
    let annotations = Value::map(annotations.map(|(key, text)| (&**key, Value::text(text))));
    let maintainers = meta.maintainers.iter().flatten().map(|maintainer| {
        let text = |key: &str| {
            let value = maintainer.get(key).and_then(|value| value.as_str());
            Value::text(value.unwrap_or(""))
        };
        object(
            "*chart.Maintainer",
            "maintainer".to_owned(),
            vec![
                ("Name", "name,omitempty", text("name")),
                ("Email", "email,omitempty", text("email")),
                ("URL", "url,omitempty", text("url")),
                ("Validate", METHOD, Value::Nil),
            ],
        )
    });
    let dependencies = meta.dependencies.iter().flatten().map(|dependency| {
        let imported = dependency.import_values.iter().flatten();
        let imported = imported.map(|value| Value::from_json(value, Numbers::Floats));
        object(
            "*chart.Dependency",
            "dependency".to_owned(),
            vec![
                ("Name", "name", Value::text(&dependency.name)),
                ("Version", "version,omitempty", Value::text(&dependency.version)),
                ("Repository", "repository", optional(&dependency.repository)),
                ("Condition", "condition,omitempty", optional(&dependency.condition)),
                ("Tags", "tags,omitempty", texts(&dependency.tags)),
                ("Enabled", "enabled,omitempty", Value::Bool(dependency.enabled)),
                ("ImportValues", "import-values,omitempty", Value::list(imported)),
                ("Alias", "alias,omitempty", optional(&dependency.alias)),
                ("Validate", METHOD, Value::Nil),
            ],
        )
    });
    let mut fields = vec![
        ("Name", "name,omitempty", Value::text(name)),
        ("Home", "home,omitempty", optional(&meta.home)),
        ("Sources", "sources,omitempty", texts(&meta.sources)),
        ("Version", "version,omitempty", Value::text(version)),
        ("Description", "description,omitempty", optional(&meta.description)),
        ("Keywords", "keywords,omitempty", texts(&meta.keywords)),
        ("Maintainers", "maintainers,omitempty", Value::list(maintainers)),
        ("Icon", "icon,omitempty", optional(&meta.icon)),
        ("APIVersion", "apiVersion,omitempty", Value::text(api_version)),
        ("Condition", "condition,omitempty", optional(&meta.condition)),
        ("Tags", "tags,omitempty", optional(&meta.tags)),
        ("AppVersion", "appVersion,omitempty", Value::text(app_version)),
        ("Deprecated", "deprecated,omitempty", Value::Bool(meta.deprecated)),
        ("Annotations", "annotations,omitempty", annotations),
        ("KubeVersion", "kubeVersion,omitempty", Value::text(kube_version)),
        ("Dependencies", "dependencies,omitempty", Value::list(dependencies)),
        ("Type", "type,omitempty", optional(&meta.kind)),
    ];
    let shown = format!("{{{name} {version}}}");
    fields.push(("Metadata", METHOD, object("chart.Metadata", shown.clone(), fields.clone())));
    fields.push(("IsRoot", "IsRoot", Value::Bool(is_root)));
    object("struct { chart.Metadata; IsRoot bool }", shown, fields)
}
