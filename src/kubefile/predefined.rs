//! Build arguments that exist without an `ARG`. Their values are the builder's business.

/// Visible in every `FROM` line; a stage imports one with `ARG NAME` (Dockerfile reference,
/// "Automatic platform ARGs in the global scope").
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

/// Given with `--build-arg`, they reach every `RUN` undeclared, and neither cache keys nor
/// history (Dockerfile reference, "Predefined ARGs").
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
