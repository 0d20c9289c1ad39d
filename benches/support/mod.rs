//! The benchmarks' common parts.

use std::time::Duration;

use criterion::Criterion;
use proxy_init::{Config, Install, Mode, ModeChoice, OwnerId, Port, PortRange};

/// The default settings of Linkerd's chart, but for the families and with more ignored inbound ports.
pub(crate) fn config(ipv6: bool, more_ports: u16) -> Config {
    let port = |number| Port::new(number).unwrap();
    let ports = |numbers: &[u16]| -> Vec<PortRange> {
        let one = |&number| PortRange::new(number, number).unwrap();
        numbers.iter().map(one).collect()
    };
    let mut ignored = ports(&[4190, 4191, 4567, 4568]);
    // Every third, so that no two make a range.
    ignored.extend((1..=more_ports).map(|index| PortRange::new(index * 3, index * 3).unwrap()));
    let mut config = Config::new(port(4143), port(4140));
    config.proxy_uid = OwnerId::new(2102);
    config.ignored_inbound_ports = ignored;
    config.ignored_outbound_ports = ports(&[4567, 4568]);
    config.ipv6 = ipv6;
    config
}

/// Installs the rules in the thread's network namespace, as the program does.
pub(crate) fn install(config: &Config, mode: Mode) {
    let mut install = Install::new(config.clone());
    install.mode = ModeChoice::Mode(mode);
    install.run().unwrap();
}

/// Many samples of one run each, so that percentiles are those of single runs.
pub(crate) fn single_runs() -> Criterion {
    Criterion::default()
        .sample_size(200)
        .warm_up_time(Duration::from_millis(200))
        // Too short for a second run in a sample.
        .measurement_time(Duration::from_nanos(1))
        .without_plots()
        .configure_from_args()
}
