//! A program's SBOM, in CycloneDX.

use std::path::Path;

use lab::shell::Result;
use serde_json::{Value, json};

use super::sum;
use crate::commit::Commit;
use crate::licences::{Component, OF_A_PROGRAM};
use crate::rust::Rust;

/// The SBOM of a program's file, of which these are the parts. Its time is the commit's.
pub(super) fn of(program: &str, components: &[Component], commit: &Commit, file: &Path) -> Result<String> {
    let version = env!("CARGO_PKG_VERSION");
    let reference = format!("pkg:generic/{program}@{version}");
    let parts = components.iter().filter(|component| component.purl != reference);
    let references: Vec<&str> = parts.clone().map(|component| component.purl.as_str()).collect();
    let parts: Vec<Value> = parts
        .map(|Component { name, version, licence, purl, .. }| {
            json!({
                "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
                "description": "linked statically", "scope": "required", "licenses": [{"expression": licence}],
            })
        })
        .collect();
    let sbom = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": commit.time,
            "tools": [{"vendor": "Rust", "name": "rustc", "version": Rust::get()?.version()?}],
            "component": {
                "type": "application", "bom-ref": reference, "name": program, "version": version, "purl": reference,
                "hashes": [{"alg": "SHA-256", "content": sum(file)?}],
                "licenses": [{"expression": OF_A_PROGRAM}],
            },
        },
        "components": parts,
        "dependencies": [{"ref": reference, "dependsOn": references}],
    });
    Ok(format!("{sbom:#}\n"))
}
