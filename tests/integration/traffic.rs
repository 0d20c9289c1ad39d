//! Real connections between a pod and the outside, over IPv4 and IPv6, through the rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use lab::network::{DISTANT, Lab, NEIGHBOUR, Namespace, Owner, POD, ROOT, Reached, Server, connect, families};

use crate::support::{Folder, Run, install, saved, unfolded};

const PROXY: Owner = Owner { uid: 2102, gid: 2102 };
const PROXYS_GROUP: Owner = Owner { uid: 1000, gid: 2103 };
const APP: Owner = Owner { uid: 1000, gid: 1000 };
const INBOUND: u16 = 4143;
const OUTBOUND: u16 = 4140;
const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// A lab with rules, a proxy and an app in the pod, and servers outside.
struct Mesh {
    lab: Lab,
    _servers: [Server; 2],
}

impl Mesh {
    fn new(flags: &str) -> Self {
        Self::of(Lab::new(), flags)
    }

    fn of(lab: Lab, flags: &str) -> Self {
        // Other tests hold iptables' lock too.
        install(&lab.pod, &format!("-w -p {INBOUND} -o {OUTBOUND} {flags}"));
        Self::in_place(lab)
    }

    /// Around rules that are there.
    fn in_place(lab: Lab) -> Self {
        let pod = Server::start(&lab.pod, &[INBOUND, OUTBOUND, 8080, 8090, 8099, 4190]);
        let outside = Server::start(&lab.outside, &[80, 443, 8090]);
        Self { lab, _servers: [pod, outside] }
    }

    /// Joins the pod and the outside by another pair of devices, and returns its addresses there and here, once they
    /// work.
    fn add_device(&self, name: &str, number: u8) -> Vec<(IpAddr, IpAddr)> {
        let outside = self.lab.outside.path();
        self.lab.pod.sh(&format!("ip link add {name} type veth peer name out{number} netns {}", outside.display()));
        let addresses = |last| [format!("10.{number}.0.{last}/24"), format!("fd{number}::{last}/64")];
        let ends = [(&self.lab.pod, name.to_owned(), 2), (&self.lab.outside, format!("out{number}"), 1)];
        for (namespace, device, last) in ends {
            for address in addresses(last).iter().take(families()) {
                namespace.sh(&format!("ip address add {address} dev {device} nodad"));
            }
            namespace.sh(&format!("ip link set {device} up"));
        }
        let address = |text: &str| -> IpAddr { text.split('/').next().unwrap().parse().unwrap() };
        let (inside, outside) = (addresses(2), addresses(1));
        let pairs = inside.iter().zip(&outside).take(families());
        let pairs: Vec<_> = pairs.map(|(inside, outside)| (address(inside), address(outside))).collect();
        // The kernel takes up IPv6's addresses once it has seen the carrier.
        let end = Instant::now() + Duration::from_secs(60);
        for &(_, outside) in &pairs {
            while self.outbound(PROXY, outside, 80) != direct(outside, 80) {
                assert!(Instant::now() < end, "{outside} isn't reached by {name}");
            }
        }
        pairs
    }

    /// From outside to the pod's port.
    fn inbound(&self, family: usize, port: u16) -> Reached {
        connect(&self.lab.outside, ROOT, SocketAddr::new(POD[family], port))
    }

    /// From the pod to somewhere.
    fn outbound(&self, owner: Owner, address: IpAddr, port: u16) -> Reached {
        connect(&self.lab.pod, owner, SocketAddr::new(address, port))
    }
}

/// Taken by the proxy's port, which learns where the client meant to go.
fn redirected(to: u16, original: (IpAddr, u16)) -> Reached {
    Reached::Server { port: to, original: SocketAddr::new(original.0, original.1) }
}

/// Taken by the server that the client meant.
fn direct(address: IpAddr, port: u16) -> Reached {
    redirected(port, (address, port))
}

/// Taken by the proxy at this port, or by the server that the client meant.
fn reached(is_redirected: bool, proxy: u16, (to, port): (IpAddr, u16)) -> Reached {
    match is_redirected {
        true => redirected(proxy, (to, port)),
        false => direct(to, port),
    }
}

