//! The rules of the lint, described for those who meet their names elsewhere: in code scanning, in a
//! merge request. docs/kubefile.md has the same list.

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// BuildKit's name, where BuildKit has the rule.
    pub name: &'static str,
    /// What it finds, in one line without a full stop.
    pub finds: &'static str,
    /// Why that matters and what to do, in Markdown.
    pub help: &'static str,
}

/// Returns a rule.
const fn rule(name: &'static str, finds: &'static str, help: &'static str) -> Rule {
    Rule { name, finds, help }
}

/// The rules that BuildKit does not have.
pub(super) const OWN: [&str; 6] = [
    "ClusterImageType",
    "CommandElementsAreCommands",
    "EmbeddedArchiveCopied",
    "RelativeCopyPath",
    "RootfsVersionLabel",
    "UnknownLabel",
];

/// The rules that a `# check=` comment above an instruction does not suppress, since they concern the
/// whole file (BuildKit). `MultipleInstructionsDisallowed` looks at the comment itself.
pub(super) const OF_FILE: [&str; 7] = [
    "ConsistentInstructionCasing",
    "DuplicateStageName",
    "InvalidBaseImagePlatform",
    "InvalidDefaultArgInFrom",
    "MultipleInstructionsDisallowed",
    "NoEmptyContinuation",
    "ReservedStageName",
];

/// Every rule, in alphabetical order.
pub const RULES: [Rule; 28] = [
    rule(
        "ClusterImageType",
        "A type label has a value that is not a type",
        "The label `sealos.io.type` is `rootfs`, `patch` or `application`; imgctl treats an image with another value as an application.",
    ),
    rule(
        "CommandElementsAreCommands",
        "A JSON command of a cluster image looks like one command split into words",
        "Each element of `CMD` and `ENTRYPOINT` of a cluster image is a shell command of its own. Write one string for each command.",
    ),
    rule(
        "ConsistentInstructionCasing",
        "Instruction names are in both upper and lower case",
        "Write all instruction names in one case, usually upper case.",
    ),
    rule(
        "CopyIgnoredFile",
        "A source of `COPY` or `ADD` is hidden by the ignore file",
        "The build will not find the file. Add an exception to the ignore file, or remove the source.",
    ),
    rule(
        "DuplicateStageName",
        "Two stages have one name",
        "`--from` and `FROM` mean the last stage of a name. Give each stage its own name.",
    ),
    rule(
        "EmbeddedArchiveCopied",
        "An archive whose image is embedded is copied into the image as well",
        "The image of an archive in `images/skopeo` is embedded in the registry; a `COPY` or `ADD` of the archive stores it twice. Leave it out with `--exclude`.",
    ),
    rule(
        "ExposeInvalidFormat",
        "`EXPOSE` has an address or a port of the host",
        "An image cannot say where its ports are published. Write the port of the container only.",
    ),
    rule(
        "ExposeProtoCasing",
        "The protocol of `EXPOSE` is not in lower case",
        "Write `80/tcp`, not `80/TCP`.",
    ),
    rule("FromAsCasing", "`FROM` and `AS` differ in case", "Write both in one case."),
    rule(
        "FromPlatformFlagConstDisallowed",
        "`FROM --platform=` has a constant",
        "A constant platform breaks builds for other platforms. Use a variable such as `$BUILDPLATFORM`, or leave the flag out.",
    ),
    rule(
        "InvalidBaseImagePlatform",
        "A base image is for another platform than the build",
        "Its programs do not run on the target. Use an image that exists for the platform, or name the platform with `FROM --platform=`.",
    ),
    rule(
        "InvalidDefaultArgInFrom",
        "A `FROM` names no image unless a build argument is given",
        "Give the `ARG` a default, so that the file builds without `--build-arg`.",
    ),
    rule(
        "InvalidDefinitionDescription",
        "The comment above an `ARG` or a stage does not begin with its name",
        "`# NAME text` above an `ARG` or a named stage describes it. Only with `# check=experimental=InvalidDefinitionDescription`.",
    ),
    rule(
        "JSONArgsRecommended",
        "`CMD` or `ENTRYPOINT` has the shell form",
        "The shell form runs under a shell that does not pass signals on. Write the words as a JSON array.",
    ),
    rule("LegacyKeyValueFormat", "`ENV` or `LABEL` has the form `key value`", "Write `key=value`."),
    rule(
        "MaintainerDeprecated",
        "`MAINTAINER` is deprecated",
        "Use `LABEL org.opencontainers.image.authors=…`.",
    ),
    rule(
        "MultipleInstructionsDisallowed",
        "A later instruction replaces this one",
        "Only the last `CMD`, `ENTRYPOINT` and `HEALTHCHECK` of a stage count. Remove the others.",
    ),
    rule(
        "NoEmptyContinuation",
        "A continued instruction has a blank line",
        "A blank line inside a continued instruction is an error in newer versions of the language. Remove it.",
    ),
    rule(
        "RedundantTargetPlatform",
        "`FROM --platform=$TARGETPLATFORM` is the default",
        "Remove the flag.",
    ),
    rule(
        "RelativeCopyPath",
        "A relative destination depends on the base image",
        "Set `WORKDIR` before, or write an absolute destination.",
    ),
    rule(
        "ReservedStageName",
        "A stage has a reserved name",
        "`scratch` and `context` mean something else. Rename the stage.",
    ),
    rule(
        "RootfsVersionLabel",
        "A rootfs image has no label `version`",
        "Set the label `version` to the version of Kubernetes, as in `v1.34.0`: upgrades depend on it.",
    ),
    rule(
        "SecretsUsedInArgOrEnv",
        "The name of an `ARG` or `ENV` suggests a secret",
        "Its value is stored in the image. Use `RUN --mount=type=secret`.",
    ),
    rule(
        "StageNameCasing",
        "A stage name is not in lower case",
        "Write stage names in lower case.",
    ),
    rule(
        "UndefinedArgInFrom",
        "A variable of `FROM` is not declared",
        "Only an `ARG` above the first `FROM` sets variables of `FROM`. Declare it, or correct the name.",
    ),
    rule(
        "UndefinedVar",
        "A variable is not set",
        "Nothing sets this variable, so it is empty. Declare it with `ARG` or `ENV`, or correct the name.",
    ),
    rule(
        "UnknownLabel",
        "A label of a cluster image resembles one that imgctl reads",
        "Nothing reads this label, so its script does not run. Correct the name.",
    ),
    rule(
        "WorkdirRelativePath",
        "A relative `WORKDIR` depends on the base image",
        "Write an absolute path first.",
    ),
];
