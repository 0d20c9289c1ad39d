//! The proxy's user or group, as a configuration and annotations have it.

use std::str::FromStr;

use proxy_init::{InvalidValue, OwnerId};

/// A user or group; 0 and what is below stand for none, as upstream has it (`ProxyUID > 0` in
/// pkg/iptables/iptables.go).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner(pub(crate) Option<OwnerId>);

impl FromStr for Owner {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let is_negative = |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
        match text {
            "0" => Ok(Self(None)),
            text if text.strip_prefix('-').is_some_and(is_negative) => Ok(Self(None)),
            id => id.parse().map(|id| Self(Some(id))),
        }
    }
}