/// Checks the facts of every mode: the rules of `mode` with skipped ports, ranges and subnets.
pub(crate) fn check_mode(mode: &str) {
    let ignored = "--inbound-ports-to-ignore 4190,8090-8099 --outbound-ports-to-ignore 443,8090-8099 -u 2102 -g 2103";
    let mesh = Mesh::new(&format!("--iptables-mode {mode} {ignored}"));
    for family in [0, 1] {
        let (pod, neighbour, distant) = (POD[family], NEIGHBOUR[family], DISTANT[family]);

        assert_eq!(mesh.inbound(family, 8080), redirected(INBOUND, (pod, 8080)), "an app's port");
        assert_eq!(mesh.inbound(family, 9999), redirected(INBOUND, (pod, 9999)), "a closed port");
        assert_eq!(mesh.inbound(family, INBOUND), direct(pod, INBOUND), "the proxy's own port");
        assert_eq!(mesh.inbound(family, 4190), direct(pod, 4190), "a skipped port");
        assert_eq!(mesh.inbound(family, 8090), direct(pod, 8090), "a skipped range's first port");
        assert_eq!(mesh.inbound(family, 8099), direct(pod, 8099), "a skipped range's last port");
        assert_eq!(mesh.inbound(family, 8095), Reached::Refused, "a closed port in a skipped range");
        assert_eq!(mesh.inbound(family, 8100), redirected(INBOUND, (pod, 8100)), "after the range");

        for to in [neighbour, distant] {
            assert_eq!(mesh.outbound(ROOT, to, 80), redirected(OUTBOUND, (to, 80)), "root");
            assert_eq!(mesh.outbound(APP, to, 80), redirected(OUTBOUND, (to, 80)), "an app's user");
            assert_eq!(mesh.outbound(APP, to, 9999), redirected(OUTBOUND, (to, 9999)), "to a closed port");
            assert_eq!(mesh.outbound(PROXY, to, 80), direct(to, 80), "the proxy's user");
            assert_eq!(mesh.outbound(PROXYS_GROUP, to, 80), direct(to, 80), "the proxy's group");
            assert_eq!(mesh.outbound(APP, to, 443), direct(to, 443), "a skipped port");
            assert_eq!(mesh.outbound(APP, to, 8090), direct(to, 8090), "a skipped range");
        }
        assert_eq!(mesh.outbound(APP, LOOPBACK[family], 8080), direct(LOOPBACK[family], 8080), "loopback");
        // The pod's own address is reached over the loopback interface.
        assert_eq!(mesh.outbound(APP, pod, 8080), direct(pod, 8080), "the pod's own address");
    }

    let subnets = "--inbound-subnets-to-ignore 10.77.0.0/24,fd77::/64 \
                   --outbound-subnets-to-ignore 192.0.2.0/24,2001:db8::/32";
    let mesh = Mesh::new(&format!("--iptables-mode {mode} {subnets}"));
    for family in [0, 1] {
        assert_eq!(mesh.inbound(family, 8080), direct(POD[family], 8080), "from an ignored subnet");
        let distant = DISTANT[family];
        assert_eq!(mesh.outbound(APP, distant, 80), direct(distant, 80), "to an ignored subnet");
        let neighbour = NEIGHBOUR[family];
        assert_eq!(
            mesh.outbound(APP, neighbour, 80),
            redirected(OUTBOUND, (neighbour, 80)),
            "to any other; inbound subnets are sources"
        );
    }

    let mesh = Mesh::new(&format!("--iptables-mode {mode} -u 2102 --skip-uid 0,3000-3009 --skip-gid 4000-4009,7"));
    for family in [0, 1] {
        let to = NEIGHBOUR[family];
        for (uid, gid, is_exempt) in [
            (0, 0, true),
            (2999, 1000, false),
            (3000, 1000, true),
            (3009, 1000, true),
            (3010, 1000, false),
            (1000, 3999, false),
            (1000, 4000, true),
            (1000, 4009, true),
            (1000, 4010, false),
            (1000, 7, true),
            (2102, 1000, true),
        ] {
            let wanted = reached(!is_exempt, OUTBOUND, (to, 80));
            assert_eq!(mesh.outbound(Owner { uid, gid }, to, 80), wanted, "of {uid}, {gid}");
        }
    }

    let interfaces = "--inbound-interfaces-to-ignore net1 --outbound-interfaces-to-ignore net1";
    let mesh = Mesh::new(&format!("--iptables-mode {mode} -u 2102 {interfaces}"));
    // They come after the rules, which have only their names.
    let ignored = mesh.add_device("net1", 78);
    let others = mesh.add_device("net11", 79);
    for family in 0..families() {
        let pod = POD[family];
        for (device, (inside, outside), is_ignored) in [
            ("eth0", (pod, NEIGHBOUR[family]), false),
            ("net1", ignored[family], true),
            ("net11", others[family], false),
        ] {
            let come_in = connect(&mesh.lab.outside, ROOT, SocketAddr::new(inside, 8080));
            assert_eq!(come_in, reached(!is_ignored, INBOUND, (inside, 8080)), "in by {device}");
            assert_eq!(
                mesh.outbound(APP, outside, 80),
                reached(!is_ignored, OUTBOUND, (outside, 80)),
                "out by {device}"
            );
            assert_eq!(mesh.outbound(PROXY, outside, 80), direct(outside, 80), "the proxy, by {device}");
        }
        let distant = DISTANT[family];
        assert_eq!(mesh.outbound(APP, distant, 80), redirected(OUTBOUND, (distant, 80)), "by eth0");
        mesh.lab.pod.sh(&format!("ip route replace {distant} via {}", ignored[family].1));
        assert_eq!(mesh.outbound(APP, distant, 80), direct(distant, 80), "by net1 now");
    }

    // More ports than one match of multiport's holds.
    let ports =
        "--outbound-ports-to-redirect 80,1000-1999,2001,2003,2005,2007,2009,2011,2013,2015,2017,2019,2021,2023,443";
    let subnets = "--outbound-subnets-to-redirect 10.77.0.0/24,fd77::/64";
    for flags in [ports.to_owned(), subnets.to_owned(), format!("{ports} {subnets}")] {
        let mesh = Mesh::new(&format!("--iptables-mode {mode} -u 2102 {flags}"));
        for family in [0, 1] {
            for (to, is_in_subnet) in [(NEIGHBOUR[family], true), (DISTANT[family], false)] {
                for (port, is_listed) in [(80, true), (443, true), (8090, false)] {
                    let is_chosen =
                        (is_listed || !flags.contains("ports")) && (is_in_subnet || !flags.contains("subnets"));
                    let wanted = reached(is_chosen, OUTBOUND, (to, port));
                    assert_eq!(mesh.outbound(APP, to, port), wanted, "{flags}: to {to} {port}");
                    assert_eq!(mesh.outbound(PROXY, to, port), direct(to, port), "{flags}: the proxy");
                }
            }
        }
    }
    let mesh = Mesh::new(&format!("--iptables-mode {mode} --outbound-subnets-to-redirect 0.0.0.0/0"));
    assert_eq!(mesh.outbound(APP, NEIGHBOUR[0], 80), redirected(OUTBOUND, (NEIGHBOUR[0], 80)));
    assert_eq!(mesh.outbound(APP, NEIGHBOUR[1], 80), direct(NEIGHBOUR[1], 80), "IPv6 isn't listed");

    let mesh = Mesh::new(&format!("--iptables-mode {mode} --ports-to-redirect 8080,9999"));
    for family in [0, 1] {
        let pod = POD[family];
        assert_eq!(mesh.inbound(family, 8080), redirected(INBOUND, (pod, 8080)), "a named port");
        assert_eq!(mesh.inbound(family, 9999), redirected(INBOUND, (pod, 9999)), "a named closed port");
        assert_eq!(mesh.inbound(family, 8090), direct(pod, 8090), "a port not named");
        assert_eq!(mesh.inbound(family, 8095), Reached::Refused, "a closed port not named");
    }

    let mesh = Mesh::new(&format!("--iptables-mode {mode} --ipv6=false"));
    assert_eq!(mesh.inbound(0, 8080), redirected(INBOUND, (POD[0], 8080)));
    assert_eq!(mesh.inbound(1, 8080), direct(POD[1], 8080), "IPv6 is left alone");
}

