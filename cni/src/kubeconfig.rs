//! The kubeconfig: where the API server is, how it proves who it is, and how the plugin does.
//!
//! linkerd-cni's installer (cni-plugin/deployment/scripts/install-cni.sh in linkerd2-proxy-init) writes `server`, either
//! `certificate-authority-data` or `insecure-skip-tls-verify`, and `token`. The token changes while the node lives, so the
//! file is read anew by each command.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use k8s_openapi::ByteString;
use serde::Deserialize;
use ureq::tls::{Certificate, PemItem, parse_pem};

use crate::error::Error;

/// The context that the installer writes and that upstream's plugin asks for by name.
const CONTEXT: &str = "linkerd-cni-context";

/// What a kubeconfig says about one cluster and its user.
#[derive(Debug)]
pub struct Kubeconfig {
    /// `https://HOST:PORT`, without a slash at the end; a host that is an IPv6 address is in brackets, and no other.
    pub server: String,
    /// Which certificates the server may have.
    pub trust: Trust,
    /// The bearer token.
    pub token: String,
}

/// Which certificates a server may have.
#[derive(Debug)]
pub enum Trust {
    /// Those that one of these authorities has signed.
    Authorities(Vec<Certificate<'static>>),
    /// Any: `insecure-skip-tls-verify`.
    Anything,
}

#[derive(Deserialize)]
struct Parts {
    #[serde(rename = "current-context")]
    current: Option<String>,
    #[serde(default)]
    contexts: Vec<NamedContext>,
    #[serde(default)]
    clusters: Vec<NamedCluster>,
    #[serde(default)]
    users: Vec<NamedUser>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    user: String,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority_data: Option<ByteString>,
    certificate_authority: Option<PathBuf>,
    insecure_skip_tls_verify: Option<bool>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct User {
    token: Option<String>,
    token_file: Option<PathBuf>,
}

impl Kubeconfig {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`Error::Kubeconfig`]
    pub fn read(path: &Path) -> Result<Self, Error> {
        let unusable = |reason: String| Error::Kubeconfig {
            path: path.to_owned(),
            reason,
        };
        let text = read_text(path).map_err(|error| {
            unusable(format!(
                "cannot be read: {error}; linkerd-cni's installer, or whatever set the plugin up on this node, writes it"
            ))
        })?;
        // Files that it names are beside it, unless they say otherwise.
        Self::parse(&text, path.parent().unwrap_or(Path::new("/"))).map_err(unusable)
    }

