//! The log of installing and uninstalling: the only place that puts their outcome into words.

use ruleset::{Family, Table, TableFamily};

use crate::error::Error;
use crate::install::Install;
use crate::log::{Level, Log};
use crate::notice::{OperationNotice, Warning};
use crate::uninstall::Uninstall;

/// Installs the rules, and logs the changes.
pub fn install(install: &Install, log: &mut Log) -> Result<(), Error> {
    let installed = install.run_with(|notice| add(log, &notice))?;
    if let Some(seconds) = install.close_wait_timeout {
        log.add(Level::Info, format_args!("net.netfilter.nf_conntrack_tcp_timeout_close_wait = {seconds}"));
    }
    installed.commands(|command| log.add(Level::Info, command));
    let (rules, mode) = (installed.rules(), installed.mode);
    let families = match installed.tables.as_slice() {
        [Table { family: TableFamily::Ip(only), .. }] => only.to_string(),
        _ if install.config.ipv6 => "IPv4 and IPv6".to_owned(),
        _ => Family::V4.to_string(),
    };
    let what = format_args!("{rules} rules in {mode} mode for {families}");
    if installed.changed {
        let took = installed.took.as_micros();
        log.add(Level::Info, format_args!("installed {what} in {took} microseconds"));
    } else {
        // The timeout was set, and may have been another before.
        let unchanged = install.close_wait_timeout.map_or("nothing", |_| "no rule");
        log.add(Level::Info, format_args!("the {what} were installed already; {unchanged} was changed"));
    }
    Ok(())
}

/// Removes the rules, and logs the changes.
pub fn uninstall(uninstall: &Uninstall, log: &mut Log) -> Result<(), Error> {
    let uninstalled = uninstall.run_with(|notice| add(log, &notice))?;
    let hidden = uninstalled.warnings.iter().any(|warning| matches!(warning, Warning::LegacyUnseen(_)));
    let seen = if hidden { " in nf_tables" } else { "" };
    log.add(Level::Info, format_args!("no rules of proxy-init's are left{seen}"));
    Ok(())
}

fn add(log: &mut Log, notice: &OperationNotice<'_>) {
    match notice {
        OperationNotice::Chose(mode, reason) => {
            log.add(Level::Info, format_args!("auto: {mode} mode, because {reason}"))
        }
        OperationNotice::Warning(warning) => log.add(Level::Warning, warning),
        OperationNotice::LegacyUnseen(unseen) => log.add(Level::Info, Warning::LegacyUnseen((*unseen).clone())),
        OperationNotice::RunningCommands { waits } => {
            let waits = if *waits { ", waiting for the xtables lock" } else { "" };
            log.add(Level::Info, format_args!("running the iptables commands of legacy mode{waits}"));
            // The next step may take long, so the log is shown before.
            let _ = log.flush();
        }
        OperationNotice::Removed(mode) => {
            log.add(Level::Info, format_args!("removed the rules of {mode} mode"));
            // The next backend may wait for the kernel, or for a lock.
            let _ = log.flush();
        }
    }
}
