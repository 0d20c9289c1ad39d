//! The program in the containers of `cargo xtask pods` and `cargo xtask cluster`: a server, clients, and a program that
//! only waits.

use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, park, sleep};
use std::time::Duration;

use lab::network::{Reached, Server, connect_from_here};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        // A sandbox's own program.
        [] => loop {
            park();
        },
        ["serve", ports @ ..] => {
            let ports: Result<Vec<u16>, _> = ports.iter().map(|port| port.parse()).collect();
            if let Ok(ports) = ports {
                let _server = Server::start_here(&ports);
                println!("listening");
                loop {
                    park();
                }
            }
        }
        ["connect", addresses @ ..] => {
            let addresses: Result<Vec<_>, _> = addresses.iter().map(|address| address.parse()).collect();
            if let Ok(addresses) = addresses {
                for address in addresses {
                    match connect_from_here(address) {
                        Reached::Server { port, original } => println!("port {port}, sent to {original}"),
                        Reached::Refused => println!("refused, sent to {address}"),
                    }
                }
                return ExitCode::SUCCESS;
            }
        }
        ["load", address] => {
            if let Ok(address) = address.parse() {
                load(address);
                return ExitCode::SUCCESS;
            }
        }
        _ => {}
    }
    eprintln!("usage: peer serve PORT... | peer connect ADDRESS:PORT... | peer load ADDRESS:PORT");
    ExitCode::FAILURE
}

/// Makes one connection after the other, several at a time, until stdin ends, and says what became of them: how many
/// were answered by each port, and how many were lost, and why.
fn load(address: SocketAddr) {
    let stop = AtomicBool::new(false);
    let outcomes = Mutex::new(std::collections::BTreeMap::<String, u64>::new());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let outcome = match fetch_port(address) {
                        Ok(port) => format!("answered by port {port}"),
                        Err(error) => format!("lost: {error}"),
                    };
                    if let Ok(mut outcomes) = outcomes.lock() {
                        *outcomes.entry(outcome).or_default() += 1;
                    }
                    sleep(Duration::from_millis(10));
                }
            });
        }
        // Its end is the signal, however it comes.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        stop.store(true, Ordering::Relaxed);
    });
    for (outcome, times) in outcomes.into_inner().unwrap_or_default() {
        println!("{times} {outcome}");
    }
}

/// The port of the server that answers.
fn fetch_port(address: SocketAddr) -> io::Result<u16> {
    let limit = Duration::from_secs(5);
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let port = answer.split(' ').next().and_then(|port| port.parse().ok());
    port.ok_or_else(|| io::Error::other("no answer"))
}
