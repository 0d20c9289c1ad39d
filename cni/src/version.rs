//! The versions of the CNI specification, and the form of results in each.

use std::net::IpAddr;

use derive_more::Display;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::members::Members;

/// A version of the CNI specification that the plugin knows. The names of these versions are in the order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Display)]
pub struct Version(&'static str);

impl Version {
    /// The first with lists of plugins.
    pub const V0_3_0: Self = Self("0.3.0");
    /// 0.4.0, which brought CHECK.
    pub const V0_4_0: Self = Self("0.4.0");
    /// 1.0.0, whose results tell an address without its family.
    pub const V1_0_0: Self = Self("1.0.0");
    /// 1.1.0, which brought GC and STATUS.
    pub const V1_1_0: Self = Self("1.1.0");

    /// Every version, in order.
    pub const ALL: [Self; 5] = [Self::V0_3_0, Self("0.3.1"), Self::V0_4_0, Self::V1_0_0, Self::V1_1_0];

    /// The version of this name, as `cniVersion` has it; none if the plugin doesn't know the version.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.0 == name)
    }
}

/// The `cniVersion` that standard input names, whatever else is wrong with it; none if it names none or isn't JSON.
pub fn asked(stdin: &[u8]) -> Option<String> {
    let value = serde_json::from_slice::<Value>(stdin).ok()?;
    value.get("cniVersion")?.as_str().map(str::to_owned)
}

/// The answer to VERSION. `stdin` says which version the runtime speaks; whatever it holds, there is an answer.
pub fn supported(stdin: &[u8]) -> String {
    json!({
        "cniVersion": asked(stdin).unwrap_or_else(|| Version::V1_1_0.to_string()),
        "supportedVersions": Version::ALL.map(|version| version.to_string()),
    })
    .to_string()
}

/// The result of ADD: that of the plugin before this one, unchanged; without one, an empty result.
///
/// # Errors
/// The previous result is not a JSON object.
pub fn result(version: Version, previous: Option<&RawValue>) -> Result<String, serde_json::Error> {
    let Some(previous) = previous else {
        return Ok(json!({"cniVersion": version.to_string()}).to_string());
    };
    let mut object: Members<'_> = serde_json::from_str(previous.get())?;
    let wanted = json!(version.to_string()).to_string();
    if object.get("cniVersion") == Some(&wanted) {
        return Ok(previous.get().to_owned());
    }
    // The runtime hands it over in the network's version. Where it does not, only two things differ between 0.3.0 and
    // 1.1.0 that an older or newer reader would miss: the version that the result names, and that of each address,
    // which results have up to 0.4.0 and no longer from 1.0.0 on. All else stays as it is written.
    object.set("cniVersion", wanted);
    if let Some(ips) = object.get("ips").and_then(|ips| addresses(version, ips)) {
        object.set("ips", ips);
    }
    Ok(object.text())
}

/// A result's list of addresses as this version has it; none if it is none.
fn addresses(version: Version, ips: &str) -> Option<String> {
    let ips: Vec<&RawValue> = serde_json::from_str(ips).ok()?;
    let ips = ips.iter().map(|ip| match serde_json::from_str::<Members<'_>>(ip.get()) {
        Ok(mut object) if version >= Version::V1_0_0 => {
            object.remove("version");
            object.text()
        }
        Ok(mut object) => {
            if let Some(family) = object.get("address").and_then(family) {
                object.set("version", json!(family).to_string());
            }
            object.text()
        }
        Err(_) => ip.get().to_owned(),
    });
    Some(format!("[{}]", ips.collect::<Vec<_>>().join(",")))
}

/// The IP version of a result's address, which is JSON: `"4"` or `"6"`.
fn family(address: &str) -> Option<&'static str> {
    let address: String = serde_json::from_str(address).ok()?;
    let address: IpAddr = address.split('/').next()?.parse().ok()?;
    Some(if address.is_ipv4() { "4" } else { "6" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn a_result_of_the_same_version_passes_byte_for_byte() {
        for version in Version::ALL {
            let text = format!(r#"{{ "zeta":1.50,  "cniVersion":"{version}", "big":18446744073709551616, "a":[] }}"#);
            assert_eq!(result(version, Some(&raw(&text))).unwrap(), text);
        }
    }

    #[test]
    fn a_result_of_another_version_keeps_its_other_bytes() {
        for (from, to, ips, new_ips) in [
            ("1.0.0", Version::V1_1_0, r#"[{"z":1.0,"address":"10.1.0.2/24"}]"#, None),
            ("0.3.1", Version::V0_4_0, r#"[{"version":"4","z":1e2,"address":"10.1.0.2/24"},7]"#, None),
            (
                "0.4.0",
                Version::V1_0_0,
                r#"[{"z":1.50,"version":"4","address":"10.1.0.2/24"}]"#,
                Some(r#"[{"z":1.50,"address":"10.1.0.2/24"}]"#),
            ),
            ("0.4.0", Version::V1_0_0, r#"{"not": ["a list"]}"#, None),
        ] {
            let text = |version: &str, ips: &str| {
                format!(
                    r#"{{"zeta":{{ "b":1.50, "a":100000000000000000000000 }},"cniVersion":"{version}","ips":{ips},"c":1e2}}"#
                )
            };
            let got = result(to, Some(&raw(&text(from, ips)))).unwrap();
            assert_eq!(got, text(&to.to_string(), new_ips.unwrap_or(ips)));
        }
    }

    #[test]
    fn without_a_result_before_it_is_empty_and_anything_else_is_an_error() {
        assert_eq!(result(Version::V1_1_0, None).unwrap(), r#"{"cniVersion":"1.1.0"}"#);
        // Without a version of its own, it has that of the configuration.
        assert_eq!(result(Version::named("0.3.1").unwrap(), Some(&raw("{}"))).unwrap(), r#"{"cniVersion":"0.3.1"}"#);
        for text in ["[]", "7", "\"x\"", "true"] {
            let error = result(Version::V1_1_0, Some(&raw(text))).unwrap_err().to_string();
            assert!(error.contains("expected an object"), "{error}");
        }
    }

    #[test]
    fn version_is_answered_whatever_comes() {
        for (stdin, want) in [
            (&br#"{"cniVersion":"0.4.0"}"#[..], "0.4.0"),
            (br#"{"cniVersion":"9.9.9"}"#, "9.9.9"),
            (br#"{"cniVersion":7}"#, "1.1.0"),
            (b"", "1.1.0"),
            (b"nonsense", "1.1.0"),
        ] {
            let answer: Value = serde_json::from_str(&supported(stdin)).unwrap();
            assert_eq!(answer["cniVersion"], want);
            assert_eq!(answer["supportedVersions"], json!(["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]));
        }
    }
}
