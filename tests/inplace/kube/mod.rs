//! Stand-ins: parts of the crate's own tests (`src/kube`), used from outside: an API server in
//! memory, or a real one where `KUBEBUILDER_ASSETS` names it.

#[path = "../../../src/kube/api.rs"]
pub(crate) mod api;
pub(crate) mod client;
#[path = "../../../src/kube/credentials.rs"]
pub(crate) mod credentials;
#[path = "../../../src/kube/real_server.rs"]
pub(crate) mod real_server;
#[path = "../../../src/kube/selector.rs"]
pub(crate) mod selector;
#[path = "../../../src/kube/stand_in/mod.rs"]
pub(crate) mod stand_in;