#[test]
fn nft() {
    check_mode("nft");
}

#[test]
fn legacy() {
    check_mode("legacy");
}

#[test]
fn native() {
    check_mode("native");
}

/// In a pod with `hostUsers: false`, the id 0 is this one outside.
const OUTSIDE: u32 = 200_000;

/// The treatment of the pod's ids by rules on owners, in any mode.
fn check_users_of_its_own(mesh: &Mesh, flags: &str, mode: &str) {
    let owner = |id: u32| Owner { uid: id, gid: id };
    for (to, _) in NEIGHBOUR.iter().zip(0..families()) {
        for (id, is_exempt) in [(2102, true), (1000, false), (3000, true), (3009, true), (3010, false)] {
            let wanted = reached(!is_exempt, OUTBOUND, (*to, 80));
            assert_eq!(mesh.outbound(owner(OUTSIDE + id), *to, 80), wanted, "{mode}: of {id}");
        }
        // The same number outside is another user.
        let reached = mesh.outbound(owner(2102), *to, 80);
        assert_eq!(reached, redirected(OUTBOUND, (*to, 80)), "{mode}");
    }
    let said = install(&mesh.lab.pod, "verify");
    assert!(said.starts_with(&format!("in place in {mode} mode")), "{said}");
    for words in ["--proxy-uid 2102", "--skip-gid 3000-3009"] {
        assert!(said.contains(words), "{mode}: {said}");
    }
    // The listeners' numbers are those outside.
    assert!(!said.contains("what listens on port"), "{mode}: {said}");
    let said = install(&mesh.lab.pod, &format!("verify -p {INBOUND} -o {OUTBOUND} {flags}"));
    assert!(said.starts_with(&format!("in place in {mode} mode")), "{said}");
    let said = install(&mesh.lab.pod, "show");
    assert!(said.contains("2102") && said.contains("3000-3009"), "{said}");
    let to = SocketAddr::new(NEIGHBOUR[0], 80);
    for (uid, want) in [(2102, "bypasses the proxy\n"), (1000, "to the proxy, port 4140")] {
        let said = install(&mesh.lab.pod, &format!("explain outbound --to {to} --uid {uid}"));
        assert!(said.starts_with(want), "{mode}: {uid}: {said}");
    }
}

