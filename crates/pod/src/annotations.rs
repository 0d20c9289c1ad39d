//! The annotations of a pod, or of its namespace, that change the pod's rules.
//!
//! Pods' creators choose the annotations: each value is checked as the flags of the init program are, and changes
//! nothing but the rules in that pod's own network namespace.

use std::collections::BTreeMap;

use proxy_init::{PartialConfig, SETTINGS, Setting};
use serde::Deserialize;

use crate::error::Error;

/// The annotation that the injector sets on each pod with a proxy.
pub(crate) const PROXY_VERSION: &str = "linkerd.io/proxy-version";

/// The annotations that change rules.
pub fn keys() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().flat_map(|setting| setting.annotations).copied()
}

/// The most that the values that change rules may have together, of a pod or of a namespace, in bytes. Real ones have
/// some hundred. Kubernetes allows 256 KiB (`TotalAnnotationSizeLimitB`), of which the rules fill 44 MiB of the
/// kernel's memory, and take the node's agent, which has 64 MiB, longer than a runtime waits.
const LONGEST: usize = 4 << 10;

/// The annotations of one object that count, whatever else it has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "BTreeMap<String, Option<String>>")]
pub struct Given {
    /// True if the injector has added a proxy.
    pub is_injected: bool,
    /// Those that change rules; none of them, if they are too long.
    values: BTreeMap<&'static str, String>,
    length: usize,
}

impl Given {
    /// The length of the values that change rules, as far as they are kept.
    pub fn kept(&self) -> usize {
        self.values.values().map(String::len).sum()
    }
}

impl From<BTreeMap<String, Option<String>>> for Given {
    fn from(annotations: BTreeMap<String, Option<String>>) -> Self {
        // Go's null is an empty string.
        annotations.into_iter().map(|(key, value)| (key, value.unwrap_or_default())).collect()
    }
}

impl FromIterator<(String, String)> for Given {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(annotations: I) -> Self {
        let mut given = Self::default();
        for (key, value) in annotations {
            given.is_injected |= key == PROXY_VERSION;
            let Some(key) = keys().find(|known| *known == key) else { continue };
            given.length += value.len();
            if given.length > LONGEST {
                given.values.clear();
            } else {
                given.values.insert(key, value);
            }
        }
        given
    }
}

