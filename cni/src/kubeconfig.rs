//! The kubeconfig: where the API server is, how it proves who it is, and how the plugin does.
//!
//! linkerd-cni's installer (cni-plugin/deployment/scripts/install-cni.sh in linkerd2-proxy-init) writes `server`,
//! either `certificate-authority-data` or `insecure-skip-tls-verify`, and `token`. The token changes while the node
//! lives, so the file is read anew by each command.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::IgnoredAny;
use ureq::tls::{Certificate, PemItem, parse_pem};
use yaml_serde::Value;

use crate::authority::usable;
use crate::error::Error;
use crate::file;

/// The context that the installer writes and that upstream's plugin asks for by name.
const CONTEXT: &str = "linkerd-cni-context";

/// The longest kubeconfig that is read; the installer's has some kilobytes.
const LONGEST: usize = 256 << 10;

/// The deepest that its brackets may nest. For each word, libyaml looks at every bracket that is open.
const DEEPEST: usize = 32;

/// The longest file that a kubeconfig names: a token, or all authorities that a system trusts.
const LONGEST_NAMED: usize = 1 << 20;

/// A kubeconfig's entries about one cluster and its user.
#[derive(Debug)]
pub struct Kubeconfig {
    /// `https://HOST:PORT`, without a slash at the end; a host that is an IPv6 address is in brackets, and no other.
    pub server: String,
    /// The certificates that the server may have.
    pub trust: Trust,
    /// The bearer token.
    pub token: String,
}

/// The certificates that a server may have.
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

/// client-go's `Cluster` (tools/clientcmd/api/v1/types.go). What the plugin doesn't do is read nevertheless, so that it
/// isn't passed over.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority_data: Option<String>,
    certificate_authority: Option<PathBuf>,
    insecure_skip_tls_verify: Option<bool>,
    tls_server_name: Option<Value>,
    proxy_url: Option<Value>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: User,
}

/// client-go's `AuthInfo`, likewise.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    client_certificate: Option<Value>,
    client_certificate_data: Option<Value>,
    client_key: Option<Value>,
    client_key_data: Option<Value>,
    r#as: Option<Value>,
    as_uid: Option<Value>,
    as_groups: Option<Value>,
    as_user_extra: Option<Value>,
    username: Option<Value>,
    password: Option<Value>,
    auth_provider: Option<Value>,
    exec: Option<Value>,
}

impl Cluster {
    fn check(&self) -> Result<(), String> {
        supported([("tls-server-name", &self.tls_server_name), ("proxy-url", &self.proxy_url)])
    }
}

impl User {
    fn check(&self) -> Result<(), String> {
        supported([
            ("client-certificate", &self.client_certificate),
            ("client-certificate-data", &self.client_certificate_data),
            ("client-key", &self.client_key),
            ("client-key-data", &self.client_key_data),
            ("as", &self.r#as),
            ("as-uid", &self.as_uid),
            ("as-groups", &self.as_groups),
            ("as-user-extra", &self.as_user_extra),
            ("username", &self.username),
            ("password", &self.password),
            ("auth-provider", &self.auth_provider),
            ("exec", &self.exec),
        ])
    }
}

/// Refuses unsupported keys. As in client-go, an empty value is none.
fn supported<const N: usize>(keys: [(&str, &Option<Value>); N]) -> Result<(), String> {
    let is_set = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Sequence(list) => !list.is_empty(),
        Value::Mapping(map) => !map.is_empty(),
        _ => true,
    };
    match keys.into_iter().find(|(_, value)| value.as_ref().is_some_and(is_set)) {
        Some((key, _)) => Err(format!("has {key}, which the plugin does not support: remove it")),
        None => Ok(()),
    }
}

