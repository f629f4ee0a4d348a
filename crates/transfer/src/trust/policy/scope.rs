//! The scopes under which policies and lookasides can refer to an image, most specific first: the
//! image, its repository, the enclosing namespaces, the registry, wildcards for the registry's
//! domain.

use crate::trust::payload::expanded;
use imgctl_base::image::Reference;

/// The scopes of an image in a registry.
pub fn of(reference: &Reference) -> Vec<String> {
    let full = expanded(reference);
    let name = full.name();
    let mut scopes = Vec::new();
    if full.tag().is_some() || full.digest().is_some() {
        scopes.push(full.to_string());
    }
    let mut rest = name.as_str();
    scopes.push(rest.to_owned());
    while let Some((parent, _)) = rest.rsplit_once('/') {
        scopes.push(parent.to_owned());
        rest = parent;
    }
    // The rest is the registry. Wildcards ignore its port.
    let mut host = rest.split(':').next().unwrap_or(rest);
    while let Some((_, domain)) = host.split_once('.') {
        scopes.push(format!("*.{domain}"));
        host = domain;
    }
    scopes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_comes_first() {
        for (name, expected) in [
            (
                "a.example.com:5000/x/y:v1",
                "a.example.com:5000/x/y:v1 a.example.com:5000/x/y a.example.com:5000/x a.example.com:5000 *.example.com *.com",
            ),
            ("busybox", "docker.io/library/busybox docker.io/library docker.io *.io"),
        ] {
            let scopes = of(&Reference::parse(name).unwrap());
            assert_eq!(scopes.join(" "), expected);
        }
    }
}
