//! The kubeconfig that the plugin reads.

use std::net::Ipv6Addr;

/// What is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubeconfig<'a> {
    /// `KUBERNETES_SERVICE_HOST`: a name or an address, in brackets or not.
    pub host: &'a str,
    /// `KUBERNETES_SERVICE_PORT`
    pub port: &'a str,
    /// The service account's token.
    pub token: &'a str,
    /// The API server's authority, in PEM form.
    pub authority: &'a [u8],
}

impl Kubeconfig<'_> {
    /// Its text, as Linkerd's installer writes it (`k8sConfigTemplate` in internal/cni/conf.go of linkerd2-proxy-init),
    /// with brackets around an IPv6 address.
    ///
    /// # Errors
    /// What of it is missing, or would not be read back as what it is.
    pub fn text(&self) -> Result<String, String> {
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
        let port: u16 = self
            .port
            .parse()
            .map_err(|_| format!("KUBERNETES_SERVICE_PORT is {:?}, which is no port", self.port))?;
        // A plain scalar of YAML. Tokens are of letters, digits, dots, dashes and underscores (RFC 7519).
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"':,[]{}".contains(&byte);
        let starts_plain = token.starts_with(|first: char| first.is_ascii_alphanumeric());
        if !starts_plain || !token.bytes().all(is_plain) {
            return Err("the service account's token has characters that no token has".to_owned());
        }
        let authority = base64(authority);
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

/// As RFC 4648 has it.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| chunk.get(index).copied().map_or(0, u32::from);
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let value = usize::try_from(word >> (18 - 6 * digit) & 63).ok();
            let shown = value
                .and_then(|value| DIGITS.get(value))
                .filter(|_| digit <= chunk.len());
            text.push(shown.map_or('=', |digit| char::from(*digit)));
        }
    }
    text
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
            (
                Kubeconfig {
                    host: "",
                    ..kubeconfig()
                },
                "HOST",
            ),
            (
                Kubeconfig {
                    port: "",
                    ..kubeconfig()
                },
                "PORT",
            ),
            (
                Kubeconfig {
                    port: "1\nx: y",
                    ..kubeconfig()
                },
                "PORT",
            ),
            (
                Kubeconfig {
                    host: "a\nb: c",
                    ..kubeconfig()
                },
                "HOST",
            ),
            (
                Kubeconfig {
                    token: " \n",
                    ..kubeconfig()
                },
                "token",
            ),
            (
                Kubeconfig {
                    token: "a\nb: c",
                    ..kubeconfig()
                },
                "token",
            ),
            (
                Kubeconfig {
                    token: "a: b",
                    ..kubeconfig()
                },
                "token",
            ),
            (
                Kubeconfig {
                    token: "*a",
                    ..kubeconfig()
                },
                "token",
            ),
            (
                Kubeconfig {
                    authority: b"\n",
                    ..kubeconfig()
                },
                "authority",
            ),
        ];
        for (kubeconfig, words) in cases {
            let error = kubeconfig.text().unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn base64_is_rfc_4648s() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
