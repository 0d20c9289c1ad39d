//! The contenders: proxy-init, each competitor at its best invocation, and the floors.

use lab::linkerd;
use proxy_init::internal::batch;
use proxy_init::{Config, Install, Mode, ModeChoice, OwnerId, Port, PortRange, Simulate};

use crate::group::Contender;
use crate::tools::{Step, Tools};
use lab::shell::Result;

/// One set of flags, that everybody installs.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// For the names of files.
    label: String,
    inbound: Vec<u16>,
    /// True if IPv6 gets rules too.
    ipv6: bool,
}

impl Rules {
    /// The rules that Linkerd's chart asks for by default or, with `ipv6`, with `disableIPv6: false`.
    pub(crate) fn chart(ipv6: bool) -> Self {
        Self { label: if ipv6 { "both" } else { "chart" }.to_owned(), inbound: vec![4190, 4191, 4567, 4568], ipv6 }
    }

    /// The same with so many more ports, no two of which make a range.
    pub(crate) fn with_ports(&self, more: u16) -> Self {
        let mut rules = self.clone();
        rules.label = more.to_string();
        rules.inbound.extend((1..=more).map(|index| index * 3));
        rules
    }

    /// The families in words.
    pub(crate) fn families(&self) -> &'static str {
        if self.ipv6 {
            "IPv4 and IPv6, as with disableIPv6: false in Linkerd's charts"
        } else {
            "IPv4, as Linkerd's charts have it"
        }
    }

    /// As the program's flags, with a mode.
    fn flags(&self, mode: &str) -> Vec<String> {
        let list: Vec<String> = self.inbound.iter().map(ToString::to_string).collect();
        let mut flags: Vec<String> = linkerd::CHART_ARGUMENTS.map(ToOwned::to_owned).into();
        let ignored = flags.iter().position(|flag| flag == "--inbound-ports-to-ignore");
        if let Some(value) = ignored.and_then(|flag| flags.get_mut(flag + 1)) {
            *value = list.join(",");
        }
        flags.extend([format!("--ipv6={}", self.ipv6), format!("--iptables-mode={mode}")]);
        flags
    }

    /// As the library has them.
    fn config(&self) -> Result<Config> {
        let port = |number| Port::new(number).ok_or("0 is no port");
        let ports = |numbers: &[u16]| -> Result<Vec<PortRange>> {
            let ranges = numbers.iter().map(|&number| PortRange::new(number, number));
            let ranges: Option<Vec<_>> = ranges.collect();
            Ok(ranges.ok_or("0 is no port")?)
        };
        let mut config = Config::new(port(4143)?, port(4140)?);
        config.proxy_uid = OwnerId::new(2102);
        config.ignored_inbound_ports = ports(&self.inbound)?;
        config.ignored_outbound_ports = ports(&[4567, 4568])?;
        config.ipv6 = self.ipv6;
        Ok(config)
    }

    /// proxy-init that installs them, where the host has the commands that legacy mode needs: proxy-init would take nft
    /// mode instead.
    pub(crate) fn install(&self, tools: &Tools, mode: &str) -> Result<Vec<Step>> {
        if mode == "legacy" {
            tools.host("iptables-legacy-restore")?;
            tools.host("ip6tables-legacy-restore")?;
        }
        Ok(vec![tools.proxy_init(self.flags(mode))])
    }

    /// proxy-init that fails unless they are installed.
    pub(crate) fn verify(&self, tools: &Tools, mode: &str) -> Step {
        let mut words = vec!["verify".to_owned()];
        words.extend(self.flags(mode));
        tools.proxy_init(words)
    }

    /// Each family's rules by one restore process: iptables' best invocation.
    fn restore(&self, tools: &Tools, mode: &str) -> Result<Vec<Step>> {
        let install = Install::new(self.config()?);
        let mut steps = Vec::new();
        for (&family, name) in install.config.families().iter().zip(["iptables", "ip6tables"]) {
            let program = tools.host(&format!("{name}-{mode}-restore"))?;
            let file = tools.file(&format!("{name}-{}", self.label), install.simulate(Simulate::Only(family)))?;
            steps.push(Step::new(program, ["--noflush"]).stdin(file));
        }
        Ok(steps)
    }

    /// nft with native mode's script, without its first lines, which delete an earlier table: in a fresh namespace
    /// nothing needs that, and deleting makes nft wait for the kernel.
    pub(crate) fn nft(&self, tools: &Tools) -> Result<Vec<Step>> {
        let nft = tools.host("nft")?;
        let mut install = Install::new(self.config()?);
        install.mode = ModeChoice::Mode(Mode::Native);
        let script = install.simulate(Simulate::AllFamilies);
        let table = script.split_once("delete table inet proxy-init\n");
        let (_, table) = table.ok_or("native mode's script does not delete its table first")?;
        let file = tools.file(&format!("nft-{}", self.label), table)?;
        Ok(vec![Step::new(nft, ["-f".to_owned(), file.display().to_string()])])
    }

    /// The floor: a program that sends the mode's batch and does nothing else. `mode` is `nft` or `native`.
    pub(crate) fn replay(&self, tools: &Tools, mode: &str) -> Result<Vec<Step>> {
        let known = Mode::ALL.iter().copied().find(|known| known.to_string() == mode);
        let batch = batch(known.ok_or("there is no such mode")?, &self.config()?)?;
        Ok(vec![tools.replay(&format!("replay-{mode}-{}", self.label), &batch)?])
    }
}

/// proxy-init in a mode, as tables call it.
pub(crate) fn ours(mode: &str) -> String {
    format!("proxy-init --iptables-mode {mode}")
}

/// linkerd-init's commands, as tables call them.
pub(crate) fn linkerds(rules: &Rules, mode: &str) -> String {
    format!("linkerd-init's {} iptables-{mode} commands", linkerd::commands(mode, rules.ipv6).len())
}

/// proxy-init in a fresh namespace.
pub(crate) fn proxy_init(rules: &Rules, tools: &Tools, mode: &str) -> Contender {
    Contender::new(ours(mode), rules.install(tools, mode)).check(rules.verify(tools, mode))
}

/// The restore commands, one after the other.
pub(crate) fn restore(rules: &Rules, tools: &Tools, mode: &str) -> Contender {
    let name = if rules.ipv6 {
        format!("iptables-{mode}-restore + ip6tables-{mode}-restore")
    } else {
        format!("iptables-{mode}-restore")
    };
    Contender::new(name, rules.restore(tools, mode)).check(rules.verify(tools, mode))
}

/// linkerd-init's commands for these rules, one after another.
pub(crate) fn linkerd_init(rules: &Rules, tools: &Tools, mode: &str) -> Contender {
    let commands = linkerd::commands(mode, rules.ipv6).into_iter();
    let steps = commands.map(|mut words| Ok(Step::new(tools.host(&words.remove(0))?, words)));
    Contender::new(linkerds(rules, mode), steps.collect()).check(rules.verify(tools, mode))
}
