//! What kubectl shows of pods.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command};

use lab::connections::{self, Client, Connection};
use lab::manifests::{APP, PROXY};
use lab::shell::{Result, Run as _};
use lab::wait::{self, PATIENCE};
use serde_json::Value;

use crate::kubectl::Space;

/// A pod that was made.
#[derive(Debug, Clone)]
pub(crate) struct Pod<'a> {
    pub(crate) space: Space<'a>,
    pub(crate) name: String,
}

/// A command that goes on in a container.
#[derive(Debug)]
pub(crate) struct Started(Child);

impl Started {
    /// Ends it, and returns what it has printed.
    pub(crate) fn end(mut self) -> Result<String> {
        drop(self.0.stdin.take());
        let output = self.0.wait_with_output()?;
        if output.status.success() {
            Ok(String::from_utf8(output.stdout)?)
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into())
        }
    }
}

/// The end of an init container.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i64,
    /// Such as `OOMKilled`.
    pub(crate) reason: String,
    /// The message that `kubectl describe` shows: the end of its log, if it failed.
    pub(crate) message: String,
}

impl Pod<'_> {
    /// The API server's object.
    pub(crate) fn object(&self) -> Result<Value> {
        self.space.json(&["get", "pod", &self.name])
    }

    /// The words of `kubectl describe`, with the pod's events.
    pub(crate) fn describe(&self) -> Result<String> {
        self.space.run(&["describe", "pod", &self.name])
    }

    /// A container's log.
    pub(crate) fn logs(&self, container: &str) -> Result<String> {
        self.space.run(&["logs", &self.name, "--container", container])
    }

    /// Waits until something is so of the pod, or fails with what `kubectl describe` says of it.
    pub(crate) fn until<T>(&self, what: &str, is_so: impl Fn(&Value) -> Option<T>) -> Result<T> {
        let look = || self.object().map(|object| is_so(&object)).transpose();
        let too_late = || Err(format!("{} {what}\n{}", self.name, self.describe()?).into());
        wait::until(PATIENCE, look).unwrap_or_else(too_late)
    }

    /// Waits until all its containers are ready.
    pub(crate) fn ready(&self) -> Result<()> {
        self.until("does not become ready", |pod| {
            let conditions = pod.pointer("/status/conditions")?.as_array()?;
            let ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
            conditions.iter().any(ready).then_some(())
        })
    }

    /// Waits until each of its containers has been started again since it was made, and is ready.
    pub(crate) fn ready_again(&self) -> Result<()> {
        self.until("does not become ready again", |pod| {
            let statuses = pod.pointer("/status/containerStatuses")?.as_array()?;
            let again = |status: &Value| status["ready"] == true && status["restartCount"].as_i64() > Some(0);
            statuses.iter().all(again).then_some(())
        })
    }

    /// Waits until an init container has ended, and says how it did first.
    pub(crate) fn ended(&self, container: &str) -> Result<Ended> {
        self.until("has an init container that does not end", |pod| {
            let statuses = pod.pointer("/status/initContainerStatuses")?.as_array()?;
            let status = statuses.iter().find(|status| status["name"] == container)?;
            let ended = status.pointer("/lastState/terminated").or_else(|| status.pointer("/state/terminated"))?;
            let text = |key: &str| ended[key].as_str().unwrap_or_default().to_owned();
            Some(Ended { code: ended["exitCode"].as_i64()?, reason: text("reason"), message: text("message") })
        })
    }

    /// Its addresses: IPv4's, then IPv6's.
    pub(crate) fn addresses(&self) -> Result<Vec<IpAddr>> {
        self.until("has no addresses", |pod| {
            let addresses = pod.pointer("/status/podIPs")?.as_array()?;
            let addresses: Option<Vec<_>> =
                addresses.iter().map(|address| address["ip"].as_str()?.parse().ok()).collect();
            addresses.filter(|addresses| addresses.len() == 2)
        })
    }

    /// Runs a command in a container, as its user.
    pub(crate) fn exec(&self, container: &str, command: &[&str]) -> Result<String> {
        self.space.run(&self.in_container(&["exec"], container, command))
    }

    /// Starts a command in a container, which goes on until its stdin ends.
    pub(crate) fn start(&self, container: &str, command: &[&str]) -> Result<Started> {
        let exec = ["--namespace", &self.space.name, "exec", "--stdin"];
        Ok(Started(self.space.kubectl.start(&self.in_container(&exec, container, command))?))
    }

    /// kubectl's arguments for a command in a container.
    fn in_container<'c>(&'c self, exec: &[&'c str], container: &'c str, command: &[&'c str]) -> Vec<&'c str> {
        let of_pod = [&self.name, "--container", container, "--"];
        [exec, &of_pod, command].concat()
    }

    /// The connections that [`connections::of`] has for this pod.
    pub(crate) fn connections(&self, neighbour: &Pod<'_>, meshed: bool) -> Result<Vec<Connection>> {
        Ok(connections::of(&self.addresses()?, &neighbour.addresses()?, meshed))
    }

    /// Really makes these connections, from the neighbour and from these containers, its application's and its proxy's.
    pub(crate) fn try_connections(
        &self,
        neighbour: &Pod<'_>,
        connections: &[Connection],
        [app, proxy]: [&str; 2],
    ) -> Result<()> {
        connections::really_make(connections, |client, command| match client {
            Client::Neighbour => neighbour.exec("client", command),
            Client::App => self.exec(app, command),
            Client::Proxy => self.exec(proxy, command),
        })
    }

    /// Really makes those of a pod that has, or hasn't, rules with the chart's flags, and the injector's names of
    /// containers.
    pub(crate) fn try_injected(&self, neighbour: &Pod<'_>, meshed: bool) -> Result<()> {
        self.try_connections(neighbour, &self.connections(neighbour, meshed)?, [APP, PROXY])
    }

    /// Where its network namespace can be opened: the one of the node's that has its address.
    pub(crate) fn netns(&self) -> Result<PathBuf> {
        let address = format!(" {}/", self.addresses()?[0]);
        let has_address = |netns: &PathBuf| {
            let mut ip = Command::new("nsenter");
            ip.arg(format!("--net={}", netns.display())).args(["ip", "-oneline", "addr"]);
            ip.read().is_ok_and(|addresses| addresses.contains(&address))
        };
        let namespaces = fs::read_dir("/run/netns")?.flatten().map(|entry| entry.path());
        let found = namespaces.into_iter().find(has_address);
        found.ok_or_else(|| format!("no network namespace has{address}").into())
    }

    /// Runs a shell's command line in its network namespace, with the node's programs, and returns the output.
    pub(crate) fn look(&self, line: &str) -> Result<String> {
        let mut shell = Command::new("nsenter");
        shell.arg(format!("--net={}", self.netns()?.display()));
        shell.args(["sh", "-c", line]).read()
    }

    /// Waits for a warning of this reason.
    pub(crate) fn warned(&self, reason: &str) -> Result<()> {
        self.has_event(&format!("Warning {reason} "))
    }

    /// Waits for an event in whose kind, reason and message this is.
    pub(crate) fn has_event(&self, text: &str) -> Result<()> {
        let is_there = |events: Vec<String>| events.iter().any(|event| event.contains(text)).then_some(());
        let too_late = || Err(format!("{} has no event {text}: {:?}", self.name, self.events()?).into());
        wait::until(PATIENCE, || self.events().map(is_there).transpose()).unwrap_or_else(too_late)
    }

    /// The kinds, reasons and messages of its events, oldest first.
    pub(crate) fn events(&self) -> Result<Vec<String>> {
        let of_pod = format!("involvedObject.name={}", self.name);
        let events = self.space.json(&["get", "events", "--field-selector", &of_pod])?;
        let events = events["items"].as_array().cloned().unwrap_or_default();
        let line = |event: &Value| {
            let words = ["type", "reason", "message"].map(|key| event[key].as_str().unwrap_or_default());
            words.join(" ")
        };
        Ok(events.iter().map(line).collect())
    }
}
