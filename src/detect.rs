//! Which backend fits this kernel and this network namespace: what `auto` mode decides.

use crate::backend::Backend;
use crate::backend::legacy;
use crate::backend::nft::Nft;
use crate::error::{Error, Mode};
use crate::ruleset::Ruleset;

/// The mode for these rulesets, and why. Starts no process and changes nothing; which binaries are installed doesn't
/// count.
///
/// # Errors
/// The kernel can't be asked, or refuses the rules for a reason that no other backend mends.
pub fn choose(rulesets: &[Ruleset]) -> Result<(Mode, String), Error> {
    let nft = match Nft.held() {
        Err(error) if error.is_lack() => Default::default(),
        held => held?,
    };
    let legacy = legacy::held()?;
    if nft.ours || legacy.ours {
        let mode = if nft.ours { Mode::Nft } else { Mode::Legacy };
        return Ok((mode, "it holds rules of ours already".to_owned()));
    }
    match (nft.rules, legacy.rules) {
        (1.., 0) => {
            return Ok((
                Mode::Nft,
                format!("nf_tables holds nat rules ({}), legacy tables none", nft.rules),
            ));
        }
        (0, 1..) => {
            return Ok((
                Mode::Legacy,
                format!("legacy tables hold nat rules ({}), nf_tables none", legacy.rules),
            ));
        }
        _ => {}
    }
    match Nft.check(rulesets) {
        Ok(()) if legacy::is_hidden() => Ok((
            Mode::Nft,
            "the kernel has all that it needs (whether legacy tables hold rules, only root can see)".to_owned(),
        )),
        Ok(()) => Ok((Mode::Nft, "the kernel has all that it needs".to_owned())),
        Err(error) if error.is_lack() => Ok((Mode::Legacy, format!("nft mode can't be used: {error}"))),
        Err(error) => Err(error),
    }
}
