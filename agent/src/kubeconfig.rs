//! The kubeconfig that the plugin reads.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::settings::Installation;

/// The text that Linkerd's installer writes (`k8sConfigTemplate` in internal/cni/conf.go of linkerd2-proxy-init), with
/// brackets around an IPv6 address, and as JSON, which YAML has in it: so nothing in a value can be read as something else.
/// `token` is the service account's, and `authority` the API server's, in PEM form.
pub(crate) fn text(installation: &Installation, token: &str, authority: &str) -> Result<String, String> {
    let Installation { host, port, .. } = installation;
    let (token, authority) = (token.trim(), authority.trim());
    for (name, value) in [
        ("KUBERNETES_SERVICE_HOST", host.as_str()),
        ("KUBERNETES_SERVICE_PORT", port),
        ("the service account's token", token),
        ("the certificate authority", authority),
    ] {
        if value.is_empty() {
            return Err(format!("no kubeconfig can be written: {name} is empty"));
        }
    }
    let cluster = json!({
        "server": installation.api_server(),
        "certificate-authority-data": STANDARD.encode(authority),
    });
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": cluster}],
        "users": [{"name": "linkerd-cni", "user": {"token": token}}],
        "contexts": [{"name": "linkerd-cni-context", "context": {"cluster": "local", "user": "linkerd-cni"}}],
        "current-context": "linkerd-cni-context",
    });
    Ok(format!("{config:#}\n"))
}

#[cfg(test)]
mod tests {
    use crate::settings::Settings;

    const AUTHORITY: &str = "-----BEGIN CERTIFICATE-----\n\n";

    fn text(host: &str, port: &str, token: &str, authority: &str) -> Result<String, String> {
        let flags = [format!("--api-server-host={host}"), format!("--api-server-port={port}")];
        let words = std::iter::once("linkerd-cni-agent".into()).chain(flags.map(Into::into));
        super::text(&Settings::read(words).unwrap().installation, token, authority)
    }

    #[test]
    fn it_is_what_the_plugin_reads() {
        for (host, server) in [
            ("10.96.0.1", "https://10.96.0.1:443"),
            ("fd00::1", "https://[fd00::1]:443"),
            ("[fd00::1]", "https://[fd00::1]:443"),
            ("[10.96.0.1]", "https://10.96.0.1:443"),
            ("kubernetes.default.svc", "https://kubernetes.default.svc:443"),
        ] {
            let text = text(host, "443", "eyJ.a-b_c\n", AUTHORITY).unwrap();
            for (key, value) in [
                ("server", server),
                ("token", "eyJ.a-b_c"),
                ("certificate-authority-data", "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t"),
            ] {
                assert!(text.contains(&format!("\"{key}\": \"{value}\"")), "{text}");
            }
        }
    }

    #[test]
    fn nothing_in_it_can_be_read_as_something_else() {
        for (host, port, token, authority, words) in [
            ("", "443", "x", AUTHORITY, "HOST"),
            ("h", "", "x", AUTHORITY, "PORT"),
            ("h", "443", " \n", AUTHORITY, "token"),
            ("h", "443", "x", "\n", "authority"),
        ] {
            let error = text(host, port, token, authority).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        for token in ["a\nb: c", "a: b", "*a", "\"}, {\""] {
            let text = text("h", "443", token, AUTHORITY).unwrap();
            let read: serde_json::Value = yaml_serde::from_str(&text).unwrap();
            assert_eq!(read["users"][0]["user"]["token"], token);
        }
    }
}