impl Kubeconfig {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`Error::Kubeconfig`]
    pub fn read(path: &Path) -> Result<Self, Error> {
        let unusable = |reason: String| Error::Kubeconfig { path: path.to_owned(), reason };
        let text = read_text(path, LONGEST).map_err(|error| {
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
    /// The reason why it is of no use, without anything that could be a secret.
    pub fn parse(text: &str, folder: &Path) -> Result<Self, String> {
        let file = parts(text)?;
        let by_name = |name: &str| file.contexts.iter().find(|it| it.name == name);
        let context = by_name(CONTEXT).or_else(|| by_name(file.current.as_deref()?));
        let Context { cluster, user } =
            &context.ok_or_else(|| format!("has neither a context {CONTEXT:?} nor a current one"))?.context;
        let cluster = file.clusters.iter().find(|it| it.name == *cluster);
        let cluster = &cluster.ok_or("has no cluster of the name that its context names")?.cluster;
        let user = file.users.iter().find(|it| it.name == *user);
        let user = &user.ok_or("has no user of the name that its context names")?.user;
        cluster.check()?;
        user.check()?;
        Ok(Self { server: server(&cluster.server)?, trust: trust(cluster, folder)?, token: token(user, folder)? })
    }
}

/// Reads the file's structure. A parser's message repeats what it has found, which may be a token in the wrong place:
/// only the place is told.
fn parts(text: &str) -> Result<Parts, String> {
    // A byte order mark, as some editors write it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if depth(text) > DEEPEST {
        return Err(format!("is not valid: more than {DEEPEST} brackets are open at the same place"));
    }
    serde_path_to_error::deserialize(yaml_serde::Deserializer::from_str(text)).map_err(|error| {
        let key = error.path().to_string();
        let place = error.into_inner().location();
        let place = place.map_or(String::new(), |at| format!(" at line {}, column {}", at.line(), at.column()));
        match yaml_serde::from_str::<IgnoredAny>(text) {
            Err(_) => format!("is not valid: it is not one document of YAML{place}"),
            Ok(_) => format!("is not valid{place}: {key} is missing something, or is of the wrong type"),
        }
    })
}

/// The number of brackets that are open where the most are, those in strings and comments included.
fn depth(text: &str) -> usize {
    let deepest = text.bytes().fold((0_usize, 0), |(open, deepest), byte| match byte {
        b'[' | b'{' => (open + 1, deepest.max(open + 1)),
        b']' | b'}' => (open.saturating_sub(1), deepest),
        _ => (open, deepest),
    });
    deepest.1
}

/// The server's URL. The installer has put any host into brackets for a while, an IPv4 address too, and before that
/// none, not even an IPv6 address (linkerd2-proxy-init's history of install-cni.sh); both are read.
fn server(url: &str) -> Result<String, String> {
    // Not with the URL: some people write a password into it.
    let invalid = |what: &str| format!("has a server {what}: https://HOST:PORT was expected");
    // By http, anybody on the way could read the token.
    let rest = url.strip_prefix("https://").ok_or_else(|| invalid("that does not start with https://"))?;
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
    let host = bare.unwrap_or(host);
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let host = match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => Some(address.to_string()),
        Ok(IpAddr::V6(address)) => Some(format!("[{address}]")),
        // A name, which some installers put into brackets too.
        Err(_) => Some(host.to_owned()).filter(|host| !host.is_empty() && host.bytes().all(is_name)),
    };
    let port = match port {
        Some(port) => match port.parse::<u16>() {
            Ok(port) => format!(":{port}"),
            Err(_) => return Err(invalid("without a valid port after its last colon")),
        },
        None => String::new(),
    };
    if authority.contains('@') {
        return Err(invalid("with a user, which the plugin does not support"));
    }
    let host = host.ok_or_else(|| invalid("whose host is neither a name nor an address"))?;
    if !path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/.-_~%".contains(&byte)) {
        return Err(invalid("with something other than a path after its host"));
    }
    Ok(format!("https://{host}{port}{}", path.trim_end_matches('/')))
}

