//! kubectl, through which scenarios start and see everything, as people do.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use lab::shell::{Result, root};
use serde_json::Value;

use crate::images;

/// kubectl as the cluster's administrator.
#[derive(Debug)]
pub(crate) struct Kubectl {
    program: PathBuf,
    node: PathBuf,
}

impl Kubectl {
    /// The program, and the folder with the node's files.
    pub(crate) fn new(program: &Path, node: &Path) -> Self {
        Self { program: program.to_owned(), node: node.to_owned() }
    }

    /// Runs a command, and returns what it prints. It is an error if it fails.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<String> {
        self.run_with("", arguments)
    }

    /// The same, with this on its stdin.
    pub(crate) fn run_with(&self, input: &str, arguments: &[&str]) -> Result<String> {
        let output = self.output(input, arguments)?;
        if output.status.success() {
            return Ok(String::from_utf8(output.stdout)?);
        }
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        Err(format!("kubectl {}: {}: {}", arguments.join(" "), output.status, said.trim()).into())
    }

    /// A command's answer in JSON.
    pub(crate) fn json(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.run(&[arguments, &["--output=json"]].concat())?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Makes an object, in this namespace.
    pub(crate) fn create(&self, namespace: &str, object: &Value) -> Result<()> {
        self.run_with(&object.to_string(), &["create", "--namespace", namespace, "--filename=-"])?;
        Ok(())
    }

    /// Runs a command, however it ends.
    pub(crate) fn output(&self, input: &str, arguments: &[&str]) -> Result<Output> {
        let mut kubectl = self.start(arguments)?;
        if let Some(mut stdin) = kubectl.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        Ok(kubectl.wait_with_output()?)
    }

    /// Starts a command, whose stdin is held.
    pub(crate) fn start(&self, arguments: &[&str]) -> Result<Child> {
        let mut kubectl = Command::new(&self.program);
        kubectl
            .envs(self.environment())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        kubectl.spawn().map_err(|error| format!("kubectl: {error}").into())
    }

    /// The variables with which a shell runs this kubectl and its plugin, for this cluster.
    pub(crate) fn environment(&self) -> [(&'static str, OsString); 4] {
        let mut path = self.program.parent().unwrap_or(Path::new("/")).as_os_str().to_owned();
        path.push(":");
        path.push(root().join("deploy/kubectl"));
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        [
            ("KUBECONFIG", self.node.join("keys/admin.conf").into()),
            // Where it keeps what the API server can do.
            ("HOME", self.node.clone().into()),
            ("PATH", path),
            ("PROXY_INIT_IMAGE", images::PROXY_INIT.into()),
        ]
    }
}
