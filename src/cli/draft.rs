//! A config in the making.

use ruleset::Direction;

use crate::config::{Config, Port};

/// What flags say of a config, which may leave out the proxy's ports.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) inbound_port: Option<Port>,
    pub(super) outbound_port: Option<Port>,
    /// Everything else: its own ports don't count.
    pub(super) config: Config,
}

impl Default for Draft {
    fn default() -> Self {
        Self { inbound_port: None, outbound_port: None, config: Config::new(Port::LOWEST, Port::LOWEST) }
    }
}

impl Draft {
    /// The config.
    ///
    /// # Errors
    /// The proxy's port for this direction was left out.
    pub(super) fn finish(self) -> Result<Config, Direction> {
        Ok(Config {
            inbound_port: self.inbound_port.ok_or(Direction::Inbound)?,
            outbound_port: self.outbound_port.ok_or(Direction::Outbound)?,
            ..self.config
        })
    }
}