/// A pod with `hostUsers: false`, from outside of it, by whoever has entered its network namespace before.
#[test]
fn in_a_pod_with_users_of_its_own() {
    for asked in ["nft", "legacy", "native", "plain", "auto"] {
        let flags = format!("--iptables-mode {asked} -u 2102 --skip-gid 3000-3009");
        let mesh = Mesh::of(Lab::around(Namespace::of_user_namespace(OUTSIDE)), &flags);
        check_users_of_its_own(&mesh, &flags, "native");
        let pod = &mesh.lab.pod;
        let again = install(pod, &format!("-w -p {INBOUND} -o {OUTBOUND} {flags}"));
        assert!(again.contains("installed already; nothing was changed"), "{asked}: {again}");
        let report = unfolded(&install(pod, "detect"));
        assert!(report.contains("belongs to another user namespace"), "{report}");
        install(pod, "uninstall -w");
        nothing_is_left(pod);
    }
}

/// As by `--netns`. A process in the pod's user namespace could be looked into by whoever has capabilities there.
#[test]
fn nothing_enters_the_user_namespace_of_a_pod_with_users_of_its_own() {
    for asked in ["nft", "legacy", "native", "auto"] {
        let pod = Namespace::of_user_namespace(OUTSIDE);
        let flags = format!("-u 2102 -p {INBOUND} -o {OUTBOUND} --netns {}", pod.path().display());
        let install = format!("--iptables-mode {asked} {flags}");
        for line in [
            install.clone(),
            format!("{install} --replace-other-backend"),
            format!("verify {install}"),
            format!("uninstall --netns {}", pod.path().display()),
        ] {
            let calls = Run::new(&line).calls(&Namespace::new());
            let lines = || calls.0.lines();
            let entered: Vec<&str> = lines().filter(|line| line.contains("setns(")).collect();
            assert!(!entered.is_empty(), "{line}: {}", calls.0);
            assert!(entered.iter().all(|call| call.contains("CLONE_NEWNET")), "{line}: {entered:?}");
            let is_made = |line: &&str| ["clone(", "clone3(", "fork("].iter().any(|call| line.contains(call));
            let processes = lines().filter(is_made).filter(|line| !line.contains("CLONE_THREAD"));
            assert_eq!(processes.collect::<Vec<_>>(), [""; 0], "{line}");
            // Nor is anything sent that the kernel takes milliseconds to refuse.
            assert_eq!(calls.trials(), 0, "{line}: {}", calls.0);
            if line == install {
                assert_eq!(calls.commits(), 1, "{line}: {}", calls.0);
            }
        }
        nothing_is_left(&pod);
    }
}

