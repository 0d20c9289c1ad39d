//! The cost of a connection after the rules: connects through 0 to 10,000 single ignored ports, none of which is the
//! one that is dialled, so that every rule is looked at. One connect at a time: its latency, and by that how many a
//! second.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use lab::network::{Lab, POD};
use nix::sys::socket::{setsockopt, sockopt};
use proxy_init::Mode;

mod support;

use support::{config, install, single_runs};

/// Even, so never one of the ignored ports' multiples of three that are odd; and no multiple of three.
const DIALLED: u16 = 8_080;

/// Resets instead of closing: else the client runs out of ports, all of them in TIME_WAIT.
fn connect(to: SocketAddr) {
    let stream = TcpStream::connect(to).unwrap();
    let reset = libc::linger { l_onoff: 1, l_linger: 0 };
    setsockopt(&stream, sockopt::Linger, &reset).unwrap();
}

fn packets(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("connect by ports");
    let modes = [None, Some(Mode::Nft), Some(Mode::Legacy), Some(Mode::Native)];
    for mode in modes {
        let name = mode.map_or("no rules".to_owned(), |mode| mode.to_string());
        for ports in [0, 10, 1_000, 10_000] {
            if mode.is_none() && ports > 0 {
                continue;
            }
            let lab = Lab::new();
            lab.pod.run(|| mode.iter().for_each(|&mode| install(&config(true, ports), mode)));
            let stop = Arc::new(AtomicBool::new(false));
            let listen = |port| lab.pod.run(|| TcpListener::bind(SocketAddr::new(POD[0], port)).unwrap());
            let servers: Vec<_> = [4143, DIALLED].map(|port| serve(listen(port), &stop)).into();
            group.bench_function(BenchmarkId::new(&name, ports), |bencher| {
                lab.outside.run_here(|| bencher.iter(|| connect(SocketAddr::new(POD[0], DIALLED))));
            });
            stop.store(true, Ordering::Relaxed);
            servers.into_iter().for_each(|server| server.join().unwrap());
        }
    }
    group.finish();
}

fn serve(listener: TcpListener, stop: &Arc<AtomicBool>) -> thread::JoinHandle<()> {
    let stop = Arc::clone(stop);
    listener.set_nonblocking(true).unwrap();
    thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            if listener.accept().is_err() {
                thread::sleep(Duration::from_micros(20));
            }
        }
    })
}

criterion_group!(
    name = connects;
    // Too short to be timed one by one: as many a sample as a second holds.
    config = single_runs().measurement_time(Duration::from_secs(1));
    targets = packets
);
criterion_main!(connects);