fn trust(cluster: &Cluster, folder: &Path) -> Result<Trust, String> {
    let is_insecure = cluster.insecure_skip_tls_verify == Some(true);
    // As in client-go, an empty value is none.
    let data = cluster.certificate_authority_data.as_ref().filter(|data| !data.is_empty());
    let path = cluster.certificate_authority.as_ref().filter(|path| !path.as_os_str().is_empty());
    let (what, pem) = match (data, path) {
        (None, None) if is_insecure => return Ok(Trust::Anything),
        // As client-go: a named authority means a check (transport/transport.go, TLSConfigFor).
        _ if is_insecure => {
            return Err("has both a certificate authority and insecure-skip-tls-verify: leave one out".to_owned());
        }
        (Some(data), _) => {
            let digits: Vec<u8> = data.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
            let pem = STANDARD.decode(digits);
            let pem = pem.map_err(|_| "has a certificate-authority-data that is not base64".to_owned())?;
            ("certificate-authority-data", pem)
        }
        (None, Some(path)) => {
            let path = folder.join(path);
            let read = file::read(&path, LONGEST_NAMED);
            let pem = read.map_err(|error| format!("names the certificate-authority {}: {error}", path.display()))?;
            ("certificate-authority", pem)
        }
        (None, None) => {
            return Err(
                "has no certificate-authority-data, certificate-authority or insecure-skip-tls-verify".to_owned()
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
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let usable = usable(certificates, now).map_err(|reason| format!("has a {what} {reason}"))?;
    Ok(Trust::Authorities(usable))
}

fn read_text(path: &Path, longest: usize) -> io::Result<String> {
    let bytes = file::read(path, longest)?;
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))
}

/// The bearer token. As in client-go, a file counts before a token that stands beside it.
fn token(user: &User, folder: &Path) -> Result<String, String> {
    let file = user.token_file.as_ref().filter(|path| !path.as_os_str().is_empty());
    let token = match (file, &user.token) {
        (Some(path), _) => {
            // A relative path may be a token in the wrong place.
            let shown = if path.is_absolute() { path.display().to_string() } else { "beside it".to_owned() };
            let read = read_text(&folder.join(path), LONGEST_NAMED);
            read.map_err(|error| format!("names a tokenFile ({shown}): {error}"))?
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
        assert_eq!((config.server.as_str(), config.token.as_str()), ("https://10.0.0.1:443", "ab.cd-e_f"));
        assert!(matches!(config.trust, Trust::Anything));
        let text =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/cni/kubeconfig")).unwrap();
        for text in [text.clone(), text.replace('\n', "\r\n"), format!("\u{feff}{text}"), format!("---\n{text}")] {
            assert_eq!(Kubeconfig::parse(&text, Path::new("/")).unwrap().token, "a.b", "{text:?}");
        }
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
        for (wrong, words) in [
            ("", "not start with https://"),
            ("10.0.0.1:443", "not start with https://"),
            ("ftp://a:1", "not start with https://"),
            ("http://10.0.0.1:8080", "not start with https://"),
            ("https://", "neither a name nor an address"),
            ("https://a:port", "port"),
            ("https://a b:1", "neither a name nor an address"),
            ("https://[::1]x:1", "neither a name nor an address"),
            ("https://a:b:1", "neither a name nor an address"),
            ("https://[]:1", "neither a name nor an address"),
            ("https://[fe80::1%25eth0]:1", "neither a name nor an address"),
            ("https://u@a:1", "a user"),
            ("https://a:1/?token=x", "other than a path"),
            ("https://a:1/b#x", "other than a path"),
        ] {
            let error = server(wrong).unwrap_err();
            assert!(error.contains(words), "{wrong}: {error}");
        }
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (cluster, user, words) in [
            ("server: https://10.0.0.1:443", "token: x", "certificate-authority-data"),
            ("server: https://a:1\n    certificate-authority-data: '?'", "token: x", "not base64"),
            ("server: https://a:1\n    certificate-authority-data: aGVsbG8=", "token: x", "without a certificate"),
            ("server: https://a:1\n    certificate-authority: ca.crt", "token: x", "/nonexistent/ca.crt"),
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
            ("server: http://a:1\n    insecure-skip-tls-verify: true", "token: x", "https://HOST:PORT was expected"),
            (
                "server: https://a:1\n    certificate-authority-data: ''\n    certificate-authority: ''",
                "token: x",
                "has no certificate-authority-data",
            ),
            (INSECURE, "username: ''", "neither token nor tokenFile"),
            (INSECURE, "token: ''", "token that is empty"),
            (INSECURE, "token: \"a\\r\\nX-Evil: 1\"", "other characters"),
            (INSECURE, "tokenFile: token", "tokenFile (beside it): No such file"),
            (INSECURE, "tokenFile: /nonexistent/token", "tokenFile (/nonexistent/token): No such file"),
            (INSECURE, "tokenFile: /dev/zero", "not a regular file"),
            ("insecure-skip-tls-verify: true", "token: x", "clusters[0].cluster is missing something"),
        ] {
            let error = kubeconfig(cluster, user).unwrap_err();
            assert!(error.contains(words), "{cluster}, {user}: {error}");
        }
        for text in ["", "[]", "a: [", "contexts: []", "\0"] {
            Kubeconfig::parse(text, Path::new("/")).unwrap_err();
        }
    }

    /// A reader of the runtime's log, or of an event, need not be a reader of the kubeconfig.
    #[test]
    fn no_message_has_what_may_be_a_secret() {
        for (cluster, user) in [
            ("server: https://admin:hunter2@10.0.0.1:443", "token: x"),
            ("server: https://admin:hunter2", "token: x"),
            ("server: hunter2", "token: x"),
            ("server: [hunter2]", "token: x"),
            ("hunter2", "token: x"),
            ("server: https://10.0.0.1:1/?token=hunter2", "token: x"),
            (INSECURE, "hunter2"),
            (INSECURE, "[hunter2]"),
            (INSECURE, "token: [hunter2]"),
            (INSECURE, "token: {hunter2: hunter2}"),
            (INSECURE, "token: &hunter2 *hunter2"),
            (INSECURE, "token: *hunter2"),
            (INSECURE, "token: !hunter2 x\n    token: hunter2"),
            (INSECURE, "hunter2: 1\n    hunter2: 1"),
            (INSECURE, "token: hunter2\u{7}"),
            (INSECURE, "token: \"hunter2"),
            (INSECURE, "token: hunter2: x"),
            (INSECURE, "tokenFile: hunter2"),
            (INSECURE, "token: x\n    password: hunter2"),
            (INSECURE, "token: x\n    insecure: \"\\hunter2\""),
            ("server: https://a:1\n    certificate-authority-data: hunter2", "token: x"),
            ("server: https://a:1\n    insecure-skip-tls-verify: hunter2", "token: x"),
        ] {
            let error = kubeconfig(cluster, user).unwrap_err();
            assert!(!error.contains("hunter2") && !error.contains("aHVudGVyMg"), "{error}");
        }
    }

    #[test]
    fn a_message_names_the_place() {
        let error = kubeconfig(INSECURE, "[hunter2]").unwrap_err();
        assert!(error.contains("line 12") && error.contains("users[0].user"), "{error}");
        let error = kubeconfig(INSECURE, "token: \"x").unwrap_err();
        assert!(error.contains("not one document of YAML at line "), "{error}");
    }

    #[test]
    fn what_the_plugin_does_not_do_is_refused_by_name() {
        for key in [
            "client-certificate",
            "client-certificate-data",
            "client-key",
            "client-key-data",
            "as",
            "as-uid",
            "as-groups",
            "as-user-extra",
            "username",
            "password",
            "auth-provider",
            "exec",
        ] {
            for value in ["x", "[x]", "{x: y}", "7"] {
                let error = kubeconfig(INSECURE, &format!("token: x\n    {key}: {value}")).unwrap_err();
                assert!(error.starts_with(&format!("has {key}, ")), "{error}");
            }
            for none in ["", "''", "[]", "{}", "null"] {
                kubeconfig(INSECURE, &format!("token: x\n    {key}: {none}")).unwrap();
            }
        }
        for key in ["tls-server-name", "proxy-url"] {
            let error = kubeconfig(&format!("{INSECURE}\n    {key}: x"), "token: x").unwrap_err();
            assert!(error.starts_with(&format!("has {key}, ")), "{error}");
            kubeconfig(&format!("{INSECURE}\n    {key}: ''"), "token: x").unwrap();
        }
        // These entries change nothing.
        kubeconfig(&format!("{INSECURE}\n    disable-compression: true\n    extensions: []"), "token: x").unwrap();
    }

    #[test]
    fn a_file_counts_before_a_token_unless_it_is_empty() {
        assert_eq!(kubeconfig(INSECURE, "token: x\n    tokenFile: ''").unwrap().token, "x");
        kubeconfig(INSECURE, "token: x\n    tokenFile: token").unwrap_err();
    }

    /// The longest file takes this much processor time of a command's ten seconds, even without optimisation.
    #[test]
    fn a_file_that_nests_deeply_takes_no_time() {
        let processor_time = || {
            let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
            std::time::Duration::from(time)
        };
        let nested = format!("{}{}, ", "{a: ".repeat(DEEPEST - 1), "}".repeat(DEEPEST - 1));
        for piece in ["{a: ", "[", "{? ", "- ", "? ", "a: {", "&a [", "!!a {a: ", "]", "\"", "a, ", "*a ", &nested] {
            let start = processor_time();
            let text = format!("[{}", piece.repeat(LONGEST / piece.len()));
            Kubeconfig::parse(&text, Path::new("/")).unwrap_err();
            Kubeconfig::parse(&text[1..], Path::new("/")).unwrap_err();
            let took = processor_time() - start;
            assert!(took < std::time::Duration::from_secs(2), "{piece:?}: {took:?}");
        }
    }

    #[test]
    fn another_current_context_will_do_if_the_installers_is_not_there() {
        let text = "contexts: [{name: c, context: {cluster: b, user: a}}]\ncurrent-context: c\nusers: [{name: a, user: \
                    {token: t}}]\nclusters: [{name: b, cluster: {server: 'https://h:1', insecure-skip-tls-verify: true}}]";
        assert_eq!(Kubeconfig::parse(text, Path::new("/")).unwrap().server, "https://h:1");
    }
}
