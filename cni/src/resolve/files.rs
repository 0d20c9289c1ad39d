//! The files that say where names are looked up: /etc/resolv.conf (resolv.conf(5)) and /etc/hosts (hosts(5)). Lines
//! that make no sense are skipped, as by all readers of these files.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

/// The port of DNS.
const PORT: u16 = 53;

/// How many name servers are asked: `MAXNS` in glibc's resolv.h.
const MOST_SERVERS: usize = 3;

/// What /etc/resolv.conf says, with glibc's defaults and bounds (resolv/res_init.c).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// Who is asked, in this order.
    pub servers: Vec<SocketAddr>,
    /// Domains in which a name may be meant.
    pub search: Vec<String>,
    /// With this many dots, a name is looked up as it is before it is in a domain.
    pub dots: usize,
    /// How long one server has.
    pub timeout: Duration,
    /// How often all of them are asked.
    pub attempts: u32,
    /// Questions are put by TCP at once.
    pub tcp: bool,
}

impl Configuration {
    /// Reads the text of the file. `interface` knows the index of an interface, for link-local name servers.
    pub fn parse(text: &[u8], interface: impl Fn(&str) -> Option<u32>) -> Self {
        let mut read = Self {
            servers: vec![],
            search: vec![],
            dots: 1,
            timeout: Duration::from_secs(5),
            attempts: 2,
            tcp: false,
        };
        for line in words(text, b"#;") {
            let Some((&key, values)) = line.split_first() else {
                continue;
            };
            match key {
                "nameserver" if read.servers.len() < MOST_SERVERS => {
                    read.servers
                        .extend(values.first().and_then(|value| server(value, &interface)));
                }
                // The last one counts.
                "search" | "domain" => read.search = values.iter().map(|&value| value.to_owned()).collect(),
                "options" => values.iter().for_each(|value| read.option(value)),
                _ => {}
            }
        }
        if read.servers.is_empty() {
            read.servers.push((Ipv4Addr::LOCALHOST, PORT).into());
        }
        read
    }

    fn option(&mut self, option: &str) {
        let (name, number) = option.split_once(':').unwrap_or((option, ""));
        let number = number.parse::<u32>().ok();
        match (name, number) {
            ("ndots", Some(number)) => self.dots = number.min(15) as usize,
            ("timeout", Some(number)) => self.timeout = Duration::from_secs(number.clamp(1, 30).into()),
            ("attempts", Some(number)) => self.attempts = number.clamp(1, 5),
            ("use-vc", None) => self.tcp = true,
            _ => {}
        }
    }

    /// What a name may mean, in the order in which it is looked up.
    pub fn candidates(&self, name: &str) -> Vec<String> {
        if name.ends_with('.') {
            return vec![name.to_owned()];
        }
        let mut candidates: Vec<String> = self
            .search
            .iter()
            .map(|domain| format!("{name}.{}", domain.trim_start_matches('.')))
            .collect();
        let first = name.matches('.').count() >= self.dots;
        candidates.insert(if first { 0 } else { candidates.len() }, name.to_owned());
        candidates
    }
}

/// A name server's address, where a link-local one names its interface: `fe80::1%eth0`.
fn server(text: &str, interface: impl Fn(&str) -> Option<u32>) -> Option<SocketAddr> {
    let Some((address, scope)) = text.split_once('%') else {
        return Some((text.parse::<IpAddr>().ok()?, PORT).into());
    };
    let scope = scope.parse().ok().or_else(|| interface(scope))?;
    Some(SocketAddrV6::new(address.parse().ok()?, PORT, 0, scope).into())
}

/// The addresses that /etc/hosts has for a name.
pub fn addresses_in_hosts(text: &[u8], name: &str) -> Vec<IpAddr> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let of_line = |line: Vec<&str>| {
        let (address, names) = line.split_first()?;
        let is_named = names.iter().any(|other| other.eq_ignore_ascii_case(name));
        is_named.then(|| address.parse().ok())?
    };
    words(text, b"#").filter_map(of_line).collect()
}

/// The words of each line, up to a comment. A line that isn't UTF-8 has none.
fn words<'a>(text: &'a [u8], comment: &'static [u8]) -> impl Iterator<Item = Vec<&'a str>> {
    text.split(|&byte| byte == b'\n').map(move |line| {
        let line = line.split(|byte| comment.contains(byte)).next().unwrap_or_default();
        std::str::from_utf8(line)
            .unwrap_or_default()
            .split_ascii_whitespace()
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Configuration {
        Configuration::parse(text.as_bytes(), |name| (name == "eth0").then_some(2))
    }

    #[test]
    fn resolv_conf_is_read() {
        let read = parse(
            "# by kubelet\nnameserver 10.96.0.10\nnameserver fe80::1%eth0 \nnameserver nonsense\nnameserver fe80::1%7\n\
             nameserver 10.0.0.4\ndomain a.example\nsearch b.example c.example\noptions ndots:5 timeout:1 attempts:9 edns0\n\
             ;options use-vc\n",
        );
        let scoped = |scope| SocketAddr::from(SocketAddrV6::new("fe80::1".parse().unwrap(), 53, 0, scope));
        assert_eq!(read.servers, ["10.96.0.10:53".parse().unwrap(), scoped(2), scoped(7)]);
        assert_eq!(read.search, ["b.example", "c.example"]);
        assert_eq!(
            (read.dots, read.timeout, read.attempts, read.tcp),
            (5, Duration::from_secs(1), 5, false)
        );
        assert!(parse("options use-vc").tcp);
        let default = parse("");
        assert_eq!(default.servers, ["127.0.0.1:53".parse().unwrap()]);
        assert_eq!(
            (default.dots, default.timeout, default.attempts),
            (1, Duration::from_secs(5), 2)
        );
        // A number that would be no timeout at all.
        assert_eq!(parse("options timeout:0 attempts:0").timeout, Duration::from_secs(1));
    }

    #[test]
    fn a_name_is_looked_up_in_the_domains_and_as_it_is() {
        let conf = parse("search one.example two.example\noptions ndots:2");
        for (name, want) in [
            ("api", "api.one.example api.two.example api"),
            ("api.x", "api.x.one.example api.x.two.example api.x"),
            ("api.x.y", "api.x.y api.x.y.one.example api.x.y.two.example"),
            ("api.", "api."),
        ] {
            assert_eq!(conf.candidates(name).join(" "), want);
        }
    }

    #[test]
    fn hosts_has_addresses_of_both_families() {
        let hosts = b"127.0.0.1 localhost\n10.0.0.1\tapi.example API # api.other\n\xff\xfe api\nnonsense api\n\nfd00::1 x api\n";
        let addresses = |name: &str| -> Vec<String> {
            addresses_in_hosts(hosts, name)
                .iter()
                .map(ToString::to_string)
                .collect()
        };
        assert_eq!(addresses("api"), ["10.0.0.1", "fd00::1"]);
        assert_eq!(addresses("Api.Example."), ["10.0.0.1"]);
        assert!(addresses("api.other").is_empty() && addresses("10.0.0.1").is_empty());
    }
}