/// No proxy-init chain, and no rule on the proxy's user.
fn nothing_is_left(pod: &Namespace) {
    let left = pod.sh("nft list ruleset") + &saved(pod, "legacy");
    assert!(!left.contains("PROXY_INIT") && !left.contains("2102"), "{left}");
}

/// The same pod's init container, as the pod's root with few capabilities: it is in the pod's user namespace.
#[test]
fn in_an_init_container_of_a_pod_with_users_of_its_own() {
    let folder = Folder::new("own-users");
    folder.link_plain("legacy");
    for (asked, mode) in
        [("nft", "nft"), ("legacy", "legacy"), ("native", "native"), ("plain", "legacy"), ("auto", "nft")]
    {
        let lab = Lab::around(Namespace::of_user_namespace(OUTSIDE));
        let users = lab.pod.users().unwrap();
        let inside = |line: &str| {
            let few = "--bounding-set=-all,+net_admin,+net_raw";
            let run = Run::new(line).commands_of(&folder);
            let run = run.under(["nsenter", &format!("--user={}", users.display()), "setpriv", few]);
            run.output(&lab.pod).success()
        };
        let flags = format!("--iptables-mode {asked} -u 2102 --skip-gid 3000-3009 --no-fallback");
        let installing = format!("-w -p {INBOUND} -o {OUTBOUND} {flags}");
        inside(&installing);
        assert!(inside(&installing).contains("nothing was changed"), "{asked}");
        for line in ["verify".to_owned(), format!("verify -p {INBOUND} -o {OUTBOUND} {flags}")] {
            let said = inside(&line);
            assert!(said.starts_with(&format!("in place in {mode} mode")), "{asked}: {said}");
        }
        assert!(inside("show").contains("2102"), "{asked}");
        let to = SocketAddr::new(NEIGHBOUR[0], 80);
        let said = inside(&format!("explain outbound --to {to} --uid 2102"));
        assert!(said.starts_with("bypasses the proxy\n"), "{asked}: {said}");
        let mesh = Mesh::in_place(lab);
        // Outside, plain mode's commands are others.
        check_users_of_its_own(&mesh, &flags.replace("plain", "legacy"), mode);
        let pod = &mesh.lab.pod;
        Run::new("uninstall -w")
            .commands_of(&folder)
            .under(["nsenter", &format!("--user={}", users.display())])
            .output(pod)
            .success();
        nothing_is_left(pod);
    }
}

/// Where a mode may not go on in another, it fails, and says why.
#[test]
fn no_mode_of_xtables_serves_a_pod_with_users_of_its_own_from_outside() {
    for asked in ["nft", "legacy"] {
        let pod = Namespace::of_user_namespace(OUTSIDE);
        let line = format!("-w -p {INBOUND} -o {OUTBOUND} --iptables-mode {asked} -u 2102 --no-fallback");
        for netns in [String::new(), format!("--netns {}", pod.path().display())] {
            let run = Run::new(&format!("{line} {netns}"));
            let line = match netns.is_empty() {
                true => run.output(&pod).last_line(),
                false => run.output(&Namespace::new()).last_line(),
            };
            let words = format!("nothing was changed: {asked} mode: the kernel refuses");
            assert!(line.contains(&words) && line.contains("hostUsers: false"), "{line}");
            nothing_is_left(&pod);
        }
    }
}

