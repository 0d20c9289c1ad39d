//! The kubeconfig that the plugin reads.

use std::net::Ipv6Addr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

/// The values that a kubeconfig holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kubeconfig<'a> {
    /// `KUBERNETES_SERVICE_HOST`: a name or an address, in brackets or not.
    pub(crate) host: &'a str,
    /// `KUBERNETES_SERVICE_PORT`
    pub(crate) port: &'a str,
    /// The service account's token.
    pub(crate) token: &'a str,
    /// The API server's authority, in PEM form.
    pub(crate) authority: &'a [u8],
}

impl Kubeconfig<'_> {
    /// The text that Linkerd's installer writes (`k8sConfigTemplate` in internal/cni/conf.go of linkerd2-proxy-init),
    /// with brackets around an IPv6 address, and as JSON, which YAML has in it: so nothing in a value can be read as
    /// something else.
    pub(crate) fn text(&self) -> Result<String, String> {
        let (token, authority) = (self.token.trim(), self.authority.trim_ascii());
        for (name, is_empty) in [
            ("KUBERNETES_SERVICE_HOST", self.host.is_empty()),
            ("KUBERNETES_SERVICE_PORT", self.port.is_empty()),
            ("the service account's token", token.is_empty()),
            ("the certificate authority", authority.is_empty()),
        ] {
            if is_empty {
                return Err(format!("{name} is empty"));
            }
        }
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        let host = if bare.parse::<Ipv6Addr>().is_ok() { format!("[{bare}]") } else { bare.to_owned() };
        let cluster = json!({
            "server": format!("https://{host}:{}", self.port),
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig<'a>() -> Kubeconfig<'a> {
        Kubeconfig {
            host: "10.96.0.1",
            port: "443",
            token: "eyJ.a-b_c\n",
            authority: b"-----BEGIN CERTIFICATE-----\n\n",
        }
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
            let text = Kubeconfig { host, ..kubeconfig() }.text().unwrap();
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
        for (kubeconfig, words) in [
            (Kubeconfig { host: "", ..kubeconfig() }, "HOST"),
            (Kubeconfig { port: "", ..kubeconfig() }, "PORT"),
            (Kubeconfig { token: " \n", ..kubeconfig() }, "token"),
            (Kubeconfig { authority: b"\n", ..kubeconfig() }, "authority"),
        ] {
            let error = kubeconfig.text().unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        for token in ["a\nb: c", "a: b", "*a", "\"}, {\""] {
            let text = Kubeconfig { token, ..kubeconfig() }.text().unwrap();
            let read: serde_json::Value = yaml_serde::from_str(&text).unwrap();
            assert_eq!(read["users"][0]["user"]["token"], token);
        }
    }
}
