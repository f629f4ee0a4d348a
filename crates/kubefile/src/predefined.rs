//! Build arguments that exist without an `ARG`. The builder provides their values.

/// Arguments visible in every `FROM` line; a stage imports one with `ARG NAME` (Dockerfile
/// reference, "Automatic platform ARGs in the global scope").
pub(crate) const PLATFORM_ARGS: [&str; 10] = [
    "BUILDPLATFORM",
    "BUILDOS",
    "BUILDOSVERSION",
    "BUILDARCH",
    "BUILDVARIANT",
    "TARGETPLATFORM",
    "TARGETOS",
    "TARGETOSVERSION",
    "TARGETARCH",
    "TARGETVARIANT",
];

/// Arguments that, given with `--build-arg`, are available in every `RUN` without a declaration and
/// affect neither cache keys nor history (Dockerfile reference, "Predefined ARGs").
pub(crate) const PROXY_ARGS: [&str; 10] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "FTP_PROXY",
    "ftp_proxy",
    "NO_PROXY",
    "no_proxy",
    "ALL_PROXY",
    "all_proxy",
];
