//! Registries that lie, flap, refuse and are full; commands and servers that are killed, and many
//! at once: the built binary against real registries, with a programmable proxy in between.
//!
//! Whatever happens, the error names what it is about, credentials stay where they belong, and the
//! store and the server's tree stay sound. The long loops run with `IMGCTL_TEST_LONG=1`.

pub(crate) mod bench;
mod concurrency;
mod documents;
mod flaps;
mod full;
mod kills;
mod lies;
mod redirects;
mod refusals;
mod secrets;
mod server;
