//! `explain`, judged by real connections: by examples, by rules that are hard to follow, and by random rules.

mod answers;
mod arp_and_ndp;
mod hooks;
mod random;
mod routes_and_devices;
