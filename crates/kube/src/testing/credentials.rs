//! Tests only: a certificate authority, an API server certificate, and kubeconfigs for it.

use std::path::Path;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};

/// Token in `token.kubeconfig`.
pub const TOKEN: &str = "testtoken";

/// Writes `ca.crt`, `server.{crt,key}`, `sa.{key,pub}`, `tokens.csv` and kubeconfigs for an API
/// server on a loopback port: `kubeconfig` (client certificate), `token.kubeconfig`,
/// `wrong.kubeconfig`, `lb.kubeconfig` (with the name of a load balancer that the certificate
/// lacks) and `stranger.kubeconfig` (trusts another authority).
pub fn write(directory: &Path, port: u16) {
    let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).unwrap();
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "test-ca");
    let authority_pem = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = Issuer::new(authority, authority_key);
    let sign = |names: &[&str], subject: &[(DnType, &str)], usage| {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        for (part, value) in subject {
            params.distinguished_name.push(part.clone(), *value);
        }
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        let pem = params.signed_by(&key, &issuer).unwrap().pem();
        (pem, key.serialize_pem())
    };
    // As with kubeadm: neither `localhost` nor the name of the load balancer.
    let server = sign(
        &["kubernetes", "kubernetes.default.svc", "127.0.0.1"],
        &[(DnType::CommonName, "kube-apiserver")],
        ExtendedKeyUsagePurpose::ServerAuth,
    );
    let admin = sign(
        &[],
        &[(DnType::OrganizationName, "system:masters"), (DnType::CommonName, "admin")],
        ExtendedKeyUsagePurpose::ClientAuth,
    );
    write("ca.crt", &authority_pem);
    write("server.crt", &server.0);
    write("server.key", &server.1);
    write("client.key", &admin.1);
    let accounts = KeyPair::generate().unwrap();
    write("sa.key", &accounts.serialize_pem());
    write("sa.pub", &accounts.public_key_pem());
    write("tokens.csv", &format!("{TOKEN},admin,admin,system:masters\n"));
    let authority = STANDARD.encode(&authority_pem);
    let kubeconfig = |host: &str, user: &str| {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: t\n\
             contexts: [{{name: t, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: 'https://{host}:{port}', certificate-authority-data: {authority}}}}}]\n\
             users: [{{name: u, user: {user}}}]\n"
        )
    };
    let certificate = STANDARD.encode(admin.0);
    let user = format!("{{client-certificate-data: {certificate}, client-key: client.key}}");
    write("kubeconfig", &kubeconfig("127.0.0.1", &user));
    write("lb.kubeconfig", &kubeconfig("apiserver.cluster.local", &user));
    write("token.kubeconfig", &kubeconfig("127.0.0.1", &format!("{{token: {TOKEN}}}")));
    write("wrong.kubeconfig", &kubeconfig("127.0.0.1", "{token: nonsense}"));
    let stranger = CertificateParams::default().self_signed(&KeyPair::generate().unwrap()).unwrap();
    let stranger = STANDARD.encode(stranger.pem());
    let text = kubeconfig("127.0.0.1", &user).replace(&authority, &stranger);
    write("stranger.kubeconfig", &text);
}
