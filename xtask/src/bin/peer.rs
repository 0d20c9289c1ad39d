//! What runs in the containers of `cargo xtask pods`: a server, a client, and a program that only waits.

use std::process::ExitCode;
use std::thread::park;

use xtask::lab::{Reached, Server, connect_from_here};

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
        _ => {}
    }
    eprintln!("usage: peer serve PORT... | peer connect ADDRESS:PORT...");
    ExitCode::FAILURE
}
