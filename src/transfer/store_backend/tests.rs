//! The store as a registry.
