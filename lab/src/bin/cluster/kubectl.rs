//! kubectl, through which scenarios start and see everything, as people do.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use lab::images;
use lab::machine::NODE;
use lab::shell::{Result, root};
use lab::wait::wait_for;
use serde_json::Value;

use crate::pod::Pod;

/// The time that kubectl waits for what it has begun, on a machine that others use too.
pub(crate) const TIMEOUT: &str = "--timeout=300s";

/// A namespace of Kubernetes.
#[derive(Debug, Clone)]
pub(crate) struct Space<'a> {
    pub(crate) kubectl: &'a Kubectl,
    pub(crate) name: String,
}

impl<'a> Space<'a> {
    /// One that is there, or will be.
    pub(crate) fn new(kubectl: &'a Kubectl, name: &str) -> Self {
        Self { kubectl, name: name.to_owned() }
    }

    /// Waits for the service account of its pods, without which there are none.
    pub(crate) fn wait_for_account(&self) -> Result<()> {
        let what = format!("the service account of {}", self.name);
        wait_for(&what, || self.run(&["get", "serviceaccount", "default"]).is_ok())
    }

    /// Runs a command in it.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl.run(&[&["--namespace", &self.name], arguments].concat())
    }

    /// A command's answer in JSON.
    pub(crate) fn json(&self, arguments: &[&str]) -> Result<Value> {
        self.kubectl.json(&[&["--namespace", &self.name], arguments].concat())
    }

    /// Makes an object.
    pub(crate) fn create(&self, object: &Value) -> Result<()> {
        self.hand_over("create", object)
    }

    /// Gives kubectl an object, to `create`, `replace` or `apply`.
    pub(crate) fn hand_over(&self, verb: &str, object: &Value) -> Result<()> {
        let arguments = ["--namespace", &self.name, verb, "--filename=-"];
        self.kubectl.run_with(&object.to_string(), &arguments).map(drop)
    }

    /// A pod that is there.
    pub(crate) fn pod(&self, name: &str) -> Pod<'a> {
        Pod { space: self.clone(), name: name.to_owned() }
    }

    /// Makes a pod.
    pub(crate) fn make(&self, object: &Value) -> Result<Pod<'a>> {
        self.create(object)?;
        let name = object.pointer("/metadata/name").and_then(Value::as_str);
        Ok(self.pod(name.ok_or("a pod without a name")?))
    }

    /// Makes a pod, and waits until it is ready.
    pub(crate) fn start(&self, object: &Value) -> Result<Pod<'a>> {
        let pod = self.make(object)?;
        pod.ready()?;
        Ok(pod)
    }

    /// The pods that stay.
    pub(crate) fn pods(&self) -> Result<Vec<Value>> {
        let mut pods = self.json(&["get", "pods"])?["items"].as_array().cloned().unwrap_or_default();
        pods.retain(|pod| pod.pointer("/metadata/deletionTimestamp").is_none());
        Ok(pods)
    }

    /// Waits until all pods of a workload are new ones and ready.
    pub(crate) fn rolled(&self, workload: &str) -> Result<()> {
        self.run(&["rollout", "status", TIMEOUT, workload]).map(drop)
    }

    /// Deletes objects, and waits until they are gone.
    pub(crate) fn delete(&self, objects: &[&str]) -> Result<()> {
        self.run(&[&["delete", "--ignore-not-found", TIMEOUT], objects].concat()).map(drop)
    }
}

/// kubectl as the cluster's administrator.
#[derive(Debug)]
pub(crate) struct Kubectl(pub(crate) PathBuf);

impl Kubectl {
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
        let mut kubectl = Command::new(&self.0);
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
        let mut path = self.0.parent().unwrap_or(Path::new("/")).as_os_str().to_owned();
        path.push(":");
        path.push(root().join("deploy/kubectl"));
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        [
            ("KUBECONFIG", format!("{NODE}/keys/admin.conf").into()),
            // Where it keeps what the API server can do.
            ("HOME", NODE.into()),
            ("PATH", path),
            ("PROXY_INIT_IMAGE", images::PROXY_INIT.into()),
        ]
    }
}
