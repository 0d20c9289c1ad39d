//! Our rules as other versions of iptables see them: those of Debian's releases, unpacked under target/ and not
//! installed. Needs Debian's packages, once.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lab::apt;
use lab::linkerd::Flags;
use lab::network::Namespace;

use crate::support::{Folder, install};

/// A release's program, with its own libraries, C's among them.
struct Foreign {
    loader: PathBuf,
    libraries: String,
    program: PathBuf,
    /// Where iptables' extensions are.
    plugins: Option<PathBuf>,
}

impl Foreign {
    fn new(release: &str, packages: &str, program: &str) -> Self {
        let unpack = |package: &str| apt::unpack(release, package).unwrap_or_else(|error| panic!("{release}: {error}"));
        let folders: Vec<PathBuf> = packages.split(' ').map(unpack).collect();
        let find = |name: &str| folders.iter().find_map(|folder| apt::find(folder, name));
        let library_folders = folders.iter().flat_map(|folder| {
            ["usr/lib", "lib"].map(|path| folder.join(path).join(format!("{}-linux-gnu", std::env::consts::ARCH)))
        });
        let missing = |name: &str| -> PathBuf { panic!("{release} has no {name}") };
        Self {
            loader: find("libc.so.6").unwrap_or_else(|| missing("libc.so.6")).with_file_name(
                match std::env::consts::ARCH {
                    "aarch64" => "ld-linux-aarch64.so.1",
                    _ => "ld-linux-x86-64.so.2",
                },
            ),
            libraries: library_folders.map(|path| path.display().to_string()).collect::<Vec<_>>().join(":"),
            program: find(program).unwrap_or_else(|| missing(program)),
            plugins: find("libxt_multiport.so").and_then(|path| path.parent().map(Path::to_owned)),
        }
    }

    fn iptables(release: &str) -> Self {
        Self::xtables(release, "xtables-nft-multi")
    }

    /// One of the two programs that all of iptables' commands are.
    fn xtables(release: &str, program: &str) -> Self {
        let packages = "iptables libxtables12 libnftnl11 libmnl0 libip4tc2 libip6tc2 libnetfilter-conntrack3 libnfnetlink0 \
                        libc6";
        Self::new(release, packages, program)
    }

    fn nft(release: &str) -> Self {
        let packages = "nftables libnftables1 libnftnl11 libmnl0 libxtables12 libjansson4 libgmp10 libedit2 libbsd0 libmd0 \
                        libtinfo6 libc6";
        Self::new(release, packages, "nft")
    }

    fn run(&self, namespace: &Namespace, command: &str) -> Output {
        let mut loader = Command::new(&self.loader);
        loader
            .args(["--library-path", &self.libraries])
            .arg(&self.program)
            .args(command.split_whitespace())
            .envs(self.plugins.iter().map(|path| ("XTABLES_LIBDIR", path)));
        namespace.output(&mut loader)
    }

