//! The Go struct `v1.Container` and everything in it, release by release, as tables.
//!
//! Fields are in the order of the Go structs; `since` is the first minor release that has the
//! field. No field was moved or removed between 1.9 and 1.30. Later additions are not listed: from
//! 1.31 on, kubelets hash only name and image. Go's type names matter only in the struct era (1.9
//! to 1.15), so a struct that was renamed later has the name it had then.

use super::Minor;

/// A Go struct.
#[derive(Debug)]
pub(super) struct Struct {
    pub(super) name: &'static str,
    pub(super) fields: &'static [Field],
}

/// A field of a Go struct.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    /// The JSON key; empty for an embedded struct, whose fields appear among those of its parent.
    pub(super) key: &'static str,
    pub(super) shape: Shape,
    pub(super) since: u32,
    /// Serialized to JSON even when empty.
    pub(super) always: bool,
}

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// A string type of this name.
    Text(&'static str),
    /// An integer type of this name.
    Number(&'static str),
    Bool,
    Quantity,
    /// `v1.ResourceList`: a map from names to quantities.
    Quantities,
    IntOrString,
    Struct(&'static Struct),
    Embedded(&'static Struct),
    List(&'static Shape),
    Pointer(&'static Shape),
}

impl Shape {
    /// Returns the type as Go names it.
    pub(super) fn type_name(self) -> String {
        match self {
            Self::Text(name) | Self::Number(name) => name.to_owned(),
            Self::Bool => "bool".to_owned(),
            Self::Quantity => "resource.Quantity".to_owned(),
            Self::Quantities => "v1.ResourceList".to_owned(),
            Self::IntOrString => "intstr.IntOrString".to_owned(),
            Self::Struct(of) | Self::Embedded(of) => of.name.to_owned(),
            Self::List(of) => format!("[]{}", of.type_name()),
            Self::Pointer(to) => format!("*{}", to.type_name()),
        }
    }
}

impl Struct {
    /// Returns the fields that `minor` has.
    pub(super) fn fields(&'static self, minor: Minor) -> impl Iterator<Item = &'static Field> {
        self.fields.iter().filter(move |field| field.since <= minor.0)
    }
}

const fn field(name: &'static str, key: &'static str, shape: Shape) -> Field {
    Field { name, key, shape, since: 9, always: false }
}

const fn embedded(of: &'static Struct, name: &'static str) -> Field {
    field(name, "", Shape::Embedded(of))
}

impl Field {
    const fn since(mut self, minor: u32) -> Self {
        self.since = minor;
        self
    }

    const fn always(mut self) -> Self {
        self.always = true;
        self
    }
}

const TEXT: Shape = Shape::Text("string");
const TEXTS: Shape = Shape::List(&TEXT);
const TEXT_OR_NONE: Shape = Shape::Pointer(&TEXT);
const BOOL_OR_NONE: Shape = Shape::Pointer(&Shape::Bool);
const INT32: Shape = Shape::Number("int32");
const INT64: Shape = Shape::Number("int64");
const INT64_OR_NONE: Shape = Shape::Pointer(&INT64);
const PROBE: Shape = Shape::Pointer(&Shape::Struct(&PROBE_STRUCT));
const CAPABILITIES: Shape = Shape::List(&Shape::Text("v1.Capability"));
const LIFECYCLE_HANDLER: Shape = Shape::Pointer(&Shape::Struct(&LIFECYCLE_HANDLER_STRUCT));

pub(super) static CONTAINER: Struct = Struct {
    name: "v1.Container",
    fields: &[
        field("Name", "name", TEXT).always(),
        field("Image", "image", TEXT),
        field("Command", "command", TEXTS),
        field("Args", "args", TEXTS),
        field("WorkingDir", "workingDir", TEXT),
        field("Ports", "ports", Shape::List(&Shape::Struct(&PORT))),
        field("EnvFrom", "envFrom", Shape::List(&Shape::Struct(&ENV_FROM))),
        field("Env", "env", Shape::List(&Shape::Struct(&ENV))),
        field("Resources", "resources", Shape::Struct(&RESOURCES)),
        field("ResizePolicy", "resizePolicy", Shape::List(&Shape::Struct(&RESIZE_POLICY)))
            .since(27),
        field(
            "RestartPolicy",
            "restartPolicy",
            Shape::Pointer(&Shape::Text("v1.ContainerRestartPolicy")),
        )
        .since(28),
        field("VolumeMounts", "volumeMounts", Shape::List(&Shape::Struct(&VOLUME_MOUNT))),
        field("VolumeDevices", "volumeDevices", Shape::List(&Shape::Struct(&VOLUME_DEVICE))),
        field("LivenessProbe", "livenessProbe", PROBE),
        field("ReadinessProbe", "readinessProbe", PROBE),
        field("StartupProbe", "startupProbe", PROBE).since(16),
        field("Lifecycle", "lifecycle", Shape::Pointer(&Shape::Struct(&LIFECYCLE))),
        field("TerminationMessagePath", "terminationMessagePath", TEXT),
        field(
            "TerminationMessagePolicy",
            "terminationMessagePolicy",
            Shape::Text("v1.TerminationMessagePolicy"),
        ),
        field("ImagePullPolicy", "imagePullPolicy", Shape::Text("v1.PullPolicy")),
        field(
            "SecurityContext",
            "securityContext",
            Shape::Pointer(&Shape::Struct(&SECURITY_CONTEXT)),
        ),
        field("Stdin", "stdin", Shape::Bool),
        field("StdinOnce", "stdinOnce", Shape::Bool),
        field("TTY", "tty", Shape::Bool),
    ],
};

static PORT: Struct = Struct {
    name: "v1.ContainerPort",
    fields: &[
        field("Name", "name", TEXT),
        field("HostPort", "hostPort", INT32),
        field("ContainerPort", "containerPort", INT32).always(),
        field("Protocol", "protocol", Shape::Text("v1.Protocol")),
        field("HostIP", "hostIP", TEXT),
    ],
};

static ENV_FROM: Struct = Struct {
    name: "v1.EnvFromSource",
    fields: &[
        field("Prefix", "prefix", TEXT),
        field("ConfigMapRef", "configMapRef", Shape::Pointer(&Shape::Struct(&CONFIG_MAP_SOURCE))),
        field("SecretRef", "secretRef", Shape::Pointer(&Shape::Struct(&SECRET_SOURCE))),
    ],
};

static CONFIG_MAP_SOURCE: Struct = Struct { name: "v1.ConfigMapEnvSource", fields: SOURCE_FIELDS };

static SECRET_SOURCE: Struct = Struct { name: "v1.SecretEnvSource", fields: SOURCE_FIELDS };

const SOURCE_FIELDS: &[Field] =
    &[embedded(&REFERENCE, "LocalObjectReference"), field("Optional", "optional", BOOL_OR_NONE)];

static REFERENCE: Struct =
    Struct { name: "v1.LocalObjectReference", fields: &[field("Name", "name", TEXT)] };

static ENV: Struct = Struct {
    name: "v1.EnvVar",
    fields: &[
        field("Name", "name", TEXT).always(),
        field("Value", "value", TEXT),
        field("ValueFrom", "valueFrom", Shape::Pointer(&Shape::Struct(&ENV_SOURCE))),
    ],
};

static ENV_SOURCE: Struct = Struct {
    name: "v1.EnvVarSource",
    fields: &[
        field("FieldRef", "fieldRef", Shape::Pointer(&Shape::Struct(&FIELD_REF))),
        field(
            "ResourceFieldRef",
            "resourceFieldRef",
            Shape::Pointer(&Shape::Struct(&RESOURCE_FIELD_REF)),
        ),
        field(
            "ConfigMapKeyRef",
            "configMapKeyRef",
            Shape::Pointer(&Shape::Struct(&CONFIG_MAP_KEY)),
        ),
        field("SecretKeyRef", "secretKeyRef", Shape::Pointer(&Shape::Struct(&SECRET_KEY))),
    ],
};

static FIELD_REF: Struct = Struct {
    name: "v1.ObjectFieldSelector",
    fields: &[
        field("APIVersion", "apiVersion", TEXT),
        field("FieldPath", "fieldPath", TEXT).always(),
    ],
};

static RESOURCE_FIELD_REF: Struct = Struct {
    name: "v1.ResourceFieldSelector",
    fields: &[
        field("ContainerName", "containerName", TEXT),
        field("Resource", "resource", TEXT).always(),
        field("Divisor", "divisor", Shape::Quantity).always(),
    ],
};

static CONFIG_MAP_KEY: Struct = Struct { name: "v1.ConfigMapKeySelector", fields: KEY_FIELDS };

static SECRET_KEY: Struct = Struct { name: "v1.SecretKeySelector", fields: KEY_FIELDS };

const KEY_FIELDS: &[Field] = &[
    embedded(&REFERENCE, "LocalObjectReference"),
    field("Key", "key", TEXT).always(),
    field("Optional", "optional", BOOL_OR_NONE),
];

static RESOURCES: Struct = Struct {
    name: "v1.ResourceRequirements",
    fields: &[
        field("Limits", "limits", Shape::Quantities),
        field("Requests", "requests", Shape::Quantities),
        field("Claims", "claims", Shape::List(&Shape::Struct(&CLAIM))).since(26),
    ],
};

static CLAIM: Struct =
    Struct { name: "v1.ResourceClaim", fields: &[field("Name", "name", TEXT).always()] };

static RESIZE_POLICY: Struct = Struct {
    name: "v1.ContainerResizePolicy",
    fields: &[
        field("ResourceName", "resourceName", TEXT).always(),
        field("RestartPolicy", "restartPolicy", TEXT).always(),
    ],
};

static VOLUME_MOUNT: Struct = Struct {
    name: "v1.VolumeMount",
    fields: &[
        field("Name", "name", TEXT).always(),
        field("ReadOnly", "readOnly", Shape::Bool),
        field("RecursiveReadOnly", "recursiveReadOnly", TEXT_OR_NONE).since(30),
        field("MountPath", "mountPath", TEXT).always(),
        field("SubPath", "subPath", TEXT),
        field(
            "MountPropagation",
            "mountPropagation",
            Shape::Pointer(&Shape::Text("v1.MountPropagationMode")),
        ),
        field("SubPathExpr", "subPathExpr", TEXT).since(14),
    ],
};

static VOLUME_DEVICE: Struct = Struct {
    name: "v1.VolumeDevice",
    fields: &[
        field("Name", "name", TEXT).always(),
        field("DevicePath", "devicePath", TEXT).always(),
    ],
};

static PROBE_STRUCT: Struct = Struct {
    name: "v1.Probe",
    fields: &[
        embedded(&PROBE_HANDLER, "Handler"),
        field("InitialDelaySeconds", "initialDelaySeconds", INT32),
        field("TimeoutSeconds", "timeoutSeconds", INT32),
        field("PeriodSeconds", "periodSeconds", INT32),
        field("SuccessThreshold", "successThreshold", INT32),
        field("FailureThreshold", "failureThreshold", INT32),
        field("TerminationGracePeriodSeconds", "terminationGracePeriodSeconds", INT64_OR_NONE)
            .since(21),
    ],
};

static PROBE_HANDLER: Struct = Struct {
    name: "v1.Handler",
    fields: &[
        EXEC_FIELD,
        HTTP_GET_FIELD,
        TCP_SOCKET_FIELD,
        field("GRPC", "grpc", Shape::Pointer(&Shape::Struct(&GRPC))).since(23),
    ],
};

static LIFECYCLE: Struct = Struct {
    name: "v1.Lifecycle",
    fields: &[
        field("PostStart", "postStart", LIFECYCLE_HANDLER),
        field("PreStop", "preStop", LIFECYCLE_HANDLER),
    ],
};

static LIFECYCLE_HANDLER_STRUCT: Struct = Struct {
    name: "v1.Handler",
    fields: &[
        EXEC_FIELD,
        HTTP_GET_FIELD,
        TCP_SOCKET_FIELD,
        field("Sleep", "sleep", Shape::Pointer(&Shape::Struct(&SLEEP))).since(29),
    ],
};

// A constant cannot reference a temporary; a static can be referenced.
static EXEC_SHAPE: Shape = Shape::Struct(&EXEC);
static HTTP_GET_SHAPE: Shape = Shape::Struct(&HTTP_GET);
static TCP_SOCKET_SHAPE: Shape = Shape::Struct(&TCP_SOCKET);
const EXEC_FIELD: Field = field("Exec", "exec", Shape::Pointer(&EXEC_SHAPE));
const HTTP_GET_FIELD: Field = field("HTTPGet", "httpGet", Shape::Pointer(&HTTP_GET_SHAPE));
const TCP_SOCKET_FIELD: Field = field("TCPSocket", "tcpSocket", Shape::Pointer(&TCP_SOCKET_SHAPE));

static EXEC: Struct =
    Struct { name: "v1.ExecAction", fields: &[field("Command", "command", TEXTS)] };

static HTTP_GET: Struct = Struct {
    name: "v1.HTTPGetAction",
    fields: &[
        field("Path", "path", TEXT),
        field("Port", "port", Shape::IntOrString).always(),
        field("Host", "host", TEXT),
        field("Scheme", "scheme", Shape::Text("v1.URIScheme")),
        field("HTTPHeaders", "httpHeaders", Shape::List(&Shape::Struct(&HTTP_HEADER))),
    ],
};

static HTTP_HEADER: Struct = Struct {
    name: "v1.HTTPHeader",
    fields: &[field("Name", "name", TEXT).always(), field("Value", "value", TEXT).always()],
};

static TCP_SOCKET: Struct = Struct {
    name: "v1.TCPSocketAction",
    fields: &[field("Port", "port", Shape::IntOrString).always(), field("Host", "host", TEXT)],
};

static GRPC: Struct = Struct {
    name: "v1.GRPCAction",
    fields: &[
        field("Port", "port", INT32).always(),
        field("Service", "service", TEXT_OR_NONE).always(),
    ],
};

static SLEEP: Struct =
    Struct { name: "v1.SleepAction", fields: &[field("Seconds", "seconds", INT64).always()] };

static SECURITY_CONTEXT: Struct = Struct {
    name: "v1.SecurityContext",
    fields: &[
        field("Capabilities", "capabilities", Shape::Pointer(&Shape::Struct(&CAPS))),
        field("Privileged", "privileged", BOOL_OR_NONE),
        field("SELinuxOptions", "seLinuxOptions", Shape::Pointer(&Shape::Struct(&SELINUX))),
        field("WindowsOptions", "windowsOptions", Shape::Pointer(&Shape::Struct(&WINDOWS)))
            .since(15),
        field("RunAsUser", "runAsUser", INT64_OR_NONE),
        field("RunAsGroup", "runAsGroup", INT64_OR_NONE).since(10),
        field("RunAsNonRoot", "runAsNonRoot", BOOL_OR_NONE),
        field("ReadOnlyRootFilesystem", "readOnlyRootFilesystem", BOOL_OR_NONE),
        field("AllowPrivilegeEscalation", "allowPrivilegeEscalation", BOOL_OR_NONE),
        field("ProcMount", "procMount", Shape::Pointer(&Shape::Text("v1.ProcMountType"))).since(12),
        field("SeccompProfile", "seccompProfile", Shape::Pointer(&Shape::Struct(&PROFILE)))
            .since(19),
        field("AppArmorProfile", "appArmorProfile", Shape::Pointer(&Shape::Struct(&PROFILE)))
            .since(30),
    ],
};

static CAPS: Struct = Struct {
    name: "v1.Capabilities",
    fields: &[field("Add", "add", CAPABILITIES), field("Drop", "drop", CAPABILITIES)],
};

static SELINUX: Struct = Struct {
    name: "v1.SELinuxOptions",
    fields: &[
        field("User", "user", TEXT),
        field("Role", "role", TEXT),
        field("Type", "type", TEXT),
        field("Level", "level", TEXT),
    ],
};

static WINDOWS: Struct = Struct {
    name: "v1.WindowsSecurityContextOptions",
    fields: &[
        field("GMSACredentialSpecName", "gmsaCredentialSpecName", TEXT_OR_NONE),
        field("GMSACredentialSpec", "gmsaCredentialSpec", TEXT_OR_NONE),
        field("RunAsUserName", "runAsUserName", TEXT_OR_NONE).since(16),
        field("HostProcess", "hostProcess", BOOL_OR_NONE).since(22),
    ],
};

/// The Seccomp and AppArmor profiles have the same fields.
static PROFILE: Struct = Struct {
    name: "v1.SeccompProfile",
    fields: &[
        field("Type", "type", TEXT).always(),
        field("LocalhostProfile", "localhostProfile", TEXT_OR_NONE),
    ],
};
