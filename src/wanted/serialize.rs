//! How serde writes and reads a [`Config`] and what is in it (feature `serde`).
//!
//! The keys of a config are the names of the flags. Ports, ranges and ids are numbers or the text that the flags take,
//! and are checked as the flags are. Reading therefore needs a format whose values have types, such as JSON or YAML.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::wanted::config::{Config, Invalid, OwnerId, Port, PortRange, Subnet};
use crate::wanted::mode::{Choice, Mode};

/// Reads a number or text by the type's own [`FromStr`].
struct Parse<T>(PhantomData<T>);

impl<T: FromStr<Err = Invalid>> Visitor<'_> for Parse<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or text as the flag takes it")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

macro_rules! parsed {
    ($($type:ty),*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(Parse(PhantomData))
            }
        }
    )*};
}

parsed!(Port, PortRange, Subnet, OwnerId, Mode, Choice);

impl Serialize for Port {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(self.get())
    }
}

/// A range of one port is a number; others are text, as the flags take them: `8000-8100`.
impl Serialize for PortRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.first() == self.last() {
            serializer.serialize_u16(self.first())
        } else {
            serializer.collect_str(&format_args!("{}-{}", self.first(), self.last()))
        }
    }
}

impl Serialize for OwnerId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.get())
    }
}

macro_rules! displayed {
    ($($type:ty),*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}

displayed!(Subnet, Mode, Choice);

/// The fields of a [`Config`] and their keys, each the name of its flag. Only the proxy's two ports are required.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Config", deny_unknown_fields)]
struct Keys {
    #[serde(rename = "incoming-proxy-port")]
    inbound_port: Port,
    #[serde(rename = "outgoing-proxy-port")]
    outbound_port: Port,
    #[serde(rename = "proxy-uid", default, deserialize_with = "owner")]
    proxy_uid: Option<OwnerId>,
    #[serde(rename = "proxy-gid", default, deserialize_with = "owner")]
    proxy_gid: Option<OwnerId>,
    #[serde(rename = "ports-to-redirect", default)]
    redirected_ports: Vec<Port>,
    #[serde(rename = "inbound-ports-to-ignore", default)]
    ignored_inbound_ports: Vec<PortRange>,
    #[serde(rename = "outbound-ports-to-ignore", default)]
    ignored_outbound_ports: Vec<PortRange>,
    #[serde(rename = "inbound-subnets-to-ignore", alias = "subnets-to-ignore", default)]
    ignored_inbound_subnets: Vec<Subnet>,
    #[serde(rename = "outbound-subnets-to-ignore", default)]
    ignored_outbound_subnets: Vec<Subnet>,
    #[serde(default = "yes")]
    ipv6: bool,
}

impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Keys::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Keys::deserialize(deserializer)
    }
}

/// Reads the id of a user or group. As with the flags, -1 and 0 stand for none, and so does null.
fn owner<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<OwnerId>, D::Error> {
    let Some(number) = Option::<i64>::deserialize(deserializer)? else {
        return Ok(None);
    };
    match number {
        -1 | 0 => Ok(None),
        number => number.to_string().parse().map(Some).map_err(de::Error::custom),
    }
}

