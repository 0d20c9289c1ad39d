//! The versions of the CNI specification.

use derive_more::Display;

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
