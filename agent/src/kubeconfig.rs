//! The kubeconfig that the plugin reads.

use std::net::Ipv6Addr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

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
    /// Its text, as Linkerd's installer writes it (`k8sConfigTemplate` in internal/cni/conf.go of linkerd2-proxy-init),
    /// with brackets around an IPv6 address.
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
        let host = match bare.parse::<Ipv6Addr>() {
            Ok(address) => format!("[{address}]"),
            Err(_) => bare.to_owned(),
        };
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_[:]".contains(&byte);
        if !host.bytes().all(is_host) {
            return Err(format!("KUBERNETES_SERVICE_HOST is {host:?}, which is no host"));
        }
        let port: u16 =
            self.port.parse().map_err(|_| format!("KUBERNETES_SERVICE_PORT is {:?}, which is no port", self.port))?;
        // A plain scalar of YAML. Tokens are of letters, digits, dots, dashes and underscores (RFC 7519).
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"':,[]{}".contains(&byte);
        let starts_plain = token.starts_with(|first: char| first.is_ascii_alphanumeric());
        if !starts_plain || !token.bytes().all(is_plain) {
            return Err("the service account's token has characters that no token has".to_owned());
        }
        let authority = STANDARD.encode(authority);
        Ok(format!(
            "# kubeconfig file for linkerd.io/cni-plugin
apiVersion: v1
kind: Config
clusters:
- name: local
  cluster:
    server: https://{host}:{port}
    certificate-authority-data: {authority}
users:
- name: linkerd-cni
  user:
    token: {token}
contexts:
- name: linkerd-cni-context
  context:
    cluster: local
    user: linkerd-cni
current-context: linkerd-cni-context"
        ))
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
            assert!(text.contains(&format!("    server: {server}\n")), "{text}");
            assert!(text.contains("    token: eyJ.a-b_c\n"));
            assert!(text.contains("    certificate-authority-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t\n"));
        }
    }

    #[test]
    fn nothing_in_it_can_be_read_as_something_else() {
        let cases: [(Kubeconfig<'_>, &str); 9] = [
            (Kubeconfig { host: "", ..kubeconfig() }, "HOST"),
            (Kubeconfig { port: "", ..kubeconfig() }, "PORT"),
            (Kubeconfig { port: "1\nx: y", ..kubeconfig() }, "PORT"),
            (Kubeconfig { host: "a\nb: c", ..kubeconfig() }, "HOST"),
            (Kubeconfig { token: " \n", ..kubeconfig() }, "token"),
            (Kubeconfig { token: "a\nb: c", ..kubeconfig() }, "token"),
            (Kubeconfig { token: "a: b", ..kubeconfig() }, "token"),
            (Kubeconfig { token: "*a", ..kubeconfig() }, "token"),
            (Kubeconfig { authority: b"\n", ..kubeconfig() }, "authority"),
        ];
        for (kubeconfig, words) in cases {
            let error = kubeconfig.text().unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