/// Rules that the pod's own init container has made, as an older version's plugin did: from outside, what takes no rule on
/// an owner can be done.
#[test]
fn what_was_installed_in_a_pod_with_users_of_its_own_is_served_from_outside() {
    for mode in ["nft", "legacy"] {
        let pod = Namespace::of_user_namespace(OUTSIDE);
        let users = format!("--user={}", pod.users().unwrap().display());
        let flags = format!("-p {INBOUND} -o {OUTBOUND} --iptables-mode {mode} -u 2102");
        let outside = |line: &str| Run::new(line).output(&pod);
        let inside = |line: &str| {
            let run = Run::new(line).under(["nsenter", &users]);
            run.output(&pod).success()
        };
        inside(&flags);
        let before = saved(&pod, mode);
        assert!(before.contains("--uid-owner 2102 "), "{before}");
        // It is in place, and stays.
        let said = outside(&format!("verify {flags}")).success();
        assert!(said.starts_with(&format!("in place in {mode} mode")), "{said}");
        let said = outside(&flags).success();
        assert!(said.contains(&format!("in {mode} mode for IPv4 and IPv6 were installed already")), "{said}");
        assert_eq!(saved(&pod, mode), before);
        // Nothing is put beside it.
        let line = outside(&flags.replace("2102", "7")).last_line();
        assert!(line.contains("holds proxy-init's rules already") && line.contains("hostUsers: false"), "{line}");
        assert_eq!(saved(&pod, mode), before);
        // On request, it is replaced, or removed.
        outside(&format!("{} --replace-other-backend", flags.replace("2102", "7"))).success();
        let said = outside("verify").success();
        assert!(said.starts_with("in place in native mode") && said.contains("--proxy-uid 7"), "{said}");
        outside("uninstall").success();
        nothing_is_left(&pod);
        inside(&flags);
        outside("uninstall").success();
        nothing_is_left(&pod);
    }
}

/// The kernel takes no legacy table with a rule on an owner from outside, whoever made that: the tables of both families
/// stay, also where only one has such a rule.
#[test]
fn legacy_rules_beside_anothers_on_an_owner_can_be_removed_only_inside() {
    let pod = Namespace::of_user_namespace(OUTSIDE);
    let users = format!("--user={}", pod.users().unwrap().display());
    let flags = format!("-p {INBOUND} -o {OUTBOUND} --iptables-mode legacy -u 2102");
    Run::new(&flags).under(["nsenter", &users]).output(&pod).success();
    let rule = "-A OUTPUT -m owner --uid-owner 9 -j RETURN";
    pod.sh(&format!("nsenter {users} ip6tables-legacy -t nat {rule}"));
    let before = saved(&pod, "legacy");
    let line = Run::new("uninstall").output(&pod).last_line();
    assert!(line.contains("--uid-owner 9 ") && line.contains("run proxy-init in the pod"), "{line}");
    assert_eq!(saved(&pod, "legacy"), before);
    Run::new("uninstall").under(["nsenter", &users]).output(&pod).success();
    nothing_is_left(&pod);
    assert!(saved(&pod, "legacy").contains(rule));
}

/// Running it again with the same flags replaces nothing: the counters go on.
#[test]
fn counters_outlive_the_same_flags_again() {
    for mode in ["nft", "native"] {
        let flags = format!("--iptables-mode {mode} -u 2102");
        let mesh = Mesh::new(&flags);
        for family in [0, 1] {
            assert_eq!(mesh.inbound(family, 8080), redirected(INBOUND, (POD[family], 8080)));
        }
        let before = mesh.lab.pod.sh("nft -a list ruleset");
        let counters = before.lines().filter(|line| line.contains("counter packets"));
        let counted = counters.filter(|line| !line.contains("packets 0 ")).count();
        assert!(counted >= 2, "{mode}: {before}");
        install(&mesh.lab.pod, &format!("-p {INBOUND} -o {OUTBOUND} {flags}"));
        assert_eq!(mesh.lab.pod.sh("nft -a list ruleset"), before, "{mode}");
    }
}