    fn stdout(&self, namespace: &Namespace, command: &str) -> String {
        let output = self.run(namespace, command);
        assert!(output.status.success(), "{command}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn every_version_saves_checks_and_deletes_alike() {
    let mut versions = Vec::new();
    for release in ["bullseye", "bookworm", "trixie", "sid"] {
        let iptables = Foreign::iptables(release);
        let namespace = Namespace::new();
        install(
            &namespace,
            "--iptables-mode nft -p 4143 -o 4140 -u 2102 -g 2103 -r 80,443 --inbound-ports-to-ignore 4190,8000-8100 \
             --outbound-ports-to-ignore 443 --subnets-to-ignore 10.0.0.0/8,10.1.2.3/30,fd00::/8 \
             --outbound-subnets-to-ignore 192.0.2.1/32,2001:db8::/33 --skip-uid 0,1000-1999 --skip-gid 7 \
             --inbound-interfaces-to-ignore net1,eth0.100 --outbound-interfaces-to-ignore tun0,123456789abcdef \
             --outbound-ports-to-redirect 80,443,8000-8100 --outbound-subnets-to-redirect 10.0.0.0/8,fd00::/8",
        );
        versions.push(iptables.stdout(&namespace, "iptables --version").trim().to_owned());
        for family in ["iptables", "ip6tables"] {
            let rules = |save: &str| -> Vec<String> {
                let rules = save.lines().filter(|line| line.starts_with("-A "));
                rules.map(ToOwned::to_owned).collect()
            };
            let ours = rules(&namespace.sh(&format!("{family}-nft-save -t nat")));
            let theirs = rules(&iptables.stdout(&namespace, &format!("{family}-save -t nat")));
            assert_eq!(theirs, ours, "{release}");
            // Jumps first: a chain that is jumped to can't go.
            for rule in ours {
                let rule = rule.strip_prefix("-A ").unwrap().replace('"', "");
                iptables.stdout(&namespace, &format!("{family} -t nat -C {rule}"));
                iptables.stdout(&namespace, &format!("{family} -t nat -D {rule}"));
                assert!(!iptables.run(&namespace, &format!("{family} -t nat -C {rule}")).status.success(), "{rule}");
            }
            assert_eq!(rules(&namespace.sh(&format!("{family}-nft-save -t nat"))), [""; 0], "{release}");
        }
    }
    assert!(versions[0].contains("v1.8.7") && versions[1].contains("v1.8.9"), "{versions:?}");
    assert!(versions[2].contains("v1.8.11"), "{versions:?}");
}

/// The output of --simulate: every version takes one family's text, and refuses the text of both as a whole.
#[test]
fn every_version_restores_one_familys_text_and_refuses_both() {
    let flags = "-p 4143 -o 4140 -u 2102 -r 80 --inbound-ports-to-ignore 4190 --subnets-to-ignore 10.0.0.0/8,fd00::/8";
    let folder = Folder::new("simulated");
    let simulated = |simulate: &str| {
        let path = format!("{}/{simulate}", folder.path());
        let text = install(&Namespace::new(), &format!("--simulate={simulate} {flags}"));
        std::fs::write(&path, text).unwrap();
        path
    };
    let (v4, v6, both) = (simulated("ipv4"), simulated("ipv6"), simulated("true"));
    for release in ["bullseye", "bookworm", "trixie", "sid"] {
        for (mode, program) in [("nft", "xtables-nft-multi"), ("legacy", "xtables-legacy-multi")] {
            let iptables = Foreign::xtables(release, program);
            let saved = |namespace: &Namespace| -> Vec<String> {
                let save = |family| iptables.stdout(namespace, &format!("{family}-save -t nat"));
                let text = save("iptables") + &save("ip6tables");
                text.lines().filter(|line| line.starts_with("-A ")).map(ToOwned::to_owned).collect()
            };
            let (restored, installed) = (Namespace::new(), Namespace::new());
            for family in ["iptables", "ip6tables"] {
                for options in ["--noflush", "", "--noflush --table=nat"] {
                    let output = iptables.run(&restored, &format!("{family}-restore {options} {both}"));
                    assert!(!output.status.success(), "{release} {mode} {family} {options}: {output:?}");
                    assert_eq!(saved(&restored), [""; 0], "{release} {mode} {family} {options}");
                }
            }
            iptables.stdout(&restored, &format!("iptables-restore --noflush {v4}"));
            iptables.stdout(&restored, &format!("ip6tables-restore --noflush {v6}"));
            install(&installed, &format!("--iptables-mode {mode} {flags}"));
            let rules = saved(&restored);
            assert!(rules.len() > 10, "{rules:?}");
            assert_eq!(rules, saved(&installed), "{release} {mode}");
        }
    }
}

/// And the other way round: what they write, verify takes for ours.
#[test]
fn what_every_version_writes_is_in_place() {
    for release in ["bullseye", "bookworm", "trixie", "sid"] {
        let iptables = Foreign::iptables(release);
        let namespace = Namespace::new();
        let flags = Flags {
            redirect: vec![80],
            gid: Some(7),
            inbound_subnets: vec!["10.1.2.3/8".into(), "10.1.2.3/30".into(), "fd00:1::/45".into()],
            ..Flags::default()
        };
        for (program, command) in flags.commands("nft") {
            let family = program.trim_end_matches("-nft");
            iptables.stdout(&namespace, &format!("{family} -t nat {command}"));
        }
        let verdict = install(&namespace, &format!("verify {}", flags.line()));
        assert!(verdict.starts_with("in place"), "{release}: {verdict}");
    }
}

/// native mode's table: each version of nft lists it, takes its own listing back, and edits it.
#[test]
fn every_version_of_nft_reads_and_edits_native_modes_table() {
    let mut versions = Vec::new();
    for release in ["bullseye", "bookworm", "trixie"] {
        let nft = Foreign::nft(release);
        let namespace = Namespace::new();
        // A set of intervals, one without, and one that is a hash table; a comparison where there is one port or
        // address.
        let redirected: Vec<_> = (1..200).map(|port| (port * 2).to_string()).collect();
        install(
            &namespace,
            &format!(
                "--iptables-mode native -p 4143 -o 4140 -u 2102 -g 2103 --ports-to-redirect {} \
                 --inbound-ports-to-ignore 4190,8000-8100,65535 --outbound-ports-to-ignore 443,8443 \
                 --subnets-to-ignore 10.0.0.0/8,10.1.2.3/30,fd00::/8 \
                 --outbound-subnets-to-ignore 192.0.2.1/32,2001:db8::/33 --skip-uid 0,1000-1999 --skip-gid 7 \
                 --inbound-interfaces-to-ignore net1,eth0.100 --outbound-interfaces-to-ignore tun0,123456789abcdef \
                 --outbound-ports-to-redirect 80,443,8000-8100 --outbound-subnets-to-redirect 10.0.0.0/8,fd00::/8",
                redirected.join(",")
            ),
        );
        versions.push(nft.stdout(&namespace, "--version").trim().to_owned());
        // By itself: some versions of nft crash listing what others have made.
        let listed = |namespace: &Namespace| nft.stdout(namespace, "list table inet proxy-init");
        let before = listed(&namespace);
        let listing = std::env::temp_dir().join(format!("proxy-init-{release}-{}", std::process::id()));
        std::fs::write(&listing, nft.stdout(&namespace, "list ruleset")).unwrap();
        nft.stdout(&namespace, "delete table inet proxy-init");
        nft.stdout(&namespace, &format!("-f {}", listing.display()));
        std::fs::remove_file(&listing).unwrap();
        assert_eq!(listed(&namespace), before, "{release}");

        // And as JSON.
        std::fs::write(&listing, nft.stdout(&namespace, "-j list ruleset")).unwrap();
        nft.stdout(&namespace, "delete table inet proxy-init");
        nft.stdout(&namespace, &format!("-j -f {}", listing.display()));
        std::fs::remove_file(&listing).unwrap();
        // nft 0.9.8 prints the comments of rules alone.
        let without = |text: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| !line.trim_start().starts_with("comment "));
            lines.map(ToOwned::to_owned).collect()
        };
        let (now, then) = (without(&listed(&namespace)), without(&before));
        let differing = now.iter().zip(&then).find(|(now, then)| now != then);
        assert!(now == then, "{release}: {differing:?}");
        let before = listed(&namespace);

        nft.stdout(&namespace, "add element inet proxy-init inbound-ports { 9090 }");
        assert_ne!(listed(&namespace), before, "{release}");
        nft.stdout(&namespace, "delete element inet proxy-init inbound-ports { 9090 }");
        assert_eq!(listed(&namespace), before, "{release}");
    }
    for (version, wanted) in versions.iter().zip(["v0.9.8", "v1.0.6", "v1.1."]) {
        assert!(version.contains(wanted), "{versions:?}");
    }
}
