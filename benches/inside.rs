//! The inside of the process: planning and encoding, of which proxy-init-bench times what the kernel does with it; and
//! what a look costs beside other programs' rules: 10,000 rules of which each may match, chains that jump to chains of
//! such rules, a map of 10,000 ports, and kube-proxy's rules for 3,000 services. Each look has to take less than 2 s.

use std::fmt::Write as _;
use std::fs;
use std::hint::black_box;
use std::net::SocketAddr;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use lab::network::{DISTANT, Lab, POD};
use proxy_init::internal::{batch, plan};
use proxy_init::{Connection, Direction, Install, Mode, ModeChoice, explain, show, verify};

mod support;

use support::{config, install, single_runs};

/// `numgen` is not understood: each of these rules may match any packet.
fn undecided(count: usize, verdict: &str) -> String {
    format!("numgen random mod 2 0 {verdict}\n").repeat(count)
}

fn flat() -> String {
    let rules = undecided(10_000, "accept");
    format!("table inet other {{ chain a {{ type filter hook input priority 0; policy drop; {rules} }}\n}}\n")
}

fn nested() -> String {
    let [first, second, third] = ["jump b", "jump c", "drop"].map(|verdict| undecided(20, verdict));
    format!(
        "table inet other {{\nchain c {{ {third} }}\nchain b {{ {second} }}\n\
         chain a {{ type filter hook input priority 0; {first} }}\n}}\n"
    )
}

/// A map of 10,000 ports, each with a chain of its own.
fn map() -> String {
    let (mut chains, mut elements) = (String::new(), String::new());
    for port in 0..10_000 {
        let _ = writeln!(chains, "chain c{port} {{ counter accept\n}}");
        let _ = write!(elements, "{} : jump c{port}, ", 5 * port);
    }
    format!(
        "table inet other {{ {chains} map m {{ type inet_service : verdict; elements = {{ {elements} }}\n}}\n\
         chain a {{ type filter hook input priority 0; tcp dport vmap @m\n tcp sport vmap @m\n}}\n}}\n"
    )
}

/// In iptables' language, as kube-proxy writes them: two endpoints a service, chosen at random.
fn services() -> String {
    let (mut chains, mut rules) =
        (String::from("*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n"), String::new());
    rules += "-A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n";
    rules += "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n";
    for service in 0..3_000 {
        let address = format!("10.96.{}.{}", service / 250, service % 250);
        let _ = writeln!(chains, ":KUBE-SVC-{service} - [0:0]");
        let _ = writeln!(rules, "-A KUBE-SERVICES -d {address}/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-{service}");
        let _ = writeln!(rules, "-A KUBE-SVC-{service} ! -s 10.244.0.0/16 -d {address}/32 -j KUBE-MARK-MASQ");
        for (endpoint, chosen) in [" -m statistic --mode random --probability 0.5", ""].into_iter().enumerate() {
            let chain = format!("KUBE-SEP-{service}-{endpoint}");
            let pod = format!("10.244.{}.{}", service / 100, 2 * (service % 100) + endpoint);
            let _ = writeln!(chains, ":{chain} - [0:0]");
            let _ = writeln!(rules, "-A KUBE-SVC-{service}{chosen} -j {chain}");
            let _ = writeln!(rules, "-A {chain} -s {pod}/32 -j KUBE-MARK-MASQ");
            let _ = writeln!(rules, "-A {chain} -p tcp -m tcp -j DNAT --to-destination {pod}:8080");
        }
    }
    format!("{chains}{rules}COMMIT\n")
}

/// Config → tables → bytes ready to send.
fn encode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan and encode");
    let default = config(true, 0);
    group.bench_function("plan", |bencher| bencher.iter(|| plan(black_box(&default))));
    for ports in [0, 10, 100, 1_000, 10_000] {
        let config = config(true, ports);
        group.bench_function(BenchmarkId::new("plan and encode, further ports", ports), |bencher| {
            bencher.iter(|| batch(Mode::Nft, black_box(&config)).unwrap().len());
        });
    }
    group.finish();
}

fn looks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a look");
    let config = config(false, 0);
    for (name, rules, program, arguments) in [
        ("10,000 rules", flat(), "nft", &["-f"][..]),
        ("20 jumps to 20 jumps to 20 rules", nested(), "nft", &["-f"]),
        ("a map of 10,000 ports", map(), "nft", &["-f"]),
        ("3,000 services", services(), "iptables-nft-restore", &["--noflush"]),
    ] {
        let lab = Lab::new();
        lab.pod.run(|| install(&config, Mode::Nft));
        let file = std::env::temp_dir().join(format!("proxy-init-look-{}", std::process::id()));
        fs::write(&file, rules).unwrap();
        lab.pod.stdout(program, arguments.iter().copied().chain([file.to_str().unwrap()]));
        fs::remove_file(&file).unwrap();
        let mut wanted = Install::new(config.clone());
        wanted.mode = ModeChoice::Mode(Mode::Nft);
        for (direction, to) in [(Direction::Inbound, POD[0]), (Direction::Outbound, DISTANT[0])] {
            let connection = Connection::new(direction, SocketAddr::new(to, 8080));
            group.bench_function(format!("explain {direction}, {name}"), |bencher| {
                lab.pod.run_here(|| bencher.iter(|| explain(None, &connection, |explained| explained.verdict.clone())));
            });
        }
        group.bench_function(format!("verify, {name}"), |bencher| {
            lab.pod.run_here(|| bencher.iter(|| verify(&wanted).unwrap()));
        });
        group.bench_function(format!("show, {name}"), |bencher| {
            lab.pod.run_here(|| bencher.iter(|| show(None, |shown| shown.to_string()).unwrap()));
        });
    }
    group.finish();
}

criterion_group!(name = costs; config = single_runs().sample_size(10); targets = looks);
criterion_group!(name = planning; config = Criterion::default().without_plots().configure_from_args(); targets = encode);
criterion_main!(planning, costs);