    /// Reads the text of a kubeconfig. Relative paths in it start at `folder`.
    ///
    /// # Errors
    /// Why it is of no use.
    pub fn parse(text: &str, folder: &Path) -> Result<Self, String> {
        let file: Parts = yaml_serde::from_str(text).map_err(|error| format!("is not valid: {error}"))?;
        let by_name = |name: &str| file.contexts.iter().find(|it| it.name == name);
        let context = by_name(CONTEXT).or_else(|| by_name(file.current.as_deref()?));
        let Context { cluster, user } = &context
            .ok_or_else(|| format!("has neither a context {CONTEXT:?} nor a current one"))?
            .context;
        let cluster = file.clusters.iter().find(|it| it.name == *cluster);
        let cluster = &cluster
            .ok_or("has no cluster of the name that its context names")?
            .cluster;
        let user = file.users.iter().find(|it| it.name == *user);
        let user = &user.ok_or("has no user of the name that its context names")?.user;
        Ok(Self {
            server: server(&cluster.server)?,
            trust: trust(cluster, folder)?,
            token: token(user, folder)?,
        })
    }
}

/// The server's URL. The installer has put any host into brackets for a while, an IPv4 address too, and before that none,
/// not even an IPv6 address (linkerd2-proxy-init's history of install-cni.sh); both are read.
fn server(url: &str) -> Result<String, String> {
    let invalid = || format!("has the server {url:?}, where https://HOST:PORT was expected");
    // By http, anybody on the way could read the token.
    let rest = url.strip_prefix("https://").ok_or_else(invalid)?;
    let (authority, path) = match rest.find('/') {
        Some(slash) => rest.split_at(slash),
        None => (rest, ""),
    };
    let (host, port) = match authority.rsplit_once(':') {
        // The last colon of an address in brackets.
        Some((_, port)) if port.contains(']') => (authority, None),
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = match (bare, bare.unwrap_or(host).parse::<IpAddr>()) {
        (_, Ok(IpAddr::V4(address))) => address.to_string(),
        (_, Ok(IpAddr::V6(address))) => format!("[{address}]"),
        // A name, which some installers put into brackets too.
        (bare, Err(_)) => bare.unwrap_or(host).to_owned(),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_[:]".contains(&byte);
    let port = match port {
        Some(port) => format!(":{}", port.parse::<u16>().map_err(|_| invalid())?),
        None => String::new(),
    };
    if host.is_empty() || !host.bytes().all(is_name) {
        return Err(invalid());
    }
    Ok(format!("https://{host}{port}{}", path.trim_end_matches('/')))
}

fn trust(cluster: &Cluster, folder: &Path) -> Result<Trust, String> {
    let is_insecure = cluster.insecure_skip_tls_verify == Some(true);
    // As in client-go, an empty value is none.
    let data = cluster
        .certificate_authority_data
        .as_ref()
        .filter(|data| !data.0.is_empty());
    let path = cluster
        .certificate_authority
        .as_ref()
        .filter(|path| !path.as_os_str().is_empty());
    let (what, pem) = match (data, path) {
        (None, None) if is_insecure => return Ok(Trust::Anything),
        // As client-go: whoever names an authority means to have it checked (transport/transport.go, TLSConfigFor).
        _ if is_insecure => {
            return Err("has both a certificate authority and insecure-skip-tls-verify: leave one out".to_owned());
        }
        (Some(data), _) => ("certificate-authority-data", data.0.clone()),
        (None, Some(path)) => {
            let path = folder.join(path);
            let read = read_text(&path);
            let pem = read.map_err(|error| format!("names the certificate-authority {}: {error}", path.display()))?;
            ("certificate-authority", pem.into_bytes())
        }
        (None, None) => {
            return Err(
                "has no certificate-authority-data, certificate-authority or insecure-skip-tls-verify".to_owned(),
            );
        }
    };
    let certificates: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate.to_owned()),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(format!("has a {what} without a certificate in PEM form"));
    }
    Ok(Trust::Authorities(certificates))
}

/// A regular file of at most a megabyte: anything else is a mistake, and could be waited for, or read, for ever.
fn read_text(path: &Path) -> io::Result<String> {
    const LONGEST: u64 = 1 << 20;
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    File::open(path)?.take(LONGEST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST {
        return Err(io::Error::other("it is longer than a megabyte"));
    }
    Ok(text)
}

/// The bearer token. As in client-go, a file counts before a token that stands beside it.
fn token(user: &User, folder: &Path) -> Result<String, String> {
    let token = match (&user.token_file, &user.token) {
        (Some(path), _) => {
            let path = folder.join(path);
            read_text(&path).map_err(|error| format!("names the tokenFile {}: {error}", path.display()))?
        }
        (None, Some(token)) => token.clone(),
        (None, None) => {
            return Err("has a user with neither token nor tokenFile, and the plugin knows no other way in".into());
        }
    };
    let token = token.trim();
    // Anything else would not stay within its header.
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("has a token that is empty or has other characters than a token may".to_owned());
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the installer writes it, with this cluster and this user.
    fn kubeconfig(cluster: &str, user: &str) -> Result<Kubeconfig, String> {
        let text = format!(
            "# Kubeconfig file for linkerd CNI plugin.\napiVersion: v1\nkind: Config\nclusters:\n- name: local\n  cluster:\n    \
             {cluster}\nusers:\n- name: linkerd-cni\n  user:\n    {user}\ncontexts:\n- name: linkerd-cni-context\n  \
             context:\n    cluster: local\n    user: linkerd-cni\ncurrent-context: linkerd-cni-context\n"
        );
        Kubeconfig::parse(&text, Path::new("/nonexistent"))
    }

    const INSECURE: &str = "server: https://10.0.0.1:443\n    insecure-skip-tls-verify: true";

    #[test]
    fn the_installers_file_is_read() {
        let config = kubeconfig(INSECURE, "token: ab.cd-e_f").unwrap();
        assert_eq!(
            (config.server.as_str(), config.token.as_str()),
            ("https://10.0.0.1:443", "ab.cd-e_f")
        );
        assert!(matches!(config.trust, Trust::Anything));
    }

    #[test]
    fn servers_are_read_as_every_version_of_the_installer_writes_them() {
        for (written, want) in [
            ("https://10.0.0.1:443", "https://10.0.0.1:443"),
            ("https://[10.0.0.1]:443", "https://10.0.0.1:443"),
            ("https://[fd00:10::1]:6443", "https://[fd00:10::1]:6443"),
            ("https://fd00:10::1:6443", "https://[fd00:10::1]:6443"),
            ("https://api.example:443/", "https://api.example:443"),
            ("https://[api.example]:443", "https://api.example:443"),
            ("https://[::1]", "https://[::1]"),
            ("https://127.0.0.1:8080/prefix/", "https://127.0.0.1:8080/prefix"),
        ] {
            assert_eq!(server(written).as_deref(), Ok(want), "{written}");
        }
        for wrong in [
            "",
            "10.0.0.1:443",
            "ftp://a:1",
            "http://10.0.0.1:8080",
            "https://",
            "https://a:port",
            "https://a b:1",
            "https://u@a:1",
        ] {
            assert!(server(wrong).unwrap_err().contains(&format!("{wrong:?}")), "{wrong}");
        }
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (cluster, user, words) in [
            ("server: https://10.0.0.1:443", "token: x", "certificate-authority-data"),
            (
                "server: https://a:1\n    certificate-authority-data: '?'",
                "token: x",
                "not valid",
            ),
            (
                "server: https://a:1\n    certificate-authority-data: aGVsbG8=",
                "token: x",
                "without a certificate",
            ),
            (
                "server: https://a:1\n    certificate-authority: ca.crt",
                "token: x",
                "/nonexistent/ca.crt",
            ),
            (
                "server: https://a:1\n    certificate-authority: ca.crt\n    insecure-skip-tls-verify: true",
                "token: x",
                "both a certificate authority and insecure-skip-tls-verify",
            ),
            (
                "server: https://a:1\n    certificate-authority-data: aGVsbG8=\n    insecure-skip-tls-verify: true",
                "token: x",
                "both a certificate authority and insecure-skip-tls-verify",
            ),
            (
                "server: http://a:1\n    insecure-skip-tls-verify: true",
                "token: x",
                "where https://HOST:PORT was expected",
            ),
            (
                "server: https://a:1\n    certificate-authority-data: ''\n    certificate-authority: ''",
                "token: x",
                "has no certificate-authority-data",
            ),
            (INSECURE, "username: x", "neither token nor tokenFile"),
            (INSECURE, "token: ''", "token that is empty"),
            (INSECURE, "token: \"a\\r\\nX-Evil: 1\"", "other characters"),
            (INSECURE, "tokenFile: token", "/nonexistent/token"),
            (INSECURE, "tokenFile: /dev/zero", "not a regular file"),
            ("insecure-skip-tls-verify: true", "token: x", "server"),
        ] {
            let error = kubeconfig(cluster, user).unwrap_err();
            assert!(error.contains(words), "{cluster}, {user}: {error}");
        }
        for text in ["", "[]", "a: [", "contexts: []", "\0"] {
            Kubeconfig::parse(text, Path::new("/")).unwrap_err();
        }
    }

    #[test]
    fn another_current_context_will_do_if_the_installers_is_not_there() {
        let text = "contexts: [{name: c, context: {cluster: b, user: a}}]\ncurrent-context: c\nusers: [{name: a, user: \
                    {token: t}}]\nclusters: [{name: b, cluster: {server: 'https://h:1', insecure-skip-tls-verify: true}}]";
        assert_eq!(Kubeconfig::parse(text, Path::new("/")).unwrap().server, "https://h:1");
    }
}