/// The default of [`Config::ipv6`].
fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::wanted::flags::arguments;

    fn read(value: Value) -> Result<Config, String> {
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    fn ports() -> Config {
        Config::new(Port::new(4143).unwrap(), Port::new(4140).unwrap())
    }

    #[test]
    fn a_config_needs_no_more_than_the_proxys_ports() {
        let config = read(json!({"incoming-proxy-port": 4143, "outgoing-proxy-port": "4140"}));
        assert_eq!(config, Ok(ports()));
        let missing = read(json!({"incoming-proxy-port": 4143})).unwrap_err();
        assert!(missing.contains("outgoing-proxy-port"), "{missing}");
    }

    /// A config in which everything differs from the default.
    fn full() -> Config {
        let mut config = ports();
        config.proxy_uid = OwnerId::new(2102);
        config.proxy_gid = OwnerId::new(u32::MAX - 1);
        config.redirected_ports = vec![Port::new(80).unwrap()];
        config.ignored_inbound_ports = vec![PortRange::new(4190, 4190).unwrap(), PortRange::new(0, 65535).unwrap()];
        config.ignored_outbound_ports = vec![PortRange::new(8000, 8100).unwrap()];
        config.ignored_inbound_subnets = vec!["10.1.2.3/8".parse().unwrap()];
        config.ignored_outbound_subnets = vec!["fd00::/8".parse().unwrap()];
        config.ipv6 = false;
        config
    }

    #[test]
    fn what_is_written_is_read_again() {
        let config = full();
        let written = serde_json::to_value(&config).unwrap();
        let want = json!({
            "incoming-proxy-port": 4143,
            "outgoing-proxy-port": 4140,
            "proxy-uid": 2102,
            "proxy-gid": 4_294_967_294_u32,
            "ports-to-redirect": [80],
            "inbound-ports-to-ignore": [4190, "0-65535"],
            "outbound-ports-to-ignore": ["8000-8100"],
            "inbound-subnets-to-ignore": ["10.1.2.3/8"],
            "outbound-subnets-to-ignore": ["fd00::/8"],
            "ipv6": false,
        });
        assert_eq!(written, want);
        assert_eq!(read(written), Ok(config));
    }

    #[test]
    fn the_keys_are_the_flags() {
        let config = full();
        let value = serde_json::to_value(&config).unwrap();
        let mut keys: Vec<String> = value
            .as_object()
            .unwrap()
            .keys()
            .map(|key| format!("--{key}"))
            .collect();
        let arguments = arguments(&config, Choice::Default).into_iter();
        let mut flags: Vec<String> = arguments
            .filter(|argument| argument.starts_with("--"))
            .filter_map(|argument| argument.split('=').next().map(ToOwned::to_owned))
            .collect();
        keys.sort();
        flags.sort();
        assert_eq!(keys, flags);
    }

    #[test]
    fn ids_of_no_one_are_none() {
        for none in [json!(-1), json!(0), Value::Null] {
            let config = read(json!({"incoming-proxy-port": 4143, "outgoing-proxy-port": 4140, "proxy-uid": none}));
            assert_eq!(config, Ok(ports()));
        }
    }

    #[test]
    fn linkerd_inits_older_name_is_read_too() {
        let config = read(json!({
            "incoming-proxy-port": 4143, "outgoing-proxy-port": 4140, "subnets-to-ignore": ["10.0.0.0/8"],
        }));
        assert_eq!(config.unwrap().ignored_inbound_subnets, ["10.0.0.0/8".parse().unwrap()]);
    }

    #[test]
    fn what_the_flags_refuse_is_refused() {
        for (key, value, words) in [
            ("incoming-proxy-port", json!(0), "\"0\" is not a valid TCP port"),
            ("outgoing-proxy-port", json!(65536), "\"65536\" is not a valid TCP port"),
            ("outgoing-proxy-port", json!(-5), "\"-5\" is not a valid TCP port"),
            ("proxy-uid", json!(u32::MAX), "\"4294967295\" is not a valid id"),
            ("proxy-gid", json!(-2), "\"-2\" is not a valid id"),
            (
                "ports-to-redirect",
                json!(["80-81"]),
                "\"80-81\" is not a valid TCP port",
            ),
            ("inbound-ports-to-ignore", json!(["9-1"]), "upper-bound must be greater"),
            ("inbound-subnets-to-ignore", json!(["10.0.0.0/33"]), "not a valid CIDR"),
            ("outbound-subnets-to-ignore", json!([8]), "not a valid CIDR"),
            (
                "incoming-proxy-port",
                json!([4143]),
                "expected a number or text as the flag takes it",
            ),
            ("ipv6", json!("yes"), "boolean"),
            ("proxy-user", json!(7), "unknown field"),
        ] {
            let mut config = serde_json::to_value(ports()).unwrap();
            config[key] = value;
            let error = read(config).unwrap_err();
            assert!(error.contains(words), "{key}: {error}");
        }
    }

    #[test]
    fn a_mode_is_its_name() {
        for (text, mode) in [
            ("\"nft\"", Mode::Nft),
            ("\"legacy\"", Mode::Legacy),
            ("\"native\"", Mode::Native),
        ] {
            assert_eq!(serde_json::from_str::<Mode>(text).unwrap(), mode);
            assert_eq!(serde_json::to_string(&mode).unwrap(), text);
        }
        assert_eq!(serde_json::from_str::<Choice>("\"auto\"").unwrap(), Choice::Auto);
        assert!(serde_json::from_str::<Mode>("\"auto\"").is_err());
    }
}
