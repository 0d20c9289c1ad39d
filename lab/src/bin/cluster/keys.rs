//! Keys and certificates of one cluster, and who may do what with them.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use lab::machine::ADDRESS;
use lab::shell::{Result, Run as _};
use serde_json::json;

/// The range of services' addresses, and the one where pods find the API server.
pub(crate) const SERVICES: &str = "10.96.0.0/16";
const API_SERVICE: &str = "10.96.0.1";
/// Where a cluster tends to have its name server.
pub(crate) const DNS: &str = "10.96.0.10";

/// The certificates, each with its file, its subject, and the names that it is valid for.
const CERTIFICATES: [(&str, &str, &str); 3] = [
    (
        "apiserver",
        "/CN=kube-apiserver",
        "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc",
    ),
    ("kubelet-client", "/O=system:masters/CN=apiserver-kubelet", ""),
    ("admin", "/O=system:masters/CN=admin", ""),
];

/// Makes them all in this folder: NAME.key and NAME.crt, `ca`'s among them, the key of service accounts, and
/// `admin.conf` for kubectl.
pub(crate) fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    openssl(
        folder,
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt -days 30 -subj /CN=ca",
    )?;
    for (name, subject, names) in CERTIFICATES {
        let extensions = folder.join(format!("{name}.ext"));
        let names = match names {
            "" => String::new(),
            names => format!("subjectAltName={names},IP:127.0.0.1,IP:{API_SERVICE},IP:{ADDRESS}\n"),
        };
        fs::write(&extensions, format!("basicConstraints=critical,CA:FALSE\n{names}"))?;
        openssl(
            folder,
            &format!(
                "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.key -out {name}.csr -subj {subject}"
            ),
        )?;
        openssl(
            folder,
            &format!(
                "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -out {name}.crt -extfile {name}.ext"
            ),
        )?;
    }
    openssl(folder, "ecparam -genkey -name prime256v1 -noout -out sa.key")?;
    openssl(folder, "ec -in sa.key -pubout -out sa.pub")?;
    let file = |name: &str| folder.join(name);
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "node", "cluster": {
            "server": "https://127.0.0.1:443", "certificate-authority": file("ca.crt")
        }}],
        "users": [{"name": "admin", "user": {
            "client-certificate": file("admin.crt"), "client-key": file("admin.key")
        }}],
        "contexts": [{"name": "node", "context": {"cluster": "node", "user": "admin"}}],
        "current-context": "node"
    });
    Ok(fs::write(file("admin.conf"), config.to_string())?)
}

fn openssl(folder: &Path, line: &str) -> Result<()> {
    let mut openssl = Command::new("openssl");
    openssl.current_dir(folder).args(line.split(' ')).stdin(Stdio::null());
    openssl.read()?;
    Ok(())
}
