//! Secrets of many forms in every kind of text that an archive is made of, none of which may stay; and texts
//! that must stay readable.

use super::*;

/// Secrets as they occur: values that no name explains, and forms that have a shape of their own.
const SECRETS: [&str; 24] = [
    "hunter22",
    "Sup3rS3cret!",
    "correcthorsebatterystaple",
    "geheim-Wort-77",
    "a,Xq7zt2",
    "x Xq7zt2 y",
    "Pa:ss/w0rd@x",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "glpat-xxYYzz112233445566",
    "xoxb-123456789012-1234567890123-AbCdEfGhIjKlMnOpQrStUvWx",
    "K10e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855::server:f00dfacef00dface",
    "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJl.c2lnbmF0dXJlMQ",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "aHVudGVyMjJodW50ZXIyMg==",
    "dXNlcjpodW50ZXIyMg==",
    "abcdef.0123456789abcdef",
    "AGE-SECRET-KEY-1QJEPQPZRJGZ8VZLH57H0ZLV8G0GX0QV0QQQQQQQQQQQQQQQQQQQS",
    "$2y$05$c4WoMPo3SXsafkva.HHa6uXQZWr7oboPiC2bT/r7q1BB8I2s0BRqC",
    "0b1e0c2f-4a1d-48d6-9aaa-dd8ad2a4e7e6",
    "FwoGZXIvYXdzEBYaDHqa0AP1",
    "SG.ngeVfQFYQlKU0ufo8x5d1A.TwL2iGABf9DHoTf09kqeF8tAmbihYzrnopKc",
    "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
];

/// How they occur: `X` is the secret.
const FORMS_OF_TEXT: [&str; 68] = [
    r#"{"name":"REGISTRY_PASSWORD","value":"X"}"#,
    r#"{"env":[{"name":"SMTP","value":"X"}]}"#,
    r#"{"auths":{"registry.example.com":{"auth":"X"}}}"#,
    r#"{"message":"step failed: --password X is wrong"}"#,
    r#"{"arguments":["run","--registry-password","X"]}"#,
    r#"{"arguments":["login","-u","admin","-p","X"]}"#,
    r#"{"data":{"config.ini":"X"}}"#,
    "    - name: DB\n      value: X\n",
    "    - name: DB\n      value: \"X\"\n",
    "env:\n- DB_PASS=X\n",
    "stringData:\n  anything: X\n",
    "password: |\n  X\n  X\nnext: 1\n",
    "password:\n  X\n",
    "client-key-data: X",
    "  token: X",
    "  auth: X",
    "certificateKey: X",
    "registryPassword: X",
    "  password: 'X'",
    "AWS_SECRET_ACCESS_KEY=X",
    "AWS_SECRET_ACCESS_KEY=\"X\" next",
    "DB_PASS=X",
    "MYSQL_PWD=X",
    "export GITHUB_PAT=X",
    "Environment=\"HTTP_AUTH=X\"",
    "Environment=REGISTRY=X",
    "GET /v2/x?X-Amz-Signature=X&X-Amz-Date=20260102T030405Z HTTP/1.1",
    "https://account.blob.core.example.com/c?sv=2024&sig=X",
    "https://hooks.example.com/services/T000/B000/X",
    "https://user:X@registry.example.com/v2/",
    "https://X@registry.example.com/v2/",
    "postgres://app:X@db:5432/app?sslmode=disable",
    "app:X@tcp(db:3306)/app",
    "Server=db;User Id=sa;Password=X;",
    "mongodb+srv://app:X@cluster.example.net",
    "Authorization: Bearer X",
    "authorization: Basic X",
    "with Bearer X to the server",
    "Proxy-Authorization: X",
    "Cookie: session=X; path=/",
    "X-Auth-Token: X",
    "curl -u admin:X https://registry.example.com",
    "curl -u 'admin:X' https://registry.example.com",
    "├─1234 /usr/bin/mysqld -p X --port 3306",
    "├─1234 /usr/bin/mysql -pX",
    "kubeadm join 10.0.0.1:6443 --token X --discovery-token-ca-cert-hash sha256:aa",
    "kubeadm join 10.0.0.1:6443 --certificate-key X",
    "k3s agent --server https://10.0.0.1:6443 --token=X",
    "helm upgrade x --set auth.password=X",
    "redis-server --requirepass X",
    "[sudo] password for admin: X",
    "Enter passphrase for key '/root/.ssh/id_ed25519': X",
    "the password is X",
    "password=X",
    "password=\"X\"",
    "\"password\": \"X\", \"x\": 1",
    "'password': 'X'",
    "{password: X, user: admin}",
    "token = \"X\"",
    r#"err="login failed: {\"password\":\"X\"}""#,
    r#"I0102 03:04:05.678901    1234 kubelet.go:12] "Pulled" secret="X""#,
    "Nov 27 14:13:24 node1 sshd[12]: Accepted password for X from 10.0.0.1",
    "time=\"2026-01-02T03:04:05Z\" level=error msg=\"cannot log in as X\"",
    "admin:X",
    "machine registry.example.com login admin password X",
    "read X from the file",
    "X",
    "[plugins.\"x\".registry.configs.\"y\".auth]\n  password = \"X\"\n  identitytoken = \"X\"\n",
];