/// Changes rules by the annotations of some objects, each with its name. Of an annotation that several of them have,
/// the first one counts; as in upstream's plugin, an empty value is none.
///
/// # Errors
/// [`Error::LongAnnotations`], or [`Error::Annotation`]: the first value that is invalid.
pub(crate) fn apply(objects: &[(Given, String)], rules: &mut PartialConfig) -> Result<(), Error> {
    if let Some((_, holder)) = objects.iter().find(|(given, _)| given.length > LONGEST) {
        return Err(Error::LongAnnotations { holder: holder.clone(), most: LONGEST });
    }
    for setting in SETTINGS {
        for &key in setting.annotations {
            let has_value =
                |(given, _): &&(Given, String)| given.values.get(key).is_some_and(|value| !value.is_empty());
            let Some((given, holder)) = objects.iter().find(has_value) else { continue };
            let value = given.values.get(key).map_or("", String::as_str);
            let read = if setting.adds { Setting::read } else { Setting::replace };
            read(setting, rules, value.trim()).map_err(|invalid| Error::Annotation {
                key,
                value: value.to_owned(),
                holder: holder.clone(),
                reason: invalid.to_string(),
            })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proxy_init::{Config, PortRange};

    use super::*;

    const SKIP_OUTBOUND_PORTS: &str = "config.linkerd.io/skip-outbound-ports";
    const SKIP_INBOUND_PORTS: &str = "config.linkerd.io/skip-inbound-ports";
    const SKIP_SUBNETS: &str = "config.linkerd.io/skip-subnets";
    const PROXY_UID: &str = "config.linkerd.io/proxy-uid";
    const PROXY_GID: &str = "config.linkerd.io/proxy-gid";
    const OUTBOUND_PORTS_TO_REDIRECT: &str = "proxy-init.io/outbound-ports-to-redirect";
    const OUTBOUND_SUBNETS_TO_REDIRECT: &str = "proxy-init.io/outbound-subnets-to-redirect";
    const SKIP_UID: &str = "proxy-init.io/skip-uid";
    const SKIP_GID: &str = "proxy-init.io/skip-gid";
    const INBOUND_INTERFACES_TO_IGNORE: &str = "proxy-init.io/inbound-interfaces-to-ignore";
    const OUTBOUND_INTERFACES_TO_IGNORE: &str = "proxy-init.io/outbound-interfaces-to-ignore";

    fn annotations(pairs: &[(&str, &str)]) -> Given {
        let pairs: BTreeMap<_, _> = pairs.iter().copied().collect();
        serde_json::from_value(serde_json::json!(pairs)).unwrap()
    }

    fn config() -> Config {
        let mut config = Config::new("4143".parse().unwrap(), "4140".parse().unwrap());
        config.proxy_uid = proxy_init::OwnerId::new(2102);
        config.ignored_inbound_ports = vec!["4190".parse().unwrap()];
        config.ignored_outbound_ports = vec!["25".parse().unwrap()];
        config.ignored_inbound_subnets = vec!["10.0.0.0/8".parse().unwrap()];
        config
    }

    /// The configuration's rules, changed by annotations.
    fn changed<const N: usize>(objects: [(Given, &str); N]) -> Result<Config, Error> {
        let mut rules = PartialConfig::from(config());
        apply(&objects.map(|(given, holder)| (given, holder.to_owned())), &mut rules)?;
        Ok(rules.finish().unwrap())
    }

    #[test]
    fn inbound_ports_are_added_and_all_else_is_replaced() {
        let pod = annotations(&[
            (SKIP_OUTBOUND_PORTS, "3306, 5000"),
            (SKIP_INBOUND_PORTS, "8000-8100,"),
            (SKIP_SUBNETS, " 192.0.2.0/24 , fd00::/8"),
            (PROXY_UID, "7"),
            (PROXY_GID, " 8 "),
            (SKIP_UID, "0, 1000-1999"),
            (SKIP_GID, "9"),
            (OUTBOUND_PORTS_TO_REDIRECT, "80, 8000-8100"),
            (OUTBOUND_SUBNETS_TO_REDIRECT, "10.0.0.0/8"),
            (INBOUND_INTERFACES_TO_IGNORE, "net1, net2"),
            (OUTBOUND_INTERFACES_TO_IGNORE, "tun0"),
            ("config.linkerd.io/inbound-port", "5143"),
            ("config.linkerd.io/outbound-port", "5140"),
            ("config.linkerd.io/control-port", "5190"),
            ("config.linkerd.io/admin-port", "5191"),
            ("proxy-init.io/ports-to-redirect", "80, 443"),
            ("proxy-init.io/outbound-subnets-to-ignore", "192.0.2.0/24"),
            ("proxy-init.io/ipv6", "false"),
            ("config.linkerd.io/proxy-cpu-limit", "not ours"),
        ]);
        let changed = changed([(pod, "pod a/b")]).unwrap();

        let mut want = config();
        want.ignored_outbound_ports = vec!["3306".parse().unwrap(), "5000".parse().unwrap()];
        want.ignored_inbound_ports
            .extend(["8000-8100", "5190", "5191"].map(|ports| ports.parse::<PortRange>().unwrap()));
        want.inbound_port = "5143".parse().unwrap();
        want.outbound_port = "5140".parse().unwrap();
        want.redirected_ports = vec!["80".parse().unwrap(), "443".parse().unwrap()];
        want.ignored_outbound_subnets = vec!["192.0.2.0/24".parse().unwrap()];
        want.ipv6 = false;
        want.ignored_inbound_subnets = vec!["192.0.2.0/24".parse().unwrap(), "fd00::/8".parse().unwrap()];
        want.proxy_uid = proxy_init::OwnerId::new(7);
        want.proxy_gid = proxy_init::OwnerId::new(8);
        want.ignored_uids = vec!["0".parse().unwrap(), "1000-1999".parse().unwrap()];
        want.ignored_gids = vec!["9".parse().unwrap()];
        want.redirected_outbound_ports = vec!["80".parse().unwrap(), "8000-8100".parse().unwrap()];
        want.redirected_outbound_subnets = vec!["10.0.0.0/8".parse().unwrap()];
        want.ignored_inbound_interfaces = vec!["net1".parse().unwrap(), "net2".parse().unwrap()];
        want.ignored_outbound_interfaces = vec!["tun0".parse().unwrap()];
        assert_eq!(changed, want);
    }

    #[test]
    fn the_namespaces_count_where_the_pod_has_none() {
        let pod = annotations(&[(PROXY_UID, "7"), (PROXY_GID, "")]);
        let namespace = annotations(&[(PROXY_UID, "x"), (PROXY_GID, "9")]);
        let changed = changed([(pod, "pod a/b"), (namespace, "namespace a")]).unwrap();
        assert_eq!(changed.proxy_uid, proxy_init::OwnerId::new(7));
        assert_eq!(changed.proxy_gid, proxy_init::OwnerId::new(9));
    }

    /// The annotations of a pod and of its namespace, each for themselves.
    #[test]
    fn annotations_that_are_too_long_are_an_error_and_not_kept() {
        let of_length = |length: usize| {
            let (first, second) = ("25", "7,".repeat(length / 2 - 1));
            let pairs =
                [(SKIP_OUTBOUND_PORTS, first), (SKIP_UID, &second), ("example.com/other", &"x".repeat(LONGEST))];
            let from_api_server = annotations(&pairs);
            let from_runtime: Given =
                pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect();
            assert_eq!(from_api_server, from_runtime);
            from_runtime
        };
        let apply = |[pod, namespace]: [Given; 2]| changed([(pod, "pod shop/web"), (namespace, "namespace shop")]);
        let (longest, too_long) = (of_length(LONGEST), of_length(LONGEST + 2));
        assert_eq!((longest.kept(), too_long.kept()), (LONGEST, 0));
        assert!(apply([longest.clone(), longest.clone()]).is_ok());
        let error = apply([longest, too_long]).unwrap_err();
        assert!(error.to_string().contains("namespace shop that change rules have more than 4096 bytes"), "{error}");
    }

    #[test]
    fn a_bad_value_names_the_annotation_its_holder_and_itself() {
        for (key, value, words) in [
            (SKIP_OUTBOUND_PORTS, "3306,http", "\"http\""),
            (SKIP_OUTBOUND_PORTS, "9-1", "upper-bound"),
            (SKIP_INBOUND_PORTS, "80 443", "80 443"),
            (SKIP_INBOUND_PORTS, "65536", "65536"),
            (SKIP_SUBNETS, "10.0.0.0/33", "CIDR"),
            (SKIP_SUBNETS, "::ffff:10.0.0.0/104", "10.0.0.0/8"),
            (PROXY_UID, "root", "root"),
            (PROXY_UID, "4294967295", "4294967295"),
            (PROXY_GID, "-x", "-x"),
            (SKIP_UID, "0,root", "root"),
            (SKIP_GID, "9-1", "9-1"),
            (OUTBOUND_PORTS_TO_REDIRECT, "80,x", "\"x\""),
            (OUTBOUND_SUBNETS_TO_REDIRECT, "10.0.0.0", "CIDR"),
            (OUTBOUND_PORTS_TO_REDIRECT, " ,", "names nothing"),
            (OUTBOUND_SUBNETS_TO_REDIRECT, ",", "names nothing"),
            (INBOUND_INTERFACES_TO_IGNORE, "net1,net+", "\"net+\""),
            (OUTBOUND_INTERFACES_TO_IGNORE, "a/b", "\"a/b\""),
            ("config.linkerd.io/inbound-port", "0", "\"0\""),
            ("config.linkerd.io/admin-port", "x", "\"x\""),
            ("proxy-init.io/outbound-subnets-to-ignore", "10.0.0.0/33", "CIDR"),
            ("proxy-init.io/ipv6", "no", "true or false"),
        ] {
            let error = changed([(annotations(&[(key, value)]), "namespace shop")]).unwrap_err();
            let text = error.to_string();
            for words in [key, &format!("{value:?}"), "namespace shop", words] {
                assert!(text.contains(words), "{text}");
            }
        }
    }

    #[test]
    fn a_long_value_and_a_hostile_one_stay_short_and_on_their_line() {
        let value = format!("\u{1b}[31m\n{}", "é".repeat(2_000));
        let text = changed([(annotations(&[(SKIP_SUBNETS, &value)]), "pod a/b")]).unwrap_err().to_string();
        assert!(!text.contains('\u{1b}') && !text.contains('\n'), "{text:.300}");
    }

    #[test]
    fn what_does_not_count_is_not_kept() {
        let given: Given = serde_json::from_str(
            r#"{"a": "b", "linkerd.io/proxy-version": "x", "config.linkerd.io/proxy-uid": null,
                "config.linkerd.io/proxy-gid": "9"}"#,
        )
        .unwrap();
        assert!(given.is_injected);
        assert_eq!(given.values, BTreeMap::from([(PROXY_UID, String::new()), (PROXY_GID, "9".to_owned())]));
        for wrong in ["[]", "7", r#"{"a": {"b": [1]}}"#, r#"{"config.linkerd.io/proxy-uid": 7}"#] {
            serde_json::from_str::<Given>(wrong).unwrap_err();
        }
        let pairs = [("a", "b"), (PROXY_VERSION, "x"), (PROXY_UID, ""), (PROXY_GID, "9")];
        let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(pairs.into_iter().collect::<Given>(), given);
    }

    #[test]
    fn ids_of_no_one_are_none() {
        for none in ["0", "-1", "-2", " -99999999999999999999 "] {
            let changed = changed([(annotations(&[(PROXY_UID, none)]), "pod a/b")]).unwrap();
            assert_eq!(changed.proxy_uid, None);
        }
    }
}
