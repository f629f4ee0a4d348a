//! The Go struct `v1.Container` and everything in it, release by release, as tables.
//!
//! Fields are in the order of the Go structs; `since` is the first minor release that has the
//! field; those of 1.16 and older name none. No field was moved or removed before 1.30. Later
//! additions are not listed: from 1.31 on, kubelets hash only name and image.

use crate::hash::Minor;

/// A Go struct.
#[derive(Debug)]
pub(super) struct Struct {
    pub(super) fields: &'static [Field],
}

/// A field of a Go struct.
#[derive(Debug)]
pub(super) struct Field {
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
    Text,
    Number,
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

impl Struct {
    pub(super) fn fields(&'static self, minor: Minor) -> impl Iterator<Item = &'static Field> {
        self.fields.iter().filter(move |field| field.since <= minor.0)
    }
}

const fn field(key: &'static str, shape: Shape) -> Field {
    Field { key, shape, since: 0, always: false }
}

const fn embedded(of: &'static Struct) -> Field {
    field("", Shape::Embedded(of))
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

const TEXT: Shape = Shape::Text;
const TEXTS: Shape = Shape::List(&TEXT);
const TEXT_OR_NONE: Shape = Shape::Pointer(&TEXT);
const BOOL_OR_NONE: Shape = Shape::Pointer(&Shape::Bool);
const INT: Shape = Shape::Number;
const INT_OR_NONE: Shape = Shape::Pointer(&INT);
const PROBE: Shape = Shape::Pointer(&Shape::Struct(&PROBE_STRUCT));
const CAPABILITIES: Shape = Shape::List(&Shape::Text);
const LIFECYCLE_HANDLER: Shape = Shape::Pointer(&Shape::Struct(&LIFECYCLE_HANDLER_STRUCT));

pub(super) static CONTAINER: Struct = Struct {
    fields: &[
        field("name", TEXT).always(),
        field("image", TEXT),
        field("command", TEXTS),
        field("args", TEXTS),
        field("workingDir", TEXT),
        field("ports", Shape::List(&Shape::Struct(&PORT))),
        field("envFrom", Shape::List(&Shape::Struct(&ENV_FROM))),
        field("env", Shape::List(&Shape::Struct(&ENV))),
        field("resources", Shape::Struct(&RESOURCES)),
        field("resizePolicy", Shape::List(&Shape::Struct(&RESIZE_POLICY))).since(27),
        field("restartPolicy", Shape::Pointer(&Shape::Text)).since(28),
        field("volumeMounts", Shape::List(&Shape::Struct(&VOLUME_MOUNT))),
        field("volumeDevices", Shape::List(&Shape::Struct(&VOLUME_DEVICE))),
        field("livenessProbe", PROBE),
        field("readinessProbe", PROBE),
        field("startupProbe", PROBE),
        field("lifecycle", Shape::Pointer(&Shape::Struct(&LIFECYCLE))),
        field("terminationMessagePath", TEXT),
        field("terminationMessagePolicy", Shape::Text),
        field("imagePullPolicy", Shape::Text),
        field("securityContext", Shape::Pointer(&Shape::Struct(&SECURITY_CONTEXT))),
        field("stdin", Shape::Bool),
        field("stdinOnce", Shape::Bool),
        field("tty", Shape::Bool),
    ],
};

static PORT: Struct = Struct {
    fields: &[
        field("name", TEXT),
        field("hostPort", INT),
        field("containerPort", INT).always(),
        field("protocol", Shape::Text),
        field("hostIP", TEXT),
    ],
};

static ENV_FROM: Struct = Struct {
    fields: &[
        field("prefix", TEXT),
        field("configMapRef", Shape::Pointer(&Shape::Struct(&CONFIG_MAP_SOURCE))),
        field("secretRef", Shape::Pointer(&Shape::Struct(&SECRET_SOURCE))),
    ],
};

static CONFIG_MAP_SOURCE: Struct = Struct { fields: SOURCE_FIELDS };

static SECRET_SOURCE: Struct = Struct { fields: SOURCE_FIELDS };

const SOURCE_FIELDS: &[Field] = &[embedded(&REFERENCE), field("optional", BOOL_OR_NONE)];

static REFERENCE: Struct = Struct { fields: &[field("name", TEXT)] };

static ENV: Struct = Struct {
    fields: &[
        field("name", TEXT).always(),
        field("value", TEXT),
        field("valueFrom", Shape::Pointer(&Shape::Struct(&ENV_SOURCE))),
    ],
};

static ENV_SOURCE: Struct = Struct {
    fields: &[
        field("fieldRef", Shape::Pointer(&Shape::Struct(&FIELD_REF))),
        field("resourceFieldRef", Shape::Pointer(&Shape::Struct(&RESOURCE_FIELD_REF))),
        field("configMapKeyRef", Shape::Pointer(&Shape::Struct(&CONFIG_MAP_KEY))),
        field("secretKeyRef", Shape::Pointer(&Shape::Struct(&SECRET_KEY))),
    ],
};

static FIELD_REF: Struct =
    Struct { fields: &[field("apiVersion", TEXT), field("fieldPath", TEXT).always()] };

static RESOURCE_FIELD_REF: Struct = Struct {
    fields: &[
        field("containerName", TEXT),
        field("resource", TEXT).always(),
        field("divisor", Shape::Quantity).always(),
    ],
};

static CONFIG_MAP_KEY: Struct = Struct { fields: KEY_FIELDS };

static SECRET_KEY: Struct = Struct { fields: KEY_FIELDS };

const KEY_FIELDS: &[Field] =
    &[embedded(&REFERENCE), field("key", TEXT).always(), field("optional", BOOL_OR_NONE)];

static RESOURCES: Struct = Struct {
    fields: &[
        field("limits", Shape::Quantities),
        field("requests", Shape::Quantities),
        field("claims", Shape::List(&Shape::Struct(&CLAIM))).since(26),
    ],
};

static CLAIM: Struct = Struct { fields: &[field("name", TEXT).always()] };

static RESIZE_POLICY: Struct = Struct {
    fields: &[field("resourceName", TEXT).always(), field("restartPolicy", TEXT).always()],
};

static VOLUME_MOUNT: Struct = Struct {
    fields: &[
        field("name", TEXT).always(),
        field("readOnly", Shape::Bool),
        field("recursiveReadOnly", TEXT_OR_NONE).since(30),
        field("mountPath", TEXT).always(),
        field("subPath", TEXT),
        field("mountPropagation", Shape::Pointer(&Shape::Text)),
        field("subPathExpr", TEXT),
    ],
};

static VOLUME_DEVICE: Struct =
    Struct { fields: &[field("name", TEXT).always(), field("devicePath", TEXT).always()] };

static PROBE_STRUCT: Struct = Struct {
    fields: &[
        embedded(&PROBE_HANDLER),
        field("initialDelaySeconds", INT),
        field("timeoutSeconds", INT),
        field("periodSeconds", INT),
        field("successThreshold", INT),
        field("failureThreshold", INT),
        field("terminationGracePeriodSeconds", INT_OR_NONE).since(21),
    ],
};

static PROBE_HANDLER: Struct = Struct {
    fields: &[
        EXEC_FIELD,
        HTTP_GET_FIELD,
        TCP_SOCKET_FIELD,
        field("grpc", Shape::Pointer(&Shape::Struct(&GRPC))).since(23),
    ],
};

static LIFECYCLE: Struct = Struct {
    fields: &[field("postStart", LIFECYCLE_HANDLER), field("preStop", LIFECYCLE_HANDLER)],
};

static LIFECYCLE_HANDLER_STRUCT: Struct = Struct {
    fields: &[
        EXEC_FIELD,
        HTTP_GET_FIELD,
        TCP_SOCKET_FIELD,
        field("sleep", Shape::Pointer(&Shape::Struct(&SLEEP))).since(29),
    ],
};

// A constant cannot reference a temporary; a static can be referenced.
static EXEC_SHAPE: Shape = Shape::Struct(&EXEC);
static HTTP_GET_SHAPE: Shape = Shape::Struct(&HTTP_GET);
static TCP_SOCKET_SHAPE: Shape = Shape::Struct(&TCP_SOCKET);
const EXEC_FIELD: Field = field("exec", Shape::Pointer(&EXEC_SHAPE));
const HTTP_GET_FIELD: Field = field("httpGet", Shape::Pointer(&HTTP_GET_SHAPE));
const TCP_SOCKET_FIELD: Field = field("tcpSocket", Shape::Pointer(&TCP_SOCKET_SHAPE));

static EXEC: Struct = Struct { fields: &[field("command", TEXTS)] };

static HTTP_GET: Struct = Struct {
    fields: &[
        field("path", TEXT),
        field("port", Shape::IntOrString).always(),
        field("host", TEXT),
        field("scheme", Shape::Text),
        field("httpHeaders", Shape::List(&Shape::Struct(&HTTP_HEADER))),
    ],
};

static HTTP_HEADER: Struct =
    Struct { fields: &[field("name", TEXT).always(), field("value", TEXT).always()] };

static TCP_SOCKET: Struct =
    Struct { fields: &[field("port", Shape::IntOrString).always(), field("host", TEXT)] };

static GRPC: Struct =
    Struct { fields: &[field("port", INT).always(), field("service", TEXT_OR_NONE).always()] };

static SLEEP: Struct = Struct { fields: &[field("seconds", INT).always()] };

static SECURITY_CONTEXT: Struct = Struct {
    fields: &[
        field("capabilities", Shape::Pointer(&Shape::Struct(&CAPS))),
        field("privileged", BOOL_OR_NONE),
        field("seLinuxOptions", Shape::Pointer(&Shape::Struct(&SELINUX))),
        field("windowsOptions", Shape::Pointer(&Shape::Struct(&WINDOWS))),
        field("runAsUser", INT_OR_NONE),
        field("runAsGroup", INT_OR_NONE),
        field("runAsNonRoot", BOOL_OR_NONE),
        field("readOnlyRootFilesystem", BOOL_OR_NONE),
        field("allowPrivilegeEscalation", BOOL_OR_NONE),
        field("procMount", Shape::Pointer(&Shape::Text)),
        field("seccompProfile", Shape::Pointer(&Shape::Struct(&PROFILE))).since(19),
        field("appArmorProfile", Shape::Pointer(&Shape::Struct(&PROFILE))).since(30),
    ],
};

static CAPS: Struct = Struct { fields: &[field("add", CAPABILITIES), field("drop", CAPABILITIES)] };

static SELINUX: Struct = Struct {
    fields: &[field("user", TEXT), field("role", TEXT), field("type", TEXT), field("level", TEXT)],
};

static WINDOWS: Struct = Struct {
    fields: &[
        field("gmsaCredentialSpecName", TEXT_OR_NONE),
        field("gmsaCredentialSpec", TEXT_OR_NONE),
        field("runAsUserName", TEXT_OR_NONE),
        field("hostProcess", BOOL_OR_NONE).since(22),
    ],
};

/// The Seccomp and AppArmor profiles have the same fields.
static PROFILE: Struct =
    Struct { fields: &[field("type", TEXT).always(), field("localhostProfile", TEXT_OR_NONE)] };