#[test]
fn no_secret_stays_in_any_form_of_text() {
    let harmless = Harmless::default();
    let mut kept = Vec::new();
    for secret in SECRETS {
        for form in FORMS_OF_TEXT {
            let form = form.replace("X-A", "\u{0}");
            let text = form.replace('X', secret).replace('\u{0}', "X-A");
            let clean = redact(&text, &harmless);
            // Of a secret with separators, no part that says something may stay.
            let parts: Vec<&str> = secret.split([' ', ',', '/', ':', '@', '.']).collect();
            let parts = parts.iter().filter(|part| part.len() >= 6 && **part != "server");
            if clean.contains(secret) || parts.clone().any(|part| clean.contains(*part)) {
                kept.push(format!("{text:?}\n  -> {clean:?}"));
            }
        }
    }
    assert!(kept.is_empty(), "{} of them:\n{}", kept.len(), kept.join("\n"));
}

#[test]
fn keys_of_several_lines_go_whole() {
    let harmless = Harmless::default();
    let line = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj";
    for text in [
        format!("a -----BEGIN RSA PRIVATE KEY-----\n{line}\nab\n-----END RSA PRIVATE KEY----- b"),
        format!("-----BEGIN OPENSSH PRIVATE KEY-----\n{line}\n"),
        format!("-----BEGIN PGP MESSAGE-----\n{line}\n-----END PGP MESSAGE-----\n"),
        format!("key:\n  {line}\n  {line}\n"),
        format!("{line}\n"),
        format!("tls.key: {line}"),
    ] {
        let clean = redact(&text, &harmless);
        assert!(!clean.contains("MIIE"), "{clean}");
    }
    assert_eq!(redact(&format!("{line}\n"), &harmless), "[base64]\n");
}

#[test]
fn what_helps_stays() {
    let mut harmless = Harmless::default();
    for name in ["lucky", "shop", "10.0.0.1"] {
        harmless.name(name);
    }
    let mut changed = Vec::new();
    let digest = "sha256:4a1d98d62aaadd8ad2a4e7e6b17d84fc2dd108e0201511265e3ff742ae4ba153";
    for text in [
        "NAMESPACE     NAME                       READY   STATUS             RESTARTS      AGE",
        "kube-system   coredns-5d78c9869d-bx7zt   0/1     CrashLoopBackOff   12 (5m ago)   3d21h",
        "shop          lucky                      1/1     Running            0             5h",
        "node1   Ready    control-plane   3d    v1.30.2   10.0.0.1   <none>   6.1.0-18-amd64   containerd://1.7.12",
        "Filesystem     1K-blocks    Used Available Use% Mounted on",
        "/dev/sda1       41152736 9876543  29123456  26% /",
        "  Active: active (running) since Fri 2026-01-02 03:04:05 UTC; 3 days ago",
        "2026-01-02T03:04:05+0000 node1 kubelet[1234]: failed to start the container: context deadline exceeded",
        r#"time="2026-01-02T03:04:05.678901234Z" level=error msg="failed to pull image" error="connection refused""#,
        "E0102 03:04:05.678901    1234 pod_workers.go:1300] \"Error syncing pod, skipping\" pod=\"kube-system/kube-proxy-x2k4f\"",
        "dial tcp 10.0.0.1:6443: connect: connection refused",
        "Get \"https://10.0.0.1:6443/api/v1/nodes\": net/http: TLS handshake timeout",
        "image docker.io/labring/kubernetes:v1.30.2 is not there",
        "spec:\n  image:\n  - docker.io/labring/kubernetes:v1.30.2\n  hosts:\n  - ips: [10.0.0.1:22]\n    roles: [master]\n",
        "-rw------- 1 root root 2405 Jan  2 03:04 kube-apiserver.yaml",
        r#"{"phase":"init","host":"10.0.0.1","outcome":"failed","attempt":2,"duration_ms":1234,"message":"no space left on device"}"#,
        "MountVolume.SetUp failed for volume: failed to sync secret cache: timed out waiting for the condition",
    ] {
        let clean = redact(text, &harmless);
        if clean.trim_end() != text.trim_end() {
            changed.push(format!("{text}\n  -> {clean}"));
        }
    }
    assert!(changed.is_empty(), "{}", changed.join("\n"));
    assert!(redact(&format!("pulled {digest}"), &harmless).contains(digest));
    let json = redact("{\"a\":{\"password\":\"x\"},\"ready\":true}", &harmless);
    assert_eq!(json, "{\"a\":{\"password\":\"***\"},\"ready\":true}\n");
    let id = "4a1d98d62aaadd8ad2a4e7e6b17d84fc2dd108e0201511265e3ff742ae4ba153";
    let line = redact(&format!("StopContainer for {id} returns; {id} exited"), &harmless);
    let words: Vec<&str> = line.split([' ', ';']).collect();
    assert!(words[2].starts_with("id-") && words[2] == words[5], "{line}");
}

#[test]
fn an_unreadable_text_costs_no_more_than_its_length() {
    let harmless = Harmless::default();
    let quotes = "a=\"\\\"".repeat(2000);
    for text in [quotes, "k: ".repeat(5000), "'".repeat(10_000), "a:b@".repeat(3000)] {
        assert!(redact(&text, &harmless).len() <= text.len() * 3 + 16);
    }
}
