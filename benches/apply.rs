//! Inside the program: planning, encoding, and applying in network namespaces that are made outside the timed part.

use std::hint::black_box;
use std::io::IoSlice;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use lab::network::Namespace;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendmsg, setsockopt, socket, sockopt,
};
use proxy_init::Mode;
use proxy_init::internal::{batch, plan};

mod support;
#[path = "support/turns.rs"]
mod turns;

use support::{config, install, single_runs};
use turns::{Contender, in_turns};

const PORTS: [u16; 4] = [10, 100, 1_000, 10_000];

/// Config → tables → bytes ready to send.
fn encode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan and encode");
    let default = config(true, 0);
    group.bench_function("plan", |bencher| bencher.iter(|| plan(black_box(&default))));
    group.bench_function("plan and encode", |bencher| {
        bencher.iter(|| batch(Mode::Nft, black_box(&default)).unwrap().len());
    });
    for ports in PORTS {
        let config = config(true, ports);
        group.bench_function(BenchmarkId::new("plan and encode, ports", ports), |bencher| {
            bencher.iter(|| batch(Mode::Nft, black_box(&config)).unwrap().len());
        });
    }
    group.finish();
}

/// Something done in a namespace, from whichever thread is in there.
type Work<'a> = &'a (dyn Fn() + Sync);

/// Times `work` in a namespace of its own, after `prepare`.
fn in_fresh_namespace(prepare: impl Fn() + Sync, work: impl Fn() + Sync) -> Duration {
    Namespace::new().run(|| {
        prepare();
        let start = Instant::now();
        work();
        start.elapsed()
    })
}

/// The least that a program does: a socket, the batch, the answer.
fn bare_loop(batch: &[u8]) {
    let socket =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::empty(), SockProtocol::NetlinkNetFilter).unwrap();
    if batch.len() > 65_536 {
        setsockopt(&socket, sockopt::SndBufForce, &(batch.len() + 32)).unwrap();
    }
    let fd = socket.as_raw_fd();
    sendmsg::<NetlinkAddr>(fd, &[IoSlice::new(batch)], &[], MsgFlags::empty(), None).unwrap();
    let mut answer = [0; 4096];
    let length = recv(fd, &mut answer, MsgFlags::MSG_DONTWAIT).unwrap();
    // An acknowledgement: NLMSG_ERROR with code 0.
    assert_eq!((length, &answer[16..20]), (36, &[0; 4][..]));
}

fn apply(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("apply");
    let nothing = || ();
    for (families, ipv6) in [("dual stack", true), ("IPv4", false)] {
        let config = config(ipv6, 0);
        let nft_batch = batch(Mode::Nft, &config).unwrap();
        let bare = || bare_loop(&nft_batch);
        let nft = || install(&config, Mode::Nft);
        let legacy = || install(&config, Mode::Legacy);
        let native_batch = batch(Mode::Native, &config).unwrap();
        let bare_native = || bare_loop(&native_batch);
        let native = || install(&config, Mode::Native);
        let contenders: [(&str, Work<'_>, Work<'_>); 8] = [
            ("nft's bytes, bare loop", &nothing, &bare),
            ("nft", &nothing, &nft),
            ("nft, re-run", &nft, &nft),
            ("native's bytes, bare loop", &nothing, &bare_native),
            ("native", &nothing, &native),
            ("native, re-run", &native, &native),
            ("legacy", &nothing, &legacy),
            ("legacy, re-run", &legacy, &legacy),
        ];
        let contenders = contenders.map(|(name, prepare, work)| -> Contender<'_> {
            (format!("{name}, {families}"), Box::new(move || in_fresh_namespace(prepare, work)))
        });
        in_turns(&mut group, &contenders);
    }
    group.finish();
}

fn apply_ports(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("apply by ports");
    for ports in PORTS {
        let config = config(true, ports);
        let batch = batch(Mode::Nft, &config).unwrap();
        let contenders: [(&str, Work<'_>); 3] = [
            ("nft's bytes, bare loop", &|| bare_loop(&batch)),
            ("nft", &|| install(&config, Mode::Nft)),
            ("native", &|| install(&config, Mode::Native)),
        ];
        let contenders = contenders.map(|(name, work)| -> Contender<'_> {
            (format!("{name}/{ports}"), Box::new(move || in_fresh_namespace(|| (), work)))
        });
        in_turns(&mut group, &contenders);
    }
    group.finish();
}

criterion_group!(name = inside; config = Criterion::default().without_plots().configure_from_args(); targets = encode);
criterion_group!(name = namespaces; config = single_runs(); targets = apply, apply_ports);
criterion_main!(inside, namespaces);
